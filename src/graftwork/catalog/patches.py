"""patch.toml: what a patch is, why it exists, what it edits, and what would let it go."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

Text = Annotated[str, msgspec.Meta(min_length=1)]
Platform = Literal["rocm", "cuda", "cpu"]
Date = Annotated[str, msgspec.Meta(pattern=r"^\d{4}-\d{2}-\d{2}$")]
Ref = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9-]+/[A-Za-z0-9_.-]+#[1-9][0-9]*$")]


class Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Unknown keys are errors: a misspelt key must never be a silent no-op."""


class CodemodHunk(Strict, frozen=True, kw_only=True):
    """One node pattern in the edit's scope and what becomes of it. Exactly one action."""

    match: Text
    becomes: str = ""
    before: str = ""
    after: str = ""
    absent: bool = False
    why: str = ""
    inert: str = ""


class AnchorHunk(Strict, frozen=True, kw_only=True):
    """Exact text that occurs once, and its replacement."""

    find: Text
    replace: str
    why: str = ""
    inert: str = ""


class _Edit(Strict, frozen=True, tag_field="kind", kw_only=True):
    id: Text
    versions: str = ""
    why: str = ""


class Codemod(_Edit, frozen=True, tag="codemod", kw_only=True):
    """Node patterns inside one function or class (``scope``; empty: the module), with libcst."""

    file: Text
    scope: str = ""
    hunk: Annotated[list[CodemodHunk], msgspec.Meta(min_length=1)]


class Anchor(_Edit, frozen=True, tag="anchor", kw_only=True):
    """Exact text inside one function or class (``scope``; empty: the file)."""

    file: Text
    scope: str = ""
    hunk: Annotated[list[AnchorHunk], msgspec.Meta(min_length=1)]


class Diff(_Edit, frozen=True, tag="diff", kw_only=True):
    """A unified diff against one release, at fuzz 0; ``source`` is relative to the patch's folder."""

    source: Text
    strip: Annotated[int, msgspec.Meta(ge=0, le=9)] = 1
    inert: str = ""


class NewFile(_Edit, frozen=True, tag="file", kw_only=True):
    """A new file, or a folder of them; ``source`` is relative to the patch's folder."""

    path: Text
    source: Text
    inert: str = ""


Edit = Codemod | Anchor | Diff | NewFile


class Marker(Strict, frozen=True, kw_only=True):
    """Something only the patched code has and that survives compilation, in one function.

    ``export`` is what a commit for upstream calls it.
    """

    file: Text
    kind: Literal["local", "name", "attribute", "constant"]
    value: Text
    function: Text = "<module>"
    versions: str = ""
    discriminates: list[str] = []
    export: str = ""


class Revision(Strict, frozen=True, kw_only=True):
    """An earlier revision of the same patch, so that a tree that carries it is recognised."""

    id: Text
    edits: Text
    note: str = ""


class RevisionFile(Strict, frozen=True, kw_only=True):
    """The file that ``earlier.edits`` names: the edits and markers of that revision."""

    edit: Annotated[list[Edit], msgspec.Meta(min_length=1)]
    marker: Annotated[list[Marker], msgspec.Meta(min_length=1)]


class Mutant(Strict, frozen=True, kw_only=True):
    """A wrong version of the patch: edits of the patched tree that the patch's tests must notice."""

    id: Text
    why: Text
    edit: Annotated[list[Codemod | Anchor], msgspec.Meta(min_length=1)]
    versions: str = ""


class MutantFile(Strict, frozen=True, kw_only=True):
    """mutants.toml as written, beside patch.toml."""

    mutant: Annotated[list[Mutant], msgspec.Meta(min_length=1)]


class Fact(Strict, frozen=True, kw_only=True):
    """Something that a file of the tree defines or contains. All given keys must hold."""

    file: Text
    defines: str = ""
    scope: str = ""
    contains: str = ""


class ObsoleteWhen(Fact, frozen=True, kw_only=True):
    """Facts about the tree that mean, together, that the defect is fixed there."""

    reason: Text
    also: list[Fact] = []


class NotNeeded(Strict, frozen=True, kw_only=True):
    """Engine versions or platforms that do not have the defect."""

    reason: Text
    versions: str = ""
    platforms: list[Platform] = []


class Launch(Strict, frozen=True, kw_only=True):
    """What must be passed at run time for the patch to be complete."""

    reason: Text
    args: list[str] = []
    env: dict[str, str] = {}


class Upstream(Strict, frozen=True, kw_only=True):
    """An upstream issue or pull request, and what it is to us. What was seen of it stands in ``upstream.json``.

    ``assumes`` is the state that ``expect`` was written for; another one seen is a contradiction to look at.
    """

    ref: Ref
    kind: Literal["pull", "issue"]
    relation: Literal["own", "same-fix", "same-class", "precedent", "collision", "superseding", "background"]
    assumes: Literal["open", "closed", "merged"] | None = None
    expect: str = ""


class Searched(Strict, frozen=True, kw_only=True):
    """What was searched upstream without finding anything: a patch without a reference must say so."""

    what: Text
    how: Text
    date: Date


class Evidence(Strict, frozen=True, kw_only=True):
    """What is known about the defect or the fix, and how: measured, read in the source, or claimed."""

    kind: Literal["measured", "read", "claimed"]
    text: Text
    source: Text
    date: Date | None = None


class PatchFile(Strict, frozen=True, kw_only=True):
    """patch.toml as written."""

    id: Text
    revision: Text
    title: Text
    symptom: Text
    why: Text
    drop_when: Text
    edit: Annotated[list[Edit], msgspec.Meta(min_length=1)]
    marker: Annotated[list[Marker], msgspec.Meta(min_length=1)]
    platforms: list[Platform] = []
    versions: str = ""
    after: list[str] = []
    reads: list[Text] = []
    earlier: list[Revision] = []
    obsolete_when: list[ObsoleteWhen] = []
    not_needed: list[NotNeeded] = []
    launch: list[Launch] = []
    upstream: list[Upstream] = []
    searched: list[Searched] = []
    evidence: list[Evidence] = []
