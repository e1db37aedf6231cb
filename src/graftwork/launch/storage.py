"""Whether a storage tier on a path should use direct I/O, and with how many workers: by device, and by trying it.

The failure is silent otherwise: an engine that cannot tell the device falls back to buffered I/O and is several times
slower. Nothing here raises for what a path or a device is; what could not be found out is in the reason.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from graftwork.launch.blockdev import Device, Host

OVERRIDE = "GRAFTWORK_DIRECT_IO"
DIRECT_TIERS = frozenset({"nvme", "sas-ssd"})
WORKERS = {"nvme": 8, "sas-ssd": 8, "sata-ssd": 4, "hdd": 2}
_BLOCK = 4096  # bytes; the largest logical block of common devices, so an aligned buffer of it suits all


@dataclass(frozen=True)
class Verdict:
    """What to do on a path. ``mode`` is what will be used: ``direct`` or ``buffered``.

    ``tier`` is that of the worst device; ``tried`` says whether direct I/O worked when it was tried (None: it could not
    be tried); ``workers`` is the number of I/O threads for each shard.
    """

    path: str
    mode: str
    tier: str
    workers: int
    devices: tuple[Device, ...]
    tried: bool | None
    reason: str


def probe(
    path: Path, *, shards: int = 1, override: str | None = None, host: Host | None = None, cpus: int | None = None
) -> Verdict:
    """The verdict for *path*; where it does not exist yet, that of the nearest folder above it.

    *override* (``on``, ``off``; default: the variable GRAFTWORK_DIRECT_IO) wins over device and trial. *shards* share
    the *cpus* (default: those that this process may use).
    """
    devices, trouble = _devices(path, host or Host())
    worst = max(devices, key=lambda device: device.rank)
    tried, trial = try_direct(path)
    mode, why = _mode(worst, tried, override if override is not None else os.environ.get(OVERRIDE, ""))
    here = len(os.sched_getaffinity(0)) if cpus is None else cpus
    workers = min(WORKERS.get(worst.tier, 1), max(1, here // max(1, shards)))
    said = "; ".join(text for text in (why, trial, trouble) if text)
    return Verdict(str(path), mode, worst.tier, workers, devices, tried, said)


def try_direct(path: Path) -> tuple[bool | None, str]:
    """(whether direct I/O works there, what was seen): one aligned block is written and read back.

    The file never has a name, so a probe that is killed leaves nothing; where the file system has no such files, it has
    one for the moment between its making and its unlinking. None if no file can be made there.
    """
    try:
        handle = _open_direct(_standing(path))
    except (OSError, ValueError) as error:
        if getattr(error, "errno", None) == errno.EINVAL:
            return False, "the file system refuses direct I/O"
        return None, f"direct I/O was not tried: {getattr(error, 'strerror', None) or error}"
    try:
        with mmap.mmap(-1, _BLOCK) as buffer:
            buffer.write(b"\xa5" * _BLOCK)
            os.pwrite(handle, buffer, 0)
            buffer[:] = bytes(_BLOCK)
            read = os.preadv(handle, [buffer], 0)
            same = read == _BLOCK and buffer[:] == b"\xa5" * _BLOCK
        return same, "direct I/O was tried and works" if same else "direct I/O gave back other bytes"
    except OSError as error:
        return False, f"direct I/O was tried and failed: {error.strerror}"
    finally:
        os.close(handle)


def _mode(worst: Device, tried: bool | None, override: str) -> tuple[str, str]:
    said = override.strip().lower()
    if said in ("on", "direct", "1", "true"):
        return "direct", "direct because you said so"
    if said in ("off", "buffered", "0", "false"):
        return "buffered", "buffered because you said so"
    what = f"{worst.name} is {worst.tier}" + (f" ({worst.detail})" if worst.detail else "")
    if worst.tier not in DIRECT_TIERS:
        return "buffered", what
    return ("direct", what) if tried else ("buffered", f"{what}, but direct I/O is not known to work")


def _devices(path: Path, host: Host) -> tuple[tuple[Device, ...], str]:
    """(at least one device, what went wrong)."""
    try:
        found = host.devices(_standing(path))
    except (OSError, ValueError) as error:
        return (Device(str(path), "unknown", "its device cannot be found out"),), str(error)
    return tuple(dict.fromkeys(found)), ""


def _standing(path: Path) -> Path:
    """*path*, or the nearest folder above it that exists."""
    for candidate in (path.absolute(), *path.absolute().parents):
        if candidate.exists():
            return candidate
    return Path("/")


def _open_direct(path: Path) -> int:
    folder = path if path.is_dir() else path.parent
    try:
        return os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_DIRECT, 0o600)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT):
            raise
    named, name = tempfile.mkstemp(prefix=".graftwork-", dir=folder)
    try:
        return os.open(name, os.O_RDWR | os.O_DIRECT)
    finally:
        os.close(named)
        with contextlib.suppress(FileNotFoundError):
            Path(name).unlink()
