"""A patch as one commit against upstream's own source, as mail for ``git am``: the change, without our marks."""

from __future__ import annotations

import tempfile
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from graftwork.catalog.catalog import Patch
from graftwork.errors import StateError
from graftwork.patching import markers
from graftwork.patching.assess import Engine, edits_for
from graftwork.patching.plan import plan
from graftwork.trees.text import decode
from graftwork.trees.tree import Tree
from graftwork.upstream.git import run_git
from graftwork.upstream.strip import Stripped, strip

_LAYOUT = {"sglang": "python/"}  # where upstream's repository keeps the package
_FORM = ["--stdout", "-1", "--zero-commit", "--full-index", "--no-signature", "--no-attach", "--no-cover-letter"]
_DIFF = ["-U3", "--no-renames", "--no-ext-diff", "--no-textconv", "--src-prefix=a/", "--dst-prefix=b/"]


@dataclass(frozen=True)
class Commit:
    """A commit as mail, the paths it changes in upstream's layout, and what became of the marks."""

    mail: bytes
    subject: str
    paths: tuple[str, ...]
    stripped: Stripped


def export(patch: Patch, tree: Tree, engine: Engine) -> Commit:
    """The commit for *patch* on *tree*'s release. Raises what planning refuses; StateError if there is no change."""
    planned = plan(tree, [patch], engine)
    refusal = planned.refusal()
    if refusal:
        raise refusal
    if not planned.changes:
        (item,) = planned.patches
        reason = "; ".join(item.reasons) or "it is in the tree"
        raise StateError(f"{patch.id} is {item.state.value} in {tree.origin}: {reason}", hint="name another release")
    old = {change.path: change.old for change in planned.changes}
    new = {change.path: change.new for change in planned.changes}
    marked = [marker for marker in markers.in_force(patch.spec.marker, engine.version) if marker.file in new]
    done = strip(_texts(old, tree), _texts(new, tree), marked)
    prefix = _LAYOUT.get(patch.engine, "")
    paths = tuple(prefix + path for path in sorted(done.texts))
    before = {prefix + path: data for path, data in old.items() if data is not None}
    after = {prefix + path: text.encode("utf-8") for path, text in done.texts.items()}
    mail = _mail(before, after, message(patch, engine))
    return Commit(mail, patch.spec.title, paths, done)


def message(patch: Patch, engine: Engine) -> str:
    """The commit's message: title, reason, symptom, and why each hunk is there."""
    spec = patch.spec
    whys = [edit.why for edit in edits_for(patch, engine)]
    whys += [hunk.why for edit in edits_for(patch, engine) for hunk in getattr(edit, "hunk", [])]
    parts = [spec.title, _wrapped(spec.why), _wrapped(f"Symptom: {spec.symptom}")]
    points = [_wrapped(why, "- ", "  ") for why in dict.fromkeys(filter(None, whys))]
    return "\n\n".join([*parts, "\n".join(points)]).rstrip() + "\n"


def _wrapped(text: str, first: str = "", rest: str = "") -> str:
    return textwrap.fill(" ".join(text.split()), 72, initial_indent=first, subsequent_indent=rest)


def _texts(files: Mapping[str, bytes | None], tree: Tree) -> dict[str, str]:
    return {path: decode(data, f"{path} in {tree.origin}") for path, data in files.items() if data is not None}


def _mail(before: Mapping[str, bytes], after: Mapping[str, bytes], text: str) -> bytes:
    """git's own mail of the step from *before* to *after*; the author is whoever git knows here."""
    with tempfile.TemporaryDirectory(prefix="graftwork-export-") as folder:
        root = Path(folder)
        run_git(root, "init", "-q", "--template=", ".")
        base = {"GIT_AUTHOR_NAME": "base", "GIT_AUTHOR_EMAIL": "base", "GIT_COMMITTER_NAME": "base"}
        for files, said, who in (
            (before, b"base\n", {**base, "GIT_COMMITTER_EMAIL": "base"}),
            (after, text.encode(), {}),
        ):
            for name, data in files.items():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_bytes(data)
            run_git(root, "add", "-A", "--force", ".")
            run_git(root, "commit", "-q", "--allow-empty", "--cleanup=verbatim", "-F", "-", stdin=said, environment=who)
        return run_git(root, "format-patch", *_FORM, *_DIFF)
