"""Prove a whole image without running it: what its merged layers really hold, by the record that it carries."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from graftwork.errors import GraftworkError, ProofError, TreeError
from graftwork.images.graft import INPUT_DIGEST, INPUT_NAME, PAYLOAD, Base, diff_ids_of, strip
from graftwork.images.interpreters import foreign_judge
from graftwork.images.prove import Report
from graftwork.images.record import CHECK_PATH, FOLDER, Record, parse_record, plain
from graftwork.images.sources import Source, registry_source
from graftwork.oci.reference import ImageRef
from graftwork.oci.tarscan import Kind
from graftwork.patching import check
from graftwork.patching.check import Problem
from graftwork.trees.layer_facts import LayerRef
from graftwork.trees.merged import Found, MergedView, Names


class View(Protocol):
    """An image's merged file system: MergedView of layers, or EngineView of an engine."""

    def want(self, paths: Sequence[str], folders: Sequence[str] = (), *, deep: bool = True) -> None:
        """Decide these now, in as few readings as can be."""

    def stat(self, path: str, *, follow: bool = True) -> Found | None:
        """What *path* is, or None."""

    def names(self, folder: str, *, deep: bool = True) -> Names:
        """The names in *folder*."""

    def read(self, path: str) -> bytes:
        """The bytes of the file at *path*."""


@dataclass
class ViewFiles:
    """A view as check.py reads files. Not *deep*: folders are listed from the layers that were read anyway."""

    view: View
    deep: bool = True
    root: str = "/"

    def read(self, path: str) -> bytes | None:
        """The file's bytes, or None."""
        found = self.view.stat(path)
        return self.view.read(path) if found is not None and found.kind is Kind.FILE else None

    def names(self, folder: str) -> list[str]:
        """The names in *folder*. Not deep, a folder that no layer read so far has is not looked for in lower ones."""
        parent, _, name = folder.strip("/").rpartition("/")
        if not self.deep and name not in self.view.names(parent, deep=False).names:
            return []
        return list(self.view.names(folder, deep=self.deep).names)

    def mtime(self, path: str) -> int:
        """The file's time in seconds."""
        found = self.view.stat(path)
        return found.mtime if found is not None else 0


def merged_view(base: Base, source: Source, *, index: bool = False) -> MergedView:
    """The merged view of one platform's layers, each read verified against its digest and diff_id."""
    diff_ids = diff_ids_of(base.config.data, len(base.manifest.layers), base.name)
    refs = [
        LayerRef(layer.digest, layer.size, layer.media_type, diff_id)
        for layer, diff_id in zip(base.manifest.layers, diff_ids, strict=True)
    ]
    return MergedView(source.blobs, refs, index=index)


def prove_image(
    base: Base, view: View, target: str, original: Base | None, *, deep: bool = False, interpreter: str = ""
) -> Report:
    """Prove the image *base*, whose files *view* shows, to be *target*'s. *original* is what it was grafted on.

    Not *deep*: layers are read from the top until each file, its white-outs and the record are decided, and no
    lower one is opened only to list a folder. *deep* also finds what lies beside them in the lowest layer, and
    whether *interpreter* imports this copy of the engine and no other.
    ProofError when there is no record at all: the step never ran, or another image was built over it.
    """
    view.want([f"{FOLDER}/{target}.json", CHECK_PATH])
    record = _record(view, base.name, target)
    root = record.engine.root.strip("/")
    paths = [f"{root}/{row.path}" for row in record.files]
    view.want(paths, [f"{path.rpartition('/')[0]}/__pycache__" for path in paths], deep=deep)
    files = ViewFiles(view, deep)
    prefix = _environment(base).get("PYTHONPYCACHEPREFIX")
    problems = check.check_record(plain(record), files, prefix=prefix, foreign=foreign_judge(record.python))
    problems += _image_problems(base, record, original)
    if deep and interpreter:
        problems += _import_problems(base, view, record, interpreter)
    return Report(base.name, record, tuple(problems), base.manifest.digest)


def _record(view: View, name: str, target: str) -> Record:
    where = f"{FOLDER}/{target}.json"
    if view.stat(where) is None:
        raise ProofError(
            f"{name}: has no /{where}: it was never grafted for {target}, or was built without it",
            hint=f"graftwork push {target} --to ...",
        )
    record = parse_record(view.read(where), f"/{where} in {name}")
    if record.target != target:
        raise ProofError(f"/{where} in {name} is the record of {record.target}")
    return record


def _image_problems(base: Base, record: Record, original: Base | None) -> Iterator[Problem]:
    """Labels, platform and the base's layers."""
    platform = str(base.platform)
    if platform != record.platform:
        yield Problem("platform", "", f"the image is for {platform}, the record for {record.platform}")
    labels = (base.config.data.get("config") or {}).get("Labels") or {}
    if PAYLOAD not in labels:
        yield Problem("label", "", f"the label {PAYLOAD} is missing: another configuration was put on these layers")
        return
    if original is None:
        return
    _, config, _ = strip(base)
    have, want = _diff_ids(config), _diff_ids(original.config.data)
    if have[: len(want)] != want:
        wrong = next(i for i, diff_id in enumerate(want) if have[i : i + 1] != [diff_id])
        found = have[wrong] if wrong < len(have) else "nothing"
        yield Problem("base", "", f"layer {wrong} holds {found}, that of its base {original.name} {want[wrong]}")
    if len(have) > len(want):
        count = len(have) - len(want)
        more = "a layer was" if count == 1 else f"{count} layers were"
        yield Problem("base", "", f"{more} put on it after it was grafted; graft it again")


def _import_problems(base: Base, view: View, record: Record, interpreter: str) -> Iterator[Problem]:
    """That the patched copy is the one that runs: a later ``pip install`` may have put another before it."""
    from graftwork.trees.import_root import import_root

    engine = record.engine
    try:
        found = import_root(view, engine.name, record.python, interpreter, env=_environment(base))  # type: ignore[arg-type]
    except TreeError as error:
        yield Problem("import", "", error.message)
        return
    if found.root.strip("/") != engine.root.strip("/"):
        where = f"from /{found.root} ({found.via})"
        yield Problem("import", "", f"{interpreter} imports {engine.name} {where}, the patches are in {engine.root}")


def _diff_ids(config: dict[str, Any]) -> list[str]:
    """What the layers hold, however they are compressed: an archive or an engine stores them in another way."""
    return list((config.get("rootfs") or {}).get("diff_ids") or [])


def _environment(base: Base) -> dict[str, str]:
    lines = (base.config.data.get("config") or {}).get("Env") or []
    return dict(line.partition("=")[::2] for line in lines)


def original_of(base: Base, source: Source) -> tuple[Base | None, str]:
    """The image that *base* was grafted on, where its registry still has it; else None and why not."""
    labels = (base.config.data.get("config") or {}).get("Labels") or {}
    digest, name = str(labels.get(INPUT_DIGEST, "")), str(labels.get(INPUT_NAME, ""))
    if source.registry is None or not digest:
        return None, f"base layers were not compared with {name or 'a base'}: the image is not in a registry"
    try:
        ref = ImageRef.parse(name)
        if ref.registry != source.registry.host:
            ref = replace(ref, registry=source.registry.host, repository=source.repository)
        return registry_source(source.registry, ref.with_digest(digest)).base(base.platform), ""
    except GraftworkError as error:
        return None, f"base layers were not compared with {name}@{digest}: {error.message}"
