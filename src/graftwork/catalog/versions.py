"""Version specifiers of edits: parsing, matching, whether two of them can match one version; widened and cut."""

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


def widened(specifier: str, version: Version) -> str:
    """*specifier* without the bounds that leave *version* out, and with *version* as the bound instead."""
    if matches(specifier, version):
        return specifier
    parts = [part for part in specifier.split(",") if matches(part, version)]
    upper = any(part.strip()[:1] in "<=~" for part in specifier.split(",") if part not in parts)
    lower = any(part.strip()[:1] == ">" for part in specifier.split(",") if part not in parts)
    exact = [part.strip()[2:] for part in specifier.split(",") if part.strip().startswith("==")]
    if exact and "*" not in exact[0]:
        ends = sorted([Version(exact[0]), version])
        return f">={ends[0]},<={ends[1]}"
    bound = [f"<={version}"] if upper else [f">={version}"] if lower else []
    return ",".join([*parts, *bound])


def until(specifier: str, version: Version, later: bool) -> str:
    """*specifier* up to *version* where that is the *later* one, else down to it; *version* itself is left out.

    A bare ``>V`` would leave out V's post-releases too (PEP 440).
    """
    beyond = f">{version}" if version.is_postrelease else f">={version}.post0"
    return joined(specifier, f"<{version}" if later else beyond)


def joined(*specifiers: str) -> str:
    """What satisfies all of *specifiers*."""
    return ",".join(filter(None, specifiers))


def since(version: Version, later: bool) -> str:
    """From *version* on, or up to it: the side that ``until`` leaves out."""
    return f">={version}" if later else f"<={version}"


def _below(name: str) -> str:
    release = list(Version(name).release)
    while release and release[-1] == 0:
        release.pop()
    if not release:
        return "0"
    return ".".join(str(part) for part in [*release[:-1], release[-1] - 1, 99999])
