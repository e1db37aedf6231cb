"""What is wrong with what we know of upstream: too old, contradicted, overtaken, or not known at all."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from packaging.version import Version

from graftwork.catalog.catalog import Patch, engine_version
from graftwork.catalog.patches import Upstream
from graftwork.catalog.seen import Contained
from graftwork.catalog.targets import Target

OLDEST = 30  # days that evidence holds
FIXES = ("own", "same-fix", "superseding")
Kind = Literal["no-reference", "not-seen", "stale", "missing", "kind", "contradiction", "contained"]


@dataclass(frozen=True)
class Problem:
    """One finding of ``--check``; ``ref`` and ``target`` where it is about one."""

    patch: str
    kind: Kind
    text: str
    ref: str = ""
    target: str = ""


def problems(patches: Sequence[Patch], targets: Sequence[Target], today: datetime.date) -> list[Problem]:
    """Every finding about *patches* and the *targets* that list them, in the catalog's order."""
    found: list[Problem] = []
    for patch in patches:
        found += _searched(patch, today)
        for row in patch.spec.upstream:
            found += _reference(patch, row, today)
            found += _overtaken(patch, row, [target for target in targets if patch.id in target.patches])
    return found


def _searched(patch: Patch, today: datetime.date) -> Iterator[Problem]:
    if patch.spec.upstream:
        return
    if not patch.spec.searched:
        text = "names no issue or pull request and does not say what was searched"
        yield Problem(patch.id, "no-reference", text)
    elif old := _age(max(row.date for row in patch.spec.searched), today):
        yield Problem(patch.id, "stale", f"upstream was last searched {old}")


def _reference(patch: Patch, row: Upstream, today: datetime.date) -> Iterator[Problem]:
    seen = patch.upstream.seen(row.ref)
    if seen is None:
        yield Problem(patch.id, "not-seen", f"{row.ref} was never looked at", row.ref)
        return
    if old := _age(seen.as_of, today):
        yield Problem(patch.id, "stale", f"{row.ref} was last seen {old}", row.ref)
    if seen.state == "missing":
        yield Problem(patch.id, "missing", f"{row.ref} cannot be seen any more ({seen.reason})", row.ref)
        return
    if seen.kind != row.kind:
        yield Problem(patch.id, "kind", f"{row.ref} is a{_n(seen.kind)}, patch.toml says {row.kind}", row.ref)
    if row.assumes and seen.state != row.assumes:
        text = f"{row.ref} is {seen.state} ({seen.as_of}), patch.toml assumes that it is {row.assumes}"
        yield Problem(patch.id, "contradiction", text, row.ref)


def _overtaken(patch: Patch, row: Upstream, targets: Sequence[Target]) -> Iterator[Problem]:
    """A merged fix that the pinned release of a target already holds."""
    seen = patch.upstream.seen(row.ref)
    if row.relation not in FIXES or seen is None or seen.state != "merged":
        return
    for target in targets:
        if patch.id in target.optional:
            continue
        held = next((item for item in patch.upstream.contained if _holds(item, row.ref, target)), None)
        if held is not None:
            text = f"{row.ref} ({row.relation}) is in {target.engine} {target.version}, which {target.name} pins"
            yield Problem(patch.id, "contained", f"{text}; decided on {held.method}", row.ref, target.name)


def _holds(item: Contained, ref: str, target: Target) -> bool:
    """Whether *item* says that the target's release has it: by that release, else by the first one that has."""
    if item.ref != ref:
        return False
    version = engine_version(target)
    if any(Version(text) == version for text in item.present):
        return True
    looked_at = [*item.partly, *item.absent, *item.unknown, *item.present]
    decided = any(Version(text) == version for text in looked_at)
    return not decided and bool(item.first) and Version(item.first) <= version


def _age(day: str, today: datetime.date) -> str:
    """Words for a day that is too old or not there yet; empty for one that is good."""
    try:
        age = (today - datetime.date.fromisoformat(day)).days
    except ValueError:
        return f"on {day}, which is no day"
    if age < 0:
        return f"on {day}, which is after today ({today.isoformat()})"
    return f"on {day}, {age} days ago; evidence holds for {OLDEST}" if age > OLDEST else ""


def _n(kind: str) -> str:
    return "n issue" if kind == "issue" else " pull request"
