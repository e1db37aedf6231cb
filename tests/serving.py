"""An HTTP server of this process on a port of its own, for tests that say themselves what is answered."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Serving(ThreadingHTTPServer):
    """Gives every GET and POST to *answer*, until it is closed; ``origin`` is its URL."""

    daemon_threads = True

    def __init__(self, answer: Callable[[BaseHTTPRequestHandler], None], protocol: str = "HTTP/1.0") -> None:
        class Handler(BaseHTTPRequestHandler):
            protocol_version = protocol

            def do_GET(self) -> None:
                answer(self)

            do_POST = do_GET

            def log_message(self, *args: object) -> None:
                return

        super().__init__(("127.0.0.1", 0), Handler)
        self.origin = f"http://127.0.0.1:{self.server_port}"
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that hangs up in the middle of a body is part of the tests."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]

    def close(self) -> None:
        self.shutdown()
        self.server_close()
