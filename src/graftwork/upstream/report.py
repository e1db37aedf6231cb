"""The report: targets, the matrix, every patch with its evidence, threats and ages, as one HTML page.

The same evidence, cells and date give the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date

from graftwork.catalog.catalog import Catalog, Patch
from graftwork.catalog.targets import Target
from graftwork.upstream import report_patches
from graftwork.upstream.heat import heat_map, reasons
from graftwork.upstream.matrix_cells import Cell, by_engine, versions_of
from graftwork.upstream.policy import OLDEST, problems
from graftwork.upstream.report_page import anchor, esc, listed, page, table


@dataclass(frozen=True)
class Facts:
    """What a report is made of. ``today`` is what ages are counted to."""

    targets: tuple[Target, ...]
    patches: tuple[Patch, ...]
    cells: tuple[Cell, ...]
    today: date

    def state(self, patch: str, version: str) -> str:
        """The state of *patch* in release *version*, or '' where the matrix does not have it."""
        return next((c.state for c in self.cells if (c.patch, c.version) == (patch, version)), "")


def gather(catalog: Catalog, patches: Sequence[Patch], cells: Iterable[Cell], today: date) -> Facts:
    """Read what the checkout holds about *patches*; a target counts when it lists one of them."""
    ids = {patch.id for patch in patches}
    targets = tuple(t for t in map(catalog.target, catalog.target_names) if ids & set(t.patches))
    return Facts(targets, tuple(patches), tuple(cell for cell in cells if cell.patch in ids), today)


def report(facts: Facts, foot: str) -> str:
    """The whole page; *foot* is its last line."""
    links = ("matrix", "targets", "patches", "threats", "ages", "reasons")
    nav = "".join(f'<a href="#{name}">{name}</a>' for name in links)
    body = [
        f'<p class="dim">as of {facts.today.isoformat()}</p><nav>{nav}</nav>',
        _summary(facts),
        '<h2 id="matrix">Matrix</h2>',
        heat_map(facts.cells) if facts.cells else "<p>No cells: the matrix was not made.</p>",
        '<h2 id="targets">Targets</h2>',
        _targets(facts),
        '<h2 id="patches">Patches</h2>',
        *(report_patches.block(patch, facts.today) for patch in facts.patches),
        '<h2 id="threats">Anchors against open pull requests</h2>',
        _threats(facts),
        '<h2 id="ages">Age of evidence</h2>',
        _ages(facts),
        '<h2 id="reasons">Reasons behind the matrix</h2>',
        reasons(facts.cells),
    ]
    return page("Where every patch stands", body, foot)


def _summary(facts: Facts) -> str:
    """One paragraph with what asks for a reader's attention."""
    needs = []
    for target in facts.targets:
        for name in target.patches:
            state = facts.state(name, target.version)
            if state not in ("", "pending", "applied", "not-needed"):
                needs.append(f"{esc(name)} is {esc(state)} in {esc(target.name)} ({esc(target.version)})")
    for patch in facts.patches:
        for near in patch.upstream.collisions:
            needs.append(f"{esc(near.ref)} changes lines near {esc(near.anchor)} of {esc(patch.id)}")
    found = problems(facts.patches, facts.targets, facts.today)
    needs += [f"{esc(item.patch)}: {esc(item.text)}" for item in found if item.kind != "stale"]
    if stale := {item.patch for item in found if item.kind == "stale"}:
        needs.append(f"what was seen upstream is older than {OLDEST} days for {len(stale)} of {len(facts.patches)}")
    spans = ""
    for engine, cells in by_engine(facts.cells).items():
        versions = versions_of(cells)
        spans += f", {len(versions)} releases of {esc(engine)} ({esc(versions[0])} to {esc(versions[-1])})"
    counts = f"{len(facts.targets)} targets, {len(facts.patches)} patches{spans}."
    return f"<p>{counts} {'To look at:' if needs else 'Nothing asks for attention.'}</p>{listed(needs)}"


def _targets(facts: Facts) -> str:
    rows = []
    for target in facts.targets:
        states = []
        for name in target.patches:
            state = facts.state(name, target.version)
            tag = f'<span class="tag s-{state or "none"}">{esc(state or "not in the matrix")}</span>'
            optional = " (optional)" if name in target.optional else ""
            states.append(f'<a href="#{anchor(name)}">{esc(name)}</a> {tag}{optional}')
        wheels = [f"<code>{esc(wheel.file)}</code><br>sha256 <code>{wheel.sha256}</code>" for wheel in target.wheel]
        rows.append(
            (
                esc(target.name),
                f"{esc(target.engine)} {esc(target.version)}<br>{esc(target.platform)} {esc(target.accelerator)}",
                _base(target),
                "<br>".join(wheels),
                "<br>".join(states),
            )
        )
    return table(("target", "engine", "base", "wheels", "patches"), rows)


def _base(target: Target) -> str:
    """The base's name and digest, and whether anybody compared it with the registry."""
    base = target.base
    if not base.pinned:
        return f"none is pinned: {esc(base.digest_source)}"
    checked = "compared with the registry" if base.checked else "not compared with the registry"
    return f"{esc(base.image)}<br><code>{esc(base.digest)}</code><br>{checked}; from {esc(base.digest_source)}"


def _threats(facts: Facts) -> str:
    """Every open pull request that changes lines near an anchor, and how far was looked."""
    rows, scans = [], []
    for patch in facts.patches:
        seen = patch.upstream
        for found in seen.collisions:
            ours, theirs = (f"{a}–{b}" for a, b in (found.ours, found.theirs))
            rows.append(
                (
                    f'<a href="#{anchor(patch.id)}">{esc(patch.id)}</a>',
                    esc(found.anchor),
                    f"{esc(found.file)}<br>ours {esc(ours)}, theirs {esc(theirs)}",
                    f"{report_patches.thread(found.ref, 'pull')}<br>{esc(found.title)}",
                    esc(found.updated or "unknown"),
                )
            )
        scans += [
            f"{esc(patch.id)}: {scan.looked_at} of {scan.open} open pull requests of {esc(scan.repository)} "
            f"on {esc(scan.as_of)}, against {esc(scan.version)} ({esc(scan.method)})"
            for scan in seen.scans
        ]
    listing = table(("patch", "anchor", "lines", "pull request", "updated"), rows) if rows else "<p>None is known.</p>"
    looked = listed(scans) or "<p>Open pull requests were not looked through yet: graftwork status --refresh does.</p>"
    return listing + looked


def _ages(facts: Facts) -> str:
    rows = []
    for patch in facts.patches:
        seen = patch.upstream
        dates = report_patches.dates(seen)
        measured = sorted(item.date for item in patch.spec.evidence if item.date)
        rows.append(
            (
                f'<a href="#{anchor(patch.id)}">{esc(patch.id)}</a>',
                report_patches.age(min(dates), facts.today) if dates else "never",
                report_patches.age(max(dates), facts.today) if dates else "never",
                esc(" to ".join(dict.fromkeys((measured[0], measured[-1])))) if measured else "undated",
                f"{len(seen.refs)} of {len(patch.spec.upstream)}",
            )
        )
    head = ("patch", "oldest look upstream", "newest look upstream", "own evidence", "threads seen")
    return table(head, rows)
