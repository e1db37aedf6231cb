"""The record: what an image holds and what proves it. It travels in the image, and check.py reads it as plain JSON."""

from __future__ import annotations

import shlex
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal

import msgspec

from graftwork.errors import ProofError
from graftwork.oci.canonical import readable_json
from graftwork.patching import check

FOLDER = "usr/share/graftwork"
CHECK_PATH = f"{FOLDER}/check.py"

Policy = Literal["whiteout", "checked"]
_Sha256 = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
_Mode = Annotated[str, msgspec.Meta(pattern="^[0-7]{4}$")]


class _Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A row of the record: strict, so that a spoiled one is noticed."""


class Engine(_Row, frozen=True):
    """*root* is the absolute folder in the image that holds the package."""

    name: str
    version: str
    root: str


class Base(_Row, frozen=True):
    """The image that the payload is meant for; *digest* of its manifest or index."""

    image: str
    digest: str


class Wheel(_Row, frozen=True):
    """Where the pristine text came from; *record_sha256* is the hash of the wheel's own RECORD."""

    file: str
    sha256: str
    record_sha256: str


class Patch(_Row, frozen=True):
    """One patch of the target, its state when the image was planned, and the files that it changed."""

    id: str
    revision: str
    title: str
    state: str
    upstream: list[str]
    files: list[str]


class File(_Row, frozen=True):
    """A patched file: *mode* is octal text ("0644"), *pristine* its sha256 before, None for a new file."""

    path: str
    sha256: _Sha256
    size: int
    mode: _Mode
    pristine: _Sha256 | None
    patches: list[str]
    uid: int = 0
    gid: int = 0


class Folder(_Row, frozen=True):
    """A folder above a patched file as the base has it; *path* is relative to the image's root."""

    path: str
    mode: _Mode
    uid: int
    gid: int


class BytecodeFile(_Row, frozen=True):
    """A .pyc that the layer carries."""

    path: str
    sha256: _Sha256


class Marker(_Row, frozen=True):
    """What must be found in the compiled *function* of *file*; see check.has_marker."""

    patch: str
    file: str
    function: str
    kind: str
    value: str


class Launch(_Row, frozen=True):
    """What the patches demand of the command line and the environment."""

    args: list[str] = []
    env: dict[str, str] = {}

    def words(self) -> str:
        """As a shell takes it: the variables first, then the arguments. Empty if nothing is demanded."""
        env = [f"{key}={shlex.quote(value)}" for key, value in sorted(self.env.items())]
        return " ".join([*env, *map(shlex.quote, self.args)])


class Record(_Row, frozen=True):
    """All paths but ``engine.root`` are relative to it. *epoch*, in seconds, is the time of everything in the layer."""

    schema: Literal[1]
    graftwork: str
    target: str
    engine: Engine
    python: Annotated[str, msgspec.Meta(pattern=r"^3\.[0-9]{1,3}$")]
    platform: str
    base: Base
    wheel: Wheel
    bytecode: Policy
    patches: list[Patch]
    files: list[File]
    bytecode_files: list[BytecodeFile]
    whiteouts: list[str]
    markers: list[Marker]
    launch: Launch
    epoch: int
    folders: list[Folder] = []

    @property
    def path(self) -> str:
        """Where the record lies in the image, relative to its root."""
        return f"{FOLDER}/{self.target}.json"


def render_record(record: Record) -> bytes:
    """The one form in which a record is stored: sorted keys, two spaces, a newline at the end."""
    return readable_json(record)


def parse_record(data: bytes, where: str) -> Record:
    """Read a record back, ProofError naming *where* if it is spoiled."""
    try:
        record = msgspec.json.decode(data, type=Record)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProofError(f"{where} is not a record of schema 1: {error}", hint="Build the image again.") from error
    if problems := check.record_problems(plain(record)):
        raise ProofError(f"{where}: {problems[0].message}", hint="Build the image again.")
    return record


def plain(record: Record) -> dict[str, Any]:
    """The record as check.py sees it."""
    found: dict[str, Any] = msgspec.to_builtins(record)
    return found


def pyc_paths(path: str, python: str) -> list[str]:
    """Where Python *python* ("3.10") keeps the bytecode of *path*, at each level of optimisation (PEP 488)."""
    source = PurePosixPath(path)
    tag = f"{source.stem}.cpython-{python.replace('.', '')}"
    return [str(source.parent / "__pycache__" / f"{tag}{level}.pyc") for level in ("", ".opt-1", ".opt-2")]
