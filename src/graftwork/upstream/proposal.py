"""What to do about each finding: drop, cut again, or correct a claim, as the edit to make."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from graftwork.catalog.catalog import Catalog, Patch
from graftwork.catalog.targets import Target
from graftwork.catalog.toml import line_of
from graftwork.patching.report import file_diff
from graftwork.patching.states import State
from graftwork.upstream.changes import Change
from graftwork.upstream.policy import Problem

_DEFINED = re.compile(r"(?:async\s+)?(?:def|class)\s+(\w+)|(\w+)(?:\s*:[^=]+)?\s*=[^=]")
_SEARCHED = """[[searched]]
what = "the words and paths looked for"
how = "where, and with what"
date = "YYYY-MM-DD"
"""
StateOf = Callable[[Patch, Target], "State | None"]
ChangesOf = Callable[[str, str], Sequence[Change]]


@dataclass(frozen=True)
class Proposal:
    """One thing to do: in words, as a diff of the checkout (empty: none can be made), as commands, as text to add."""

    patch: str
    what: str
    diff: str = ""
    commands: tuple[str, ...] = ()
    add: str = ""


@dataclass(frozen=True)
class Proposer:
    """Makes proposals for a catalog and its *targets*.

    *state_of* plans a patch on a target's pinned wheel (None: not at hand); *changes_of* gives a reference's changes.
    """

    catalog: Catalog
    targets: Sequence[Target]
    state_of: StateOf
    changes_of: ChangesOf

    def for_problem(self, patch: Patch, problem: Problem) -> Proposal:
        """The way out of one finding."""
        if problem.kind == "contained":
            return self._overtaken(patch, problem)
        if problem.kind in ("contradiction", "kind"):
            return self._corrected(patch, problem)
        if problem.kind == "no-reference":
            return Proposal(patch.id, "say what was searched, or name what was found, in patch.toml", add=_SEARCHED)
        if problem.kind == "missing":
            text = f"find what became of {problem.ref}; take its [[upstream]] out, or name what replaced it"
            return Proposal(patch.id, text)
        if patch.spec.upstream:
            return Proposal(patch.id, "look again", commands=(f"graftwork status {patch.id} --refresh",))
        return Proposal(patch.id, "search again, then set the date of [[searched]]")

    def moved(self, patch: Patch) -> list[Proposal]:
        """References that are somewhere else now."""
        found = []
        for row in patch.upstream.refs:
            if row.moved_to:
                diff = self._line(patch, row.ref, "ref", row.moved_to)
                found.append(Proposal(patch.id, f"{row.ref} is {row.moved_to} now: follow it", diff))
        return found

    def colliding(self, patch: Patch) -> list[Proposal]:
        """Anchors that an open pull request would move: nothing to do before it lands, but what then."""
        by_ref: dict[str, list[str]] = {}
        for item in patch.upstream.collisions:
            by_ref.setdefault(item.ref, []).append(f"{item.anchor} ({item.file}:{item.ours[0]})")
        name = f"graftwork rebase {patch.id} --to VERSION"
        return [
            Proposal(patch.id, f"when {ref} lands, cut again: {', '.join(anchors)}", commands=(name,))
            for ref, anchors in by_ref.items()
        ]

    def _overtaken(self, patch: Patch, problem: Problem) -> Proposal:
        target = next(target for target in self.targets if target.name == problem.target)
        state = self.state_of(patch, target)
        where = f"{problem.ref} is in {target.engine} {target.version}"
        if state is not None and state is not State.OBSOLETE:
            what = f"{where}, and there the patch is {state.value}: drop it, or cut it down to what is left to fix"
            again = (f"graftwork rebase {patch.id} --to {target.version}",)
            return Proposal(patch.id, what, self._dropped(patch, target), again, self._precondition(patch, problem.ref))
        others = [other.name for other in self.targets if patch.id in other.patches and other.name != target.name]
        commands = (f"graftwork plan {target.name}",) if others else (f"git rm -r patches/{patch.id}",)
        what = f"{where}: drop it from {target.name}" + ("" if others else ", which is the last target that lists it")
        add = "" if patch.spec.obsolete_when else self._precondition(patch, problem.ref)
        return Proposal(patch.id, what, self._dropped(patch, target), commands, add)

    def _dropped(self, patch: Patch, target: Target) -> str:
        """The target file without the patch, as a diff; empty where its list is not written in a plain way."""
        file = self.catalog.target_file(target.name)
        text = file.read_text("utf-8")
        found = re.search(r"^patches\s*=\s*\[([^\]]*)\]", text, re.M)
        if found is None or "#" in found[1]:
            return ""
        kept = [f'"{name}"' for name in target.patches if name != patch.id]
        whole = "patches = [" + ", ".join(kept) + "]"
        if "\n" in found[1]:
            whole = "patches = [\n" + "".join(f"  {name},\n" for name in kept) + "]"
        return self._diff(file, text, text[: found.start()] + whole + text[found.end() :])

    def _corrected(self, patch: Patch, problem: Problem) -> Proposal:
        seen = patch.upstream.seen(problem.ref)
        assert seen is not None, "a contradiction is with something that was seen"
        key, value = ("kind", str(seen.kind)) if problem.kind == "kind" else ("assumes", str(seen.state))
        if problem.kind == "kind":
            what = f"{problem.ref} is of the other kind"
        else:
            what = (
                f"{problem.ref} is {seen.state} now: read 'expect' again, do what it says, then state what you assume"
            )
        return Proposal(patch.id, what, self._line(patch, problem.ref, key, value))

    def _line(self, patch: Patch, ref: str, key: str, value: str) -> str:
        """The diff that sets *key* of the reference's table to *value*."""
        file = patch.folder / "patch.toml"
        text = file.read_text("utf-8")
        index = next((n for n, row in enumerate(patch.spec.upstream) if row.ref == ref), None)
        number = line_of(text, ("upstream", index, key)) if index is not None else None
        lines = text.split("\n")
        if number is None or not lines[number - 1].lstrip().startswith(key):
            return ""
        lines[number - 1] = f'{key} = "{value}"'
        return self._diff(file, text, "\n".join(lines))

    def _precondition(self, patch: Patch, ref: str) -> str:
        """An [[obsolete_when]] for each new definition of the change in a file that the patch edits, to choose from."""
        files = {getattr(edit, "file", "") for edit in patch.spec.edit}
        tables = []
        for change in self.changes_of(ref, patch.engine):
            for line in change.added if change.file in files else ():
                found = _DEFINED.match(line)  # at module level only: other lines are indented
                name = (found[1] or found[2]) if found else None
                if name and not any(name in text for text in (*change.removed, *change.before, *change.after)):
                    tables.append(f'[[obsolete_when]]\nfile = "{change.file}"\ndefines = "{name}"\nreason = "{ref}"\n')
        return "\n".join(dict.fromkeys(tables))

    def _diff(self, file: Path, old: str, new: str) -> str:
        path = file.relative_to(self.catalog.root).as_posix()
        return file_diff(path, old.encode(), new.encode())
