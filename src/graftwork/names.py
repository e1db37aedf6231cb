"""Validated names: strings that were checked once, at the edge, and carry the check in their type."""

from __future__ import annotations

import re
from typing import NewType

Sha256 = NewType("Sha256", str)
Digest = NewType("Digest", str)
PatchId = NewType("PatchId", str)
TargetName = NewType("TargetName", str)
RelPath = NewType("RelPath", str)

_ODD_IN_PATH = re.compile(r"[\x00-\x1f\x7f\\]")
_ODD_PART = re.compile(r"/(?:\.{0,2})/")
_HEX64 = re.compile(r"[0-9a-f]{64}")
_SLUG = r"[a-z0-9]+(?:[._-][a-z0-9]+)*"


def sha256_hex(text: str) -> Sha256:
    """Check that *text* is 64 lower-case hexadecimal digits; ValueError otherwise."""
    if not _HEX64.fullmatch(text):
        raise ValueError(f"not a sha256 (64 lower-case hex digits): {text!r}")
    return Sha256(text)


def digest(text: str) -> Digest:
    """Check that *text* is ``sha256:`` and 64 hex digits (OCI image-spec, descriptor)."""
    algorithm, _, value = text.partition(":")
    if algorithm != "sha256" or not _HEX64.fullmatch(value):
        raise ValueError(f"not a digest (sha256:<64 hex digits>): {text!r}")
    return Digest(text)


def patch_id(text: str) -> PatchId:
    """Check that *text* is ``<engine>/<name>``, both lower-case slugs."""
    if not re.fullmatch(f"{_SLUG}/{_SLUG}", text):
        raise ValueError(f"not a patch id (<engine>/<name>, lower case): {text!r}")
    return PatchId(text)


def target_name(text: str) -> TargetName:
    """Check that *text* is a lower-case slug; it becomes a file name and an image tag."""
    if not re.fullmatch(_SLUG, text):
        raise ValueError(f"not a target name (lower-case letters, digits, '.', '_', '-'): {text!r}")
    return TargetName(text)


def rel_path(text: str) -> RelPath:
    """Check that *text* is a normalised POSIX path that stays inside its root.

    Refuses absolute paths, ``..``, ``.`` and empty parts, back-slashes and control characters, so
    that no archive member or catalog entry can name a file outside the tree.
    """
    if _ODD_IN_PATH.search(text) or _ODD_PART.search(f"/{text}/"):
        raise ValueError(f"not a path inside the tree: {text!r}")
    return RelPath(text)
