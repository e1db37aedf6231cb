"""Whether a port or a socket is listened on, read from /proc: a connect probe of a port can meet itself."""

from __future__ import annotations

import http.client
import socket
import struct
import sys
from pathlib import Path

_LISTEN = "0A"
_ACCEPTS = 1 << 16  # __SO_ACCEPTCON of linux/net.h
_ANY = {"0.0.0.0": "127.0.0.1", "::": "::1"}


def listener(pid: int, port: int) -> str | None:
    """The address at which *port* is listened on in the network namespace of *pid*, or None (proc(5), net/tcp).

    Where a socket listens on every address, loopback stands for it.
    """
    for name in ("tcp", "tcp6"):
        try:
            lines = Path("/proc", str(pid), "net", name).read_text("ascii").splitlines()[1:]
        except OSError:  # no such family, or the process has ended
            continue
        for words in map(str.split, lines):
            address, _, number = words[1].partition(":")
            if words[3] == _LISTEN and int(number, 16) == port:
                return _address(address)
    return None


def unix_listener(pid: int, path: str) -> bool:
    """Whether a Unix socket of this *path* is listened on in the network namespace of *pid* (proc(5), net/unix)."""
    try:
        lines = Path("/proc", str(pid), "net", "unix").read_text("utf-8", "replace").splitlines()[1:]
    except OSError:  # the process has ended
        return False
    rows = (line.split(None, 7) for line in lines)
    return any(len(row) == 8 and row[7] == path and int(row[3], 16) & _ACCEPTS for row in rows)


def answers(address: str, port: int, path: str, timeout_s: float = 5) -> bool:
    """Whether an HTTP GET of *path* is answered by 200."""
    connection = http.client.HTTPConnection(address, port, timeout=timeout_s)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _address(digits: str) -> str:
    """``0100007F`` as 127.0.0.1: words of 32 bits in the order of the host."""
    words = [int(digits[at : at + 8], 16) for at in range(0, len(digits), 8)]
    order = "<" if sys.byteorder == "little" else ">"
    packed = b"".join(struct.pack(order + "I", word) for word in words)
    address = socket.inet_ntop(socket.AF_INET if len(packed) == 4 else socket.AF_INET6, packed)
    return _ANY.get(address, address)
