"""What one layer says about the paths that it is asked about, and which names it has at all."""

from __future__ import annotations

import hashlib
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from graftwork.oci.blobs import Blobs
from graftwork.oci.inflate import Codec, LayerStream
from graftwork.oci.seekable import Access, Probe, Recorder, plain_access
from graftwork.oci.tarscan import Kind, Member, TarScan

WHITEOUT = ".wh."
OPAQUE = ".wh..wh..opq"
KEEP = 1 << 20  # bytes of a wanted file that are kept from a scan
_LINKS = 20_000  # symbolic links of one layer that are kept, to guess where a path leads
_KEEP_ALL = 32 << 20  # and of all of them in one layer


@dataclass(frozen=True)
class LayerRef:
    """One layer of an image: its blob's digest, bytes and media type; the sha256 of its tar, or empty."""

    digest: str
    size: int
    media_type: str = ""
    diff_id: str = ""


@dataclass(frozen=True)
class Entry:
    """A member of layer number *layer* (0 is the lowest). A wanted file has its sha256, and its bytes if small."""

    layer: int
    member: Member
    sha256: str = ""
    access: Access | None = None
    data: bytes | None = None


@dataclass(frozen=True)
class Answer:
    """Of a path in a layer: its entry, or that it is a folder by what lies in it; *final* hides lower layers."""

    entry: Entry | None = None
    folder: bool = False
    final: bool = False


def above(path: str) -> Iterator[str]:
    """The folders that *path* lies in, innermost first, without the root."""
    while "/" in path:
        path = path.rpartition("/")[0]
        yield path


def marker(path: str) -> str:
    """The name of the white-out of *path*."""
    folder, slash, name = path.rpartition("/")
    return f"{folder}{slash}{WHITEOUT}{name}"


class LayerFacts:
    """The facts of layer *number*. ``scan`` reads the whole layer and verifies it, or leaves nothing behind.

    Of names that were not asked about only 64-bit hashes are kept (some 10 bytes a name), so that a later question
    costs a second scan only where the layer has, or by a collision seems to have, something to say.
    """

    def __init__(self, number: int, ref: LayerRef) -> None:
        self.number, self.ref = number, ref
        self.scanned = False
        self.entries: dict[str, list[Entry]] = {}
        self.listed: dict[str, set[str]] = {}
        self.whiteouts: set[str] = set()
        self.opaque: set[str] = set()
        self.links: dict[str, str] = {}
        self._implied: set[str] = set()
        self._known: set[str] = set()
        self._known_lists: set[str] = set()
        self._names = array("q")
        self._folders: set[int] = set()
        self._entered: set[int] = set()

    def goes_through(self, folder: str) -> bool:
        """Whether the layer has something below *folder* and no entry that makes it a folder."""
        return hash(folder) in self._entered

    def answers(self, path: str) -> bool:
        """Whether nothing needs to be read to ask about *path*."""
        return path in self._known or self._lacks(path, path, marker(path))

    def lists(self, folder: str) -> bool:
        """Whether nothing needs to be read to list *folder*."""
        inside = (f"{folder}/{OPAQUE}", f"{folder}/{WHITEOUT}")
        return folder in self._known_lists or self._lacks(folder, folder, marker(folder), *inside)

    def _lacks(self, path: str, *names: str) -> bool:
        """Whether the layer was read, and has no folder *path*, none of *names*, and nothing that hides it."""
        if not self.scanned or hash(path) in self._folders:
            return False
        outer = [name for at in above(path) for name in (at, marker(at), f"{at}/{OPAQUE}")]
        return not any(self._has(hash(name)) for name in (*names, *outer))

    def _has(self, key: int) -> bool:
        at = bisect_left(self._names, key)
        return at < len(self._names) and self._names[at] == key

    def ask(self, path: str, before: int | None = None) -> Answer:
        """What this layer says of *path*; *before* leaves out members whose data begins at that offset or later."""
        entries = [e for e in self.entries.get(path, ()) if before is None or e.member.offset < before]
        if entries:
            return Answer(entry=entries[-1], final=True)
        return Answer(folder=path in self._implied, final=self.hides(path))

    def hides(self, path: str) -> bool:
        """Whether what lower layers have at *path* is gone: whited out, or it or a folder above it replaced."""
        gone = path in self.whiteouts
        return gone or any(folder in self.whiteouts or folder in self.opaque for folder in above(path))

    def closes(self, folder: str) -> bool:
        """Whether lower layers add no name to *folder*."""
        return folder in self.opaque or self.hides(folder)

    def scan(self, blobs: Blobs, paths: Iterable[str], lists: Iterable[str], *, index: bool) -> tuple[int, list[str]]:
        """Read the layer for *paths* and for the names in the folders *lists*; bytes moved, and notes.

        Raises what ``LayerStream`` and ``TarScan`` raise.
        """
        recorder = Recorder() if index else None
        with blobs.open(self.ref.digest, self.ref.size) as raw:
            stream = LayerStream(
                raw,
                digest=self.ref.digest,
                size=self.ref.size,
                media_type=self.ref.media_type,
                diff_id=self.ref.diff_id,
                tap=recorder,
            )
            one = _Scan(self.number, set(paths), set(lists), recorder)
            one.read(TarScan(stream, f"layer {self.ref.digest}"), stream)
            stream.finish()
        self._take(one)
        return stream.taken, stream.notes

    def _take(self, scan: _Scan) -> None:
        for path in scan.paths:
            self.entries.pop(path, None)
        self.entries |= scan.finished()
        self.listed |= {folder: scan.listed.get(folder, set()) for folder in scan.lists}
        self.whiteouts |= scan.whiteouts
        self.opaque |= scan.opaque
        self._implied |= scan.implied
        self._known |= scan.paths
        self._known_lists |= scan.lists
        if not self.scanned:
            self._names, self._folders = array("q", sorted(scan.names)), scan.folders
            self.links = scan.links
            self._entered = scan.seen - scan.entered
            self.scanned = True


class _Scan:
    """One reading of a layer."""

    def __init__(self, number: int, paths: set[str], lists: set[str], recorder: Recorder | None) -> None:
        self.number, self.recorder = number, recorder
        self.lists = lists
        # What lies in a listed folder may be hidden by what happens to the folder itself.
        self.paths = paths | lists | {folder for path in paths | lists for folder in above(path)}
        self.listed: dict[str, set[str]] = {}
        self.whiteouts: set[str] = set()
        self.opaque: set[str] = set()
        self.implied: set[str] = set()
        self.links: dict[str, str] = {}
        self.names = array("q")
        self.folders: set[int] = set()
        self._entries: dict[str, list[tuple[Entry, Probe | None]]] = {}
        self.seen: set[int] = set()
        self.entered: set[int] = set()
        self._kept = 0

    def read(self, scan: TarScan, stream: LayerStream) -> None:
        for member in scan:
            path = member.path
            folder, _, name = path.rpartition("/")
            if name.startswith(WHITEOUT):
                self._whiteout(path, folder, name)
                continue
            if member.kind is Kind.FOLDER:
                self.folders.add(hash(path))
                self.entered.add(hash(path))
            else:
                self.names.append(hash(path))
                if member.kind is Kind.SYMLINK and len(self.links) < _LINKS:
                    self.links[path] = member.link
            self._imply(folder)
            if folder in self.lists:
                self.listed.setdefault(folder, set()).add(name)
            if path in self.paths:
                self._entry(member, scan, stream)

    def finished(self) -> dict[str, list[Entry]]:
        """The entries, with their access points."""
        return {
            path: [
                Entry(e.layer, e.member, e.sha256, probe.access(e.sha256) if probe else e.access, e.data)
                for e, probe in entries
            ]
            for path, entries in self._entries.items()
        }

    def _whiteout(self, path: str, folder: str, name: str) -> None:
        self.names.append(hash(path))
        if name == OPAQUE:
            if folder in self.paths:
                self.opaque.add(folder)
        elif not name.startswith(WHITEOUT * 2):  # else: bookkeeping of AUFS, such as .wh..wh.plnk
            self.names.append(hash(f"{folder}/{WHITEOUT}"))
            hidden = f"{folder}/{name[len(WHITEOUT) :]}".lstrip("/")
            if hidden in self.paths or folder in self.lists:
                self.whiteouts.add(hidden)

    def _imply(self, folder: str) -> None:
        """Folders exist by what lies in them, entry or not."""
        while folder:
            key = hash(folder)
            if key in self.seen:
                return
            self.seen.add(key)
            self.folders.add(key)
            if folder in self.paths:
                self.implied.add(folder)
            outer, _, name = folder.rpartition("/")
            if outer in self.lists:
                self.listed.setdefault(outer, set()).add(name)
            folder = outer

    def _entry(self, member: Member, scan: TarScan, stream: LayerStream) -> None:
        if member.kind is not Kind.FOLDER:
            self._replace(member.path)
        sha256, data, access, probe = "", None, None, None
        if member.kind is Kind.FILE:
            if self.recorder is not None and stream.codec is not Codec.TAR:
                probe = self.recorder.want(member.offset, member.size)
            elif stream.codec is Codec.TAR:
                access = plain_access(member.offset, member.size)
            sha256, data = self._content(member, scan)
        entry = Entry(self.number, member, sha256, access, data)
        self._entries.setdefault(member.path, []).append((entry, probe))

    def _content(self, member: Member, scan: TarScan) -> tuple[str, bytes | None]:
        state, kept = hashlib.sha256(), bytearray()
        keep = member.size <= KEEP and self._kept + member.size <= _KEEP_ALL
        for piece in scan.data(member):
            state.update(piece)
            if keep:
                kept += piece
        self._kept += len(kept)
        return state.hexdigest(), bytes(kept) if keep else None

    def _replace(self, path: str) -> None:
        """A file takes the place of what the same layer had before it, and of what lower layers have."""
        self.whiteouts.add(path)
        below = f"{path}/"
        for inner in [p for p in self._entries if p.startswith(below)]:
            del self._entries[inner]
        self.implied = {p for p in self.implied if p != path and not p.startswith(below)}
        for folder in [f for f in self.listed if f == path or f.startswith(below)]:
            del self.listed[folder]
        self.seen.clear()
