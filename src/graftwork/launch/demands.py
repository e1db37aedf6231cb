"""What the image that will run needs of the command line, and what it is: from its record, or from the target."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from graftwork.catalog.catalog import Catalog
from graftwork.errors import UsageError
from graftwork.images.record import parse_record


@dataclass(frozen=True)
class Demand:
    """Arguments and environment that every engine of the image must get, and why."""

    reason: str
    args: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Contents:
    """What is known of an image; all empty where nothing is said of it. *patches* are in it, *env* is set in it.

    *platform* is the accelerator's (``rocm``), *arch* the processor's as a recipe says it (``x86_64``).
    """

    engine: str = ""
    version: str = ""
    platform: str = ""
    interpreter: str = "python3"
    target: str = ""
    patches: frozenset[str] = frozenset()
    demands: tuple[Demand, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    arch: str = ""


_ARCHS = {"amd64": "x86_64", "arm64": "aarch64"}


def of_target(catalog: Catalog, name: str) -> Contents:
    """What an image of this target holds and demands."""
    target = catalog.target(name)
    patches = catalog.patches(target)
    launches = [(f"target {name}", launch) for launch in target.launch]
    launches += [(f"patch {patch.id}", launch) for patch in patches for launch in patch.spec.launch]
    return Contents(
        target.engine,
        target.version,
        target.platform,
        target.base.interpreter,
        name,
        frozenset(patch.id for patch in patches),
        tuple(Demand(f"{who}: {each.reason}", tuple(each.args), tuple(each.env.items())) for who, each in launches),
        tuple(target.env.items()),
        _ARCHS[target.base.arch],
    )


def of_record(file: Path, catalog: Catalog | None) -> Contents:
    """What the image whose record *file* holds demands. UsageError or ProofError for a file that is no record.

    Interpreter, accelerator and environment are not in it: they are those of its target, where *catalog* has that.
    """
    try:
        record = parse_record(file.read_bytes(), str(file))
    except OSError as error:
        raise UsageError(f"{file}: cannot be read: {error.strerror}", hint="dist/TARGET/record.json is one") from None
    held = frozenset(patch.id for patch in record.patches if patch.state in ("pending", "applied"))
    demand = Demand(f"the record of {record.target}", tuple(record.launch.args), tuple(record.launch.env.items()))
    engine, wanted = record.engine, (demand,) if demand.args or demand.env else ()
    arch = _ARCHS.get(record.platform.split("/")[1], "")
    found = Contents(engine.name, engine.version, target=record.target, patches=held, demands=wanted, arch=arch)
    if catalog is None or record.target not in catalog.target_names:
        return found
    target = catalog.target(record.target)
    return replace(found, platform=target.platform, interpreter=target.base.interpreter, env=tuple(target.env.items()))
