"""A door in front of a registry that counts the bytes going through."""

from __future__ import annotations

import fcntl
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

_PIECE = 1 << 20  # bytes, the most that an unprivileged pipe may hold (pipe(7))


@dataclass
class Counter:
    """A door in front of a registry at ``host``: *received* bytes came from the registry, *sent* went to it."""

    host: str
    received: int = 0
    sent: int = 0
    connections: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def add(self, name: str, count: int) -> None:
        with self.lock:
            setattr(self, name, getattr(self, name) + count)


@contextmanager
def counting(upstream: str) -> Iterator[Counter]:
    """Count all bytes between clients and *upstream* (address:port); they pass in the kernel by splice(2)."""
    with socket.create_server(("127.0.0.1", 0), backlog=128) as door:
        counter = Counter(f"127.0.0.1:{door.getsockname()[1]}")
        address, _, port = upstream.partition(":")
        opened: list[socket.socket] = []
        thread = threading.Thread(target=_serve, args=(door, (address, int(port)), counter, opened), daemon=True)
        thread.start()
        try:
            yield counter
        finally:
            door.shutdown(socket.SHUT_RDWR)
            thread.join()
            for stream in opened:
                _cut(stream)


def _serve(door: socket.socket, upstream: tuple[str, int], counter: Counter, opened: list[socket.socket]) -> None:
    while True:
        try:
            client, _ = door.accept()
        except OSError:  # the door was shut
            return
        server = socket.create_connection(upstream)
        opened += [client, server]
        # Else a request or an answer in two pieces waits here for 40 ms, until the first one is acknowledged.
        for stream in (client, server):
            stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        counter.add("connections", 1)
        for source, sink, name in ((client, server, "sent"), (server, client, "received")):
            threading.Thread(target=_pass, args=(source, sink, name, counter), daemon=True).start()


def _pass(source: socket.socket, sink: socket.socket, name: str, counter: Counter) -> None:
    """Move what *source* sends to *sink* until it ends."""
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, _PIECE)
    try:
        while count := os.splice(source.fileno(), writer, _PIECE):
            counter.add(name, count)
            while count:
                count -= os.splice(reader, sink.fileno(), count)
        sink.shutdown(socket.SHUT_WR)
    except OSError:  # either side has gone: end the other one too
        _cut(source)
        _cut(sink)
    finally:
        os.close(reader)
        os.close(writer)


def _cut(stream: socket.socket) -> None:
    with suppress(OSError):
        stream.shutdown(socket.SHUT_RDWR)
