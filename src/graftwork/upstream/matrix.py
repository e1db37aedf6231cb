"""The drift matrix: every patch against every release of its engine, reading only what planning asks for."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from graftwork.catalog.catalog import Patch
from graftwork.errors import CatalogError, GraftworkError, UnreachableError, UsageError
from graftwork.names import RelPath, Sha256
from graftwork.patching.memo import remembering
from graftwork.patching.overlay import Overlay
from graftwork.trees.cache import Cache
from graftwork.trees.index import PackageIndex
from graftwork.trees.tree import Tree
from graftwork.upstream.matrix_cells import Cell, EditCell, OwnTests
from graftwork.upstream.matrix_moves import Comparison, Hashes, compare, comparisons
from graftwork.upstream.matrix_work import Source, Unreadable, edited_files, plan_alone
from graftwork.upstream.releases import FirstUse, Release, open_release


@dataclass(frozen=True)
class Question:
    """What a matrix is made of: patches with the platform each is planned for, and the releases, oldest first."""

    patches: tuple[Patch, ...]
    platforms: Mapping[str, str]
    releases: tuple[Release, ...]


@dataclass(frozen=True)
class Traffic:
    """Bodies of the wheels that were moved, in bytes, and requests for them."""

    moved_bytes: int = 0
    requests: int = 0


@dataclass
class Matrix:
    """The cells, release by release and in the order of the patches within one, and what they cost."""

    cells: list[Cell]
    traffic: Traffic
    whole: list[str] = field(default_factory=list)  # wheels that were downloaded whole


def cores() -> int:
    """How many processes this machine can run at once."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def make_matrix(question: Question, cache: Cache, index: PackageIndex, *, jobs: int = 0) -> Matrix:
    """Plan every patch on every release, in *jobs* processes (0: one for each core).

    Raises UnreachableError or PinError, naming every release that could not be read, after all were tried.
    """
    jobs = min(jobs or cores(), max(len(question.releases), 1))
    _ = index.settings  # asked of pip here, and not again in each process
    with _workers(_Work(question, cache, index), jobs) as spread:
        results = list(spread(_release, question.releases, chunksize=max(1, len(question.releases) // (2 * jobs))))
        _raise_all([result.error for result in results if result.error])
        notes = FirstUse(cache)
        for release, result in zip(question.releases, results, strict=True):
            if release.record_sha256 is None and result.record is not None:
                notes.put(release.location.sha256, result.record)
        cells = [cell for result in results for cell in result.cells]
        cells = _with_moves(question, cells, [result.hashes for result in results], spread)
    traffic = Traffic(sum(r.traffic.moved_bytes for r in results), sum(r.traffic.requests for r in results))
    return Matrix(cells, traffic, [result.whole for result in results if result.whole])


@dataclass(frozen=True)
class _Work:
    question: Question
    cache: Cache
    index: PackageIndex


@dataclass(frozen=True)
class _Result:
    cells: list[Cell] = field(default_factory=list)
    hashes: dict[str, Sha256 | None] = field(default_factory=dict)
    record: Sha256 | None = None
    traffic: Traffic = Traffic()
    whole: str = ""
    error: tuple[type[GraftworkError], str, str] | None = None


_WORK: list[_Work] = []


def _begin(work: _Work, forked: bool = True) -> None:
    _WORK[:] = [replace(work, index=work.index.fresh()) if forked else work]


@contextmanager
def _workers(work: _Work, jobs: int) -> Iterator[Callable[..., Iterator[Any]]]:
    """A ``map`` over *jobs* processes that hold *work*, forked so that nothing is imported twice.

    Neighbouring releases share many files, and a process remembers what it found in one: hence chunks.
    """
    if jobs == 1:
        _begin(work, forked=False)
        yield lambda function, items, chunksize=1: map(function, items)
        return
    import libcst  # noqa: F401  # before the fork, so that it is loaded once
    import remotezip  # noqa: F401
    import requests  # noqa: F401

    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(jobs, mp_context=context, initializer=_begin, initargs=(work,)) as pool:
        yield pool.map


def _release(release: Release) -> _Result:
    """All patches on one release; a failure to read it is handed back, so that the others are read too."""
    (work,) = _WORK
    try:
        with open_release(release, work.cache, work.index) as tree, remembering(work.cache):
            cells, seen = [], 0
            over = Overlay(Source(tree))  # each file is read once, for all patches
            for patch in work.question.patches:
                cell = _cell(release, patch, over, work.question.platforms[patch.id])
                cells.append(msgspec.structs.replace(cell, bytes=tree.moved_bytes - seen))
                seen = tree.moved_bytes
            looked = {cell.patch for cell in cells if cell.edits}  # the others cost nothing, RECORD neither
            edited = [edited_files(p, release.version) for p in work.question.patches if p.id in looked]
            found = {path: row.sha256 for path in set().union(*edited) if (row := tree.rows.get(RelPath(path)))}
            whole = tree.origin if tree.how == "whole" and tree.moved_bytes else ""
            return _Result(cells, found, tree.record_sha256, Traffic(tree.moved_bytes, tree.requests), whole)
    except (GraftworkError, Unreadable) as failed:
        error = failed.error if isinstance(failed, Unreadable) else failed
        kind = UsageError if isinstance(error, CatalogError) else type(error)  # which is not made of a message alone
        return _Result(error=(kind, f"{release.project} {release.version}: {error.message}", error.hint))


def _cell(release: Release, patch: Patch, tree: Tree, platform: str) -> Cell:
    made = plan_alone(tree, patch, release.version, platform)
    return Cell(
        patch=patch.id,
        revision=patch.spec.revision,
        version=str(release.version),
        platform=platform,
        state=made.state.value,
        edits=made.edits,
        bytes=0,
        reasons=made.reasons,
        wheel=release.location.filename,
        trust=release.trust,
    )


def _with_moves(
    question: Question, cells: list[Cell], hashed: Sequence[Hashes], spread: Callable[..., Any]
) -> list[Cell]:
    """The cells with what moved under each edit that does not apply."""
    by_version = {str(release.version): found for release, found in zip(question.releases, hashed, strict=True)}
    wanted = list(comparisons(question.patches, cells, by_version))
    compared = spread(_compare, [comparison for *_, comparison in wanted])
    for (number, position, _), edit in zip(wanted, compared, strict=True):
        edits = list(cells[number].edits)
        edits[position] = edit
        cells[number] = msgspec.structs.replace(cells[number], edits=edits)
    return cells


def _compare(asked: Comparison) -> EditCell:
    (work,) = _WORK
    return compare(asked, work.cache)


def _raise_all(errors: Sequence[tuple[type[GraftworkError], str, str]]) -> None:
    """One error for all releases that could not be read; a broken pin outranks an unreachable one."""
    if not errors:
        return
    kind, _, hint = min(errors, key=lambda error: error[0] is UnreachableError)
    messages = list(dict.fromkeys(message for _, message, _ in errors))
    raise kind("; ".join(messages), hint=hint)


def with_tests(matrix: Matrix, results: Mapping[tuple[str, str], OwnTests], cost: Traffic) -> Matrix:
    """The matrix with what each patch's own tests said, by (patch, version), and with what they cost."""
    cells = [
        msgspec.structs.replace(cell, tests=results.get((cell.patch, cell.version), cell.tests))
        for cell in matrix.cells
    ]
    moved, requests = matrix.traffic.moved_bytes + cost.moved_bytes, matrix.traffic.requests + cost.requests
    return replace(matrix, cells=cells, traffic=Traffic(moved, requests))
