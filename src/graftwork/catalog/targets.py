"""deploy/docker/targets/*.toml: one image: engine, pins, base, patches in order, image settings."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from graftwork.catalog.patches import Launch, Platform, Strict, Text

Sha256Hex = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}$")]
PythonTag = Annotated[str, msgspec.Meta(pattern=r"^(cp3\d+|py3)$")]


class WheelPin(Strict, frozen=True, kw_only=True):
    """One wheel of the engine's version: which interpreter and machine can load it, and its hash."""

    file: Text
    python: PythonTag
    arch: Literal["x86_64", "aarch64", "any"]
    sha256: Sha256Hex
    size: Annotated[int, msgspec.Meta(gt=0)]


class Base(Strict, frozen=True, kw_only=True):
    """The image that the payload belongs to; ``root`` is the folder above the engine package in it.

    Without ``image`` and ``digest`` no base is pinned: a payload can be built, and grafted onto a base that is named.
    """

    image: str = ""
    digest: Annotated[str, msgspec.Meta(pattern=r"^(sha256:[0-9a-f]{64})?$")] = ""
    digest_source: Text
    checked: bool
    python: Annotated[str, msgspec.Meta(pattern=r"^3\.\d+$")]
    interpreter: Text
    root: Annotated[str, msgspec.Meta(pattern=r"^/")]
    arch: Literal["amd64", "arm64"] = "amd64"

    @property
    def pinned(self) -> str:
        """``image@digest``; empty where no base is pinned."""
        return f"{self.image}@{self.digest}" if self.digest else ""


class Target(Strict, frozen=True, kw_only=True):
    """A target file as written."""

    name: Text
    summary: Text
    engine: Text
    version: Text
    platform: Platform
    accelerator: Text
    base: Base
    patches: list[str]
    wheel: Annotated[list[WheelPin], msgspec.Meta(min_length=1)]
    optional: list[str] = []
    bytecode: Literal["whiteout", "checked"] = "whiteout"
    launch: list[Launch] = []
    env: dict[str, str] = {}
    labels: dict[str, str] = {}


_ARCH = {"amd64": "x86_64", "arm64": "aarch64"}


def machine_of(arch: str) -> str:
    """The wheel platform's machine for an OCI architecture (``amd64`` -> ``x86_64``)."""
    return _ARCH[arch]


class WheelLock(Strict, frozen=True, kw_only=True):
    """What one wheel pin resolved to: the hash of its RECORD, which vouches for each file."""

    file: Text
    sha256: Sha256Hex
    record_sha256: Sha256Hex


class Lock(Strict, frozen=True, kw_only=True):
    """deploy/docker/locks/<target>.json: made by ``graftwork lock``, never by hand.

    ``pins`` is the sha256 of the pinned facts in the target file, so that an edit without a relock
    is noticed. ``epoch`` (seconds, UTC) is the newest member time of the wheels.
    """

    schema: Literal[1]
    target: Text
    pins: Sha256Hex
    epoch: Annotated[int, msgspec.Meta(ge=0)]
    wheels: list[WheelLock]
