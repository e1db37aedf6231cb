"""Reading what upstream has become of, for a set of patches: threads, releases that hold a fix, collisions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
from packaging.version import Version

from graftwork.catalog.catalog import Patch
from graftwork.catalog.patches import Upstream
from graftwork.catalog.seen import Contained, Seen, UpstreamFile
from graftwork.errors import GraftworkError, TreeError, UnreachableError, UsageError
from graftwork.patching.assess import Engine
from graftwork.patching.states import State
from graftwork.trees.tree import Tree
from graftwork.upstream import collisions
from graftwork.upstream.changes import from_api
from graftwork.upstream.contained import decide
from graftwork.upstream.github import GitHub
from graftwork.upstream.history import History
from graftwork.upstream.limits import RateLimitError
from graftwork.upstream.matrix_work import plan_alone
from graftwork.upstream.places import Place, places
from graftwork.upstream.threads import WITH_FILES, changed_files, look

Releases = Callable[[str], Sequence[tuple[Version, Tree]]]


@dataclass
class Refresh:
    """One reading of upstream. *releases* gives an engine's releases, oldest first, as trees; *platforms* by patch id.

    ``failed`` collects what could not be read: what is known of it from earlier stays as it was.
    """

    patches: Sequence[Patch]
    github: GitHub
    releases: Releases
    platforms: Mapping[str, str]
    history: History | None = None
    failed: list[GraftworkError] = field(default_factory=list)

    def run(self) -> dict[str, UpstreamFile]:
        """The new evidence of each patch, by id. Where GitHub does not answer for threads, no scan is tried."""
        seen = self._threads()
        answered = not self.failed
        held = self._contained(seen)
        scans = self._scans() if answered else []
        return {patch.id: self._evidence(patch, seen, held, scans) for patch in self.patches}

    def _threads(self) -> dict[str, Seen]:
        """What was seen longest ago first, so that runs which a limit ends get round."""
        rows: dict[str, Upstream] = {}
        last: dict[str, str] = {}
        for patch in self.patches:
            for row in patch.spec.upstream:
                if row.ref not in rows or row.relation in WITH_FILES:
                    rows[row.ref] = row
                known = patch.upstream.seen(row.ref)
                last[row.ref] = known.as_of if known else ""
        seen: dict[str, Seen] = {}
        try:
            for found in look(self.github, sorted(rows.values(), key=lambda row: last[row.ref])):
                seen[found.ref] = found
        except UnreachableError as error:
            self.failed.append(error)
        return seen

    def _contained(self, seen: Mapping[str, Seen]) -> dict[tuple[str, str], list[Contained]]:
        """(engine, reference) -> evidence, of every merged pull request."""
        held: dict[tuple[str, str], list[Contained]] = {}
        wanted = dict.fromkeys((patch.engine, row.ref) for patch in self.patches for row in patch.spec.upstream)
        for engine, ref in wanted:
            row = seen.get(ref)
            if row is None or row.kind != "pull" or row.state != "merged":
                continue
            try:
                held[engine, ref] = [self._on_releases(row, engine)]
                if self.history is not None and row.merge_commit:
                    held[engine, ref].append(self._in_history(self.history, row, engine))
            except (UnreachableError, UsageError) as error:
                self.failed.append(error)
                if isinstance(error, RateLimitError):
                    break
        return held

    def _on_releases(self, row: Seen, engine: str) -> Contained:
        files = changed_files(self.github, row.moved_to or row.ref, row.merge_commit)
        changes, opaque = from_api(files, engine)
        return decide(row.ref, changes, opaque, self.releases(engine), row.as_of)

    def _in_history(self, history: History, row: Seen, engine: str) -> Contained:
        oldest = next((version for version, _ in self.releases(engine)), None)
        return history.contained(row.ref, row.merge_commit, engine, row.as_of, since=oldest)

    def _scans(self) -> list[collisions.Found]:
        """One scan for each repository in which changes to an engine are proposed."""
        done = []
        for engine in dict.fromkeys(patch.engine for patch in self.patches):
            mine = [patch for patch in self.patches if patch.engine == engine]
            for repository in _repositories(mine):
                try:
                    if releases := self.releases(engine):
                        version, tree = releases[-1]
                        anchors = {patch.id: self._anchors(patch, tree, version) for patch in mine}
                        done.append(collisions.scan(self.github, repository, engine, anchors, tree, str(version)))
                except UnreachableError as error:
                    self.failed.append(error)
        return done

    def _anchors(self, patch: Patch, tree: Tree, version: Version) -> list[Place]:
        """Where *patch* would be cut in; nowhere if the release does not need it, or is not Python that we can read."""
        platform = self.platforms[patch.id]
        if plan_alone(tree, patch, version, platform).state in (State.OBSOLETE, State.NOT_NEEDED):
            return []
        try:
            return places(patch, tree, Engine(version, platform))
        except TreeError:
            return []  # the plan says drifted, and why

    def _evidence(
        self,
        patch: Patch,
        seen: Mapping[str, Seen],
        held: Mapping[tuple[str, str], list[Contained]],
        scans: Sequence[collisions.Found],
    ) -> UpstreamFile:
        """New where it was read, as it was where it could not be; rows of references that are gone are left out."""
        old, refs, contained = patch.upstream, [], []
        for row in patch.spec.upstream:
            now = seen.get(row.ref) or old.seen(row.ref)
            refs += [now] if now else []
            decided = held.get((patch.engine, row.ref))
            contained += [item for item in old.contained if item.ref == row.ref] if decided is None else decided
        mine = [done for done in scans if patch.id in done.collisions]
        whole = {done.scan.repository for done in mine if done.scan.looked_at == done.scan.open}
        looked_at = frozenset().union(*(done.looked_at for done in mine))
        near = [item for done in mine for item in done.collisions[patch.id]]
        near += [item for item in old.collisions if item.ref not in looked_at and _repository(item.ref) not in whole]
        own = [row.ref for row in patch.spec.upstream if row.relation == "own"]
        scanned = {done.scan.repository for done in mine}
        return msgspec.structs.replace(
            old,
            refs=refs,
            contained=contained,
            collisions=[item for item in near if item.ref not in own],
            scans=[done.scan for done in mine] + [scan for scan in old.scans if scan.repository not in scanned],
        )


def _repository(ref: str) -> str:
    return ref.partition("#")[0]


def _repositories(patches: Sequence[Patch]) -> list[str]:
    """Where changes to the engine are proposed: the repositories of what may fix or collide."""
    rows = [
        row for patch in patches for row in patch.spec.upstream if row.kind == "pull" and row.relation in WITH_FILES
    ]
    return sorted({_repository(row.ref) for row in rows})
