"""Values of arguments: text in which placeholders may stand, JSON in such text, and what a parser would reject."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from graftwork.errors import UsageError
from graftwork.launch.definitions import Flag
from graftwork.launch.flags import Table
from graftwork.launch.placeholders import escape, fill, placeholders

# Private-use characters stand for the braces of placeholders while JSON is read and written.
_OPEN, _CLOSE = "\ue000", "\ue001"
_PORT = re.compile(f"{_OPEN}port:([^{_CLOSE}]+){_CLOSE}$")
_NUMBER = re.compile(r"(?:^|:)(\d{1,5})$")


@dataclass(frozen=True)
class Given:
    """A flag as a user or a demand spells it: *values* are literal text; *key* is set in a JSON flag."""

    flag: Flag
    values: tuple[str, ...]
    negated: bool = False
    key: str = ""

    def __str__(self) -> str:
        return " ".join([self.flag.name + (f".{self.key}" if self.key else ""), *self.values])

    def holds(self, demanded: Given) -> bool:
        """Whether it says what is demanded; of JSON objects, every key of the demanded one with its value."""
        wanted = read_json(demanded.values[0]) if len(demanded.values) == 1 else None
        known = read_json(self.values[0]) if len(self.values) == 1 else None
        if self.key and isinstance(wanted, dict):
            known = _set_key(read_json(demanded.values[0]), self)
        if isinstance(wanted, dict) and isinstance(known, dict):
            return bool(_over(known, wanted) == known)
        return (self.values, self.negated) == (demanded.values, demanded.negated)


def parse(table: Table, words: Sequence[str]) -> Iterator[Given]:
    """The flags in *words*, in any spelling that the parser takes. UsageError for an unknown one or a wrong value."""
    rest = list(words)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.partition("=") if word.startswith("--") else (word, "", "")
        if not name.startswith("-"):
            raise UsageError(f"{table.label}: {word!r} is the value of no argument", hint="each word on its own")
        flag, negated, key = table.spelled(name)
        if flag.takes == "none" and equals:
            raise UsageError(f"{table.label}: {flag.name} takes no value, given {value!r}")
        values = [value] if equals else []
        most = 0 if equals or flag.takes == "none" else len(rest) if flag.takes == "many" else 1
        while rest and len(values) < most and not _is_flag(table, rest[0]):
            values.append(rest.pop(0))
        if not values and flag.takes in ("one", "many"):
            raise UsageError(f"{table.label}: {name} needs a value")
        for given in values if not key else []:
            check_value(table, flag, escape(given))
        yield Given(flag, tuple(values), negated, key)


def _is_flag(table: Table, word: str) -> bool:
    """Whether a word begins the next argument; a negative number does not."""
    return word.startswith("--") or (word.startswith("-") and word in table.short)


def check_value(table: Table, flag: Flag, template: str) -> None:
    """UsageError for a value that the parser would reject; what a placeholder stands for is not known here."""
    if placeholders(template):
        return
    value = fill(template, lambda kind, name: "")
    if flag.choices is not None and value not in flag.choices:
        raise UsageError(f"{table.label}: {flag.name} cannot be {value!r}", hint=f"one of: {', '.join(flag.choices)}")
    try:
        if flag.type == "int":
            int(value)
        elif flag.type == "float":
            float(value)
        elif flag.type == "json" and value.lstrip().startswith(("{", "[")):
            json.loads(value)
    except ValueError:
        kind = {"int": "a whole number", "float": "a number", "json": "JSON"}[flag.type]
        raise UsageError(f"{table.label}: {flag.name} cannot be {value!r}: it is not {kind}") from None


def template(value: object) -> str:
    """A value as text in which placeholders may stand: a dict as compact JSON whose own braces are doubled."""
    return _dump(_marked(value)) if isinstance(value, (dict, list)) else str(value)


def merged(known: str, demanded: Given) -> str | None:
    """The JSON object *known* (a template) with a demanded one laid over it; None where either is none."""
    wanted = read_json(demanded.values[0]) if len(demanded.values) == 1 else None
    data = _load(known)
    return _dump(_over(data, wanted)) if isinstance(wanted, dict) and isinstance(data, dict) else None


def _over(known: Any, wanted: Any) -> Any:
    """*known* with *wanted* laid over it: objects key by key, anything else as a whole."""
    if not isinstance(known, dict) or not isinstance(wanted, dict):
        return wanted
    return {**known, **{key: _over(known.get(key), value) for key, value in wanted.items()}}


def chosen_ports(ours: str, theirs: str) -> dict[str, int]:
    """The ports that the template *theirs* says where *ours* ends with ``{port:NAME}``; of JSON objects, key by key."""
    derived, said = _mark(ours), _mark(theirs)
    known, wanted = read_json(derived), read_json(said)
    pairs = [(derived, said)]
    if isinstance(known, dict) and isinstance(wanted, dict):
        pairs = [(str(value), str(wanted[key])) for key, value in known.items() if key in wanted]
    found = [(_PORT.search(value), _NUMBER.search(instead)) for value, instead in pairs]
    return {port[1]: int(number[1]) for port, number in found if port and number}


def with_key(known: str, given: Given) -> str:
    """The JSON object *known* (a template) with one key set, as ``--flag.a.b value`` says."""
    data = _load(known)
    if not isinstance(data, dict):
        raise UsageError(f"{given.flag.name} is no JSON object, {given} cannot set a key of it")
    return _dump(_set_key(data, given))


def _set_key(data: dict[str, Any], given: Given) -> dict[str, Any]:
    *parents, last = given.key.split(".")
    inner = data
    for parent in parents:
        if not isinstance(inner.setdefault(parent, {}), dict):
            raise UsageError(f"{given.flag.name}: {parent} is no JSON object, {given} cannot set a key of it")
        inner = inner[parent]
    inner[last] = _loose(given.values[0])
    return data


def read_json(text: str) -> Any:
    """What JSON text says, None where it is not JSON."""
    try:
        return json.loads(text)
    except ValueError:
        return None


def _loose(text: str) -> Any:
    """JSON, or the text itself."""
    found = read_json(text)
    return text if found is None and text != "null" else found


def _marked(value: Any) -> Any:
    """*value* with the braces of its strings, which are those of placeholders, out of the way."""
    if isinstance(value, dict):
        return {key: _marked(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_marked(inner) for inner in value]
    return value.replace("{", _OPEN).replace("}", _CLOSE) if isinstance(value, str) else value


def _dump(marked: Any) -> str:
    text = json.dumps(marked, separators=(",", ":"), ensure_ascii=False)
    return escape(text).replace(_OPEN, "{").replace(_CLOSE, "}")


def _load(text: str) -> Any:
    return read_json(_mark(text))


def _mark(text: str) -> str:
    """A template as what it stands for, but for its placeholders."""
    return fill(text, lambda kind, name: _OPEN + kind + (f":{name}" if name else "") + _CLOSE)
