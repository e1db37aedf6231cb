"""The rules that a struct's types cannot say: each breach is an error with file and line."""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from graftwork.catalog import versions
from graftwork.catalog.patches import Anchor, Codemod, CodemodHunk, Diff, Edit, Fact, Marker, Mutant, NewFile, PatchFile
from graftwork.catalog.targets import Target
from graftwork.catalog.toml import KeyPath, line_of
from graftwork.errors import CatalogError
from graftwork.names import patch_id, rel_path

METAVARIABLE = re.compile(r"\$([A-Za-z_]\w*)")


def fail(file: Path, path: KeyPath, message: str, hint: str = "") -> CatalogError:
    """A CatalogError at the line of *path* in *file*."""
    return CatalogError(file, message, line=line_of(file.read_text("utf-8"), path), hint=hint)


def inside(folder: Path, name: str, file: Path, path: KeyPath) -> Path:
    """``folder/name``, which must exist and stay inside *folder*."""
    try:
        found = (folder / rel_path(name)).resolve()
    except ValueError as error:
        raise fail(file, path, str(error)) from None
    if folder.resolve() not in found.parents:
        raise fail(file, path, f"{name!r} leaves the patch's folder")
    if not found.exists():
        raise fail(file, path, f"{name!r} does not exist in {folder}")
    return found


def edit_files(edit: Edit, folder: Path) -> set[str]:
    """The tree paths that *edit* touches."""
    if isinstance(edit, (Codemod, Anchor)):
        return {edit.file}
    if isinstance(edit, NewFile):
        source = folder / edit.source
        if source.is_dir():
            return {f"{edit.path}/{f.relative_to(source).as_posix()}" for f in source.rglob("*") if f.is_file()}
        return {edit.path}
    names = re.findall(r"^\+\+\+ ([^\t\r\n]+)", (folder / edit.source).read_text("utf-8", "replace"), re.M)
    return {"/".join(name.split("/")[edit.strip :]) for name in names}


def check_patch(spec: PatchFile, file: Path, folder: Path, earlier: Mapping[str, Sequence[Marker]]) -> None:
    """All rules of one patch.toml."""
    try:
        patch_id(spec.id)
    except ValueError as error:
        raise fail(file, ("id",), str(error)) from None
    check_specifier(spec.versions, file, ("versions",))
    check_edits(spec.edit, file, folder, spec.id)
    check_markers(spec.marker, spec.edit, file, folder)
    for path in spec.reads:
        _check_path(path, file, ("reads",), spec.id)
    for position, rule in enumerate(spec.not_needed):
        check_specifier(rule.versions, file, ("not_needed", position, "versions"))
        if not rule.versions and not rule.platforms:
            raise fail(file, ("not_needed", position), "says neither versions nor platforms: it would hold everywhere")
    for position, when in enumerate(spec.obsolete_when):
        _check_fact(when, file, ("obsolete_when", position), spec.id)
        for number, fact in enumerate(when.also):
            _check_fact(fact, file, ("obsolete_when", position, "also", number), spec.id)
    _check_discriminating(spec, file, earlier)


def check_references(spec: PatchFile, file: Path) -> None:
    """A patch names what upstream has of it, each thing once, or says what was searched."""
    for position, row in enumerate(spec.upstream):
        if row.ref in [earlier.ref for earlier in spec.upstream[:position]]:
            raise fail(file, ("upstream", position, "ref"), f"{row.ref} is listed twice")
    if not spec.upstream and not spec.searched:
        hint = "add [[upstream]] with what was found, or [[searched]] with what, how and date"
        raise fail(file, ("id",), f"{spec.id} has no upstream reference and does not say what was searched", hint)


def _check_fact(fact: Fact, file: Path, at: KeyPath, owner: str) -> None:
    _check_path(fact.file, file, (*at, "file"), owner)
    if not fact.defines and not fact.contains:
        raise fail(file, at, "needs 'defines' or 'contains'")
    if fact.contains and len(_snippet(fact.contains, file, (*at, "contains"))[1]) != 1:
        raise fail(file, (*at, "contains"), "contains must be one statement or expression")


def _check_discriminating(spec: PatchFile, file: Path, earlier: Mapping[str, Sequence[Marker]]) -> None:
    if spec.revision in earlier or len(earlier) != len(spec.earlier):
        raise fail(file, ("earlier",), "two revisions have one id")
    for position, marker in enumerate(spec.marker):
        for name in marker.discriminates:
            if name not in earlier:
                raise fail(file, ("marker", position, "discriminates"), f"no earlier revision {name!r}")
            if any(old.value == marker.value and old.function == marker.function for old in earlier[name]):
                text = f"marker {marker.value!r} is one of revision {name} too: it cannot discriminate"
                raise fail(file, ("marker", position, "discriminates"), text)
    for position, revision in enumerate(spec.earlier):
        if not any(revision.id in marker.discriminates for marker in spec.marker):
            raise fail(file, ("earlier", position), f"no marker discriminates revision {revision.id}")


def check_edits(edits: Sequence[Edit], file: Path, folder: Path, owner: str, above: KeyPath = ()) -> None:
    """Paths, patterns, sources and variants of a list of edits, which stands below the keys *above*."""
    for position, edit in enumerate(edits):
        at: KeyPath = (*above, "edit", position)
        check_specifier(edit.versions, file, (*at, "versions"))
        if isinstance(edit, (Diff, NewFile)):
            inside(folder, edit.source, file, (*at, "source"))
        for path in edit_files(edit, folder):
            _check_path(path, file, at, owner)
        if isinstance(edit, Codemod):
            for number, hunk in enumerate(edit.hunk):
                _check_codemod(hunk, file, (*at, "hunk", number))
        if isinstance(edit, Anchor):
            for number, text in enumerate(edit.hunk):
                if text.find == text.replace:
                    raise fail(file, (*at, "hunk", number), "find and replace are the same text")
        for earlier in edits[:position]:
            both = versions.overlap(earlier.versions, edit.versions) if earlier.id == edit.id else None
            if both:
                raise fail(file, at, f"two variants of edit {edit.id!r} match version {both}")


def _check_codemod(hunk: CodemodHunk, file: Path, at: KeyPath) -> None:
    actions = [name for name in ("becomes", "before", "after") if getattr(hunk, name)] + ["absent"] * hunk.absent
    if len(actions) != 1:
        text = f"has {' and '.join(actions) or 'no action'}: exactly one of becomes, before, after, absent"
        raise fail(file, at, text)
    if hunk.absent and hunk.inert:
        raise fail(file, (*at, "inert"), "a hunk with absent changes nothing: inert says nothing about it")
    known, shape = _snippet(hunk.match, file, (*at, "match"))
    if len(shape) != 1:
        raise fail(file, (*at, "match"), f"match is {len(shape)} statements, it must be one")
    if hunk.becomes:
        used, becomes = _snippet(hunk.becomes, file, (*at, "becomes"))
        if used - known:
            raise fail(file, (*at, "becomes"), f"uses ${', $'.join(sorted(used - known))}, which match does not bind")
        if becomes != shape:
            text = f"match is {_words(shape)}, becomes is {_words(becomes)}: a hunk changes one into its like"
            raise fail(file, (*at, "becomes"), text)
    for name in ("before", "after"):
        used, inserted = _snippet(getattr(hunk, name), file, (*at, name))
        if used:
            raise fail(
                file, (*at, name), f"uses ${', $'.join(sorted(used))}: inserted statements are taken as they are"
            )
        if getattr(hunk, name) and not inserted:
            raise fail(file, (*at, name), f"{name} inserts no statement, only comments")
        if inserted and shape == ["an expression"]:
            raise fail(file, (*at, "match"), "match is an expression: statements stand before or after a statement")


def _snippet(text: str, file: Path, at: KeyPath) -> tuple[set[str], list[str]]:
    """The metavariables of a Python snippet, and what each of its statements is."""
    try:
        tree = ast.parse(METAVARIABLE.sub(r"__meta_\1", text).strip("\n"))
    except (SyntaxError, ValueError) as error:
        raise fail(file, at, f"not a Python snippet: {error}") from None
    return set(METAVARIABLE.findall(text)), [_kind(node) for node in tree.body]


def _kind(node: ast.stmt) -> str:
    if isinstance(node, ast.Expr):
        return "an expression"
    return "a compound statement" if hasattr(node, "body") or hasattr(node, "cases") else "a simple statement"


def _words(shape: list[str]) -> str:
    return shape[0] if len(shape) == 1 else f"{len(shape)} statements"


def check_markers(markers: Sequence[Marker], edits: Sequence[Edit], file: Path, folder: Path) -> None:
    """A marker stands in a file that an edit touches."""
    touched = set().union(*(edit_files(edit, folder) for edit in edits))
    for position, marker in enumerate(markers):
        check_specifier(marker.versions, file, ("marker", position, "versions"))
        if marker.file not in touched:
            raise fail(file, ("marker", position, "file"), f"marker in {marker.file}, which no edit touches")


def check_mutants(mutants: Sequence[Mutant], spec: PatchFile, file: Path, folder: Path) -> None:
    """All rules of one mutants.toml: a mutant changes files of its patch, and nothing in it is inert."""
    touched = set().union(*(edit_files(edit, folder) for edit in spec.edit))
    for position, mutant in enumerate(mutants):
        at: KeyPath = ("mutant", position)
        check_specifier(mutant.versions, file, (*at, "versions"))
        if any(mutant.id == other.id for other in mutants[:position]):
            raise fail(file, (*at, "id"), f"two mutants are called {mutant.id!r}")
        check_edits(mutant.edit, file, folder, spec.id, at)
        for number, edit in enumerate(mutant.edit):
            if edit.file not in touched:
                raise fail(file, (*at, "edit", number, "file"), f"{edit.file} is not a file of {spec.id}")
            if any(hunk.inert for hunk in edit.hunk):
                raise fail(file, (*at, "edit", number), "a mutant must be noticed: inert has no meaning here")


def check_specifier(text: str, file: Path, at: KeyPath) -> None:
    """A PEP 440 specifier or nothing."""
    try:
        versions.specifier(text)
    except ValueError as error:
        raise fail(file, at, str(error)) from None


def _check_path(path: str, file: Path, at: KeyPath, owner: str) -> None:
    try:
        rel_path(path)
    except ValueError as error:
        raise fail(file, at, str(error)) from None
    package = owner.partition("/")[0]
    if not path.startswith(f"{package}/"):
        raise fail(file, at, f"{path!r} is not in the engine's package {package!r}")


def check_target(target: Target, file: Path, known: Sequence[str]) -> None:
    """All rules of one target file."""
    try:
        Version(target.version)
    except InvalidVersion:
        raise fail(file, ("version",), f"not a PEP 440 version: {target.version!r}") from None
    for position, name in enumerate(target.patches):
        if name not in known:
            hint = f"known: {', '.join(known)}"
            raise fail(file, ("patches",), f"patch {name!r} does not exist", hint)
        if name.partition("/")[0] != target.engine:
            raise fail(file, ("patches",), f"patch {name!r} is not for engine {target.engine!r}")
        if name in target.patches[:position]:
            raise fail(file, ("patches",), f"patch {name!r} is listed twice")
    for name in target.optional:
        if name not in target.patches:
            raise fail(file, ("optional",), f"optional patch {name!r} is not in patches")
    if bool(target.base.image) != bool(target.base.digest):
        raise fail(file, ("base",), "image and digest go together: give both, or neither where no base is known")
    if target.base.checked and not target.base.digest:
        raise fail(file, ("base", "checked"), "there is no digest that could have been compared with the registry")
    for position, pin in enumerate(target.wheel):
        at: KeyPath = ("wheel", position, "file")
        try:
            project, version, _, tags = parse_wheel_filename(pin.file)
        except InvalidWheelFilename as error:
            raise fail(file, at, str(error)) from None
        if project != target.engine or str(version) != str(Version(target.version)):
            raise fail(file, at, f"{pin.file} is not {target.engine} {target.version}")
        interpreters = {tag.interpreter for tag in tags}
        if pin.python not in interpreters:
            raise fail(file, at, f"says python {pin.python}, the wheel's tag is {', '.join(sorted(interpreters))}")
        if not any(tag.platform.endswith(pin.arch) or tag.platform == pin.arch for tag in tags):
            platforms = ", ".join(sorted(tag.platform for tag in tags))
            raise fail(file, at, f"says arch {pin.arch}, the wheel's tag is {platforms}")


def check_order(patches: Sequence[PatchFile], file: Path) -> None:
    """``after`` holds in the target's order; a cycle or a breach names both patches."""
    place = {patch.id: position for position, patch in enumerate(patches)}
    waits = {patch.id: [name for name in patch.after if name in place] for patch in patches}
    for patch in patches:
        for name in waits[patch.id]:
            if patch.id in _reach(name, waits):
                raise fail(file, ("patches",), f"cycle: {patch.id} comes after {name}, which comes after {patch.id}")
            if place[name] > place[patch.id]:
                raise fail(file, ("patches",), f"{patch.id} must come after {name}", "change their order in the target")


def _reach(start: str, waits: Mapping[str, Sequence[str]]) -> set[str]:
    seen: set[str] = set()
    stack = [start]
    while stack:
        for name in waits[stack.pop()]:
            if name not in seen:
                seen.add(name)
                stack.append(name)
    return seen


def pins_digest(target: Target) -> str:
    """sha256 of the facts in a target that a lock resolves: engine, version, wheels, base."""
    facts = {
        "engine": target.engine,
        "version": target.version,
        "wheel": [msgspec.to_builtins(pin) for pin in target.wheel],
        "base": msgspec.to_builtins(target.base),
    }
    return hashlib.sha256(msgspec.json.encode(facts, order="deterministic")).hexdigest()
