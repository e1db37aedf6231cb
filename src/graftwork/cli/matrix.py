"""``graftwork matrix``: every patch against every release of its engine. Writes nothing but what --html names."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from graftwork.catalog.catalog import Catalog, Patch
from graftwork.cli import options, writing
from graftwork.errors import ProofError, UsageError
from graftwork.ui import Screen, size

if TYPE_CHECKING:
    from graftwork.trees.cache import Cache
    from graftwork.trees.index import PackageIndex
    from graftwork.upstream.matrix import Matrix
    from graftwork.upstream.matrix_cells import Cell


@click.command("matrix")
@options.checkout
@click.option("--engine", metavar="E", help="Only the patches of this engine, such as sglang.")
@click.option("--target", metavar="T", help="Only the patches of this target, for its platform.")
@click.option("--patch", "names", metavar="P", multiple=True, help="Only this patch; can be given more than once.")
@click.option("--versions", metavar="SPEC", default="", help="Releases, as '>=0.5.15,<0.5.20'. See docs/matrix.md.")
@click.option("--run-tests", is_flag=True, help="Run each patch's tests where it applies. This runs the engine's text.")
@click.option("--html", "page", metavar="FILE", type=click.Path(path_type=Path), help="Write the matrix as a page.")
@click.option("--offline", is_flag=True, help="Only what is in the cache; ask nobody.")
@click.option("--jobs", metavar="N", type=click.IntRange(min=1), help="Processes; one for each core if not given.")
def command(
    screen: Screen,
    found: Catalog,
    engine: str | None,
    target: str | None,
    names: tuple[str, ...],
    versions: str,
    run_tests: bool,
    page: Path | None,
    offline: bool,
    jobs: int | None,
) -> int:
    """Show where every patch stands in every release of its engine, read in parts from the released wheels."""
    from graftwork.upstream import matrix_cells, matrix_text

    if page is not None:
        writing.check(page)
    wanted = Wanted(found, engine, target, names, versions)
    cells = []
    for made in matrices(wanted, screen, offline=offline, jobs=jobs or 0, run_tests=run_tests):
        cells += made.cells
    matrix_text.show(cells, screen)
    if page is not None:
        writing.write(page, _page(cells))
        screen.step("written", str(page))
    document = matrix_cells.as_dict(cells)
    failed = [f"{cell.patch} on {cell.version}" for cell in cells if cell.tests and cell.tests.failed]
    if failed:
        error = ProofError(
            f"tests failed: {', '.join(failed)}", hint="the anchors match, the fix does not work there: see the report"
        )
        screen.error(error, document)
        return error.exit_code
    if screen.as_json:
        screen.document(document)
    states = [cell.state for cell in cells]
    said = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    screen.result(f"{len(cells)} cells: {said}")
    return 0


class Wanted:
    """Which patches and releases are asked for. UsageError where no patch is left."""

    def __init__(
        self, catalog: Catalog, engine: str | None, target: str | None, names: tuple[str, ...], versions: str
    ) -> None:
        self.catalog, self.versions = catalog, versions
        self.target = catalog.target(target) if target else None
        self.patches = _chosen(catalog, engine, self.target.patches if self.target else None, names)

    @property
    def engines(self) -> dict[str, list[Patch]]:
        """The patches by engine."""
        by_engine: dict[str, list[Patch]] = {}
        for patch in self.patches:
            by_engine.setdefault(patch.engine, []).append(patch)
        return by_engine


def matrices(
    wanted: Wanted, screen: Screen, *, offline: bool = False, jobs: int = 0, run_tests: bool = False
) -> list[Matrix]:
    """One matrix for each engine that has releases in the range, and lines about what it cost.

    UsageError where no engine has one.
    """
    from graftwork.trees.cache import Cache
    from graftwork.trees.index import PackageIndex
    from graftwork.trees.pages import PageCache

    cache = Cache(warn=screen.warn)
    pages = PageCache(cache, offline=offline)
    index = PackageIndex(pages=pages)
    found: list[Matrix] = []
    empty: list[str] = []
    for engine, patches in wanted.engines.items():
        made = _matrix(wanted, engine, patches, cache, index, jobs, run_tests)
        if made is None:
            empty.append(f"no release of {engine} in {wanted.versions or 'the default range'}")
            continue
        for wheel in made.whole:
            screen.warn(f"{wheel}: downloaded whole, as its source serves no parts of it")
        moved = made.traffic.moved_bytes + pages.moved_bytes
        cost = f"{size(moved)} moved in {made.traffic.requests + pages.requests} requests" if moved else "nothing moved"
        releases = list(dict.fromkeys(cell.version for cell in made.cells))
        span = releases[0] if len(releases) == 1 else f"{releases[0]} to {releases[-1]} ({len(releases)})"
        screen.step("releases", f"{engine} {span}: {cost}")
        pages.moved_bytes = pages.requests = 0
        found.append(made)
    if not found:
        hint = "give another --versions, or check 'pip config list': the wheels come from pip's sources"
        raise UsageError("; ".join(empty), hint=hint)
    for text in empty:
        screen.warn(f"{text}: its patches are left out")
    return found


def _matrix(
    wanted: Wanted, engine: str, patches: list[Patch], cache: Cache, index: PackageIndex, jobs: int, run_tests: bool
) -> Matrix | None:
    """The matrix of one engine; None where it has no release in the range."""
    from graftwork.upstream import releases
    from graftwork.upstream.matrix import Question, make_matrix, with_tests

    chosen = releases.find_releases(
        index,
        engine,
        releases.locked_pins(wanted.catalog, engine),
        releases.FirstUse(cache),
        releases.in_range(wanted.versions, patches),
    )
    if not chosen:
        return None
    platforms = wanted.catalog.platforms_of(patches)
    if wanted.target is not None:
        platforms = dict.fromkeys(platforms, wanted.target.platform)
    question = Question(tuple(patches), platforms, tuple(chosen))
    made = make_matrix(question, cache, index, jobs=jobs)
    if run_tests:
        from graftwork.harness.on_releases import own_tests

        made = with_tests(made, *own_tests(question, made.cells, cache, index, jobs=jobs))
    return made


def _chosen(catalog: Catalog, engine: str | None, listed: list[str] | None, names: tuple[str, ...]) -> list[Patch]:
    """The patches that all the given options leave."""
    ids = list(catalog.patch_ids) if listed is None else list(listed)
    known = f"patches: {', '.join(catalog.patch_ids)}"
    if names:
        named = [catalog.patch_named(name).id for name in names]
        ids = [one for one in ids if one in named]
    if engine:
        ids = [one for one in ids if one.partition("/")[0] == engine]
    if not ids:
        raise UsageError("no patch is left: --engine, --target and --patch have none in common", hint=known)
    return [catalog.patch(one) for one in ids]


def _page(cells: list[Cell]) -> bytes:
    from graftwork import __version__
    from graftwork.upstream.heat import matrix_page

    return matrix_page(cells, f"graftwork {__version__} matrix").encode("utf-8")
