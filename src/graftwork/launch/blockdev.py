"""The physical devices behind a path: its mount, then sysfs, through bind mounts, overlays, loop devices, LVM and RAID.

Nothing is asked of other programs: the mount is that of an open descriptor (``mnt_id`` in ``/proc/self/fdinfo``), so a
bind mount or a device whose name has a bracket cannot be misread; device numbers lead into ``/sys/dev/block``, which a
container has too where ``/dev`` is bare. Source: filesystems/proc.rst and ABI/stable/sysfs-block of Linux.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

# Tiers, best first; the worst device behind a path decides.
TIERS = ("nvme", "sas-ssd", "sata-ssd", "hdd", "usb", "loop", "san", "network", "memory", "unknown")
_DEPTH = 16
_MEMORY = {"tmpfs", "ramfs", "hugetlbfs", "devtmpfs"}
_NETWORK = {"nfs", "nfs4", "cifs", "smb3", "ceph", "lustre", "gpfs", "beegfs", "9p", "virtiofs", "afs", "glusterfs"}
_ESCAPED = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True)
class Device:
    """One device, or the file system where there is no device to name. ``tier`` is one of `TIERS`."""

    name: str
    tier: str
    detail: str = ""

    @property
    def rank(self) -> int:
        return TIERS.index(self.tier)


@dataclass(frozen=True)
class Mount:
    """A line of mountinfo: ``device`` as ``major:minor``, the rest as it says."""

    device: str
    point: str
    fstype: str
    source: str
    options: dict[str, str]


@dataclass(frozen=True)
class Host:
    """Where the kernel's files are; tests name others."""

    sys: Path = Path("/sys")
    proc: Path = Path("/proc")

    def devices(self, path: Path, depth: int = 0) -> list[Device]:
        """Every physical device behind *path*, which exists. OSError where the path or its mount cannot be read."""
        mount = self.mount(path)
        kind = mount.fstype
        if depth > _DEPTH:
            return [Device(mount.source, "unknown", "its devices stand on each other in a circle")]
        if kind in _MEMORY:
            return [Device(kind, "memory", f"mounted at {mount.point}")]
        if kind in _NETWORK or kind.startswith("fuse"):
            return [Device(mount.source, "network", f"{kind}, mounted at {mount.point}")]
        if kind == "overlay":
            return self._overlay(mount, depth)
        nodes = self._nodes(mount)
        if not nodes:
            return [Device(mount.source, "unknown", f"{kind}: sysfs has no device {mount.device}")]
        return [device for node in nodes for device in self._below(node, depth)]

    def mount(self, path: Path) -> Mount:
        """The mount that *path* is on."""
        handle = os.open(path, os.O_PATH)
        try:
            info = (self.proc / f"self/fdinfo/{handle}").read_text()
        finally:
            os.close(handle)
        found = re.search(r"^mnt_id:\s*(\d+)$", info, re.MULTILINE)
        lines = (self.proc / "self/mountinfo").read_text().splitlines()
        for line in lines:
            if found and line.split(" ", 1)[0] == found[1]:
                return parse_mount(line)
        raise OSError(f"{path}: mountinfo does not list its mount")

    def _overlay(self, mount: Mount, depth: int) -> list[Device]:
        """What is written into an overlay lands in its upper folder; a container usually cannot see that one."""
        upper = Path(mount.options.get("upperdir", ""))
        if not upper.is_absolute() or not upper.exists():
            return [Device("overlay", "unknown", "its upper folder cannot be seen from here")]
        return self.devices(upper, depth + 1)

    def _nodes(self, mount: Mount) -> list[Path]:
        """The sysfs folders of the mount's own block devices; several for a btrfs of several devices."""
        named = self.sys / "class/block" / Path(mount.source).name
        if mount.fstype == "btrfs" and named.exists():
            for pool in (self.sys / "fs/btrfs").glob("*/devices"):
                members = sorted(pool.iterdir())
                if named.name in [member.name for member in members]:
                    return [(self.sys / "class/block" / member.name).resolve() for member in members]
        for node in (self.sys / "dev/block" / mount.device, named if mount.source.startswith("/dev/") else None):
            if node is not None and node.exists():
                return [node.resolve()]
        return []

    def _below(self, node: Path, depth: int) -> Iterator[Device]:
        """The leaves below one block device: its partition's disk, its slaves, its backing file."""
        if depth > _DEPTH:
            yield Device(node.name, "unknown", "its devices stand on each other in a circle")
            return
        if (node / "partition").exists():
            node = node.parent
        slaves = sorted((node / "slaves").iterdir()) if (node / "slaves").is_dir() else []
        for slave in slaves:
            yield from self._below(slave.resolve(), depth + 1)
        if not slaves:
            yield self._leaf(node)
        backing = _word(node / "loop/backing_file")
        if backing:
            with suppress(OSError):  # the loop device is reported in any case; its file may be out of sight
                yield from self.devices(Path(backing), depth + 1)

    def _leaf(self, node: Path) -> Device:
        spins = _word(node / "queue/rotational") == "1"
        way = _transport(node)
        if node.name.startswith("loop"):
            return Device(node.name, "loop", f"of {_word(node / 'loop/backing_file') or 'a file that cannot be seen'}")
        if way == "pcie":
            return Device(node.name, "nvme", "NVMe")
        if way in ("tcp", "rdma", "fc", "iscsi"):
            return Device(node.name, "san", way)
        if way == "usb":
            return Device(node.name, "usb", "USB")
        if way in ("sas", "sata"):
            return Device(node.name, "hdd" if spins else f"{way}-ssd", way.upper())
        return Device(node.name, "unknown", "its transport cannot be told")


def parse_mount(line: str) -> Mount:
    """A line of ``/proc/self/mountinfo`` (proc(5)): fields, a dash after any number of optional ones, three more."""
    fields, _, rest = line.partition(" - ")
    words = fields.split(" ")
    fstype, source, options = [*rest.split(" ", 2), "", ""][:3]
    pairs = (option.partition("=") for option in options.split(","))
    return Mount(words[2], _plain(words[4]), fstype, _plain(source), {key: _plain(value) for key, _, value in pairs})


def _transport(node: Path) -> str:
    """How a disk hangs on the machine, from its own place in sysfs, never from what else the host has."""
    if node.name.startswith("nvme"):
        ways = [_word(file) for file in (node / "device/transport", *(node / "device").glob("nvme*/transport"))]
        ways = [way for way in ways if way]
        return next((way for way in ways if way != "pcie"), ways[0] if ways else "")
    place = f"{node}/"
    for part, way in (("/usb", "usb"), ("/rport-", "fc"), ("/session", "iscsi"), ("/ata", "sata")):
        if part in place:
            return way
    if "/end_device-" in place:
        return "sata" if _word(node / "device/vendor") == "ATA" else "sas"
    return ""


def _word(file: Path) -> str:
    """The stripped text of a kernel file; empty where it is not there or cannot be read."""
    try:
        return file.read_text(errors="replace").strip()
    except OSError:
        return ""


def _plain(text: str) -> str:
    """Undo the octal escapes of blanks and back-slashes in mountinfo."""
    return _ESCAPED.sub(lambda found: chr(int(found[1], 8)), text)
