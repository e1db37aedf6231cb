"""What the verbs for one patch share: naming it, and the tree of an engine to look at it in."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from graftwork.catalog.catalog import Catalog
from graftwork.cli import options
from graftwork.errors import PinError, UsageError
from graftwork.ui import Screen

if TYPE_CHECKING:
    from packaging.version import Version

    from graftwork.catalog.catalog import Patch
    from graftwork.catalog.targets import Target
    from graftwork.patching.assess import Engine
    from graftwork.trees.tree import Tree


def for_patch(function: Callable[..., int]) -> Callable[..., int]:
    """PATCH, --catalog, --json and --quiet; *function* is given the screen, the catalog and the patch's name."""
    return options.checkout(click.argument("patch", metavar="PATCH")(function))


def tree_options(function: Callable[..., int]) -> Callable[..., int]:
    """--tree, --target and --engine-version: which engine's files to work on."""
    folder = click.Path(path_type=Path)
    for option in (
        click.option("--engine-version", metavar="V", help="A release on the package index, or the version of --tree."),
        click.option("--target", "target_name", metavar="T", help="The pinned wheel of this target."),
        click.option("--tree", "folder", metavar="DIR", type=folder, help="A folder with the engine's package."),
    ):
        function = option(function)
    return function


@contextlib.contextmanager
def engine_tree(
    screen: Screen, catalog: Catalog, engine: str, folder: Path | None, target: Target | None, version: str | None
) -> Iterator[tuple[Tree, Engine]]:
    """The tree that the options name, and what engine it is. The platform is the target's; without one, ``cpu``."""
    from graftwork.patching.assess import Engine
    from graftwork.trees.version import engine_version

    platform = target.platform if target else "cpu"
    if folder is not None:
        from graftwork.trees.folder import open_folder

        tree = open_folder(folder, engine)
        said = version or engine_version(tree, engine) or (target.version if target else None)
        if said is None:
            raise UsageError(f"{folder}: says no version of {engine}", hint="name it with --engine-version V")
        yield tree, Engine(parsed(said), platform)
    elif target is not None:
        with options.pinned_wheel(target, catalog.lock(target), screen) as wheel:
            yield wheel, Engine(parsed(target.version), platform)
    elif version is not None:
        with release(screen, catalog, engine, parsed(version)) as found:
            yield found, Engine(parsed(version), platform)
    else:
        hint = "give --target T, --engine-version V for a release on the package index, or --tree DIR"
        raise UsageError(f"which {engine} is meant?", hint=hint)


@contextlib.contextmanager
def release(screen: Screen, catalog: Catalog, engine: str, version: Version) -> Iterator[Tree]:
    """A release from the package index, read in parts. PinError if the index has no wheel of it."""
    from graftwork.trees.cache import Cache
    from graftwork.trees.index import PackageIndex
    from graftwork.upstream import releases

    cache, index = Cache(warn=screen.warn), PackageIndex()
    notes = releases.FirstUse(cache)
    pins = releases.locked_pins(catalog, engine)
    found = releases.find_releases(index, engine, pins, notes, lambda known: [one for one in known if one == version])
    if not found:
        raise PinError(f"no wheel of {engine} {version} on the package index", hint="see: pip index versions")
    with releases.open_release(found[0], cache, index) as tree:
        yield tree
        if found[0].record_sha256 is None and tree.record_sha256 is not None:
            notes.put(found[0].location.sha256, tree.record_sha256)


def parsed(version: str) -> Version:
    """A PEP 440 version; UsageError otherwise."""
    from packaging.version import InvalidVersion, Version

    try:
        return Version(version)
    except InvalidVersion as error:
        raise UsageError(f"not a version: {error}") from None


@contextlib.contextmanager
def patch_tree(
    screen: Screen, catalog: Catalog, patch: Patch, folder: Path | None, target: str | None, version: str | None
) -> Iterator[tuple[Tree, Engine]]:
    """A tree to look at *patch* in: the one that is named, else the pinned wheel of the first target that has it."""
    from dataclasses import replace

    wanted = target_of(catalog, patch, target) if target or (folder is None and version is None) else None
    with engine_tree(screen, catalog, patch.engine, folder, wanted, version) as (tree, engine):
        yield tree, engine if wanted else replace(engine, platform=catalog.platforms_of([patch])[patch.id])


def target_of(catalog: Catalog, patch: Patch, name: str | None) -> Target | None:
    """The target called *name*, else the first one that has *patch*, if any."""
    targets = map(catalog.target, [name] if name else catalog.target_names)
    return next((item for item in targets if name or patch.id in item.patches), None)
