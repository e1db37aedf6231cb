"""Prove a finished artifact by reading it back: a folder, or a payload in an OCI layout. No writer is trusted."""

from __future__ import annotations

import io
import os
import sys
import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from graftwork.errors import ProofError, UsageError
from graftwork.images.interpreters import foreign_judge
from graftwork.images.layer import WHITEOUT
from graftwork.images.record import CHECK_PATH, FOLDER, Record, parse_record, plain, pyc_paths, render_record
from graftwork.oci.layout import Image, read_layout
from graftwork.oci.model import LAYER_GZIP, sha256_digest
from graftwork.patching import check
from graftwork.patching.check import Problem

_UNPACKED_LIMIT = 1 << 30  # bytes of tar; a payload has about one MB


@dataclass(frozen=True)
class Report:
    """What was proved on *subject*, or what was not. *digest* is the manifest's, '' for a folder."""

    subject: str
    record: Record
    problems: tuple[Problem, ...]
    digest: str = ""

    @property
    def proved(self) -> bool:
        """Whether everything that the record says holds."""
        return not self.problems

    def demand(self) -> Report:
        """Itself if proved; otherwise ProofError with every problem, one a line."""
        if self.problems:
            lines = [
                f"{problem.path}: {problem.message}" if problem.path else problem.message for problem in self.problems
            ]
            hint = "Build or apply again; bytecode that is not provable here needs the Python that the record names."
            raise ProofError("\n  ".join([f"{self.subject} is not proved:", *lines]), hint=hint)
        return self


def prove_tree(record: Record, root: Path) -> Report:
    """Prove *record* on the folder *root* that holds the package (``root/sglang``). UsageError if it is no folder.

    Bytecode that an image carries or has removed need not be so in a folder: whatever is there is judged.
    """
    if not root.is_dir():
        raise UsageError(f"{root} is not a folder", hint="Name the folder that holds the package.")
    carried = [row for row in plain(record)["bytecode_files"] if (root / row["path"]).exists()]
    folder_record = {**plain(record), "bytecode_files": carried, "whiteouts": []}
    problems = check.check_record(
        folder_record, check.Disk(str(root)), base="", prefix=_prefix(), foreign=foreign_judge(record.python)
    )
    return Report(str(root), record, tuple(problems))


def prove_layer(layout: Path, name: str, expected: Record | None = None) -> Report:
    """Prove the payload *name* in an OCI layout by the record that it carries.

    *expected*, the record beside it, must be the same. MissingFile, PinError and UsageError as oci.layout.read_layout;
    ProofError if the layer cannot be unpacked or has no record.
    """
    image = read_layout(layout, name)
    content = _Content(layer_tar(image))
    record = _record(image, content, name)
    problems = [*_written(image, content, record)]
    if expected is not None and render_record(expected) != render_record(record):
        problems.append(Problem("record", record.path, "the record in the layer is not the one beside the layout"))
    prefix = next((e.partition("=")[2] for e in image.config.config.env if e.startswith("PYTHONPYCACHEPREFIX=")), None)
    problems += check.check_record(plain(record), content, prefix=prefix, foreign=foreign_judge(record.python))
    return Report(f"{layout}:{name}", record, tuple(problems), image.descriptor.digest)


class _Content:
    """The files of one layer, in memory, as check.py reads them."""

    root = "/"

    def __init__(self, tar: bytes) -> None:
        self.members: dict[str, tarfile.TarInfo] = {}
        self.files: dict[str, bytes] = {}
        self.whiteouts: set[str] = set()
        try:
            with tarfile.open(fileobj=io.BytesIO(tar), mode="r:", encoding="utf-8") as archive:
                for member in archive:
                    self._add(member, archive)
        except (tarfile.TarError, EOFError, UnicodeDecodeError) as error:
            raise ProofError(f"the layer is not a readable tar: {error}", hint="Build the image again.") from error

    def _add(self, member: tarfile.TarInfo, archive: tarfile.TarFile) -> None:
        path = member.name
        if path in self.members or not (member.isreg() or member.isdir()):
            raise ProofError(f"the layer holds {path!r} twice, or as a link or device", hint="Build the image again.")
        self.members[path] = member
        folder, _, name = path.rpartition("/")
        if name.startswith(WHITEOUT):
            self.whiteouts.add(f"{folder}/{name[len(WHITEOUT) :]}".lstrip("/"))
        elif member.isreg():
            file = archive.extractfile(member)
            self.files[path] = file.read() if file else b""

    def read(self, path: str) -> bytes | None:
        return self.files.get(path.lstrip("/"))

    def names(self, folder: str) -> list[str]:
        start = folder.strip("/") + "/" if folder.strip("/") else ""
        return sorted({path[len(start) :].split("/")[0] for path in self.files if path.startswith(start)})

    def mtime(self, path: str) -> int:
        return int(self.members[path.lstrip("/")].mtime)


def layer_tar(image: Image) -> bytes:
    """The tar of a payload's one layer; its blob is verified by the layout, what is in it by its diff_id."""
    layers, diff_ids = image.manifest.layers, image.config.rootfs.diff_ids
    if len(layers) != 1 or len(diff_ids) != 1 or layers[0].media_type != LAYER_GZIP:
        raise UsageError(
            f"{image.folder} holds no payload: a payload has one gzip layer, this has {len(layers)} layers"
        )
    try:
        inflater = zlib.decompressobj(wbits=31)
        tar = inflater.decompress(image.blob(layers[0]), _UNPACKED_LIMIT)
    except zlib.error as error:
        raise ProofError(f"the layer of {image.folder} is not gzip: {error}", hint="Build the image again.") from error
    if not inflater.eof or inflater.unused_data:
        raise ProofError(
            f"the layer of {image.folder} is cut short or has more behind it", hint="Build the image again."
        )
    if sha256_digest(tar) != diff_ids[0]:
        raise ProofError(f"the layer of {image.folder} unpacks to {sha256_digest(tar)}, its diff_id is {diff_ids[0]}")
    return tar


def _record(image: Image, content: _Content, name: str) -> Record:
    where = f"{FOLDER}/{name}.json"
    found = [path for path in content.files if path.startswith(f"{FOLDER}/") and path.endswith(".json")]
    if where not in found and len(found) == 1:  # the layout may be tagged by another name than the target's
        where = found[0]
    data = content.read(where)
    if data is None:
        raise ProofError(f"the layer of {image.folder} holds no record {where}", hint="Build the image again.")
    record = parse_record(data, f"{where} in the layer")
    if record.path != where:
        raise ProofError(f"{where} in the layer is the record of another target, {record.target}")
    return record


def _written(image: Image, content: _Content, record: Record) -> Iterator[Problem]:
    """That the layer holds what the record says and nothing else, with the recorded modes, owners and times."""
    root = record.engine.root.strip("/")

    def at(path: str) -> str:
        return f"{root}/{path}" if root else path

    owned = {at(file.path): (int(file.mode, 8), file.uid, file.gid) for file in record.files}
    owned |= {folder.path: (int(folder.mode, 8), folder.uid, folder.gid) for folder in record.folders}
    ours = {*owned} | {at(file.path) for file in record.bytecode_files} | {record.path, CHECK_PATH}
    if CHECK_PATH not in content.files:
        yield Problem("missing", CHECK_PATH, "the self-check is not in the layer")
    for path in sorted(content.files.keys() - ours):
        yield Problem("extra", path, "the record does not know this file")
    whited = {at(path) for path in record.whiteouts}
    for path in sorted(whited ^ content.whiteouts):
        what = "is not whited out in the layer" if path in whited else "is whited out, which the record does not know"
        yield Problem("whiteout", path, what)
    covered = set(record.whiteouts) | {file.path for file in record.bytecode_files}
    for file in record.files:
        for pyc in pyc_paths(file.path, record.python) if file.path.endswith(".py") else []:
            if pyc not in covered:
                yield Problem("whiteout", at(pyc), "old bytecode could survive here: neither written nor whited out")
    for path, member in content.members.items():
        mode, uid, gid = owned.get(path, (0o755 if member.isdir() else 0o644, 0, 0))
        if (member.mode, member.uid, member.gid, int(member.mtime)) != (mode, uid, gid, record.epoch):
            found = f"mode {member.mode:04o}, owner {member.uid}:{member.gid}, time {member.mtime}"
            yield Problem("metadata", path, f"it has {found}; expected {mode:04o}, {uid}:{gid}, {record.epoch}")
    platform = "/".join(filter(None, (image.config.os, image.config.architecture, image.config.variant)))
    if platform != record.platform:
        yield Problem("platform", "", f"the image is for {platform}, the record for {record.platform}")


def _prefix() -> str | None:
    return sys.pycache_prefix or os.environ.get("PYTHONPYCACHEPREFIX") or None
