"""The releases of an engine on the package index: one wheel each, and why its bytes are believed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import Version

from graftwork.catalog.catalog import Catalog, Patch
from graftwork.catalog.versions import specifier
from graftwork.errors import UsageError
from graftwork.names import Sha256, sha256_hex
from graftwork.trees.cache import Cache
from graftwork.trees.index import Location, PackageIndex
from graftwork.trees.remote import RemoteWheelTree, WheelPin

if TYPE_CHECKING:
    import requests

Trust = Literal["lock", "index"]
Pins = dict[Sha256, Sha256]


@dataclass(frozen=True)
class Release:
    """One release and the wheel that stands for it.

    ``trust`` is ``lock`` where a lock of the checkout pins the wheel and its RECORD. ``index`` means first
    use: RECORD is believed as the index's server gives it, and every later reading is held to that one.
    """

    version: Version
    project: str
    location: Location
    record_sha256: Sha256 | None
    trust: Trust


def locked_pins(catalog: Catalog, engine: str) -> Pins:
    """sha256 of each wheel that a target of *engine* pins -> sha256 of its RECORD, from the locks there are."""
    found: Pins = {}
    for name in catalog.target_names:
        target = catalog.target(name)
        if target.engine == engine and catalog.lock_file(name).is_file():
            found |= {sha256_hex(w.sha256): sha256_hex(w.record_sha256) for w in catalog.lock(target).wheels}
    return found


def find_releases(
    index: PackageIndex, engine: str, pins: Pins, notes: FirstUse, wanted: Callable[[list[Version]], list[Version]]
) -> list[Release]:
    """The releases of *engine* that *wanted* takes from all versions (oldest first), in that order.

    Of a release's wheels a pinned one is taken, else one for x86_64 Linux and the oldest Python (a pure one
    first). A yanked file counts only where a lock pins it.
    """
    project = canonicalize_name(engine)
    known: dict[str, tuple[Version, tuple[object, ...]]] = {}

    def choose(names: Collection[str]) -> list[str]:
        known.update({name: found for name in names if (found := _wheel(name, project))})
        versions = set(wanted(sorted({version for version, _ in known.values()})))
        return [name for name, (version, _) in known.items() if version in versions]

    by_version: dict[Version, list[Location]] = {}
    for location in index.listed(engine, choose):
        if location.sha256 in pins or not location.yanked:
            by_version.setdefault(known[location.filename][0], []).append(location)
    found = []
    for version in sorted(by_version):
        best = min(by_version[version], key=lambda item: (item.sha256 not in pins, known[item.filename][1]))
        record = pins.get(best.sha256)
        trust: Trust = "lock" if record else "index"
        found.append(Release(version, engine, best, record or notes.get(best.sha256), trust))
    return found


class FirstUse:
    """What RECORD each wheel had when it was first read, in the cache."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache

    def get(self, wheel: Sha256) -> Sha256 | None:
        """The RECORD's sha256; None where the wheel was never read here, or the note is spoiled (with a warning)."""
        data = self._cache.recall("records", wheel)
        return sha256_hex(data.decode("ascii")) if data is not None else None

    def put(self, wheel: Sha256, record: Sha256) -> None:
        """Note it, if nothing is noted yet."""
        if self.get(wheel) is None:
            self._cache.keep("records", wheel, record.encode())


def open_release(release: Release, cache: Cache, index: PackageIndex) -> RemoteWheelTree:
    """The release as a tree that moves only what is read."""
    where = release.location
    pin = WheelPin(release.project, where.filename, where.sha256, release.record_sha256)
    return RemoteWheelTree(pin, cache, _Known(index, where), first_use=release.record_sha256 is None)


@dataclass(frozen=True)
class _Known:
    """A source for one file that was found already; the session is opened when something must be moved."""

    index: PackageIndex
    location: Location

    @property
    def session(self) -> requests.Session:
        return self.index.session

    def find(self, project: str, filename: str, sha256: Sha256) -> Location:
        return self.location


def in_range(spec: str, patches: Sequence[Patch]) -> Callable[[list[Version]], list[Version]]:
    """A choice among all versions (oldest first): those that *spec* (PEP 440) admits, or the default range.

    The default is every final release from the one before the oldest version that *patches* name: that is
    where they begin to differ.
    """
    try:
        given = SpecifierSet(spec)
    except InvalidSpecifier as error:
        raise UsageError(f"--versions: {error}", hint="for example: --versions '>=0.5.15,<0.5.20'") from None
    if spec:
        return lambda versions: [one for one in versions if given.contains(one, prereleases=bool(given.prereleases))]
    oldest = oldest_named(patches)

    def default(versions: list[Version]) -> list[Version]:
        final = [one for one in versions if not one.is_prerelease]
        before = sum(oldest is not None and one < oldest for one in final)
        return final[max(0, before - 1) :]

    return default


def oldest_named(patches: Iterable[Patch]) -> Version | None:
    """The oldest version in a specifier of *patches*: before it nothing is said to differ."""
    texts = set()
    for patch in patches:
        spec = patch.spec
        texts |= {spec.versions, *(edit.versions for edit in spec.edit), *(rule.versions for rule in spec.not_needed)}
        texts |= {marker.versions for marker in spec.marker}
    named = [Version(one.version.removesuffix(".*")) for text in texts for one in specifier(text)]
    return min(named, default=None)


def _wheel(name: str, project: str) -> tuple[Version, tuple[object, ...]] | None:
    """(version, order of preference) of a wheel of *project* that this tool reads; None for any other file."""
    try:
        found, version, _, tags = parse_wheel_filename(name)
    except (InvalidWheelFilename, ValueError):
        return None
    if found != project:
        return None
    platforms = {tag.platform for tag in tags}
    linux = any("linux" in platform and platform.endswith("x86_64") for platform in platforms)
    rank = 0 if "any" in platforms else 1 if linux else 2
    python = min(int("".join(filter(str.isdigit, tag.interpreter)) or 0) for tag in tags)
    return version, (rank, python, name)
