"""patch.upstream.status.md: every patch, what upstream has of it and when that was seen. Made from the evidence."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from graftwork.catalog.catalog import Patch
from graftwork.catalog.patches import Upstream
from graftwork.catalog.seen import Collision, Contained, Seen
from graftwork.catalog.targets import Target
from graftwork.errors import PolicyError, UsageError
from graftwork.oci.errors import printable
from graftwork.upstream.threads import url_of

FILE = "patch.upstream.status.md"
COMMAND = "graftwork status --ledger"
_GENERAL = "general"
_MARK = re.compile(r"^<!-- (/?)notes(?: ([a-z0-9._/-]+))? -->$")
_MARKUP = re.compile(r"[\\`*_\[\]()|#~!{}@:]|(?<=www)\.", re.I)


def render(patches: Sequence[Patch], targets: Sequence[Target], notes: Mapping[str, Sequence[str]]) -> str:
    """The ledger of *patches*, with the hand-written *notes* (by patch id, or ``general``) in their places."""
    lines = [
        "# Upstream status of the patches",
        "",
        f"Made by `{COMMAND}` from each patch's `patch.toml` and `upstream.json`: do not edit it.",
        "Only what stands between two `notes` marks is written by hand, and is kept. `make lint` fails when the rest",
        "is not what the evidence says. How things are seen, and the words: [docs/upstream.md](docs/upstream.md).",
        "",
        *_block(_GENERAL, notes),
        "",
        "| patch | targets | upstream | in a release | collisions | seen |",
        "|---|---|---|---|---|---|",
        *(_row(patch, targets) for patch in patches),
    ]
    for patch in patches:
        lines += ["", *_section(patch, targets, notes)]
    known = {_GENERAL, *(patch.id for patch in patches)}
    left = [name for name in notes if name not in known and any(map(str.strip, notes[name]))]
    if left:
        lines += ["", "## Notes on patches that are gone"]
        for name in left:
            lines += ["", *_block(name, notes)]
    return "\n".join(lines) + "\n"


def notes_of(text: str, file: Path) -> dict[str, list[str]]:
    """The hand-written lines of a ledger. UsageError for marks that do not pair up: nothing of them may be lost."""
    notes: dict[str, list[str]] = {}
    inside: str | None = None
    for number, line in enumerate(text.split("\n"), 1):
        mark = _MARK.match(line.strip())
        if mark is None:
            if inside is not None:
                notes[inside].append(line)
            continue
        closing, name = bool(mark[1]), mark[2]
        if closing == (inside is None) or (not closing and (not name or name in notes)):
            what = "closes no notes" if closing else "opens notes within notes, twice, or without a name"
            hint = "Each place is a line '<!-- notes NAME -->' and a line '<!-- /notes -->', once for a patch."
            raise UsageError(f"{file}:{number}: {line.strip()!r} {what}", hint=hint)
        inside = None if closing else name
        if inside is not None:
            notes[inside] = []
    if inside is not None:
        raise UsageError(f"{file}: the notes of {inside} have no end", hint="Add a line '<!-- /notes -->' below them.")
    return notes


def current(root: Path, patches: Sequence[Patch], targets: Sequence[Target]) -> tuple[str, str]:
    """(the ledger as it is, empty if there is none; the ledger as it should be)."""
    file = root / FILE
    try:
        there = file.read_bytes().decode("utf-8") if file.exists() else ""
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{file}: cannot be read: {error}") from None
    return there, render(patches, targets, notes_of(there, file))


def check(root: Path, patches: Sequence[Patch], targets: Sequence[Target]) -> None:
    """PolicyError, with the first line that differs, when the ledger is not what the evidence says."""
    there, wanted = current(root, patches, targets)
    if there == wanted:
        return
    have, want = there.split("\n"), wanted.split("\n")
    number = next((n for n, pair in enumerate(zip(have, want, strict=False), 1) if pair[0] != pair[1]), None)
    number = number or min(len(have), len(want)) + 1
    raise PolicyError(
        f"{FILE}:{number}: not what the evidence says: edited by hand, or older than it",
        hint=f"run: {COMMAND} (your own words belong between its 'notes' marks)",
    )


def escaped(text: str) -> str:
    """Text from upstream as plain words in Markdown: no markup, HTML, mention, line end or control character."""
    plain = html.escape(printable(text), quote=False)
    return _MARKUP.sub(lambda found: f"&#{ord(found[0])};", plain)


def _row(patch: Patch, targets: Sequence[Target]) -> str:
    seen = [patch.upstream.seen(row.ref) for row in patch.spec.upstream]
    counts: dict[str, int] = {}
    for item in seen:
        word = item.state if item else "not looked at"
        counts[word] = counts.get(word, 0) + 1
    states = ", ".join(f"{count} {word}" for word, count in sorted(counts.items())) or "no reference"
    firsts = [f"{_short(item.ref)} in {item.first}" for item in patch.upstream.contained if item.first]
    days = sorted({item.as_of for item in seen if item})
    span = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}" if days else "-"
    pulls = len({item.ref for item in patch.upstream.collisions})
    collide = f"{pulls} open" if pulls else "none" if patch.upstream.scans else "not looked for"
    cells = (f"[{patch.id}](#{_slug(patch.id)})", _targets(patch, targets), states, ", ".join(firsts) or "-")
    return f"| {' | '.join((*cells, collide, span))} |"


def _section(patch: Patch, targets: Sequence[Target], notes: Mapping[str, Sequence[str]]) -> Iterator[str]:
    spec = patch.spec
    yield from (f"## {patch.id}", "")
    source = f"[patch.toml](patches/{patch.id}/patch.toml)"
    yield f"{spec.title} ({spec.revision}, {source}). Targets: {_targets(patch, targets)}."
    yield from ("", f"Drop it when: {spec.drop_when}")
    if spec.upstream:
        yield from ("", "| reference | relation | state | seen | what it means |", "|---|---|---|---|---|")
        yield from (_reference(row, patch.upstream.seen(row.ref)) for row in spec.upstream)
    for item in spec.searched:
        yield from ("", f"Searched on {item.date}: {item.what} ({item.how}).")
    for held in patch.upstream.contained:
        yield from ("", _held(held))
    yield from ("", _looked(patch))
    if patch.upstream.collisions:
        yield from ("", "| open pull request | anchor | our lines | its lines |", "|---|---|---|---|")
        yield from map(_collision, patch.upstream.collisions)
    yield from ("", *_block(patch.id, notes))


def _reference(row: Upstream, seen: Seen | None) -> str:
    name = f"[{_short(row.ref)}]({url_of(row.ref, seen.kind if seen else row.kind)})"
    state, when, expect = "not looked at", "-", " ".join(row.expect.split()).replace("|", "\\|")
    if seen is not None:
        days = (("opened", seen.opened), ("merged", seen.merged), ("closed", None if seen.merged else seen.closed))
        told = [f"{word} {day}" for word, day in days if day]
        told += [escaped(seen.reason)] if seen.reason else []
        told += [f"for {escaped(seen.base)}"] if seen.base not in ("", "main", "master") else []
        told += [f"now {escaped(seen.moved_to)}"] if seen.moved_to else []
        state = seen.state + (f" ({', '.join(told)})" if told else "")
        if row.assumes and seen.state != row.assumes:
            state += f", **assumed {row.assumes}**"
        when = f"{seen.as_of}, {escaped(seen.method)}"
        name += f" {escaped(seen.title)}" if seen.title else ""
    return f"| {name} | {row.relation} | {state} | {when} | {expect or '-'} |"


def _held(item: Contained) -> str:
    first = f"first in {item.first}" if item.first else "in none of the releases that were looked at"
    rows = (("in", item.present), ("partly in", item.partly), ("not in", item.absent), ("not known for", item.unknown))
    lists = "; ".join(f"{word} {', '.join(found)}" for word, found in rows if found)
    note = f" {escaped(item.note)}." if item.note else ""
    return f"{_short(item.ref)}: {first} ({lists}). Decided on {escaped(item.method)}, {item.as_of}.{note}"


def _looked(patch: Patch) -> str:
    if not patch.upstream.scans:
        return "Open pull requests near its anchors were not looked for yet."
    said = [
        f"{scan.looked_at} of {scan.open} open pull requests of {scan.repository} on {scan.as_of}, "
        f"against its anchors in {scan.version} ({escaped(scan.method)})"
        for scan in patch.upstream.scans
    ]
    found = "near an anchor:" if patch.upstream.collisions else "none is near an anchor."
    return f"Looked at {'; '.join(said)}: {found}"


def _collision(item: Collision) -> str:
    name = f"[{_short(item.ref)}]({url_of(item.ref, 'pull')}) {escaped(item.title)}".strip()
    return f"| {name} | {item.anchor} in `{item.file}` | {_span(item.ours)} | {_span(item.theirs)} |"


def _span(lines: tuple[int, int]) -> str:
    return str(lines[0]) if lines[0] == lines[1] else f"{lines[0]}-{lines[1]}"


def _targets(patch: Patch, targets: Sequence[Target]) -> str:
    return ", ".join(target.name for target in targets if patch.id in target.patches) or "none"


def _short(ref: str) -> str:
    return ref.partition("/")[2] or ref


def _slug(patch_id: str) -> str:
    return re.sub(r"[^\w\- ]", "", patch_id.lower())


def _block(name: str, notes: Mapping[str, Sequence[str]]) -> list[str]:
    return [f"<!-- notes {name} -->", *notes.get(name, []), "<!-- /notes -->"]
