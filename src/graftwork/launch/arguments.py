"""One command line in the making: derived first, then what the image demands, then the user's word, which wins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import msgspec

from graftwork.errors import UsageError
from graftwork.launch.definitions import Flag
from graftwork.launch.flags import Table
from graftwork.launch.placeholders import escape, readable
from graftwork.launch.values import check_value, chosen_ports, merged, parse, read_json, template, with_key

Origin = Literal["derived", "demanded", "user"]


class Line(msgspec.Struct, frozen=True):
    """One argument or variable and why it is there; *replaced* is what would stand there without it."""

    text: str
    origin: Origin
    reason: str
    replaced: str = ""


@dataclass(frozen=True)
class _Entry:
    """A flag with its values, in the form in which a node fills them in."""

    flag: Flag
    values: tuple[str, ...]
    negated: bool
    origin: Origin
    reason: str
    replaced: str = ""

    def words(self) -> list[str]:
        name = "--no-" + self.flag.name[2:] if self.negated else self.flag.name
        if len(self.values) == 1 and self.values[0].startswith("-"):
            return [f"{name}={self.values[0]}"]
        return [name, *self.values]


@dataclass
class Arguments:
    """The arguments of one component of a program whose *table* is known; *user* and *drop* are the recipe's.

    *fixed* are the ports that the user chose in place of free ones, known once it is finished.
    """

    table: Table
    user: Sequence[str] = ()
    drop: Sequence[str] = ()
    warnings: list[str] = field(default_factory=list)
    fixed: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._entries: list[_Entry] = []
        self._user = list(parse(self.table, self.user))
        self._dropped = {self.table.spelled(name)[0].name for name in self.drop}
        for given in self._user:
            if given.flag.deprecated:
                instead = f": {given.flag.instead} took its place" if given.flag.instead else ""
                text = f"{given.flag.name} is deprecated in {self.table.label}{instead}"
                self.warnings += [] if text in self.warnings else [text]

    def add(self, name: str, *values: object, why: str) -> None:
        """Derive one flag. A dict becomes JSON; strings in it and single values may hold placeholders."""
        flag = self.table.flag(name)
        self._put(_Entry(flag, tuple(template(value) for value in values), False, "derived", why))

    def refuse(self, name: str, *, why: str) -> None:
        """Derive the ``--no-`` form of a switch."""
        self._put(_Entry(self.table.flag(name), (), True, "derived", why))

    def has(self, name: str) -> bool:
        """Whether the flag is set, by the user or so far by us."""
        return self.value(name) is not None

    def value(self, name: str) -> str | None:
        """The value as it will be: the user's, else ours; "" for a flag without one, None where it is not set."""
        flag = self.table.flag(name)
        for entry in reversed(self._merged()):
            if _slot(entry.flag) == flag.name:
                return None if entry.negated else readable(" ".join(entry.values))
        return None

    def overridden(self, name: str) -> bool:
        """Whether the user says something else than is derived or demanded."""
        ours = [entry.values for entry in self._entries if entry.flag.name == name]
        return bool(ours) and self.value(name) != readable(" ".join(ours[-1]))

    def data(self, name: str) -> dict[str, Any]:
        """The JSON object that is the value as it will be; empty where it is not set, or no object."""
        found = read_json(self.value(name) or "")
        return found if isinstance(found, dict) else {}

    def demand(self, words: Sequence[str], why: str) -> None:
        """What the image needs. UsageError when the user's word is against it; a JSON value is merged into ours."""
        for given in parse(self.table, words):
            name = given.flag.name
            if name in self._dropped:
                raise UsageError(f"{name} is demanded and dropped: {why}", hint=f"take it out of drop: {name}")
            for said in self._user:
                if _slot(said.flag) == _slot(given.flag) and not said.holds(given):
                    raise UsageError(
                        f"{said} is against what the image demands: {given}. {why}",
                        hint="give a value that holds it, or leave it out: it is added",
                    )
            values = tuple(escape(value) for value in given.values)
            ours = [entry.values[0] for entry in self._entries if entry.flag is given.flag and len(entry.values) == 1]
            both = merged(ours[0], given) if ours else None
            self._put(_Entry(given.flag, (both,) if both else values, given.negated, "demanded", why))

    def finish(self) -> tuple[list[str], list[Line]]:
        """The words of the command line and a line for each argument: derived and demanded ones, then the user's."""
        entries = self._merged()
        lines = [
            Line(f"(no {' '.join(entry.words())})", "user", "dropped by the recipe")
            for entry in self._entries
            if entry.flag.name in self._dropped
        ]
        shown = [Line(" ".join(entry.words()), entry.origin, entry.reason, entry.replaced) for entry in entries]
        return [word for entry in entries for word in entry.words()], [*shown, *lines]

    def _merged(self) -> list[_Entry]:
        """What is derived and demanded so far, with the user's word over it."""
        entries = [entry for entry in self._entries if entry.flag.name not in self._dropped]
        for given in self._user:
            slot = _slot(given.flag)
            old = [entry for entry in entries if _slot(entry.flag) == slot]
            values = tuple(escape(value) for value in given.values)
            if given.key:
                values = (with_key(old[-1].values[0] if old else "{{}}", given),)
            if given.flag.repeats and all(entry.origin == "user" for entry in old):
                old = []
            entries = [entry for entry in entries if entry not in old]
            for ours, theirs in zip((value for entry in old for value in entry.values), values, strict=False):
                self.fixed.update(chosen_ports(ours, theirs))
            replaced = "; ".join(" ".join(entry.words()) for entry in old)
            reason = "given by the recipe's user"
            if any(entry.origin == "demanded" for entry in old):
                reason += f", and holds what is demanded: {old[-1].reason}"
            entries.append(_Entry(given.flag, values, given.negated, "user", reason, replaced))
        return entries

    def _put(self, entry: _Entry) -> None:
        for value in entry.values:
            check_value(self.table, entry.flag, value)
        old = [known for known in self._entries if known.flag is entry.flag and not entry.flag.repeats]
        self._entries = [known for known in self._entries if known not in old]
        replaced = "; ".join(" ".join(known.words()) for known in old if known.values != entry.values)
        self._entries.append(replace(entry, replaced=replaced))


def _slot(flag: Flag) -> str:
    """The name under which arguments replace each other: that of the one which took a deprecated one's place."""
    return flag.instead.partition("=")[0] if flag.deprecated and flag.instead.startswith("--") else flag.name
