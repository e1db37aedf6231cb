"""What a target's pins resolve to: each whole wheel is read once, hash-checked, and its RECORD pinned."""

from __future__ import annotations

import calendar
import zipfile
from collections.abc import Callable
from pathlib import Path

import msgspec

from graftwork.catalog.rules import pins_digest
from graftwork.catalog.targets import Lock, Target, WheelLock, WheelPin
from graftwork.trees.wheel import WheelTree


def resolve(target: Target, fetch: Callable[[WheelPin], WheelTree]) -> Lock:
    """Make the lock; *fetch* gives a whole wheel whose sha256 was checked. The same pins give the same lock."""
    wheels, epoch = [], 0
    for pin in target.wheel:
        with fetch(pin) as tree:
            wheels.append(WheelLock(file=pin.file, sha256=pin.sha256, record_sha256=tree.record_sha256()))
            epoch = max(epoch, _newest(tree.path))
    return Lock(schema=1, target=target.name, pins=pins_digest(target), epoch=epoch, wheels=wheels)


def dumped(lock: Lock) -> bytes:
    """The lock's file: sorted keys, so that a change shows as a small diff."""
    return msgspec.json.format(msgspec.json.encode(lock, order="deterministic"), indent=2) + b"\n"


def _newest(wheel: Path) -> int:
    """The newest member time of a wheel in seconds; zip has no zone, so it is read as UTC."""
    with zipfile.ZipFile(wheel) as archive:
        return max(calendar.timegm((*info.date_time, 0, 0, 0)) for info in archive.infolist())
