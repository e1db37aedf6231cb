"""``graftwork prove [TARGET...]``: every hunk of every patch carries weight, and its tests see it."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from graftwork.catalog.catalog import Catalog
from graftwork.catalog.targets import Target
from graftwork.cli import options, writing
from graftwork.errors import ProofError, UsageError
from graftwork.ui import Screen

if TYPE_CHECKING:
    from graftwork.harness.variants import Stage


@click.command("prove")
@options.checkout
@click.argument("targets", metavar="[TARGET]...", nargs=-1)
@click.option("--patch", "only", metavar="ID", multiple=True, help="Only this patch, by id or name; may be repeated.")
@options.tree_option()
@click.option("--jobs", "-j", type=click.IntRange(min=1), help="Test runs at one time (default: the processors).")
@click.option(
    "--limit", type=click.FloatRange(min=1), default=300.0, help="Seconds for the tests of one variant (300)."
)
@click.option("--junit", type=click.Path(path_type=Path, dir_okay=False), help="Write the result as JUnit XML too.")
def command(
    screen: Screen,
    found: Catalog,
    targets: tuple[str, ...],
    only: tuple[str, ...],
    folder: Path | None,
    jobs: int | None,
    limit: float,
    junit: Path | None,
) -> int:
    """Take each patch of the TARGETs (all without one) apart, and demand that its tests notice each time.

    The tests of the patches run the engine's own functions, in processes of their own.
    """
    from graftwork.harness import report
    from graftwork.harness.prove import check_requirements, prove

    wanted = [found.target(name) for name in targets or found.target_names]
    only = _ids(found, wanted, only)
    if junit:
        writing.write(junit, b"")  # an old report must not outlive a run that fails, nor a run its report
    with ExitStack() as stack:
        stages = [pair for target in wanted for pair in _stages(found, target, only, folder, screen, stack)]
        preload = check_requirements([stage.patch.folder / "tests" for _, stage in stages])
        at_once = jobs or len(os.sched_getaffinity(0))
        rows = report.show(prove(stages, at_once=at_once, limit=limit, preload=preload), screen)
    if junit:
        writing.write(junit, report.junit(rows))
    faults = [row for row in rows if row.verdict.fault]
    if not faults:
        if screen.as_json:
            screen.document(report.as_dict(rows))
        noticed = f"{len(rows)} variants of {len(stages)} patches, every one noticed"
        screen.result(noticed if rows else "no patch is needed here: there is nothing to prove")
        return 0
    first = f"{faults[0].target} {faults[0].patch}, {faults[0].variant.name}: {faults[0].verdict.fault}"
    error = ProofError(
        f"{len(faults)} of {len(rows)} variants are not as they must be, first {first}",
        hint="docs/harness.md says for each fault what to do",
    )
    screen.error(error, report.as_dict(rows))
    return error.exit_code


def _ids(found: Catalog, wanted: list[Target], only: tuple[str, ...]) -> tuple[str, ...]:
    """The ids of the patches that were named, each of which a target must have."""
    ids = tuple(found.patch_id_of(name) for name in only)
    for name in ids:
        if not any(name in target.patches for target in wanted):
            known = ", ".join(dict.fromkeys(each for target in wanted for each in target.patches))
            raise UsageError(f"no patch {name!r} in {', '.join(each.name for each in wanted)}", hint=f"known: {known}")
    return ids


def _stages(
    found: Catalog, target: Target, only: tuple[str, ...], folder: Path | None, screen: Screen, stack: ExitStack
) -> list[tuple[str, Stage]]:
    """The patches of *target* that its tree needs, each with its mutants. Raises what the plan refuses."""
    from graftwork.harness.variants import Stage
    from graftwork.patching.plan import plan
    from graftwork.patching.states import State
    from graftwork.trees.folder import open_folder
    from graftwork.trees.tree import Tree

    tree: Tree
    if folder is not None:
        tree = open_folder(folder, target.engine)
    else:
        tree = stack.enter_context(options.pinned_wheel(target, found.lock(target), screen))
    planned = plan(
        tree, found.patches(target), options.engine_of(target, tree if folder else None, None), target.optional
    )
    refusal = planned.refusal()
    if refusal:
        raise refusal
    there = [item.patch.id for item in planned.patches if item.state is State.APPLIED]
    if there:
        raise UsageError(f"{tree.origin}: {', '.join(there)} is in it already", hint="give the pristine tree")
    for item in planned.patches:
        if item.state is not State.PENDING and (not only or item.patch.id in only):
            screen.step(target.name, f"{item.patch.id} is {item.state.value}: {'; '.join(item.reasons)}")
    return [
        (target.name, Stage(planned, tree, item.patch, found.mutants(item.patch)))
        for item in planned.pending
        if not only or item.patch.id in only
    ]
