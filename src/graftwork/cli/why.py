"""``graftwork why PATCH``: everything that is known of one patch, on one page."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

import click

from graftwork.catalog.catalog import Catalog, Patch
from graftwork.cli import opening
from graftwork.errors import UnreachableError, UsageError
from graftwork.ui import Screen

if TYPE_CHECKING:
    from collections.abc import Iterable

    from graftwork.catalog.patches import Edit
    from graftwork.upstream.matrix_cells import Cell

_WIDTH = 118


@click.command("why")
@opening.for_patch
@click.option("--versions", metavar="SPEC", default="", help="Releases of the matrix row, as '>=0.5.15,<0.5.20'.")
@click.option("--offline", is_flag=True, help="The matrix row only from the cache; ask nobody.")
@click.option("--matrix/--no-matrix", "with_matrix", default=True, help="Whether to look at the releases at all.")
def command(screen: Screen, found: Catalog, patch: str, versions: str, offline: bool, with_matrix: bool) -> int:
    """Show why PATCH exists, what it changes, what is known of it, where it stands, and what would let it go."""
    loaded = found.patch_named(patch)
    cells, unread = _row(screen, found, loaded, versions, offline) if with_matrix else ([], "")
    targets = [target for target in map(found.target, found.target_names) if loaded.id in target.patches]
    pinned = [f"{target.name} ({target.engine} {target.version}, {target.platform})" for target in targets]
    if screen.as_json:
        screen.document(_document(loaded, pinned, cells, unread))
        return 0
    spec = loaded.spec
    screen.step("patch", f"{loaded.label}: {spec.title}")
    _say(screen, "symptom", spec.symptom)
    _say(screen, "why", spec.why)
    for edit in spec.edit:
        _say(screen, "changes", _edit_line(edit))
        for reason in dict.fromkeys(filter(None, (edit.why, *(hunk.why for hunk in getattr(edit, "hunk", []))))):
            _say(screen, "", f"- {reason}")
    for marker in spec.marker:
        when = f" ({marker.versions})" if marker.versions else ""
        _say(screen, "marker", f"{marker.kind} {marker.value} in {marker.function}{when}")
    for launch in spec.launch:
        _say(
            screen,
            "launch",
            f"{' '.join([*(f'{k}={v}' for k, v in launch.env.items()), *launch.args])}: {launch.reason}",
        )
    _say(screen, "targets", ", ".join(pinned) or "in none")
    for item in spec.evidence:
        _say(screen, item.kind, f"{item.text} ({', '.join(filter(None, (item.source, item.date)))})")
    _upstream(screen, loaded)
    _matrix(screen, cells, unread)
    for rule in spec.not_needed:
        where = ", ".join(filter(None, (rule.versions, " ".join(rule.platforms))))
        _say(screen, "not where", f"{where}: {rule.reason}")
    for fact in spec.obsolete_when:
        _say(screen, "obsolete", f"when {fact.file} has {fact.defines or fact.contains}: {fact.reason}")
    _say(screen, "drop when", spec.drop_when)
    screen.result(
        f"{loaded.id} {spec.revision}: drop it when: {spec.drop_when}"
        if screen.quiet
        else f"see {loaded.folder / 'README.md'}"
    )
    return 0


def _row(screen: Screen, found: Catalog, patch: Patch, versions: str, offline: bool) -> tuple[list[Cell], str]:
    """The patch's row of the matrix, and why it could not be read, if so."""
    from graftwork.cli.matrix import Wanted, matrices

    try:
        made = matrices(Wanted(found, None, None, (patch.id,), versions), screen, offline=offline)
    except UnreachableError as error:
        return [], error.message
    except UsageError as error:
        if versions:
            raise
        return [], error.message  # an engine without releases on the index
    return [cell for one in made for cell in one.cells], ""


def _matrix(screen: Screen, cells: Iterable[Cell], unread: str) -> None:
    from graftwork.upstream import matrix_text

    if unread:
        _say(screen, "releases", f"not looked at: {unread}")
    rows = list(cells)
    if rows:
        matrix_text.show(rows, screen)


def _upstream(screen: Screen, patch: Patch) -> None:
    from graftwork.oci.errors import printable

    for row in patch.spec.upstream:
        seen = patch.upstream.seen(row.ref)
        state = f"{seen.state}, seen {seen.as_of} ({seen.method})" if seen else "never looked at"
        held = patch.upstream.containing(row.ref)
        first = f", first in {held.first}" if held and held.first else ""
        title = f": {printable(seen.title)}" if seen and seen.title else ""
        _say(screen, "upstream", f"{row.ref}, {row.relation}, {state}{first}{title}")
        if row.expect:
            _say(screen, "", f"- {row.expect}")
    for item in patch.spec.searched:
        _say(screen, "searched", f"{item.what}, {item.how}, {item.date}")
    for near in patch.upstream.collisions:
        _say(screen, "collision", f"{near.ref} is open and changes lines near {near.anchor} in {near.file}")


def _edit_line(edit: Edit) -> str:
    from graftwork.catalog.patches import Diff, NewFile

    if isinstance(edit, NewFile):
        where = f"{edit.path} (new)"
    elif isinstance(edit, Diff):
        where = f"as {edit.source}"
    else:
        where = f"{edit.file}, {edit.scope}" if edit.scope else edit.file
    return f"{edit.id}: {where}" + (f" ({edit.versions})" if edit.versions else "")


def _say(screen: Screen, name: str, text: str) -> None:
    """A step whose text is wrapped in its own column."""
    lines = textwrap.wrap(" ".join(text.split()), _WIDTH - 10, break_on_hyphens=False) or [""]
    screen.step(name, lines[0])
    for line in lines[1:]:
        screen.line(f"{'':<9} {'  ' if text.startswith('- ') else ''}{line}")


def _document(patch: Patch, targets: list[str], cells: list[Cell], unread: str) -> dict[str, Any]:
    import msgspec

    from graftwork.catalog.toml import table_of

    plain = msgspec.to_builtins(table_of(patch.spec))
    evidence = msgspec.to_builtins(patch.upstream)
    row = msgspec.to_builtins(cells)
    return {"patch": plain, "targets": targets, "upstream": evidence, "matrix": row, "matrix_unread": unread}
