"""``graftwork launch RECIPE``: a recipe as exact commands, environment and files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from graftwork.ui import Screen

if TYPE_CHECKING:
    from graftwork.launch.demands import Contents
    from graftwork.launch.recipe import Recipe


@click.command("launch")
@click.argument("recipe", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), metavar="DIR", help="Write deployment.json there.")
@click.option("--explain", is_flag=True, help="Give the reason for each argument and variable.")
@click.option("--target", metavar="T", help="The target of the image, in place of the recipe's.")
@click.option("--image-record", type=click.Path(path_type=Path), metavar="FILE", help="The record of the image.")
@click.option("--set", "changes", multiple=True, metavar="KEY=VALUE", help="Change a key of the recipe; repeatable.")
@click.option("--catalog", type=click.Path(path_type=Path), help="Checkout with patches/ and deploy/docker/.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
@click.option("--quiet", "-q", is_flag=True, help="Only the result and errors.")
def command(
    recipe: Path,
    out: Path | None,
    explain: bool,
    target: str | None,
    image_record: Path | None,
    changes: tuple[str, ...],
    catalog: Path | None,
    as_json: bool,
    quiet: bool,
) -> int:
    """Render RECIPE, a file or a name in deploy/recipes, into the commands of each node."""
    from graftwork.launch import show
    from graftwork.launch.recipe import load_recipe
    from graftwork.launch.render import render

    if target is not None and image_record is not None:
        raise click.UsageError("--target and --image-record both say what the image is; give one")
    screen = Screen(as_json=as_json, quiet=quiet)
    wanted = load_recipe(_file(recipe, catalog), list(changes))
    rendered = render(wanted, _contents(wanted, target, image_record, catalog))
    for warning in rendered.deployment.warnings:
        screen.warn(warning)
    show.lines(rendered, screen, explain=explain)
    if out is not None:
        show.write(rendered, out)
        screen.step("written", str(out / "deployment.json"))
    if as_json:
        screen.document(rendered.as_dict())
    deployment = rendered.deployment
    screen.result(f"{deployment.name}: {len(deployment.components)} components on {deployment.nodes} nodes")
    return 0


def _file(recipe: Path, catalog: Path | None) -> Path:
    """The file of a recipe: as named, or ``deploy/recipes/NAME.toml`` of the checkout."""
    if recipe.suffix or recipe.exists():
        return recipe
    from graftwork.catalog.catalog import Catalog
    from graftwork.errors import UsageError

    folder = Catalog.find(catalog).root / "deploy/recipes"
    file = folder / f"{recipe}.toml"
    if not file.is_file():
        have = ", ".join(sorted(each.stem for each in folder.glob("*.toml"))) or "none"
        raise UsageError(f"no recipe {recipe}", hint=f"recipes: {have}; or give a file")
    return file


def _contents(recipe: Recipe, target: str | None, image_record: Path | None, catalog: Path | None) -> Contents:
    """What the image holds and demands: from its record, else its target, else nothing is known of it."""
    from graftwork.catalog.catalog import Catalog
    from graftwork.launch.demands import Contents, of_record, of_target

    if image_record is not None:
        return of_record(image_record)
    name = target or recipe.target
    return of_target(Catalog.find(catalog), name) if name else Contents()
