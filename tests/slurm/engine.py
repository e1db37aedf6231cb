"""A stand-in for an engine: listens, counts each SIGTERM, drains for a while, and writes each step to its log.

    engine.py [--port P] [--drain S] [--until FILE] [--rc N] [--deaf] [--orphan] [--worker]

With ``--until`` it ends by itself with exit code N as soon as FILE is there. ``--deaf`` ignores SIGTERM. ``--orphan``
leaves a child in a session of its own, with another parent. ``--worker`` starts a child that drains as it does.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
import time
from pathlib import Path


def say(text: str) -> None:
    # Formatted as one write: the logs of several processes of one component are one file.
    os.write(1, f"{time.time_ns()} {os.getpid()} {text}\n".encode())


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--drain", type=float, default=0.0)
    parser.add_argument("--until", type=Path)
    parser.add_argument("--rc", type=int, default=0)
    for flag in ("--deaf", "--orphan", "--worker"):
        parser.add_argument(flag, action="store_true")
    given = parser.parse_args()

    terms: list[int] = []

    def term(*_: object) -> None:
        terms.append(1)
        say("TERM")

    signal.signal(signal.SIGTERM, signal.SIG_IGN if given.deaf else term)
    if given.orphan and os.fork() == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        say("orphan")
        while True:
            time.sleep(3600)
    worker = os.fork() if given.worker else -1
    role = "worker " if worker == 0 else ""
    if given.port and worker != 0:
        server = socket.socket()
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("0.0.0.0", given.port))
        server.listen()
    say(f"{role}up")
    while not terms:
        if given.until and given.until.exists():
            say("ends by itself")
            return given.rc
        time.sleep(0.05)
    end = time.monotonic() + given.drain
    while time.monotonic() < end:
        time.sleep(0.05)
    if worker > 0:
        os.kill(worker, signal.SIGTERM)
        os.waitpid(worker, 0)
    say(f"{role}unpinned after {len(terms)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
