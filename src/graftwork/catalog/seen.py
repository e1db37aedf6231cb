"""upstream.json beside a patch: what was seen upstream, when and how. Made by ``graftwork status``, never typed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import msgspec

from graftwork.catalog.patches import Date, PatchFile, Ref, Strict, Text
from graftwork.errors import CatalogError

FILE = "upstream.json"
_HINT = "it is made by graftwork status --refresh; take it from git again, or remove it and run that"
State = Literal["open", "closed", "merged", "missing"]
Lines = Annotated[tuple[int, int], msgspec.Meta(description="first and last line, 1-based, inclusive")]


class Seen(Strict, frozen=True, kw_only=True):
    """One issue or pull request as it was seen. ``missing``: it cannot be seen any more (``reason`` says why)."""

    ref: Ref
    kind: Literal["pull", "issue"]
    state: State
    as_of: Date
    method: Text
    title: str = ""
    reason: str = ""
    opened: Date | None = None
    updated: Date | None = None
    closed: Date | None = None
    merged: Date | None = None
    merge_commit: str = ""
    base: str = ""
    moved_to: str = ""
    files: list[str] = []


class Contained(Strict, frozen=True, kw_only=True):
    """Which releases hold the change of a merged pull request, decided on their source."""

    ref: Ref
    as_of: Date
    method: Text
    first: str = ""
    present: list[str] = []
    partly: list[str] = []
    absent: list[str] = []
    unknown: list[str] = []
    note: str = ""


class Collision(Strict, frozen=True, kw_only=True):
    """An open pull request that changes lines near one of the patch's anchors."""

    ref: Ref
    title: str
    anchor: Text
    file: Text
    ours: Lines
    theirs: Lines
    base: str = ""
    updated: Date | None = None


class Scan(Strict, frozen=True, kw_only=True):
    """How far the open pull requests were looked through, and against which release's lines."""

    repository: Text
    as_of: Date
    method: Text
    version: Text
    open: int
    looked_at: int


class UpstreamFile(Strict, frozen=True, kw_only=True):
    """upstream.json as written. ``collisions`` are those that ``scans`` found."""

    patch: Text
    refs: list[Seen] = []
    contained: list[Contained] = []
    collisions: list[Collision] = []
    scans: list[Scan] = []

    def seen(self, ref: str) -> Seen | None:
        """What was seen of *ref*, if anything."""
        return next((row for row in self.refs if row.ref == ref), None)

    def containing(self, ref: str) -> Contained | None:
        """Which releases hold *ref*, if that was decided."""
        return next((row for row in self.contained if row.ref == ref), None)


def load_seen(folder: Path, spec: PatchFile) -> UpstreamFile:
    """The evidence in a patch's folder; an empty one where there is no file. CatalogError if it is not sound."""
    file = folder / FILE
    try:
        data = file.read_bytes()
    except FileNotFoundError:
        return UpstreamFile(patch=spec.id)
    except OSError as error:
        raise CatalogError(file, f"cannot be read: {error.strerror}") from None
    try:
        found = msgspec.json.decode(data, type=UpstreamFile)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CatalogError(file, f"not upstream evidence: {error}", hint=_HINT) from None
    if found.patch != spec.id:
        raise CatalogError(file, f"is for {found.patch!r}, it lies in the folder of {spec.id!r}", hint=_HINT)
    return found


def dumped(evidence: UpstreamFile) -> bytes:
    """The file's bytes: readable, one form for the same evidence."""
    rows = msgspec.to_builtins(msgspec.structs.replace(evidence, **_sorted(evidence)))
    for part in ("refs", "contained", "collisions", "scans"):
        rows[part] = [{k: v for k, v in row.items() if v not in ("", None, [])} for row in rows[part]]
    kept = {key: value for key, value in rows.items() if value != []}
    return msgspec.json.format(msgspec.json.encode(kept), indent=2) + b"\n"


def _sorted(evidence: UpstreamFile) -> dict[str, list[Seen] | list[Contained] | list[Collision] | list[Scan]]:
    return {
        "refs": sorted(evidence.refs, key=lambda row: order_of(row.ref)),
        "contained": sorted(evidence.contained, key=lambda row: (*order_of(row.ref), row.method)),
        "collisions": sorted(evidence.collisions, key=lambda row: (*order_of(row.ref), row.anchor, row.theirs)),
        "scans": sorted(evidence.scans, key=lambda row: row.repository),
    }


def order_of(ref: str) -> tuple[str, int]:
    """Repository, then number as a number."""
    repository, _, number = ref.partition("#")
    return repository, int(number)
