"""The device behind a path, on a made sysfs and on real loop devices, bind mounts and overlays; and the verdict."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from graftwork.cli.probe import command
from graftwork.launch import storage
from graftwork.launch.blockdev import Device, Host, parse_mount
from graftwork.launch.storage import OVERRIDE, probe, try_direct


@pytest.fixture(autouse=True)
def no_override(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(OVERRIDE, raising=False)


class Machine:
    """A sysfs in which the file system of *path* is on whatever disk a test says."""

    def __init__(self, root: Path, path: Path) -> None:
        self.sys, self.path = root, path
        stat = path.stat().st_dev
        self.number = f"{os.major(stat)}:{os.minor(stat)}"
        for name in ("dev/block", "class/block"):
            (root / name).mkdir(parents=True)

    def disk(self, place: str, *, spins: bool = False, vendor: str = "", transport: str = "") -> Path:
        node = self.sys / "devices" / place
        (node / "queue").mkdir(parents=True)
        (node / "device").mkdir()
        (node / "queue/rotational").write_text(f"{int(spins)}\n")
        if vendor:
            (node / "device/vendor").write_text(f"{vendor}     \n")
        if transport:
            (node / "device/transport").write_text(f"{transport}\n")
        (self.sys / "class/block" / node.name).symlink_to(node)
        return node

    def partition(self, node: Path, name: str) -> Path:
        part = node / name
        part.mkdir()
        (part / "partition").write_text("1\n")
        return part

    def mapped(self, name: str, *below: Path) -> Path:
        node = self.sys / "devices/virtual/block" / name
        (node / "slaves").mkdir(parents=True)
        for slave in below:
            (node / "slaves" / slave.name).symlink_to(slave)
        return node

    def holds(self, node: Path) -> Host:
        (self.sys / "dev/block" / self.number).symlink_to(node)
        return Host(sys=self.sys, proc=Path("/proc"))


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    folder = tmp_path / "data"
    folder.mkdir()
    found = Machine(tmp_path / "sys", folder)
    if Host().mount(folder).device != found.number:
        pytest.skip("the file system of the temporary folder has no device number of its own (btrfs, overlay)")
    return found


PCI = "pci0000:00/0000:00:01.0"


@pytest.mark.parametrize(
    ("place", "facts", "tier"),
    [
        (f"{PCI}/nvme/nvme0/nvme0n1", {"transport": "pcie"}, "nvme"),
        ("virtual/nvme-fabrics/ctl/nvme1/nvme1n1", {"transport": "tcp"}, "san"),
        (f"{PCI}/host0/port-0:0/end_device-0:0/target0:0:0/0:0:0:0/block/sda", {"vendor": "SEAGATE"}, "sas-ssd"),
        (f"{PCI}/host0/port-0:0/end_device-0:0/target0:0:0/0:0:0:0/block/sda", {"vendor": "ATA"}, "sata-ssd"),
        (f"{PCI}/host0/port-0:0/end_device-0:0/block/sda", {"vendor": "SEAGATE", "spins": True}, "hdd"),
        (f"{PCI}/ata1/host0/target0:0:0/0:0:0:0/block/sda", {"vendor": "ATA"}, "sata-ssd"),
        (f"{PCI}/ata1/host0/target0:0:0/0:0:0:0/block/sda", {"vendor": "ATA", "spins": True}, "hdd"),
        (f"{PCI}/usb1/1-1/host2/target2:0:0/2:0:0:0/block/sdb", {"spins": True}, "usb"),
        (f"{PCI}/host3/rport-3:0-1/target3:0:0/3:0:0:0/block/sdc", {}, "san"),
        ("platform/host4/session1/target4:0:0/4:0:0:0/block/sdd", {}, "san"),
        (f"{PCI}/virtio1/block/vda", {"spins": True}, "unknown"),
    ],
)
def test_a_disk_by_its_own_place(machine: Machine, place: str, facts: dict[str, object], tier: str) -> None:
    host = machine.holds(machine.disk(place, **facts))  # type: ignore[arg-type]
    verdict = probe(machine.path, host=host, cpus=64)
    assert verdict.tier == tier
    assert verdict.workers == storage.WORKERS.get(tier, 1)
    assert verdict.mode == ("direct" if tier in ("nvme", "sas-ssd") and verdict.tried else "buffered")


def test_a_multipath_nvme_says_its_transport_below(machine: Machine) -> None:
    node = machine.disk("virtual/nvme-subsystem/nvme-subsys0/nvme0n1")
    (node / "device/nvme0").mkdir()
    (node / "device/nvme0/transport").write_text("pcie\n")
    assert probe(machine.path, host=machine.holds(node)).tier == "nvme"


def test_lvm_on_partitions_the_worst_device_decides(machine: Machine) -> None:
    fast = machine.partition(machine.disk(f"{PCI}/nvme/nvme0/nvme0n1", transport="pcie"), "nvme0n1p2")
    slow = machine.partition(machine.disk(f"{PCI}/ata1/block/sda", spins=True), "sda1")
    verdict = probe(machine.path, host=machine.holds(machine.mapped("dm-0", fast, slow)))
    assert verdict.tier == "hdd"
    assert verdict.devices == (Device("nvme0n1", "nvme", "NVMe"), Device("sda", "hdd", "SATA"))
    assert "sda is hdd" in verdict.reason


def test_raid_below_lvm_below_encryption(machine: Machine) -> None:
    disks = [machine.disk(f"{PCI}/nvme/nvme{n}/nvme{n}n1", transport="pcie") for n in range(2)]
    raid = machine.mapped("md0", *disks)
    verdict = probe(machine.path, host=machine.holds(machine.mapped("dm-1", machine.mapped("dm-0", raid))))
    assert [device.name for device in verdict.devices] == ["nvme0n1", "nvme1n1"]


def test_devices_in_a_circle_are_unknown(machine: Machine) -> None:
    node = machine.mapped("dm-0")
    (node / "slaves/dm-0").symlink_to(node)
    verdict = probe(machine.path, host=machine.holds(node))
    assert verdict.tier == "unknown"
    assert "circle" in verdict.reason


def test_a_fibre_channel_disk_elsewhere_on_the_host_says_nothing(machine: Machine) -> None:
    machine.disk(f"{PCI}/host3/rport-3:0-1/block/sdc")
    host = machine.holds(machine.disk(f"{PCI}/nvme/nvme0/nvme0n1", transport="pcie"))
    assert probe(machine.path, host=host).tier == "nvme"


def test_workers_are_capped_by_the_cpus_of_a_shard(machine: Machine) -> None:
    host = machine.holds(machine.disk(f"{PCI}/nvme/nvme0/nvme0n1", transport="pcie"))
    assert [probe(machine.path, host=host, cpus=16, shards=n).workers for n in (1, 4, 99)] == [8, 4, 1]


@pytest.mark.parametrize(("said", "mode"), [("on", "direct"), ("OFF", "buffered"), ("", None), ("perhaps", None)])
def test_an_override_wins(machine: Machine, monkeypatch: pytest.MonkeyPatch, said: str, mode: str | None) -> None:
    host = machine.holds(machine.disk(f"{PCI}/virtio1/block/vda"))
    monkeypatch.setenv(OVERRIDE, said)
    assert probe(machine.path, host=host).mode == (mode or "buffered")
    assert probe(machine.path, host=host, override="on").mode == "direct"


@pytest.mark.parametrize(
    ("code", "tried", "says"),
    [
        (errno.EINVAL, False, "refuses direct I/O"),
        (errno.EROFS, None, "was not tried: Read-only"),
        (errno.EACCES, None, "was not tried: Permission"),
        (errno.ENOSPC, None, "was not tried: No space"),
    ],
)
def test_a_trial_that_cannot_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, tried: bool | None, says: str
) -> None:
    def fails(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(storage, "_open_direct", fails)
    found, seen = try_direct(tmp_path)
    assert found is tried
    assert says in seen


def test_a_file_system_without_nameless_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.open

    def without(path: object, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        return real(path, flags, mode)  # type: ignore[call-overload,no-any-return]

    monkeypatch.setattr(os, "open", without)
    expected = try_direct(tmp_path)
    assert expected[0] is not None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("path", ["/proc/1", "/sys", "/dev/shm", "/nowhere/at/all", "odd\0name", "/dev/null", "."])
def test_it_never_raises(path: str) -> None:
    verdict = probe(Path(path))
    assert verdict.mode == "buffered" or verdict.tier in storage.DIRECT_TIERS
    assert verdict.devices and verdict.reason


def test_a_network_file_system_and_a_brackets_device() -> None:
    line = r"36 35 0:41 /sub\040dir /mnt/kv\040x rw,relatime shared:1 - nfs4 server:/srv/[a] rw,vers=4.2,addr=::1"
    mount = parse_mount(line)
    assert (mount.point, mount.fstype, mount.source) == ("/mnt/kv x", "nfs4", "server:/srv/[a]")
    assert mount.options["addr"] == "::1"


def test_the_command(tmp_path: Path) -> None:
    done = CliRunner().invoke(command, [str(tmp_path), "/dev/shm", "--direct", "off", "--json"])
    assert done.exit_code == 0
    first, second = json.loads(done.stdout)["paths"]
    assert (first["path"], first["mode"]) == (str(tmp_path), "buffered")
    assert second["tier"] == "memory"
    shown = CliRunner().invoke(command, [str(tmp_path)])
    assert str(tmp_path) in shown.output and "workers" in shown.output


def mounted(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"{command[0]} does not work here: {done.stderr.strip()}")


@pytest.fixture
def loop(tmp_path: Path) -> Iterator[Path]:
    """An ext4 on a real loop device, mounted."""
    if os.geteuid() != 0 or not all(shutil.which(name, path=f"{os.environ['PATH']}:/sbin:/usr/sbin") for name in TOOLS):
        pytest.skip(f"needs root and {', '.join(TOOLS)}")
    image, point = tmp_path / "disk.img", tmp_path / "mnt"
    point.mkdir()
    with image.open("wb") as file:
        file.truncate(16 << 20)
    mounted("mkfs.ext4", "-q", "-F", str(image))
    mounted("mount", "-o", "loop", str(image), str(point))
    try:
        yield point
    finally:
        subprocess.run(["umount", "-R", str(point)], check=True)


TOOLS = ("mkfs.ext4", "mount", "losetup")


def test_a_bind_mount_of_a_folder_on_a_loop_device(loop: Path, tmp_path: Path) -> None:
    inner, bound = loop / "sub/dir", tmp_path / "bound"
    inner.mkdir(parents=True)
    bound.mkdir()
    mounted("mount", "--bind", str(inner), str(bound))
    try:
        verdict = probe(bound)
    finally:
        subprocess.run(["umount", str(bound)], check=True)
    assert verdict.mode == "buffered"
    first = verdict.devices[0]
    assert (first.tier, first.detail) == ("loop", f"of {tmp_path / 'disk.img'}")
    assert verdict.devices[1:] == probe(tmp_path).devices
    assert verdict.tried is not None


def test_an_overlay_is_judged_by_its_upper_folder(loop: Path, tmp_path: Path) -> None:
    merged = tmp_path / "merged"
    for folder in (merged, loop / "lower", loop / "upper", loop / "work"):
        folder.mkdir()
    layers = f"lowerdir={loop}/lower,upperdir={loop}/upper,workdir={loop}/work"
    mounted("mount", "-t", "overlay", "overlay", "-o", layers, str(merged))
    try:
        verdict = probe(merged)
    finally:
        subprocess.run(["umount", str(merged)], check=True)
    assert verdict.devices == probe(loop).devices


def test_an_overlay_whose_upper_folder_is_out_of_sight() -> None:
    host = Host()
    mount = parse_mount("36 35 0:41 / / rw - overlay overlay rw,lowerdir=/l,upperdir=/not/here,workdir=/w")
    assert host._overlay(mount, 0) == [Device("overlay", "unknown", "its upper folder cannot be seen from here")]
