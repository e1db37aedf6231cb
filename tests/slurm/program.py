"""Stands in for any component of a recipe: serves as its readiness wants it, and ends on SIGTERM.

program.py KIND ENDPOINT ARGUMENT...: KIND is http, tcp, unix or none; ENDPOINT a port or a socket's path.
"""

from __future__ import annotations

import http.server
import os
import signal
import socket
import sys
import threading
from pathlib import Path


class Well(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def serve(kind: str, endpoint: str) -> socket.socket | None:
    """Serve; a socket that is returned must be kept."""
    if kind == "unix":
        sock = socket.socket(socket.AF_UNIX)
        sock.bind(endpoint)
        sock.listen()
        return sock
    if kind in ("http", "tcp"):
        server = http.server.ThreadingHTTPServer(("0.0.0.0", int(endpoint)), Well)
        threading.Thread(target=server.serve_forever, daemon=True).start()
    return None


def main() -> None:
    kind, endpoint, *arguments = sys.argv[1:]
    # Blocked before the thread starts, so that the signal is for sigwait alone.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    kept = serve(kind, endpoint)
    print("argv", *arguments, flush=True)
    print("env", *(f"{name}={value}" for name, value in sorted(os.environ.items())), flush=True)
    signal.sigwait([signal.SIGTERM])
    print("TERM", flush=True)
    if kept is not None:
        kept.close()
        Path(endpoint).unlink()


main()
