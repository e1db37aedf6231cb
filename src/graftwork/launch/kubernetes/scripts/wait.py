"""Wait until components serve: ``python wait.py SECONDS PLACE...``; exits 1 and names those that never did.

A place is HOST:PORT or unix:PATH, on which something must accept, or http://HOST:PORT/PATH, which must answer 200.
"""

from __future__ import annotations

import http.client
import socket
import sys
import time


def main(arguments: list[str]) -> int:
    """Ask each place once a second until all serve or the time is over; with 0 seconds, ask once."""
    bound, wanted = float(arguments[0]), arguments[1:]
    deadline = time.monotonic() + bound
    while wanted:
        wanted = [place for place in wanted if not serves(place)]
        if wanted and time.monotonic() >= deadline:
            sys.stderr.write(f"not serving after {bound:.0f} s: {', '.join(wanted)}\n")
            return 1
        if wanted:
            time.sleep(1)
    return 0


def serves(place: str) -> bool:
    """Whether it does now; a name that does not resolve yet is not there yet."""
    try:
        if place.startswith("unix:"):
            with socket.socket(socket.AF_UNIX) as probe:
                probe.settimeout(2)
                probe.connect(place[len("unix:") :])
            return True
        if not place.startswith("http://"):
            socket.create_connection(_address(place), timeout=2).close()
            return True
        where, slash, path = place[len("http://") :].partition("/")
        connection = http.client.HTTPConnection(*_address(where), timeout=5)
        try:
            connection.request("GET", slash + path)
            return connection.getresponse().status == 200
        finally:
            connection.close()
    except (OSError, http.client.HTTPException):
        return False


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host.strip("[]"), int(port)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
