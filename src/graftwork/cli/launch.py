"""``graftwork launch RECIPE``: a recipe as exact commands, environment and files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from graftwork.cli import running
from graftwork.cli.screened import screened
from graftwork.errors import UsageError
from graftwork.ui import Screen

if TYPE_CHECKING:
    from graftwork.catalog.catalog import Catalog
    from graftwork.launch.demands import Contents
    from graftwork.launch.recipe import Recipe


@click.command("launch")
@screened
@click.argument("recipe", type=click.Path(path_type=Path))
@click.option("--explain", is_flag=True, help="Give the reason for each argument and variable.")
@click.option("--target", metavar="T", help="The target of the image, in place of the recipe's.")
@click.option("--image-record", type=click.Path(path_type=Path), metavar="FILE", help="The record of the image.")
@click.option("--set", "changes", multiple=True, metavar="KEY=VALUE", help="Change a key of the recipe; repeatable.")
@running.options
@click.option("--catalog", "checkout", type=click.Path(path_type=Path), help="Checkout with patches/ and deploy/.")
def command(
    screen: Screen,
    recipe: Path,
    explain: bool,
    target: str | None,
    image_record: Path | None,
    changes: tuple[str, ...],
    checkout: Path | None,
    **where: Any,
) -> int:
    """Render RECIPE, a file or a name in deploy/recipes, into the commands of each node."""
    from graftwork.launch import show
    from graftwork.launch.recipe_file import load_recipe
    from graftwork.launch.render import render

    if target is not None and image_record is not None:
        raise click.UsageError("--target and --image-record both say what the image is; give one")
    catalog = _catalog(checkout)
    wanted = load_recipe(_file(recipe, catalog), list(changes))
    rendered = render(wanted, _contents(wanted, target, image_record, catalog))
    for warning in rendered.deployment.warnings:
        screen.warn(warning)
    show.lines(rendered, screen, explain=explain)
    written = running.write(rendered, running.Where(**where), catalog.root if catalog else None, screen)
    for path in written.values():
        screen.step("written", path)
    if screen.as_json:
        screen.document({**rendered.as_dict(), "written": written})
    deployment = rendered.deployment
    screen.result(f"{deployment.name}: {len(deployment.components)} components on {deployment.nodes} nodes")
    return 0


def _catalog(checkout: Path | None) -> Catalog | None:
    """The checkout; None where we are in none, as a recipe may be a file that names no target."""
    from graftwork.catalog.catalog import Catalog

    try:
        return Catalog.find(checkout)
    except UsageError:
        if checkout is not None:
            raise
        return None


def _file(recipe: Path, catalog: Catalog | None) -> Path:
    """The file of a recipe: as named, or ``deploy/recipes/NAME.toml`` of the checkout."""
    if recipe.suffix or recipe.is_file() or catalog is None:
        return recipe
    folder = catalog.root / "deploy/recipes"
    file = folder / f"{recipe}.toml"
    if not file.is_file():
        have = ", ".join(sorted(each.stem for each in folder.glob("*.toml"))) or "none"
        raise UsageError(f"no recipe {recipe}", hint=f"recipes: {have}; or give a file")
    return file


def _contents(recipe: Recipe, target: str | None, image_record: Path | None, catalog: Catalog | None) -> Contents:
    """What the image holds and demands: from its record, else its target, else nothing is known of it."""
    from graftwork.launch.demands import Contents, of_record, of_target

    if image_record is not None:
        return of_record(image_record, catalog)
    name = target or recipe.target
    if not name:
        return Contents()
    if catalog is None:
        raise UsageError(f"target {name}: we are in no checkout", hint="name one with --catalog DIR")
    return of_target(catalog, name)
