"""Options that verbs share, and the tree, catalog and engine they stand for."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from graftwork.catalog.catalog import Catalog, engine_version, wheel_for
from graftwork.catalog.targets import Lock, Target, WheelPin
from graftwork.cli.screened import screened
from graftwork.errors import PinError, UsageError
from graftwork.ui import Screen, size

if TYPE_CHECKING:
    from graftwork.patching.assess import Engine
    from graftwork.trees.remote import RemoteWheelTree
    from graftwork.trees.tree import Tree
    from graftwork.trees.wheel import WheelTree

F = TypeVar("F", bound=Callable[..., Any])


def checkout(function: Callable[..., int]) -> Callable[..., int]:
    """--catalog, --json and --quiet; *function* is given the screen and the catalog."""

    @functools.wraps(function)
    def call(screen: Screen, catalog: Path | None, **rest: Any) -> int:
        return function(screen, Catalog.find(catalog), **rest)

    where = click.Path(path_type=Path)
    return click.option("--catalog", type=where, help="Checkout with patches/ and deploy/docker/.")(screened(call))


def common(function: Callable[..., int]) -> Callable[..., int]:
    """The target, --catalog, --json and --quiet; *function* is given the screen, the catalog and the target."""

    @functools.wraps(function)
    def call(screen: Screen, found: Catalog, target: str, **rest: Any) -> int:
        return function(screen, found, found.target(target), **rest)

    return checkout(click.argument("target", metavar="TARGET")(call))


def tree_option(required: bool = False) -> Callable[[F], F]:
    """--tree DIR: a folder that holds the package, or a source checkout."""
    text = "Folder that holds the engine's package (DIR/sglang), or a source checkout (DIR/python/sglang)."
    return click.option(
        "--tree", "folder", metavar="DIR", type=click.Path(path_type=Path), required=required, help=text
    )


engine_option = click.option(
    "--engine-version", metavar="V", help="The tree's engine version, where it is not the target's or cannot be read."
)


def engine_of(target: Target, tree: Tree | None, given: str | None) -> Engine:
    """The tree's engine. PinError when the tree holds another version than the target pins or the user says."""
    from packaging.version import InvalidVersion, Version

    from graftwork.patching.assess import Engine
    from graftwork.trees.version import engine_version as version_in

    try:
        want = Version(given) if given else engine_version(target)
    except InvalidVersion as error:
        raise UsageError(f"--engine-version: {error}") from None
    found = version_in(tree, target.engine) if tree is not None else None
    if found and Version(found) != want:
        says = "--engine-version says" if given else f"target {target.name} pins"
        raise PinError(
            f"{tree.origin if tree else ''}: holds {target.engine} {found}, {says} {want}",
            hint=f"use the target for {found}, or plan these patches against it with --engine-version {found}",
        )
    return Engine(want, target.platform)


def open_pin(target: Target, pin: WheelPin, record: str | None, screen: Screen) -> WheelTree | RemoteWheelTree:
    """A pinned wheel: in parts when the lock gives its RECORD's sha256, else whole and hash-checked."""
    from graftwork.names import sha256_hex
    from graftwork.trees import remote
    from graftwork.trees.cache import Cache
    from graftwork.trees.index import PackageIndex

    wanted = remote.WheelPin(target.engine, pin.file, sha256_hex(pin.sha256), sha256_hex(record) if record else None)
    with screen.download(pin.file) as progress:
        return remote.open_wheel(
            wanted,
            Cache(warn=screen.warn),
            PackageIndex(),
            progress=progress,
            waiting=lambda: screen.line(f"waiting for another graftwork that downloads {pin.file}"),
        )


@contextlib.contextmanager
def pinned_wheel(target: Target, lock: Lock, screen: Screen) -> Iterator[Tree]:
    """The wheel that the target's base can load, read in parts; what planning finds meanwhile is remembered."""
    from graftwork.patching.memo import remembering
    from graftwork.trees.cache import Cache

    pin = wheel_for(target)
    records = {wheel.sha256: wheel.record_sha256 for wheel in lock.wheels}
    with open_pin(target, pin, records[pin.sha256], screen) as tree, remembering(Cache(warn=screen.warn)):
        yield tree


def say_wheel(tree: Tree, screen: Screen) -> None:
    """What reading the wheel in parts cost; nothing for other trees."""
    moved, requests = getattr(tree, "moved_bytes", None), getattr(tree, "requests", 0)
    if moved is not None:
        cost = f"{size(moved)} moved in {requests} requests, every file checked against RECORD"
        screen.step("wheel", f"{tree.origin}: {cost if moved else 'all from the cache'}")
