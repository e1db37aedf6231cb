"""The arguments of each supported program by version, from tables that scripts/launch_flags.py makes of its wheel."""

from __future__ import annotations

import difflib
from functools import cache
from pathlib import Path

import msgspec

from graftwork.errors import UsageError
from graftwork.launch.definitions import Flag

_FOLDER = Path(__file__).parent / "tables"
_HINT = "make its table from the wheel with scripts/launch_flags.py (docs/launch.md)"


class WheelOf(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The wheel that a table was made of; *record_sha256* is the hash of its RECORD, which vouches for each file."""

    file: str
    sha256: str
    record_sha256: str


class TableFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """A table as stored: ``tables/<program>-<version>.json``; *source* where no wheel is published."""

    program: str
    version: str
    wheel: WheelOf | None = None
    source: str = ""
    flags: list[Flag]


class Table:
    """The flags of one program by every spelling that its parser takes."""

    def __init__(self, file: TableFile) -> None:
        self.program, self.version, self.wheel = file.program, file.version, file.wheel
        self.flags = {flag.name: flag for flag in file.flags}
        self._spellings = {name: flag for flag in file.flags for name in (flag.name, *flag.aliases)}
        self.short = {name for name in self._spellings if not name.startswith("--")}
        self._negations = {"--no-" + flag.name[2:]: flag for flag in file.flags if flag.switch}

    def joined(self, other: Table) -> Table:
        """A program that takes the arguments of both and passes the other's on."""
        both = {**self.flags, **other.flags}
        return Table(TableFile(program=self.program, version=self.version, wheel=self.wheel, flags=[*both.values()]))

    @property
    def label(self) -> str:
        return f"{self.program} {self.version}"

    def flag(self, name: str) -> Flag:
        """The flag of this exact name; UsageError when the version does not have it. For arguments that we derive."""
        if name not in self.flags:
            raise self._unknown(name)
        return self.flags[name]

    def spelled(self, text: str) -> tuple[Flag, bool, str]:
        """The flag that a user's *text* means, whether it is its ``--no-`` form, and a key behind a dot.

        Underscores stand for hyphens, an unambiguous beginning for the whole, and ``--json-flag.key`` sets one key.
        """
        name, dot, key = text.partition(".") if text.startswith("--") else (text, "", "")
        if name.startswith("--"):
            name = name.replace("_", "-")
        spellings = self._spellings | self._negations
        flag = spellings.get(name)
        if flag is None and name.startswith("--") and len(name) > 2:
            meant = {
                found.name: (spelling, found) for spelling, found in spellings.items() if spelling.startswith(name)
            }
            if len(meant) > 1:
                raise UsageError(f"{self.label}: {text} may be {', '.join(sorted(meant))}", hint="write it out")
            name, flag = next(iter(meant.values()), (name, None))
        if flag is None or (dot and (flag.type != "json" or flag.takes != "one")):
            raise self._unknown(text)
        return flag, name in self._negations, key

    def _unknown(self, name: str) -> UsageError:
        near = difflib.get_close_matches(name.replace("_", "-"), [*self._spellings, *self._negations], 3, 0.6)
        hint = f"did you mean {', '.join(near)}?" if near else f"the arguments that it has: tables/{self._file}"
        return UsageError(f"{self.label} has no argument {name}", hint=hint)

    @property
    def _file(self) -> str:
        return f"{self.program}-{self.version}.json"


def stored() -> list[str]:
    """The names of all tables, without their ending."""
    return sorted(file.name[:-5] for file in _FOLDER.iterdir() if file.name.endswith(".json"))


@cache
def table(program: str, version: str) -> Table:
    """The table of *program* at *version*; UsageError when there is none."""
    file = _FOLDER / f"{program}-{version}.json"
    if not file.is_file():
        have = ", ".join(name[len(program) + 1 :] for name in stored() if name.startswith(program + "-"))
        raise UsageError(f"no arguments are known of {program} {version}, only of {have or 'no version'}", hint=_HINT)
    return Table(msgspec.json.decode(file.read_bytes(), type=TableFile))


def render_table(file: TableFile) -> bytes:
    """The one form in which a table is stored: a line a flag, so that a change shows as a line."""
    head, _, _ = msgspec.json.encode(msgspec.structs.replace(file, flags=[])).partition(b"]")
    return head + b"\n" + b",\n".join(msgspec.json.encode(flag) for flag in file.flags) + b"\n]}\n"
