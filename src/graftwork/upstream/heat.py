"""The matrix as HTML: a heat map and the reason behind each cell. One renderer, for its own page and for the report."""

from __future__ import annotations

from collections.abc import Sequence

from graftwork.patching.states import MEANING, State
from graftwork.upstream.matrix_cells import Cell, EditCell, by_engine, counted, patches_of, since, versions_of
from graftwork.upstream.report_page import anchor, esc, listed, page

# A mark beside the word, so that nothing hangs on colour alone.
_MARK = {
    "pending": "✓",
    "applied": "✓",
    "drifted": "✗",
    "partial": "✗",
    "outdated": "✗",
    "obsolete": "∎",
    "not-needed": "–",
}
_TRUST = {
    "lock": "pinned by a lock of this checkout, wheel and RECORD",
    "index": "RECORD was taken from the package index at first use, and later readings are held to it",
}


def matrix_page(cells: Sequence[Cell], foot: str) -> str:
    """The matrix as a page of its own."""
    return page("Drift matrix", [heat_map(cells), "<h2>Reasons</h2>", reasons(cells)], foot)


def heat_map(cells: Sequence[Cell]) -> str:
    """A table for each engine, a row for each patch, a column for each release; every cell leads to its reason."""
    used = [state for state in State if any(cell.state == state.value for cell in cells)]
    legend = "".join(
        f'<span class="tag s-{state.value}">{_MARK[state.value]} {state.value}</span>{esc(MEANING[state])}<br>'
        for state in used
    )
    return "\n".join([*map(_table, by_engine(cells).values()), f'<p class="legend">{legend}</p>'])


def _table(cells: Sequence[Cell]) -> str:
    by_place = {(cell.patch, cell.version): cell for cell in cells}
    versions = versions_of(cells)
    head = "".join(f'<th scope="col">{esc(version)}</th>' for version in versions)
    rows = []
    for patch in patches_of(cells):
        row = "".join(_cell(by_place.get((patch, version)), patch, version) for version in versions)
        rows.append(f'<tr><th scope="row">{esc(patch)}</th>{row}</tr>')
    return (
        f'<div class="scroll"><table class="heat"><thead><tr><th scope="col">patch</th>{head}</tr></thead>\n'
        f"<tbody>\n{chr(10).join(rows)}\n</tbody></table></div>"
    )


def _cell(cell: Cell | None, patch: str, version: str) -> str:
    if cell is None:
        return '<td class="s-none" data-state="none">·</td>'
    place = f'data-patch="{esc(patch)}" data-version="{esc(version)}" data-state="{cell.state}"'
    note = f"<small>{esc(_tests(cell))}</small>" if cell.tests else ""
    why = esc("; ".join(cell.reasons) or MEANING[State(cell.state)])
    link = f'<a href="#{_id(cell)}" title="{why}">{_MARK[cell.state]} {cell.state}{note}</a>'
    return f'<td class="s-{cell.state}" {place}>{link}</td>'


def reasons(cells: Sequence[Cell]) -> str:
    """Why each cell is what it is: the reasons, and what moved under each edit that does not apply."""
    parts, order = [_trusted(cells)], versions_of(cells)
    for patch in patches_of(cells):
        parts.append(f"<h3>{esc(patch)}</h3>")
        row = [cell for cell in cells if cell.patch == patch]
        parts += [_reason(cell) for cell in sorted(row, key=lambda cell: order.index(cell.version))]
    return "\n".join(parts)


def _trusted(cells: Sequence[Cell]) -> str:
    """Which wheels were read, and why their bytes are believed."""
    said = []
    for trust, meaning in _TRUST.items():
        if wheels := dict.fromkeys(cell.wheel for cell in cells if cell.trust == trust):
            said.append(f"{esc(', '.join(sorted(wheels)))}: {esc(meaning)}")
    return f'<div class="dim">{listed(said)}</div>'


def _reason(cell: Cell) -> str:
    tag = f'<span class="tag s-{cell.state}">{_MARK[cell.state]} {cell.state}</span>'
    edits = ", ".join(f"{edit.id} {counted(edit.hunks) or 'holds'}" for edit in cell.edits)
    head = f"<strong>{esc(cell.version)}</strong> {tag} <span class=dim>{esc(edits)}</span>"
    if cell.tests:
        head += f" · tests: {esc(_tests(cell))}"
    lines = [esc(reason) for reason in cell.reasons]
    lines += [f"{esc(test)}: {esc(why)}" for test, why in (cell.tests.failed.items() if cell.tests else ())]
    moves = "".join(_moved(edit) for edit in cell.edits if edit.moved)
    return f'<div class="reason" id="{_id(cell)}">{head}{listed(lines)}{moves}</div>'


def _moved(edit: EditCell) -> str:
    """What moved under one edit, folded: a long row of these is read one at a time."""
    parts = []
    for move in edit.moved:
        was = f"was {move.was}" if move.was else "its place there is not known"
        lines = f"<pre>{esc(chr(10).join(move.diff))}</pre>" if move.diff else ""
        parts.append(f"<p><code>{esc(move.hunk)}</code> {esc(was)}<br>now: {esc(move.now)}</p>{lines}")
    return f"<details><summary>{esc(edit.id)}: {esc(since(edit))}</summary>{''.join(parts)}</details>"


def _tests(cell: Cell) -> str:
    assert cell.tests is not None
    failed = len(cell.tests.failed)
    return f"{failed} failed" if failed else f"{cell.tests.passed} passed"


def _id(cell: Cell) -> str:
    return anchor("why", cell.patch, cell.version)
