"""A plan as data and as lines for people: every patch, every failed hunk, in one report."""

from __future__ import annotations

import difflib
import hashlib
from typing import Any

from graftwork.patching.assess import Assessment
from graftwork.patching.plan import Plan
from graftwork.patching.states import State
from graftwork.ui import Screen

_MOST_MARKERS = 4  # shown of those that are as they should be; --json has all
STYLE = {
    State.PENDING: "good",
    State.APPLIED: "good",
    State.NOT_NEEDED: "dim",
    State.OBSOLETE: "warn",
    State.OUTDATED: "bad",
    State.PARTIAL: "bad",
    State.DRIFTED: "bad",
}


def as_dict(plan: Plan, target: str, engine: str) -> dict[str, Any]:
    """The plan for machines; hashes are sha256 in hex, None where there is no file."""
    return {
        "target": target,
        "engine": {"name": engine, "version": str(plan.engine.version), "platform": plan.engine.platform},
        "tree": plan.origin,
        "patches": [_patch(item) for item in plan.patches],
        "files": [
            {"path": c.path, "old_sha256": _sha(c.old), "new_sha256": _sha(c.new), "patches": list(c.patches)}
            for c in plan.changes
        ],
    }


def show(plan: Plan, screen: Screen) -> None:
    """The table of patches, then the reasons of each patch that is not simply pending or applied."""
    rows = [
        (item.patch.id, item.state.value, item.patch.spec.revision, _edits(item), _markers(item))
        for item in plan.patches
    ]
    screen.table(("patch", "state", "revision", "edits", "markers"), rows, [STYLE[item.state] for item in plan.patches])
    for item in plan.patches:
        for reason in (*item.reasons, *item.problems):
            screen.line(f"  {item.patch.id}: {reason}")


def diff(plan: Plan) -> str:
    """The plan as a unified diff in git's form."""
    return "".join(file_diff(change.path, change.old, change.new) for change in plan.changes)


def file_diff(path: str, old: bytes | None, new: bytes | None) -> str:
    """One file as a unified diff in git's form, which also holds empty files and last lines without an end."""
    head = f"diff --git a/{path} b/{path}\n"
    if old is None or new is None:
        head += f"{'new' if old is None else 'deleted'} file mode 100644\n"
    names = ("/dev/null" if old is None else f"a/{path}", "/dev/null" if new is None else f"b/{path}")
    try:
        rows = list(difflib.unified_diff(_lines(old), _lines(new), *names))
    except UnicodeDecodeError:
        rows = [f"Binary files {names[0]} and {names[1]} differ\n"]
    return head + "".join(row if row.endswith("\n") else f"{row}\n\\ No newline at end of file\n" for row in rows)


def _lines(data: bytes | None) -> list[str]:
    """Lines end with a newline only, as git counts them: a form feed within a line is no end of it."""
    parts = (data or b"").decode("utf-8").split("\n")
    return [f"{part}\n" for part in parts[:-1]] + ([parts[-1]] if parts[-1] else [])


def _patch(item: Assessment) -> dict[str, Any]:
    return {
        "id": item.patch.id,
        "revision": item.patch.spec.revision,
        "state": item.state.value,
        "found_revision": item.found.id if item.found else None,
        "upgradable": item.upgradable,
        "reasons": [*item.reasons, *item.problems],
        "hunks": [
            {"name": h.name, "file": h.file, "state": h.state.value, "anchor": h.anchor, "detail": h.detail}
            for h in item.hunks
        ],
        "markers": [
            {"file": m.file, "function": m.function, "kind": m.kind, "value": m.value, "present": there}
            for m, there in item.markers
        ],
    }


def _edits(item: Assessment) -> str:
    counting = [hunk for hunk in item.hunks if hunk.state.value != "holds"]
    good = [hunk for hunk in counting if hunk.state.value in ("pending", "done")]
    return f"{len(good)}/{len(counting)}" if counting else "-"


def _markers(item: Assessment) -> str:
    if not item.markers:
        return "-"
    there = item.state is State.PENDING and not item.problems
    lacks = dict.fromkeys(f"no {m.value}" for m, present in item.markers if not (there or present))
    has = list(dict.fromkeys(m.value for m, present in item.markers if there or present))
    more = [f"{len(has) - _MOST_MARKERS} more"] if len(has) > _MOST_MARKERS else []
    return ", ".join([*lacks, *has[:_MOST_MARKERS], *more])


def _sha(data: bytes | None) -> str | None:
    return None if data is None else hashlib.sha256(data).hexdigest()
