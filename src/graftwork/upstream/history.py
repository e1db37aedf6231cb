"""A merged pull request in the tags of a clone: by the text of each tag, explained by how it came and went."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packaging.version import InvalidVersion, Version

from graftwork.catalog.seen import Contained
from graftwork.errors import MissingFile, UsageError
from graftwork.names import RelPath
from graftwork.oci.errors import printable
from graftwork.upstream.changes import from_diff
from graftwork.upstream.contained import Verdict, held, summary

if TYPE_CHECKING:
    from git import Commit, Repo

_PLAIN = ("--no-ext-diff", "--no-textconv", "--no-color", "--full-index", "--no-renames")
_SHOWN = (*_PLAIN, "--no-show-signature")
_REVERTS = re.compile(r"^This reverts commit ([0-9a-f]{7,40})", re.M)
_PICKED = re.compile(r"^\(cherry picked from commit ([0-9a-f]{7,40})\)", re.M)
_METHOD = "the text of the tags in a clone, and their history"


@dataclass(frozen=True)
class Event:
    """The change came in or went out: ``landed``, ``picked``, ``reverted`` or ``landed again``, with its commit."""

    what: str
    commit: str


@dataclass(frozen=True)
class _Landed:
    """What git says of a merged change: its diff, the patch-ids of that and of its inverse ('' for a root commit).

    ``later``: commit -> patch-id, of all that touch the same files and are in a tag; merges have none.
    """

    diff: str
    own: str
    inverse: str
    later: Mapping[str, str]


class TagTree:
    """The engine's files in one tag: ``sglang/x.py`` is ``python/sglang/x.py`` or ``sglang/x.py`` of the commit."""

    def __init__(self, commit: Commit, name: str) -> None:
        self._tree, self.origin = commit.tree, name

    def read(self, path: RelPath) -> bytes:
        """The file's bytes. MissingFile where the tag has none."""
        blob = self._blob(path)
        if blob is None:
            raise MissingFile(f"{path}: not in {self.origin}")
        data = blob.data_stream.read()
        assert isinstance(data, bytes)
        return data

    def exists(self, path: RelPath) -> bool:
        return self._blob(path) is not None

    def paths(self) -> Iterator[RelPath]:
        for item in self._tree.traverse():
            if getattr(item, "type", "") == "blob":
                yield RelPath(str(item.path).removeprefix("python/"))  # type: ignore[union-attr]

    def _blob(self, path: RelPath) -> Any:
        for name in (f"python/{path}", str(path)):
            try:
                found = self._tree / name
            except KeyError:
                continue
            if found.type == "blob":
                return found
        return None


class History:
    """A clone of upstream. Nothing of it is checked out or run; git is called with drivers and filters off."""

    def __init__(self, folder: Path) -> None:
        try:
            from git import InvalidGitRepositoryError, NoSuchPathError, Repo
        except ImportError as error:
            hint = "pip install 'graftwork[history]' (GitPython), and have git on the PATH."
            raise UsageError(f"--history needs GitPython and git: {error}", hint=hint) from None
        try:
            self.repo: Repo = Repo(folder)
        except (InvalidGitRepositoryError, NoSuchPathError) as error:
            hint = "Give --history the folder of a clone of upstream with its tags."
            raise UsageError(f"{folder}: not a git repository", hint=hint) from error
        self._known: dict[str, _Landed] = {}

    @cached_property
    def tags(self) -> dict[Version, Commit]:
        """The tags that are versions (``v0.5.15.post1`` or ``0.5.15.post1``), oldest version first."""
        found = {}
        for tag in self.repo.tags:
            try:
                found[Version(tag.name.removeprefix("v"))] = tag.commit
            except (InvalidVersion, ValueError):
                continue  # another kind of tag, or a tag of something that is no commit
        return dict(sorted(found.items()))

    def contained(self, ref: str, sha: str, engine: str, as_of: str, since: Version | None = None) -> Contained:
        """*ref*, which landed as the commit *sha*, in each tag from *since* on. UsageError where the clone lacks it."""
        from git import GitCommandError

        try:
            return self._contained(ref, sha, engine, as_of, since)
        except GitCommandError as error:
            said = printable(str(error.stderr))
            raise UsageError(f"git does not read the clone for {ref}: {said}", hint="Try git log in it.") from error

    def _contained(self, ref: str, sha: str, engine: str, as_of: str, since: Version | None) -> Contained:
        commit = self._commit(sha, ref)
        changes = from_diff(self._landed(commit).diff, engine)
        verdicts: dict[Version, tuple[Verdict, str]] = {}
        for version, tag in self.tags.items():
            if since is not None and version < since:
                continue
            events = self.events(ref, commit, tag)
            inside = bool(events) and events[-1].what != "reverted"
            found = held(changes, TagTree(tag, f"tag {version}"))
            said = [f"{event.what} as {event.commit[:12]}" for event in events if event.commit != commit.hexsha]
            verdict = found.verdict
            if verdict == "unknown":
                verdict = "present" if inside else "absent"
                said.append("by history only: no changed place is in the engine's package as it was")
            elif verdict == "partly" or inside != (verdict == "present"):
                said.append(f"{found.words}; by its history it is {'in' if inside else 'not in'}")
            verdicts[version] = (verdict, ", ".join(said))
        return summary(ref, verdicts, as_of, _METHOD)

    def events(self, ref: str, landed: Commit, tag: Commit) -> list[Event]:
        """How the change of *landed* came into *tag* and went out again, oldest first.

        A commit is the change if it is *landed*, has the same patch-id, names it as picked, or carries the pull
        request's number as squashed merges do; it takes the change out if it says so or is its exact inverse.
        """
        number = ref.partition("#")[2]
        own = self._landed(landed)
        into, out = {landed.hexsha}, set[str]()
        events: list[Event] = []
        for commit in self._commits(self._base(landed, tag), tag):
            message = str(commit.message)
            undone = _REVERTS.findall(message)
            subject = message.partition("\n")[0]
            if _names(undone, out):
                into.add(commit.hexsha)
                events.append(Event("landed again", commit.hexsha))
            elif _names(undone, into) or (own.inverse and own.later.get(commit.hexsha) == own.inverse):
                out.add(commit.hexsha)
                events.append(Event("reverted", commit.hexsha))
            elif (
                commit == landed
                or (own.own and own.later.get(commit.hexsha) == own.own)
                or _names(_PICKED.findall(message), into)
                or (f"(#{number})" in subject and not subject.startswith(("Revert", "[Revert]")))
            ):
                into.add(commit.hexsha)
                back = any(event.what == "reverted" for event in events)
                first = "landed" if commit == landed else "picked"
                events.append(Event("landed again" if back else first, commit.hexsha))
        return events

    def _commit(self, sha: str, ref: str) -> Commit:
        try:
            return self.repo.commit(f"{sha}^{{commit}}")
        except (ValueError, IndexError, KeyError) as error:  # what GitPython raises for a name it cannot resolve
            hint = "Fetch its main branch and its tags, then run again."
            raise UsageError(f"the clone does not have {sha}, the merge of {ref}", hint=hint) from error

    def _base(self, landed: Commit, tag: Commit) -> str:
        """The commit before which nothing of the change can be in *tag*; empty where they share nothing."""
        found = self.repo.merge_base(landed.parents[0], tag) if landed.parents else []
        return found[0].hexsha if found and found[0] is not None else ""

    def _commits(self, base: str, tag: Commit) -> Iterator[Commit]:
        """The commits of *tag* after *base*, oldest first."""
        yield from self.repo.iter_commits(
            f"{base}..{tag.hexsha}" if base else tag.hexsha, reverse=True, topo_order=True
        )

    def _landed(self, commit: Commit) -> _Landed:
        """What git says of *commit*; asked once, however many tags are looked at."""
        if commit.hexsha not in self._known:
            diff = self._diff(commit)
            files = {line[6:] for line in diff.splitlines() if line.startswith(("+++ b/", "--- a/"))}
            inverse = self._patch_id(self._diff(commit, backwards=True)) if commit.parents else ""
            self._known[commit.hexsha] = _Landed(diff, self._patch_id(diff), inverse, self._patch_ids(commit, files))
        return self._known[commit.hexsha]

    def _diff(self, commit: Commit, backwards: bool = False) -> str:
        """The commit's own change against its first parent: of a merge, all that it brought in."""
        if not commit.parents:
            return str(self.repo.git.show(commit.hexsha, *_SHOWN, "--format="))
        ends = [commit.parents[0].hexsha, commit.hexsha]
        return str(self.repo.git.diff(*_PLAIN, *(reversed(ends) if backwards else ends), strip_newline_in_stdout=False))

    def _patch_id(self, diff: str) -> str:
        return next((row.split()[0] for row in self._run_patch_id(diff)), "")

    def _patch_ids(self, landed: Commit, files: Collection[str]) -> dict[str, str]:
        """Commit -> patch-id, of every commit that touches *files* and is in a tag, but not before *landed*."""
        if not files or not self.tags:
            return {}
        wanted = [tag.hexsha for tag in self.tags.values()] + [f"^{parent.hexsha}" for parent in landed.parents[:1]]
        log = self.repo.git.log("-p", *_SHOWN, *wanted, "--", *sorted(files), strip_newline_in_stdout=False)
        return {sha: own for own, sha in (row.split() for row in self._run_patch_id(str(log)))}

    def _run_patch_id(self, text: str) -> list[str]:
        with tempfile.TemporaryFile() as file:
            file.write(text.encode("utf-8", "surrogateescape"))
            file.seek(0)
            return str(self.repo.git.patch_id("--stable", istream=file)).splitlines()


def _names(found: Sequence[str], known: set[str]) -> bool:
    """Whether one of *found*, which may be short, is a commit of *known*."""
    return any(sha.startswith(short) for short in found for sha in known)
