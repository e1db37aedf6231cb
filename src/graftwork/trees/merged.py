"""The merged file system of an image's layers, for the paths that are asked about: nothing is unpacked.

Layers are read from the top down, each at most once for one batch of questions, and none below the layer in which
the last question is decided. A layer that is opened is read to its end, so that its digest vouches for what was taken.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from graftwork.errors import MissingFile, TreeError
from graftwork.oci.blobs import Blobs
from graftwork.oci.seekable import Access, read_at
from graftwork.oci.tarscan import Kind, Member
from graftwork.trees.layer_facts import Entry, LayerFacts, LayerRef, above

_LINKS = 40  # Linux: MAXSYMLINKS
_LARGEST = 64 << 20  # bytes of a file that is read


@dataclass(frozen=True)
class Found:
    """What the image has at *path*. For a file: *layer*, *digest* and *offset* tell where its bytes lie.

    *mode* is permission bits; *offset* and *size* are bytes of the layer's tar. A hard link is a file: its bytes may
    lie in another member and a lower layer. *implied* marks a folder that no layer has an entry for.
    """

    path: str
    kind: Kind
    mode: int
    uid: int
    gid: int
    size: int
    mtime: int
    link: str
    xattrs: dict[str, bytes]
    layer: int
    digest: str
    offset: int
    sha256: str = ""
    access: Access | None = None
    implied: bool = False


@dataclass(frozen=True)
class Names:
    """The names in a folder, sorted; *complete* is False where lower layers were not read for it."""

    names: tuple[str, ...]
    complete: bool


class MergedView:
    """The image made of *layers*, lowest first. With *index*, access points are made for the wanted files.

    ``notes`` tells what was odd, ``moved`` how many bytes were read from *blobs*, ``scans`` which layers, in order.
    Paths have no leading slash. Raises what the blobs and layers raise, and TreeError for a loop of links.

    Known limit: a member that reaches its place through a link which another layer, or a member before it, made of
    a folder (``lib/x`` where ``lib`` is a link to ``usr/lib``) is found under the name that it has in the layer;
    ``notes`` says so where the link was met.
    """

    def __init__(self, blobs: Blobs, layers: Sequence[LayerRef], *, index: bool = False) -> None:
        self.blobs, self.index = blobs, index
        self.notes: list[str] = []
        self.moved = 0
        self.scans: list[int] = []
        self._layers = [LayerFacts(number, ref) for number, ref in enumerate(layers)]
        self._found: dict[str, Entry | None] = {}
        self._implied: set[str] = set()
        self._read: dict[tuple[int, int], bytes] = {}

    @property
    def layers(self) -> tuple[LayerRef, ...]:
        """The layers, lowest first."""
        return tuple(facts.ref for facts in self._layers)

    def want(self, paths: Iterable[str], folders: Iterable[str] = (), *, deep: bool = True) -> None:
        """Decide *paths* and the names in *folders* now, in as few scans as can be. See ``names`` for *deep*."""
        paths, folders = [_clean(path) for path in paths], [_clean(folder) for folder in folders]
        hint: list[str] = list(folders)
        while needs := {need for path in [*paths, *folders] for need in self._resolve(path)[2]}:
            self._decide(needs, hint, deep=deep)
            hint = []
        self._decide((), [self._resolve(folder)[0] for folder in folders], deep=deep)
        links = [entry for path in paths if (entry := self._resolve(path)[1]) and entry.member.kind is Kind.HARDLINK]
        for entry in links:
            self._content(entry)

    def stat(self, path: str, *, follow: bool = True) -> Found | None:
        """What *path* is in the image, links in the middle of it followed, and at its end with *follow*."""
        path = _clean(path)
        while needs := self._resolve(path, follow=follow)[2]:
            self._decide(needs, ())
        real, entry, _ = self._resolve(path, follow=follow)
        return None if entry is None else self._describe(real, entry)

    def names(self, folder: str, *, deep: bool = True) -> Names:
        """The names in *folder*. Not *deep*: no layer is opened for this alone, and the answer may lack some."""
        folder = _clean(folder)
        self.want((), [folder], deep=deep)
        real, entry, _ = self._resolve(folder)
        if entry is None or entry.member.kind is not Kind.FOLDER:
            return Names((), True)
        names: set[str] = set()
        hidden: set[str] = set()
        complete = True
        for facts in reversed(self._layers):
            if not facts.lists(real):
                complete = False
                continue
            names |= facts.listed.get(real, set()) - hidden
            hidden |= {path.rpartition("/")[2] for path in facts.whiteouts if path.rpartition("/")[0] == real}
            if facts.closes(real):
                break
        return Names(tuple(sorted(names)), complete)

    def read(self, path: str) -> bytes:
        """The bytes of the regular file at *path*, as the scan saw them. MissingFile, TreeError, PinError."""
        found = self.stat(path)
        if found is None:
            raise MissingFile(f"{path}: not in the image from {self.blobs.origin}")
        if found.kind is not Kind.FILE:
            raise TreeError(f"{path} in the image from {self.blobs.origin} is a {found.kind.value}, not a regular file")
        if found.size > _LARGEST:
            raise TreeError(f"{path}: {found.size} bytes, more than {_LARGEST} for a file to patch")
        key = (found.layer, found.offset)
        if key in self._read:
            return self._read[key]
        if found.access is None:
            raise TreeError(
                f"{path}: {found.size} bytes, of which the scan of layer {found.digest} kept none, and no access point",
                hint="Make an index of the base: graftwork lock.",
            )
        self.moved += found.access.end - found.access.point.offset
        return read_at(self.blobs, found.digest, found.access, found.offset, found.size, found.sha256)

    def _resolve(self, path: str, *, follow: bool = True) -> tuple[str, Entry | None, list[str]]:
        """The real path, its entry, and what must be decided before this can be told."""
        todo, at, hops = [part for part in reversed(path.split("/")) if part], "", 0
        entry: Entry | None = None
        while todo:
            part = todo.pop()
            if part in ("", "."):
                continue
            if part == "..":
                at = at.rpartition("/")[0]
                continue
            step = f"{at}/{part}" if at else part
            if step not in self._found:
                rest = [name for name in reversed(todo) if name not in ("", ".")]
                whole = "/".join([step, *rest]) if ".." not in rest else step
                return step, None, [p for p in {whole, *above(whole), *self._guess(whole)} if p not in self._found]
            entry = self._found[step]
            if entry is None:
                return "/".join([step, *reversed(todo)]), None, []
            if entry.member.kind is Kind.SYMLINK and (todo or follow):
                hops += 1
                if hops > _LINKS:
                    raise TreeError(f"{path} in the image from {self.blobs.origin}: over {_LINKS} links, a loop")
                todo += reversed(entry.member.link.split("/"))
                at = "" if entry.member.link.startswith("/") else at
                continue
            if todo and entry.member.kind is not Kind.FOLDER:
                return "/".join([step, *reversed(todo)]), None, []
            at = step
        return at, self._found.get(at) if at else _root(), []

    def _guess(self, path: str) -> set[str]:
        """Where *path* may lead by the links that scans have met: asking for all of it at once saves scans."""
        seen: set[str] = set()
        todo, at, hops = list(reversed(path.split("/"))), "", 0
        while todo and hops <= _LINKS:
            part = todo.pop()
            if part in ("", "."):
                continue
            at = at.rpartition("/")[0] if part == ".." else f"{at}/{part}".lstrip("/")
            link = next((facts.links[at] for facts in reversed(self._layers) if at in facts.links), None)
            seen |= {at} - {""}
            if link is not None:
                hops += 1
                todo += reversed(link.split("/"))
                at = "" if link.startswith("/") else at.rpartition("/")[0]
        return seen

    def _decide(self, paths: Iterable[str], lists: Iterable[str], *, deep: bool = True) -> None:
        """Find the entries of *paths* (no link is followed), and make *lists* listable."""
        done = self._walk(
            [path for path in paths if path not in self._found], list(lists), len(self._layers), deep=deep
        )
        for path, (entry, implied) in done.items():
            self._found[path] = entry
            if implied:
                self._implied.add(path)

    def _walk(
        self, paths: list[str], lists: list[str], top: int, *, before: int | None = None, deep: bool = True
    ) -> dict[str, tuple[Entry | None, bool]]:
        """Ask the layers below *top* from above; *before* holds for the first of them."""
        done: dict[str, tuple[Entry | None, bool]] = {}
        open_, open_lists = dict.fromkeys(paths, -1), list(lists)
        for facts in reversed(self._layers[:top]):
            unread = [path for path in open_ if not facts.answers(path)]
            unlisted = [folder for folder in open_lists if not facts.lists(folder)]
            if unread or (unlisted and (deep or facts.scanned)):
                if not facts.scanned:
                    unread, unlisted = list(open_), open_lists
                self._scan(facts, unread, unlisted)
            for path, implied in list(open_.items()):
                answer = facts.ask(path, before)
                if answer.folder and implied < 0:
                    open_[path] = implied = facts.number
                if answer.entry is not None and implied >= 0 and answer.entry.member.kind is not Kind.FOLDER:
                    done[path] = _folder(path, implied), True
                elif answer.entry is not None:
                    done[path] = answer.entry, False
                elif answer.final:
                    done[path] = (_folder(path, implied), True) if implied >= 0 else (None, False)
                if path in done:
                    del open_[path]
            open_lists = [folder for folder in open_lists if not (facts.lists(folder) and facts.closes(folder))]
            before = None
            if not open_ and not open_lists:
                break
        done |= {p: (_folder(p, n), True) if n >= 0 else (None, False) for p, n in open_.items()}
        return done

    def _scan(self, facts: LayerFacts, paths: list[str], lists: list[str]) -> None:
        moved, notes = facts.scan(self.blobs, paths, lists, index=self.index)
        self.moved += moved
        self.scans.append(facts.number)
        self.notes += [note for note in notes if note not in self.notes]
        self._tell_detours()
        for entries in facts.entries.values():
            self._read |= {(e.layer, e.member.offset): e.data for e in entries if e.data is not None}

    def _tell_detours(self) -> None:
        for upper in self._layers:
            for lower in self._layers[: upper.number + 1]:
                for link in lower.links:
                    note = f"layer {upper.ref.digest} has files below /{link}, a link: they are found by that name only"
                    if upper.goes_through(link) and note not in self.notes:
                        self.notes.append(note)

    def _describe(self, path: str, entry: Entry) -> Found:
        member, content = entry.member, self._content(entry)
        return Found(
            path=path,
            kind=content.member.kind,
            mode=member.mode,
            uid=member.uid,
            gid=member.gid,
            size=content.member.size,
            mtime=member.mtime,
            link=content.member.link,
            xattrs=dict(member.xattrs or content.member.xattrs),
            layer=content.layer,
            digest=self._layers[content.layer].ref.digest if content.layer >= 0 else "",
            offset=content.member.offset,
            sha256=content.sha256,
            access=content.access,
            implied=path in self._implied,
        )

    def _content(self, entry: Entry) -> Entry:
        """The member that holds a hard link's bytes: written before it, in its layer or a lower one."""
        for _ in range(_LINKS):
            if entry.member.kind is not Kind.HARDLINK:
                return entry
            target, before = entry.member.link, entry.member.offset
            found = self._walk([target], [], entry.layer + 1, before=before)[target][0]
            if found is None:
                self.want([target])
                real = self._resolve(target)[0]
                found = self._walk([real], [], entry.layer + 1, before=before)[real][0]
            if found is None or found.member.kind is Kind.FOLDER:
                raise TreeError(
                    f"{entry.member.path} in layer {self._layers[entry.layer].ref.digest} is a hard link to "
                    f"{target}, which is not there",
                    hint="The base is damaged; pin another one.",
                )
            entry = found
        raise TreeError(f"{entry.member.path}: over {_LINKS} hard links in a row")


def _clean(path: str) -> str:
    return "/".join(part for part in path.split("/") if part not in ("", "."))


def _folder(path: str, layer: int) -> Entry:
    """A folder without an entry: unpackers make it root's, 0755."""
    return Entry(layer, Member(path, Kind.FOLDER, 0o755, 0, 0, 0, 0, "", 0))


def _root() -> Entry:
    return replace(_folder("", -1))
