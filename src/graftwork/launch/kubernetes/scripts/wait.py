"""Wait until other pods listen: ``python wait.py SECONDS HOST:PORT...``; exits 1 and names those that never did."""

from __future__ import annotations

import socket
import sys
import time


def main(arguments: list[str]) -> int:
    """Ask each place once a second until all accept or the time is over."""
    bound, wanted = float(arguments[0]), arguments[1:]
    deadline = time.monotonic() + bound
    while wanted:
        wanted = [place for place in wanted if not listens(place)]
        if wanted and time.monotonic() > deadline:
            sys.stderr.write(f"not listening after {bound:.0f} s: {', '.join(wanted)}\n")
            return 1
        if wanted:
            time.sleep(1)
    return 0


def listens(place: str) -> bool:
    """Whether something accepts at HOST:PORT; a name that does not resolve yet is not there yet."""
    host, _, port = place.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=2).close()
    except OSError:
        return False
    return True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
