"""The whole catalog of a checkout: finding it, loading patches, targets and locks, checking the rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from packaging.utils import parse_wheel_filename
from packaging.version import InvalidVersion, Version

from graftwork.catalog import rules
from graftwork.catalog.patches import Edit, Marker, Mutant, MutantFile, PatchFile, Platform, RevisionFile
from graftwork.catalog.seen import UpstreamFile, load_seen
from graftwork.catalog.targets import Lock, Target, WheelPin, machine_of
from graftwork.catalog.toml import line_of, load
from graftwork.errors import CatalogError, PinError, UsageError
from graftwork.names import patch_id, target_name


@dataclass(frozen=True)
class Earlier:
    """An earlier revision: its edits and markers, to recognise a tree that carries it."""

    id: str
    edits: tuple[Edit, ...]
    markers: tuple[Marker, ...]
    note: str


@dataclass(frozen=True)
class Patch:
    """A patch with its folder (edits may name files in it), its earlier revisions, and what was seen upstream."""

    spec: PatchFile
    folder: Path
    earlier: tuple[Earlier, ...]
    upstream: UpstreamFile = field(default_factory=lambda: UpstreamFile(patch="none"))

    @property
    def id(self) -> str:
        return self.spec.id

    @property
    def engine(self) -> str:
        """The engine that it is for, which is also the name of the engine's package."""
        return self.spec.id.partition("/")[0]

    @property
    def label(self) -> str:
        return f"{self.spec.id} {self.spec.revision}"


@dataclass(frozen=True)
class Catalog:
    """A checkout's ``patches/`` and ``deploy/docker/``."""

    root: Path

    @classmethod
    def find(cls, start: Path | None = None) -> Catalog:
        """The catalog at *start* or the nearest folder above it that has one."""
        here = (start or Path.cwd()).resolve()
        for folder in (here, *here.parents):
            if (folder / "deploy/docker/targets").is_dir() and (folder / "patches").is_dir():
                return cls(folder)
        raise UsageError(
            f"no catalog at {here} or above it (a folder with patches/ and deploy/docker/targets/)",
            hint="run inside a graftwork checkout, or name one with --catalog DIR",
        )

    @cached_property
    def target_names(self) -> list[str]:
        return sorted(file.stem for file in (self.root / "deploy/docker/targets").glob("*.toml"))

    @cached_property
    def patch_ids(self) -> list[str]:
        return sorted("/".join(file.parts[-3:-1]) for file in (self.root / "patches").glob("*/*/patch.toml"))

    def patch(self, name: str) -> Patch:
        """Load and check ``patches/<name>/patch.toml``."""
        folder = self.root / "patches" / name
        file = folder / "patch.toml"
        spec = load(file, PatchFile)
        if spec.id != name:
            raise CatalogError(file, f"id is {spec.id!r}, the folder says {name!r}", line=_line(file, "id"))
        earlier = []
        for position, revision in enumerate(spec.earlier):
            source = rules.inside(folder, revision.edits, file, ("earlier", position, "edits"))
            old = load(source, RevisionFile)
            rules.check_edits(old.edit, source, folder, name)
            rules.check_markers(old.marker, old.edit, source, folder)
            earlier.append(Earlier(revision.id, tuple(old.edit), tuple(old.marker), revision.note))
        rules.check_patch(spec, file, folder, {e.id: e.markers for e in earlier})
        return Patch(spec, folder, tuple(earlier), load_seen(folder, spec))

    def mutants(self, patch: Patch) -> list[Mutant]:
        """The mutants of *patch* (``mutants.toml`` beside patch.toml), checked; none without the file."""
        file = patch.folder / "mutants.toml"
        if not file.is_file():
            return []
        mutants = load(file, MutantFile).mutant
        rules.check_mutants(mutants, patch.spec, file, patch.folder)
        return mutants

    def patch_named(self, name: str) -> Patch:
        """A patch by its id, or by its name where only one engine has it. UsageError lists what there is."""
        return self.patch(self.patch_id_of(name))

    def patch_id_of(self, name: str) -> str:
        """The id of the patch that *name* names, sound or not."""
        found = [known for known in self.patch_ids if name in (known, known.partition("/")[2])]
        if len(found) != 1:
            what = f"{name!r} is a patch of several engines" if found else f"no patch {name!r}"
            raise UsageError(what, hint=f"patches: {', '.join(found or self.patch_ids)}")
        return found[0]

    def target_file(self, name: str) -> Path:
        return self.root / "deploy/docker/targets" / f"{name}.toml"

    def target(self, name: str) -> Target:
        """Load and check a target; its patches exist, belong to its engine and stand in a legal order."""
        try:
            target_name(name)
        except ValueError as error:
            raise UsageError(str(error), hint=f"targets: {', '.join(self.target_names)}") from None
        file = self.target_file(name)
        if not file.is_file():
            raise UsageError(f"no target {name!r}", hint=f"targets: {', '.join(self.target_names)}")
        target = load(file, Target)
        if target.name != name:
            raise CatalogError(file, f"name is {target.name!r}, the file says {name!r}", line=_line(file, "name"))
        rules.check_target(target, file, self.patch_ids)
        return target

    def patches(self, target: Target) -> list[Patch]:
        """The target's patches, in its order."""
        loaded = [self.patch(patch_id(name)) for name in target.patches]
        rules.check_order([patch.spec for patch in loaded], self.target_file(target.name))
        return loaded

    def platforms_of(self, patches: Sequence[Patch]) -> dict[str, Platform]:
        """Patch id -> the platform to look at it on where no target is named: its first, else that of a target with it.

        Looked at on a platform that needs no patch, every release would say just that.
        """
        found = {patch.id: patch.spec.platforms[0] for patch in patches if patch.spec.platforms}
        for target in map(self.target, self.target_names):
            for listed in target.patches:
                found.setdefault(listed, target.platform)
        return {patch.id: found.get(patch.id, "cuda") for patch in patches}

    def check(self) -> None:
        """Load everything there is, so that one run shows that the whole catalog is sound."""
        for name in self.patch_ids:
            patch = self.patch(name)
            rules.check_references(patch.spec, patch.folder / "patch.toml")
            self.mutants(patch)
        for name in self.target_names:
            self.patches(self.target(name))

    def lock_file(self, name: str) -> Path:
        return self.root / "deploy/docker/locks" / f"{name}.json"

    def base_index_file(self, name: str) -> Path:
        """Where ``graftwork lock`` keeps what it found in the target's base."""
        return self.root / "deploy/docker/locks" / f"{name}.base.json"

    def lock(self, target: Target) -> Lock:
        """The target's lock; PinError when it is missing or was made for other pins."""
        import msgspec

        file = self.lock_file(target.name)
        hint = f"run: graftwork lock {target.name}"
        if not file.is_file():
            raise PinError(f"{file}: no lock for target {target.name}", hint=hint)
        try:
            lock = msgspec.json.decode(file.read_bytes(), type=Lock)
        except msgspec.DecodeError as error:
            raise CatalogError(file, f"not a lock: {error}", hint=hint) from None
        if lock.pins != rules.pins_digest(target):
            raise PinError(
                f"{file}: made for pins {lock.pins[:12]}, {self.target_file(target.name).name} now has "
                f"{rules.pins_digest(target)[:12]}",
                hint=hint,
            )
        return lock


def wheel_for(target: Target) -> WheelPin:
    """The pinned wheel that the base's interpreter and architecture can load; PinError (both values) if none.

    A wheel of the stable ABI (``cp38-abi3``) loads in its own Python and in every newer 3.x.
    """
    want = f"cp{target.base.python.replace('.', '')}"
    machine = machine_of(target.base.arch)
    for pin in target.wheel:
        if pin.arch in (machine, "any") and (pin.python in (want, "py3") or _stable_abi_fits(pin, want)):
            return pin
    have = ", ".join(f"{pin.python}/{pin.arch}" for pin in target.wheel)
    raise PinError(
        f"target {target.name}: the base runs {want}/{machine}, pinned wheels are for {have}",
        hint=f"pin a {want} {machine} wheel of {target.engine} {target.version}",
    )


def _stable_abi_fits(pin: WheelPin, want: str) -> bool:
    abis = {tag.abi for tag in parse_wheel_filename(pin.file)[3]}
    return "abi3" in abis and int(pin.python.removeprefix("cp3")) <= int(want.removeprefix("cp3"))


def engine_version(target: Target) -> Version:
    """The target's engine version (PEP 440)."""
    try:
        return Version(target.version)
    except InvalidVersion as error:
        raise UsageError(str(error)) from None


def _line(file: Path, key: str) -> int | None:
    return line_of(file.read_text("utf-8"), (key,))
