"""The network devices of a node as UCX names them, read from sysfs (``/sys/class/infiniband``).

Shipped with a job as it is: standard library only, Python 3.8 and newer.
"""

from __future__ import annotations

from pathlib import Path

SYSFS = Path("/sys/class/infiniband")
ALL = "all"


def net_devices(root: Path = SYSFS) -> str:
    """A value for UCX_NET_DEVICES: ``dev:port,...`` of the active InfiniBand ports, else of RoCE, else ``all``.

    Without it every rank may take the same device. *root* holds one folder a device.
    """
    active = _active(root)
    for layer in ("InfiniBand", "Ethernet"):
        chosen = [name for kind, name in active if kind == layer]
        if chosen:
            return ",".join(chosen)
    return ALL


def _active(root: Path) -> list[tuple[str, str]]:
    """The link layer and the name of each active port, in the order of names and numbers."""
    ports = [(path.parent.parent.name, path.name, path) for path in root.glob("*/ports/*") if path.name.isdecimal()]
    found = []
    for device, number, path in sorted(ports, key=lambda port: (_natural(port[0]), int(port[1]))):
        try:
            state = (path / "state").read_text("ascii").partition(":")[2].strip()
            layer = (path / "link_layer").read_text("ascii").strip()
        except OSError:  # a port that is being taken away, or a driver that does not say
            continue
        if state == "ACTIVE":
            found.append((layer, f"{device}:{number}"))
    return found


def _natural(name: str) -> tuple[str, int]:
    """``mlx5_10`` after ``mlx5_9``."""
    head = name.rstrip("0123456789")
    return head, int(name[len(head) :] or 0)
