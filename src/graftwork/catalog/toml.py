"""Strict TOML: a file becomes a typed struct, or an error that names file and line; and data becomes TOML again."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from graftwork.errors import CatalogError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

T = TypeVar("T")
KeyPath = tuple[str | int, ...]

_HEADER = re.compile(r"\s*(\[\[?)\s*([^\[\]]+?)\s*\]\]?\s*(?:#.*)?$")
_NAME = r"""(?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*')"""
_KEY = re.compile(rf"\s*({_NAME}(?:\s*\.\s*{_NAME})*)\s*=\s*(.*)$")
_PART = re.compile(_NAME)
_FIRST = ("id", "kind", "file", "scope", "path", "source", "versions", "why", "function", "value")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


def load(file: Path, kind: type[T]) -> T:
    """Read *file* as *kind*. CatalogError (file and line) on bad TOML, unknown keys or wrong types."""
    try:
        text = file.read_bytes().decode("utf-8")
    except FileNotFoundError:
        raise CatalogError(file, "no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise CatalogError(file, f"cannot be read: {error}") from None
    try:
        return loads(text, kind)
    except tomllib.TOMLDecodeError as error:
        found = re.search(r"line (\d+)", str(error))
        raise CatalogError(file, f"not TOML: {error}", line=int(found[1]) if found else None) from None
    except RecursionError:
        raise CatalogError(file, "not TOML: nested too deeply") from None
    except msgspec.ValidationError as error:
        raise CatalogError(file, _plain(str(error)), line=line_of(text, _error_path(str(error)))) from None


def loads(text: str, kind: type[T]) -> T:
    """*text* as *kind*. ValueError (TOMLDecodeError, msgspec's ValidationError) for what it is not."""
    return msgspec.convert(tomllib.loads(text), kind)


def line_of(text: str, path: KeyPath) -> int | None:
    """The line of the key or table *path* such as ``("edit", 0, "file")``, or of its nearest parent."""
    lines = _key_lines(text)
    while path:
        if path in lines:
            return lines[path]
        path = path[:-1]
    return None


def _plain(message: str) -> str:
    message = re.sub(r"^Object (contains unknown|missing required) field", r"\1 key", message)
    message = message.replace("contains unknown key", "unknown key").replace("missing required key", "missing key")
    return re.sub(r" - at `\$\.?([^`]*)`", lambda m: f" (in {m[1]})" if m[1] else "", message)


def _error_path(message: str) -> KeyPath:
    found = re.search(r"at `\$([^`]*)`", message)
    path: list[str | int] = []
    for name, index in re.findall(r"\.([A-Za-z0-9_-]+)|\[(\d+)\]", found[1] if found else ""):
        path.append(name if name else int(index))
    unknown = re.search(r"unknown field `([^`]+)`", message)
    return (*path, unknown[1]) if unknown else tuple(path)


def _parts(dotted: str) -> list[str]:
    return [part.strip("\"'") for part in _PART.findall(dotted)]


def _key_lines(text: str) -> dict[KeyPath, int]:
    """Lines of tables and keys; values over several lines are stepped over."""
    lines: dict[KeyPath, int] = {}
    counts: dict[KeyPath, int] = {}
    table: KeyPath = ()
    closing: str | None = None
    depth = 0
    for number, line in enumerate(text.splitlines(), 1):
        if closing is not None:
            if closing in line:
                closing = None
            continue
        if depth > 0:
            depth += _brackets(line)
            continue
        header = _HEADER.match(line)
        if header:
            table = _enter(_parts(header[2]), header[1] == "[[", counts)
            lines.setdefault(table, number)
            continue
        key = _KEY.match(line)
        if not key:
            continue
        lines.setdefault((*table, *_parts(key[1])), number)
        value = key[2]
        for quotes in ('"""', "'''"):
            if value.startswith(quotes) and quotes not in value[3:]:
                closing = quotes
        if closing is None:
            depth = _brackets(value)
    return lines


def _enter(parts: list[str], is_array: bool, counts: dict[KeyPath, int]) -> KeyPath:
    path: KeyPath = ()
    for position, part in enumerate(parts):
        path = (*path, part)
        last = position == len(parts) - 1
        if last and is_array:
            counts[path] = counts.get(path, -1) + 1
        if path in counts:
            path = (*path, counts[path])
    return path


def _brackets(value: str) -> int:
    bare = re.sub(r"""("([^"\\]|\\.)*"|'[^']*')|#.*""", "", value)
    return sum(bare.count(c) for c in "[{") - sum(bare.count(c) for c in "]}")


def schema_of(kind: type, title: str) -> dict[str, Any]:
    """JSON Schema (2020-12) of *kind*, as msgspec generates it."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": title} | msgspec.json.schema(kind)


def table_of(struct: msgspec.Struct) -> dict[str, Any]:
    """A catalog struct as a table: keys that have their default are left out, what names it comes first."""
    table: dict[str, Any] = {}
    config = struct.__struct_config__
    if config.tag_field:
        table[config.tag_field] = config.tag
    for field in msgspec.structs.fields(struct):
        value = getattr(struct, field.name)
        default = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
        if default is msgspec.NODEFAULT or value != default:
            rows = isinstance(value, list) and bool(value) and all(isinstance(row, msgspec.Struct) for row in value)
            table[field.encode_name] = [table_of(row) for row in value] if rows else value
    if "title" in table:  # patch.toml itself is in the order of its struct
        return table
    order = {key: position for position, key in enumerate(_FIRST)}
    return {key: table[key] for key in sorted(table, key=lambda key: order.get(key, len(order)))}


def toml_text(table: Mapping[str, Any], path: str = "") -> str:
    """*table* as TOML that reads back as it was: plain keys first, then tables and arrays of tables below *path*.

    Values are str, bool, int, and lists or tables of these. TypeError for anything else.
    """
    plain = {key: value for key, value in table.items() if not _is_tables(value)}
    lines = [f"{_key(key)} = {_value(value)}\n" for key, value in plain.items()]
    for key, rows in table.items():
        if _is_tables(rows):
            name = f"{path}.{_key(key)}" if path else _key(key)
            lines += [f"\n[[{name}]]\n{toml_text(row, name)}" for row in rows]
    return "".join(lines)


def _is_tables(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(row, dict) for row in value)


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _quoted(name)


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, dict):
        inner = ", ".join(f"{_key(key)} = {_value(item)}" for key, item in value.items())
        return f"{{ {inner} }}" if inner else "{}"
    raise TypeError(f"not a value of a catalog file: {value!r}")


def _text(text: str) -> str:
    """A string in the form that is easiest to read: lines as lines, back-slashes as they are."""
    odd = _CONTROL.search(text)
    if "\n" in text and not odd:
        if "\\" not in text and '"""' not in text and not text.endswith('"'):
            return f'"""\n{text}"""'
        if "'''" not in text and not text.endswith("'"):
            return f"'''\n{text}'''"
    if "\n" not in text and not odd and "'" not in text and ('"' in text or "\\" in text):
        return f"'{text}'"
    return _quoted(text)


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t")
    return '"' + _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04X}", escaped) + '"'
