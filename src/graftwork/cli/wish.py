"""What a command line asks of a build."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Wish:
    """*base* None: the target's pinned one, if it is at hand. *attest*: also SBOM and provenance. *key*: a PEM file."""

    base: str | None = None
    to: Sequence[str] = ()
    platforms: Sequence[str] = ()
    full: bool = False
    require_base: bool = False
    max_bytes: int | None = None
    insecure: bool = False
    dist: Path | None = None
    attest: bool = True
    key: Path | None = None
