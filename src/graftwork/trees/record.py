"""RECORD: the list inside a wheel that vouches for each of its files.

Source: packaging.python.org, 'Binary distribution format', 'The .dist-info directory'.
"""

from __future__ import annotations

import base64
import binascii
import csv
import hashlib
import io
import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from graftwork.errors import PinError
from graftwork.names import RelPath, Sha256, rel_path

_RECORD = re.compile(r"[^/]+\.dist-info/RECORD")
_UNHASHED = ("/RECORD", "/RECORD.jws", "/RECORD.p7s")


class Row(NamedTuple):
    """What RECORD says of a file; ``sha256`` is None for RECORD itself and its signatures, ``size`` when left out."""

    sha256: Sha256 | None
    size: int | None


def record_path(names: Iterable[str], origin: str) -> RelPath:
    """The one ``*.dist-info/RECORD`` among *names*; PinError when there is none or more than one."""
    found = sorted(name for name in names if _RECORD.fullmatch(name))
    if len(found) != 1:
        what = "holds no RECORD" if not found else f"holds more than one RECORD: {', '.join(found)}"
        raise PinError(f"{origin}: {what}", hint="This is not a valid wheel; pin another file.")
    return rel_path(found[0])


def parse_record(data: bytes, origin: str) -> dict[RelPath, Row]:
    """The rows of a wheel's RECORD, by path.

    PinError for what the wheel specification does not allow: a path that leaves the wheel, a file
    without a hash, a hash other than sha256, two different rows for one path.
    """
    rows: dict[RelPath, Row] = {}
    try:
        for fields in csv.reader(io.StringIO(data.decode("utf-8"), newline=""), strict=True):
            if not fields:
                continue
            name, hashed, size = fields
            path = rel_path(name)
            row = Row(_sha256(path, hashed), int(size) if size else None)
            if rows.setdefault(path, row) != row:
                raise ValueError(f"two different rows for {path}")
    except (ValueError, csv.Error) as error:
        raise PinError(f"{origin}: RECORD is broken: {error}", hint="Pin a wheel with a valid RECORD.") from error
    return rows


def _sha256(path: str, hashed: str) -> Sha256 | None:
    if not hashed:
        if path.endswith(_UNHASHED):
            return None
        raise ValueError(f"no hash for {path}")
    algorithm, _, value = hashed.partition("=")
    if algorithm != "sha256":
        raise ValueError(f"{path} has the hash {hashed!r}; only sha256 is supported")
    try:
        raw = base64.b64decode(value + "=" * (-len(value) % 4), altchars="-_", validate=True)
        if len(raw) != 32:
            raise ValueError("not a sha256")
        return Sha256(raw.hex())
    except (binascii.Error, ValueError) as error:
        raise ValueError(f"{path} has the broken hash {hashed!r}") from error


def vouched(rows: Mapping[RelPath, Row], path: RelPath, origin: str) -> Row:
    """The row of *path*; PinError when RECORD does not name it."""
    row = rows.get(path)
    if row is None:
        raise PinError(f"{origin}: {path} is in the wheel but not in its RECORD", hint="Pin an unaltered wheel.")
    return row


def check_file(data: bytes, row: Row, path: RelPath, origin: str) -> None:
    """Compare the bytes of *path* with its row; PinError names both values."""
    if row.sha256 is None:
        return
    found = hashlib.sha256(data).hexdigest()
    if found != row.sha256:
        raise PinError(
            f"{origin}: {path} has sha256 {found}, its RECORD says {row.sha256}",
            hint="The wheel was altered or is damaged; get it anew or pin an unaltered one.",
        )
    if row.size is not None and len(data) != row.size:
        raise PinError(f"{origin}: {path} has {len(data)} bytes, its RECORD says {row.size}", hint="Pin a valid wheel.")


def check_record(data: bytes, pinned: Sha256 | None, origin: str) -> None:
    """Compare RECORD's own sha256 with the lock's; PinError names both values."""
    found = hashlib.sha256(data).hexdigest()
    if pinned is not None and found != pinned:
        raise PinError(
            f"{origin}: its RECORD has sha256 {found}, the lock pins {pinned}",
            hint="The file behind the pin is another one; run 'graftwork lock' only if you know why.",
        )
