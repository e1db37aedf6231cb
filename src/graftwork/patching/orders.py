"""Whether patches compose: every order that ``after`` allows makes the same bytes, and no ``after`` is needless.

A set of patches is closed when it holds whatever its patches come after. Each closed set is reached from the smaller
ones by every patch that may come last in it, so all orders are decided without trying each of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

from graftwork.catalog.catalog import Patch
from graftwork.catalog.rules import edit_files
from graftwork.patching.assess import Engine, assess, edits_for, put
from graftwork.patching.overlay import Overlay
from graftwork.patching.states import State
from graftwork.trees.tree import Tree

_SETTLED = (State.PENDING, State.NOT_NEEDED, State.OBSOLETE)


def problems(tree: Tree, patches: Sequence[Patch], engine: Engine) -> list[tuple[Patch, str]]:
    """(patch, what is wrong with its place) for *patches* on *tree*; nothing if they compose as declared."""
    found: list[tuple[Patch, str]] = []
    for group in _groups(patches, engine):
        found += _disagreements(tree, group, engine)
        found += _needless(tree, group, engine)
    return found


def _groups(patches: Sequence[Patch], engine: Engine) -> list[list[Patch]]:
    """Patches that share files, directly or through others; those that share none cannot disturb each other."""
    groups: list[tuple[set[str], list[Patch]]] = []
    for patch in patches:
        files = {path for edit in edits_for(patch, engine) for path in edit_files(edit, patch.folder)}
        files |= {when.file for when in patch.spec.obsolete_when} | {f"after:{name}" for name in patch.spec.after}
        files.add(f"after:{patch.id}")
        members = [patch]
        for other in [item for item in groups if item[0] & files]:
            groups.remove(other)
            files, members = files | other[0], [*other[1], *members]
        groups.append((files, members))
    return [members for _, members in groups if len(members) > 1]


def _disagreements(tree: Tree, group: Sequence[Patch], engine: Engine) -> list[tuple[Patch, str]]:
    """Every patch that makes other bytes, or none, where it is put last in a closed set."""
    waits = _waits(group)
    made: dict[frozenset[str], Overlay] = {frozenset(): Overlay(tree)}
    for size in range(1, len(group) + 1):
        for chosen in combinations(group, size):
            names = frozenset(patch.id for patch in chosen)
            if any(waits[patch.id] - names for patch in chosen):
                continue
            for last in chosen:
                rest = names - {last.id}
                if rest not in made:
                    continue
                over, problem = _with(last, made[rest], engine)
                known = made.setdefault(names, over)
                if not problem and known.differing() != over.differing():
                    problem = "makes other bytes than in another order"
                if problem:
                    return [(last, f"behind {', '.join(sorted(rest)) or 'nothing'} it {problem}: declare 'after'")]
    return []


def _needless(tree: Tree, group: Sequence[Patch], engine: Engine) -> list[tuple[Patch, str]]:
    """Every ``after`` without which the two patches make the same bytes either way round."""
    found = []
    for patch in group:
        for other in (item for item in group if item.id in patch.spec.after):
            ends = []
            for first, second in ((patch, other), (other, patch)):
                over, wrong = _with(first, Overlay(tree), engine)
                over, also = _with(second, over, engine)
                ends.append((wrong or also, over.differing()))
            if ends[0] == ends[1] and not ends[0][0]:
                found.append((patch, f"after {other.id} is needless: both orders make the same bytes"))
    return found


def _waits(group: Sequence[Patch]) -> Mapping[str, set[str]]:
    names = {patch.id for patch in group}
    return {patch.id: set(patch.spec.after) & names for patch in group}


def _with(patch: Patch, over: Overlay, engine: Engine) -> tuple[Overlay, str]:
    """*over* with *patch* in it, and what is wrong with that."""
    item, result = assess(patch, over, engine), over.copy()
    if item.state not in _SETTLED:
        return result, f"is {item.state.value} ({'; '.join(item.reasons)})"
    return result, "; ".join(put(item, result, engine)) if item.state is State.PENDING else ""
