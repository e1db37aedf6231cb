"""The report's block about one patch: what and why, evidence, upstream threads, what would let it go."""

from __future__ import annotations

from datetime import date

from graftwork.catalog.catalog import Patch
from graftwork.catalog.patches import NewFile, Upstream
from graftwork.catalog.rules import edit_files
from graftwork.catalog.seen import Seen, UpstreamFile
from graftwork.upstream.policy import OLDEST
from graftwork.upstream.report_page import anchor, esc, listed, table
from graftwork.upstream.threads import url_of


def block(patch: Patch, today: date) -> str:
    """Everything that the checkout says of one patch."""
    spec, seen = patch.spec, patch.upstream
    threads = [_thread_row(ref, seen, today) for ref in spec.upstream]
    searched = [f"{esc(one.date)}: {esc(one.what)} ({esc(one.how)})" for one in spec.searched]
    known = [(esc(item.kind), esc(item.text), esc(item.source), esc(item.date or "")) for item in spec.evidence]
    launch = [f"{esc(' '.join(_flags(one.env, one.args)))}: {esc(one.reason)}" for one in spec.launch]
    files = sorted(set().union(*(edit_files(edit, patch.folder) for edit in spec.edit)))
    new = [edit.path for edit in spec.edit if isinstance(edit, NewFile)]
    parts = [
        f'<h3 id="{anchor(spec.id)}">{esc(spec.id)} <span class="dim">{esc(spec.revision)}</span></h3>',
        f"<p><strong>{esc(spec.title)}</strong></p>",
        f"<p>Symptom: {esc(spec.symptom)}</p><p>{esc(spec.why.strip())}</p>",
        f'<p class="dim">edits {esc(", ".join(files))}{esc("; adds " + ", ".join(new) if new else "")}; '
        f"markers {esc(', '.join(dict.fromkeys(m.value for m in spec.marker)))}</p>",
        f"<p>Drop when: {esc(spec.drop_when.strip())}</p>",
        f"<p>At launch:</p>{listed(launch)}" if launch else "",
        table(("how", "what is known", "source", "date"), known) if known else "<p>No evidence.</p>",
        table(("thread", "relation", "state", "seen", "what we expect"), threads) if threads else "",
        f"<p>Searched upstream:</p>{listed(searched)}" if searched else "",
        listed(_contained(seen)),
    ]
    return "\n".join(part for part in parts if part)


def thread(ref: str, kind: str) -> str:
    """A link to a thread."""
    return f'<a href="{esc(url_of(ref, kind))}" rel="noreferrer">{esc(ref)}</a>'


def dates(seen: UpstreamFile) -> list[str]:
    """When anything was seen upstream."""
    return sorted(row.as_of for rows in (seen.refs, seen.contained, seen.scans) for row in rows)


def age(day: str, today: date) -> str:
    """A date with its age, marked where it is old."""
    days = (today - date.fromisoformat(day)).days
    old = ' class="tag old"' if days > OLDEST else ""
    return f"<span{old}>{esc(day)} ({days} days)</span>"


def _thread_row(ref: Upstream, file: UpstreamFile, today: date) -> tuple[str, str, str, str, str]:
    seen = file.seen(ref.ref)
    name = thread(ref.ref, ref.kind)
    if seen is None:
        return name, esc(ref.relation), "not seen", "never", esc(ref.expect)
    title = f"<br>{esc(seen.title)}" if seen.title else ""
    looked = f"{age(seen.as_of, today)}<br>{esc(seen.method)}"
    return name + title, esc(ref.relation), _state(ref, seen), looked, esc(ref.expect)


def _state(ref: Upstream, seen: Seen) -> str:
    """The state as seen, with its date, and whether it is the one that the expectation was written for."""
    day = seen.merged or seen.closed
    text = f"{esc(seen.state)}{f' {esc(day)}' if day else ''}{f' ({esc(seen.reason)})' if seen.reason else ''}"
    if seen.moved_to:
        text += f"<br>moved to {esc(seen.moved_to)}"
    if ref.assumes and ref.assumes != seen.state:
        text += f'<br><span class="tag old">written for: {esc(ref.assumes)}</span>'
    return text


def _contained(seen: UpstreamFile) -> list[str]:
    found = []
    for row in seen.contained:
        where = f"first in {row.first}" if row.first else "in no release that was looked at"
        note = f"; {row.note}" if row.note else ""
        found.append(f"{thread(row.ref, 'pull')}: {esc(where)} ({esc(row.as_of)}, {esc(row.method)}{esc(note)})")
    return found


def _flags(env: dict[str, str], args: list[str]) -> list[str]:
    return [*(f"{name}={value}" for name, value in env.items()), *args]
