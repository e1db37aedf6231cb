"""What a build has to know of its base: found once for a base digest, kept beside the lock or in the cache."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from graftwork.catalog.base_index import BaseIndex, IndexedPath, decode_index, encode_index
from graftwork.catalog.catalog import Patch
from graftwork.catalog.targets import Target
from graftwork.errors import PinError, TreeError, UnreachableError, UsageError
from graftwork.images.graft import Base, strip
from graftwork.images.record import Folder
from graftwork.images.sources import Source
from graftwork.names import Digest, RelPath
from graftwork.oci.canonical import canonical_json
from graftwork.oci.families import Document
from graftwork.oci.layout import replace_file
from graftwork.patching.assess import Engine, planned_files

if TYPE_CHECKING:
    from graftwork.images.prove_image import View
    from graftwork.trees.merged import MergedView
    from graftwork.trees.tree import Tree


@dataclass(frozen=True)
class Facts:
    """The index of a base, and how it was had: 'lock', 'cache' or 'scanned' (then *moved* bytes were read)."""

    index: BaseIndex
    how: str
    moved: int = 0

    def of(self, path: str) -> IndexedPath | None:
        """What the base has at *path*, relative to the engine's root; None if it has nothing."""
        inside = f"{self.index.root.strip('/')}/{path}".lstrip("/")
        found = next((item for item in self.index.paths if item.path == inside), None)
        return None if found is None or found.kind == "absent" else found

    def folders(self, paths: Iterable[str]) -> tuple[Folder, ...]:
        """The base's folders above *paths*, with their modes and owners; folders that it lacks are not named."""
        known = {item.path: item for item in self.index.paths if item.kind == "folder"}
        found = {}
        for path in paths:
            inside = f"{self.index.root.strip('/')}/{path}".lstrip("/")
            while "/" in inside:
                inside = inside.rpartition("/")[0]
                if inside in known:
                    item = known[inside]
                    found[inside] = Folder(inside, f"{item.mode:04o}", item.uid, item.gid)
        return tuple(found[path] for path in sorted(found))


def wanted_files(patches: Sequence[Patch], engine: Engine) -> list[RelPath]:
    """Every path that the patches read or write for this engine, in order."""
    found = set().union(*(planned_files(patch, engine) for patch in patches))
    return [RelPath(path) for path in sorted(found)]


def facts_of(
    base: Base,
    source: Source,
    target: Target,
    wanted: Sequence[RelPath],
    *,
    kept: Sequence[Path],
    view: MergedView | None = None,
) -> Facts:
    """The facts of a bare *base*. *kept* are places of kept indexes: the lock's first, the cache's last.

    A scan reads layers from the top until all is decided, and writes the index to the last place.
    """
    for number, place in enumerate(kept):
        index = _kept(place, base, target, wanted)
        if index is not None:
            return Facts(index, "lock" if number < len(kept) - 1 else "cache")
    from graftwork.images.prove_image import merged_view

    seen = view or merged_view(base, source, index=True)
    index = scan(base, seen, target, wanted)
    if kept:
        try:
            kept[-1].parent.mkdir(parents=True, exist_ok=True)
            replace_file(kept[-1], encode_index(index))
        except OSError as error:
            hint = "Check its owner and space, or set GRAFTWORK_CACHE."
            raise TreeError(f"cannot write {kept[-1]}: {error.strerror}", hint=hint) from error
    return Facts(index, "scanned", seen.moved)


def locked(place: Path, target: Target, wanted: Sequence[RelPath]) -> Facts | None:
    """The facts that the lock keeps of the pinned base, for a build that cannot reach it; None if it keeps none."""
    if not place.is_file():
        return None
    index = decode_index(place.read_bytes(), str(place))
    if target.base.digest not in (index.digest, index.manifest_digest) or not _answers(index, target, wanted):
        raise PinError(
            f"{place}: made for {index.digest}, or for other patches, than target {target.name} has now",
            hint=f"run: graftwork lock {target.name}",
        )
    return Facts(index, "lock")


def is_kept(base: Base, target: Target, wanted: Sequence[RelPath], kept: Sequence[Path]) -> bool:
    """Whether one of the *kept* places has the facts of a bare *base*."""
    return any(_kept(place, base, target, wanted) is not None for place in kept)


def bare(base: Base) -> Base:
    """*base* without a payload that it may carry."""
    manifest, config, _ = strip(base)
    return replace(base, manifest=manifest, config=Document(canonical_json(config), config, base.config.media_type))


def scan(base: Base, view: MergedView, target: Target, wanted: Sequence[RelPath]) -> BaseIndex:
    """Find everything in the layers. PinError when the interpreter imports another copy of the engine."""
    from graftwork.trees.image import build_index

    view.want(*_foreseen(target, wanted), deep=False)
    root = real_root(base, view, target)
    return build_index(
        view,
        image=base.name,
        digest=Digest(base.manifest.digest),
        manifest=base.manifest.raw,
        config_digest=Digest(base.manifest.config.digest),
        python=target.base.python,
        root=root,
        wanted=wanted,
        deep=False,
    )


def _foreseen(target: Target, wanted: Sequence[RelPath]) -> tuple[list[str], list[str]]:
    """Everything that finding the engine is likely to ask, so that one reading of each layer answers all of it.

    A guess that is wrong costs nothing; one that is missing costs a second reading of the layer that has the answer.
    """
    minor, package = target.base.python, target.engine
    bin_folder = target.base.interpreter.strip("/").rpartition("/")[0]
    venv, root = bin_folder.rpartition("/")[0], target.base.root.strip("/")
    homes = [venv, "usr", "usr/local", "opt/conda", "opt/python"]
    sites = [f"{home}/{lib}/python{minor}/site-packages" for home in homes for lib in ("lib", "lib64")]
    sites += [f"usr/local/lib/python{minor}/dist-packages", f"usr/lib/python{minor}/dist-packages"]
    sites += ["usr/lib/python3/dist-packages"]
    version = target.version.replace("-", "_")
    finder = f"__editable___{package}_{re.sub(r'[^0-9A-Za-z]', '_', version)}_finder.py"
    names = [
        f"{package}/__init__.py",
        f"__editable__.{package}-{version}.pth",
        finder,
        f"{package}.pth",
        "easy-install.pth",
        "distutils-precedence.pth",
        "_virtualenv.pth",
        f"{package}-{version}.dist-info/direct_url.json",
    ]
    paths = [target.base.interpreter.strip("/"), f"{bin_folder}/pyvenv.cfg", f"{venv}/pyvenv.cfg"]
    paths += [f"{home}/bin/{name}" for home in homes for name in ("python", "python3", f"python{minor}")]
    paths += [f"{home}/lib/python{minor}/{name}" for home in homes for name in ("os.py", "lib-dynload")]
    paths += [f"{site}/{name}" for site in sites for name in names]
    paths += [f"{root}/{path}" for path in (f"{package}/__init__.py", *wanted)]
    libraries = [f"{home}/lib/python{minor}{name}" for home in homes for name in ("", "/lib-dynload")]
    caches = sorted({f"{path.rpartition('/')[0]}/__pycache__" for path in paths if path.startswith(f"{root}/")})
    return [*paths, *sites], [root, *sites, *libraries, *caches]


def real_root(base: Base, view: MergedView, target: Target) -> str:
    """The folder above the package that the base's interpreter imports, without links; it must be the target's."""
    from graftwork.trees.import_root import import_root

    said = view.stat(f"{target.base.root.strip('/')}/{target.engine}")
    if said is None:
        raise TreeError(
            f"{base.name} has no {target.base.root}/{target.engine}",
            hint="correct base.root of the target, or the base",
        )
    lines = (base.config.data.get("config") or {}).get("Env") or []
    env = dict(line.partition("=")[::2] for line in lines)
    found = import_root(
        view,
        target.engine,
        target.base.python,
        target.base.interpreter,
        env=env,
        workdir=(base.config.data.get("config") or {}).get("WorkingDir") or "/",
        deep=False,
    )
    if found.package != said.path:
        raise PinError(
            f"{base.name}: {target.base.interpreter} imports {target.engine} from /{found.root} (by {found.via}), "
            f"the target's root is {target.base.root} (/{said.path.rpartition('/')[0]})",
            hint="correct base.root of the target",
        )
    return found.root


class BaseTree:
    """The base's files: from the pinned wheel where its sha256 is the base's, else the base's own, by range.

    ``own`` are the files that had to come from the base, which moved ``moved`` bytes.
    """

    def __init__(self, facts: Facts, wheel: Tree, source: Source | None, view: View | None) -> None:
        self.facts, self.wheel, self.source, self.view = facts, wheel, source, view
        self.origin = source.name if source else facts.index.image
        self.own: list[str] = []
        self.moved = 0
        self._kept: dict[RelPath, bytes] = {}

    def read(self, path: RelPath) -> bytes:
        if path in self._kept:
            return self._kept[path]
        fact = self.facts.of(path)
        if fact is None or fact.kind != "file":
            raise TreeError(f"{path}: not a file in {self.origin}")
        if self.wheel.exists(path):
            data = self.wheel.read(path)
            if hashlib.sha256(data).hexdigest() == fact.sha256:
                return data
        self.own.append(path)
        self._kept[path] = self._from_base(path, fact)
        return self._kept[path]

    def exists(self, path: RelPath) -> bool:
        fact = self.facts.of(path)
        return fact is not None and fact.kind == "file"

    def paths(self) -> Iterable[RelPath]:
        root = self.facts.index.root.strip("/")
        inside = (item.path for item in self.facts.index.paths if item.kind == "file")
        return [RelPath(path[len(root) + 1 :]) for path in inside if path.startswith(f"{root}/")]

    def _from_base(self, path: RelPath, fact: IndexedPath) -> bytes:
        if self.view is not None:
            data = self.view.read(f"{self.facts.index.root.strip('/')}/{path}")
            if hashlib.sha256(data).hexdigest() != fact.sha256:
                raise PinError(f"{path} in {self.origin}: changed while it was read")
            return data
        if self.source is None:
            raise UnreachableError(
                f"{path} of {self.origin} differs from the pinned wheel's (the lock's index says so), and the base "
                "cannot be read",
                hint="name a copy of the base with --base",
            )
        from graftwork.trees.image import IndexedImageTree

        tree = IndexedImageTree(self.source.blobs, self.facts.index)
        data = tree.read(path)
        self.moved += tree.moved
        return data


def cache_place(folder: Path, base: Base, target: Target, wanted: Sequence[RelPath]) -> Path:
    """Where the cache keeps the index of a base for these questions. Layers name it, not the manifest's wording."""
    layers = [layer.digest for layer in base.manifest.layers]
    asked = "\n".join([*layers, target.base.root, target.base.python, target.base.interpreter, *wanted])
    return folder / "bases" / f"{hashlib.sha256(asked.encode()).hexdigest()}.json"


def _kept(place: Path, base: Base, target: Target, wanted: Sequence[RelPath]) -> BaseIndex | None:
    """The index at *place* if it is of this base and answers these questions."""
    if not place.is_file():
        return None
    try:
        index = decode_index(place.read_bytes(), str(place))
    except (UsageError, PinError):
        return None  # a spoiled one is as good as none: a scan writes the cache's again, and leaves the lock's alone
    same = [layer.digest for layer in index.layers] == [layer.digest for layer in base.manifest.layers]
    return index if same and _answers(index, target, wanted) else None


def _answers(index: BaseIndex, target: Target, wanted: Sequence[RelPath]) -> bool:
    """Whether *index* was made for the target's Python and knows every wanted path."""
    asked = {f"{index.root.strip('/')}/{path}".lstrip("/") for path in wanted}
    return index.python == target.base.python and asked <= {item.path for item in index.paths}
