"""``graftwork lint``: what patches lack before anybody relies on them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from graftwork.catalog.catalog import Catalog
from graftwork.cli import options
from graftwork.errors import PolicyError, UnreachableError
from graftwork.ui import Screen

if TYPE_CHECKING:
    from graftwork.harness.lint import Problem


@click.command("lint")
@options.checkout
@click.argument("patches", nargs=-1, metavar="[PATCH]...")
@click.option(
    "--orders/--no-orders", default=True, help="Also plan the targets' patches in every order (reads wheels)."
)
def command(screen: Screen, found: Catalog, patches: tuple[str, ...], orders: bool) -> int:
    """Check the named patches, or all of them with the checkout's sources. Every problem has file and line."""
    from graftwork.harness import lint

    names = lint.names_of(found, patches)
    problems = [problem for name in names for problem in lint.lint_patch(found, name)]
    if not patches:
        problems += lint.lint_sources(found)
    checked: list[str] = []
    if orders and not problems:
        checked, more = _orders(screen, found, names)
        problems += more
    for problem in problems:
        screen.line(str(problem))
    rows = [{"file": item.file, "line": item.line, "message": item.message} for item in problems]
    document = {"patches": names, "orders": checked, "problems": rows}
    if problems:
        count = f"{len(problems)} problem{'s' * (len(problems) > 1)}"
        error = PolicyError(
            f"lint: {count} in {len({item.file for item in problems})} files", hint="see the lines above"
        )
        screen.error(error, document)
        return error.exit_code
    if screen.as_json:
        screen.document(document)
    orders_said = f", orders of {', '.join(checked)}" if checked else ""
    screen.result(
        f"lint: {_count(len(names), 'patch', 'es')}{'' if patches else ', sources'}{orders_said}: nothing to mend"
    )
    return 0


def _count(number: int, noun: str, plural: str = "s") -> str:
    return f"{number} {noun}{plural if number != 1 else ''}"


def _orders(screen: Screen, found: Catalog, names: list[str]) -> tuple[list[str], list[Problem]]:
    """The targets whose patches were planned in every order, and what is wrong with that."""
    from graftwork.harness import lint

    checked: list[str] = []
    problems: list[Problem] = []
    for name in found.target_names:
        target = found.target(name)
        if len(target.patches) < 2 or not set(target.patches) & set(names):
            continue
        try:
            with options.pinned_wheel(target, found.lock(target), screen) as tree:
                problems += lint.lint_orders(found, name, tree, options.engine_of(target, None, None))
            checked.append(name)
        except UnreachableError as error:
            screen.warn(f"the orders of {name} were not checked: {error.message}")
    return checked, problems
