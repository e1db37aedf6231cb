"""Version specifiers of edits: parsing, matching, and whether two of them can match one version."""

from __future__ import annotations

from functools import cache

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version


@cache
def specifier(text: str) -> SpecifierSet:
    """A PEP 440 specifier set; the empty text matches every version. ValueError if it is not one."""
    try:
        return SpecifierSet(text, prereleases=True)
    except InvalidSpecifier as error:
        raise ValueError(f"not a version specifier: {text!r} ({error})") from None


def matches(text: str, version: Version) -> bool:
    """Whether *version* satisfies the specifier *text*."""
    return not text or specifier(text).contains(version, prereleases=True)


def overlap(one: str, other: str) -> Version | None:
    """A version that satisfies both specifiers, or None.

    Specifiers can only change their answer at the versions they name, so it is enough to try
    those, a step below and above each, and the extremes.
    """
    named = [spec.version.removesuffix(".*") for text in (one, other) for spec in specifier(text)]
    tries = ["0", "99999"]
    for name in named:
        tries += [name, f"{name}.post0", f"{name}.post99999", f"{name}.1", f"{name}.99999", _below(name)]
    for text in tries:
        try:
            version = Version(text)
        except InvalidVersion:
            continue
        if matches(one, version) and matches(other, version):
            return version
    return None


def _below(name: str) -> str:
    release = list(Version(name).release)
    while release and release[-1] == 0:
        release.pop()
    if not release:
        return "0"
    return ".".join(str(part) for part in [*release[:-1], release[-1] - 1, 99999])
