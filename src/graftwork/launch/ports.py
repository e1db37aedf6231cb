"""Blocks of free TCP ports, held until they are handed to the process that will bind them.

Standard library only, Python 3.8 and later: the file is shipped to the nodes of a job as it is.

A block lies below the range from which the kernel takes outgoing ports (``ip_local_port_range``) and outside the
NodePort window of Kubernetes. Two locks keep it: the bound sockets themselves, against everybody, until
`Block.hand_over`; and one abstract Unix socket a port, against other users of this module, until `Block.release` or the
end of the process. Both belong to the network namespace, as the ports do.
"""

from __future__ import annotations

import errno
import os
import random
import re
import socket

NODEPORTS = range(30000, 32768)
NODEPORT_VARIABLE = "GRAFTWORK_NODEPORTS"
TRIES = 64

# Defaults of engines, stores and routers: a block never takes what a forgotten flag would use.
DEFAULTS = frozenset({5557, 5600, 8000, 8080, 8801, 8998, 9003, 29500, 50051, 50052})
_PROC = "/proc/sys/net/ipv4"
_TAKEN = (errno.EADDRINUSE, errno.EACCES)


class NoFreePorts(OSError):
    """There is no free block of the size that was asked for; the text names the window."""


class Block:
    """*count* consecutive ports from ``base`` on, held on *host*. A context manager that releases it."""

    def __init__(self, base: int, held: list[socket.socket], locks: list[socket.socket]) -> None:
        self.base = base
        self.ports = range(base, base + len(locks))
        self._held, self._locks = held, locks

    def hand_over(self) -> range:
        """Let go of the ports so that a child can bind them. The locks stay, against other users of this module."""
        _close(self._held)
        return self.ports

    def release(self) -> None:
        """Let go of everything; another block may take the ports at once."""
        _close(self._held)
        _close(self._locks)

    def __enter__(self) -> Block:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def free_block(count: int, host: str = "0.0.0.0", window: range | None = None) -> Block:
    """*count* consecutive free ports, probed by binding *host*, the address that the child will bind.

    Random starts first, so that legs that start at once rarely meet; then every start, downward. *window* is the range
    to take them from (default `default_window`). NoFreePorts if there is none; ValueError if *count* is below 1.
    """
    if count < 1:
        raise ValueError(f"a block has at least one port, not {count}")
    within = default_window() if window is None else window
    barred = _barred()
    starts = range(within.start, within.stop - count + 1)
    chosen = random.SystemRandom()
    tries = [chosen.randrange(starts.start, starts.stop) for _ in range(TRIES)] if starts else []
    for base in [*tries, *reversed(starts)]:
        block = None if barred.intersection(range(base, base + count)) else _take(base, count, host)
        if block is not None:
            return block
    raise NoFreePorts(
        f"no {count} consecutive free ports on {host} in {_shown(within)}: the window lies below net.ipv4."
        f"ip_local_port_range and outside {NODEPORT_VARIABLE} ({_shown(nodeports()) or 'off'}); widen one of them or "
        "stop what listens there"
    )


def chosen_block(base: int, count: int) -> Block:
    """The *count* ports from *base* on, which somebody has chosen: kept from other users of this module, not bound.

    Whether they are free shows when the child binds them: with SO_REUSEADDR it may, where a probe could not yet.
    """
    locks: list[socket.socket] = []
    for port in range(base, base + count):
        if not _bound(socket.AF_UNIX, f"\0graftwork-port-{port}", locks):
            _close(locks)
            raise NoFreePorts(f"port {port} was chosen, but another deployment on this host holds it")
    return Block(base, [], locks)


def default_window() -> range:
    """The ports from 1024 to the first that the kernel gives to outgoing connections (32768 if it does not say)."""
    words = _proc_words("ip_local_port_range")
    return range(1024, int(words[0]) if words else 32768)


def nodeports(text: str | None = None) -> range:
    """Kubernetes' NodePort window: *text* or GRAFTWORK_NODEPORTS, ``lo-hi``; ``none`` or ``off``: there is none.

    Empty or malformed text keeps the default, 30000-32767: a mistyped variable must not open the window.
    """
    said = (os.environ.get(NODEPORT_VARIABLE, "") if text is None else text).strip().lower()
    if said in ("none", "off"):
        return range(0)
    found = re.match(r"(\d+)-(\d+)\Z", said)
    low, high = (int(found.group(1)), int(found.group(2))) if found else (0, 0)
    return range(low, high + 1) if 0 < low <= high < 65536 else NODEPORTS


def _barred() -> frozenset[int]:
    """Ports of the NodePort window, of well-known defaults, and those that the host's administrator reserved."""
    reserved = set(DEFAULTS)
    for part in ",".join(_proc_words("ip_local_reserved_ports")).split(","):
        low, _, high = part.partition("-")
        if low:
            reserved.update(range(int(low), int(high or low) + 1))
    return frozenset(reserved.union(nodeports()))


def _take(base: int, count: int, host: str) -> Block | None:
    """The block at *base*, locked and bound, or None if any of its ports is taken."""
    held: list[socket.socket] = []
    locks: list[socket.socket] = []
    family, address = _family(host)
    for port in range(base, base + count):
        if not _bound(socket.AF_UNIX, f"\0graftwork-port-{port}", locks) or not _bound(family, (address, port), held):
            _close(held)
            _close(locks)
            return None
    return Block(base, held, locks)


def _bound(family: int, address: object, into: list[socket.socket]) -> bool:
    """Bind without SO_REUSEADDR, so that nobody else can bind it too; False if the address is taken."""
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        sock.bind(address)  # type: ignore[arg-type]
    except OSError as error:
        sock.close()
        if error.errno in _TAKEN:
            return False
        raise
    into.append(sock)
    return True


def _family(host: str) -> tuple[int, str]:
    """The address family of *host* and its first address. OSError if the name does not resolve."""
    family, _, _, _, address = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0]
    return family, str(address[0])


def _proc_words(name: str) -> list[str]:
    try:
        with open(f"{_PROC}/{name}", encoding="ascii") as file:  # noqa: PTH123  (one file that ships alone)
            return file.read().split()
    except FileNotFoundError:
        return []


def _shown(ports: range) -> str:
    return f"{ports.start}-{ports.stop - 1}" if ports else ""


def _close(sockets: list[socket.socket]) -> None:
    while sockets:
        sockets.pop().close()
