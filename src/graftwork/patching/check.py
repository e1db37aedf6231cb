"""Prove that patched files are in a tree, with nothing but the standard library (Python 3.8 or newer).

graftwork imports this file, and ships it into every image as ``/usr/share/graftwork/check.py``, where the image's own
Python runs it: ``python check.py [--root DIR] [--record FILE] [--json]``. It exits 0 when everything in the records
beside it is proved, 4 when a proof failed, 2 on wrong usage. Source of the bytecode rules: PEP 552, PEP 3147.
"""

from __future__ import annotations

import hashlib
import importlib.util
import marshal
import os
import re
import stat
import sys
import warnings
from pathlib import Path
from types import CodeType
from typing import Any, Callable, Iterable, Iterator, Mapping, NamedTuple, Protocol  # noqa: UP035  (runs on 3.8)

MODULE = "<module>"
SCHEMA = 1
TAG = sys.implementation.cache_tag or ""
_PYC = re.compile(r"(?P<stem>[^.]+)\.(?P<tag>[^.]+)(?:\.opt-(?P<level>[^.]+))?\.pyc")
_TEXT_KINDS = ("local", "name", "attribute", "constant")


class Problem(NamedTuple):
    """One thing that is not proved. ``kind`` is one word, for machines; ``message`` a sentence for people."""

    kind: str
    path: str
    message: str


class Files(Protocol):
    """What the proof needs to know of a tree. Paths are POSIX and relative; *root* is where they lie on disk."""

    root: str

    def read(self, path: str) -> bytes | None:
        """The regular file's bytes, None if there is none."""

    def names(self, folder: str) -> list[str]:
        """The names in a folder, [] if there is none."""

    def mtime(self, path: str) -> int:
        """Modification time in whole seconds."""


Foreign = Callable[[str, str, bytes, bytes, int], "tuple[str, str] | None"]


class Disk:
    """Files below a folder. A path that begins with '/' is taken as it is."""

    def __init__(self, root: str) -> None:
        self.root = str(Path(root).absolute())

    def read(self, path: str) -> bytes | None:
        file = Path(self.root) / path
        try:
            return file.read_bytes() if stat.S_ISREG(file.stat().st_mode) else None
        except (FileNotFoundError, NotADirectoryError):
            return None

    def names(self, folder: str) -> list[str]:
        try:
            return sorted(entry.name for entry in (Path(self.root) / folder).iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return []

    def mtime(self, path: str) -> int:
        return int((Path(self.root) / path).stat().st_mtime)


# --- code objects and markers ---------------------------------------------------------------------------------------


def compile_source(source: bytes, path: str, optimize: int = 0) -> CodeType:
    """Compile as an import would, without running anything. SyntaxError for whatever cannot be compiled."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            code = compile(source, path, "exec", dont_inherit=True, optimize=optimize)
        except (ValueError, OverflowError, RecursionError, MemoryError) as error:
            raise SyntaxError(f"{path}: {error or type(error).__name__}") from error
    assert isinstance(code, CodeType)
    return code


def _children(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            if constant.co_name.startswith("<generic parameters"):  # PEP 695 wraps the real function
                yield from _children(constant)


def _walk(code: CodeType, only_anonymous: bool = False) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType) and (constant.co_name.startswith("<") or not only_anonymous):
            yield from _walk(constant, only_anonymous)


def functions(code: CodeType, qualname: str) -> list[CodeType]:
    """Every code object that *qualname* names, such as ``Indexer._get_topk_paged`` or ``f.g`` for a nested one.

    ``<module>`` is the module itself. Several definitions of one name are all returned; [] if there is none.
    """
    found = [code]
    for part in [] if qualname == MODULE else qualname.split("."):
        if part != "<locals>":
            found = [child for parent in found for child in _children(parent) if child.co_name == part]
    return found


def _strings(constant: object) -> Iterator[str]:
    if isinstance(constant, str):
        yield constant
    elif isinstance(constant, (tuple, frozenset)):
        for item in constant:
            yield from _strings(item)


def has_marker(code: CodeType, function: str, kind: str, value: str) -> bool:
    """Whether compiled *function* holds *value*: as a ``local``, a ``name``, an ``attribute`` or a whole ``constant``.

    Code nested in the function counts; of ``<module>`` only its own statements, lambdas and comprehensions do.
    """
    if kind not in _TEXT_KINDS:
        raise ValueError(f"unknown kind of marker: {kind!r} (known: {', '.join(_TEXT_KINDS)})")
    for outer in functions(code, function):
        for scope in _walk(outer, only_anonymous=function == MODULE):
            if kind == "local":
                held: Iterable[str] = (*scope.co_varnames, *scope.co_cellvars, *scope.co_freevars)
            elif kind == "constant":
                held = (text for constant in scope.co_consts for text in _strings(constant))
            else:
                held = scope.co_names
            if value in held:
                return True
    return False


# --- bytecode -------------------------------------------------------------------------------------------------------


class _Marshal:
    """Reads marshalled code into plain tuples, less file names and line tables; marshal.loads may crash."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at, self.refs = data, 0, []  # type: bytes, int, list[Any]

    def take(self, count: int) -> bytes:
        if count < 0 or self.at + count > len(self.data):
            raise ValueError("truncated")
        self.at += count
        return self.data[self.at - count : self.at]

    def long(self) -> int:
        return int.from_bytes(self.take(4), "little", signed=True)

    def many(self, count: int) -> tuple[Any, ...]:
        if count < 0 or count > len(self.data) - self.at:
            raise ValueError("truncated")
        return tuple([self.value() for _ in range(count)])

    def value(self) -> Any:
        byte = self.take(1)[0]
        kind, slot = chr(byte & 0x7F), -1
        if byte & 0x80 and kind != "r":
            slot = len(self.refs)
            self.refs.append(None)
        found = self._value(kind)
        if slot >= 0:
            self.refs[slot] = found
        return found

    def _value(self, kind: str) -> Any:
        if kind in "NTFS.":
            return (kind,)
        if kind == "i":
            return ("int", self.long())
        if kind == "l":
            size = self.long()
            digits = self.take(2 * abs(size))
            total = sum(int.from_bytes(digits[n : n + 2], "little") << (n // 2 * 15) for n in range(0, len(digits), 2))
            return ("int", -total if size < 0 else total)
        if kind in "gy":
            return (kind, self.take(8 if kind == "g" else 16))
        if kind == "s":
            return ("bytes", self.take(self.long()))
        if kind in "tuaAzZ":
            text = self.take(self.take(1)[0] if kind in "zZ" else self.long())
            return ("str", text.decode("utf-8", "surrogatepass"))
        if kind in "()":
            return ("tuple", self.many(self.long() if kind == "(" else self.take(1)[0]))
        if kind == ">":
            return ("frozenset", frozenset(self.many(self.long())))
        if kind == ":":
            return ("slice", self.many(3))
        if kind == "r":
            index = self.long()
            if not 0 <= index < len(self.refs) or self.refs[index] is None:
                raise ValueError("bad reference")
            return self.refs[index]
        if kind == "c":
            return self._code()
        raise ValueError(f"unexpected type {kind!r}")

    def _code(self) -> Any:
        new = sys.version_info >= (3, 11)
        numbers = [self.long() for _ in range(5 if new else 6)]
        objects = [self.value() for _ in range(8)]
        del objects[5 if new else 6]  # co_filename
        first = self.long()
        self.value()  # the line table: it depends on -X no_debug_ranges, and nothing that runs depends on it
        return ("code", *numbers, *objects, first, *[self.value() for _ in range(1 if new else 0)])


def code_difference(body: bytes, source: bytes, path: str, optimize: int) -> str:
    """How marshalled code differs from what compiling *source* gives; '' if at most in file name and line table."""
    try:
        expected = _Marshal(marshal.dumps(compile_source(source, path, optimize))).value()
    except SyntaxError as error:
        return f"the source does not compile: {error}"
    except (ValueError, RecursionError) as error:
        return f"this check does not know the bytecode format of {TAG}: {error}"
    try:
        found = _Marshal(body).value()
    except (ValueError, RecursionError) as error:
        return f"it cannot be read: {error}"
    return "" if found == expected else "it holds other code than the source"


def would_load(data: bytes, source: bytes, mtime: int, own: bool = True) -> bool:
    """Whether an interpreter would take this .pyc for *source* (PEP 552); when in doubt about a foreign one, yes."""
    if len(data) < 16 or (own and data[:4] != importlib.util.MAGIC_NUMBER):
        return False
    flags = int.from_bytes(data[4:8], "little")
    if flags & ~0b11:
        return False
    if not flags & 1:
        stamps = (mtime & 0xFFFFFFFF, len(source) & 0xFFFFFFFF)
        return data[8:16] == stamps[0].to_bytes(4, "little") + stamps[1].to_bytes(4, "little")
    return flags == 1 or not own or data[8:16] == importlib.util.source_hash(source)


def judge_pyc(name: str, data: bytes, source: bytes, path: str, mtime: int) -> tuple[str, str]:
    """Verdict on a .pyc of this interpreter's own minor version: ``same``, ``unloaded`` or ``stale``, and why."""
    if not would_load(data, source, mtime):
        return "unloaded", "the interpreter would not load it"
    match = _PYC.fullmatch(name)
    level = match["level"] if match and match["level"] else "0"
    difference = code_difference(data[16:], source, path, min(int(level), 2) if level.isdigit() else 0)
    if not difference:
        return "same", ""
    kind = {0: "by time and size", 1: "unchecked hash"}.get(int.from_bytes(data[4:8], "little") & 0b11, "checked hash")
    return "stale", f"{TAG} would load this bytecode ({kind}), but {difference}"


class _Bytecode:
    """Judges everything that could run instead of a source file."""

    def __init__(
        self, files: Files, tag: str, recorded: Mapping[str, str], prefix: str | None, foreign: Foreign | None
    ) -> None:
        self.files, self.tag, self.recorded = files, tag, recorded
        self.prefix, self.foreign = prefix, foreign

    def folders(self, folder: str) -> list[str]:
        found = [f"{folder}/__pycache__"]
        if self.prefix:
            found.append(f"{self.prefix}/{folder}".strip("/"))  # as the image itself sees it
            if self.files.root != "/":
                found.append(str(Path(self.prefix).absolute()) + str((Path(self.files.root) / folder).absolute()))
        return found

    def verdict(self, pyc: str, source: bytes, path: str) -> tuple[str, str]:
        data = self.files.read(pyc)
        if data is None:
            return "unloaded", "it is not a regular file"
        name = pyc.rpartition("/")[2]
        match = _PYC.fullmatch(name)
        tag, mtime = match["tag"] if match else "", self.files.mtime(path)
        if tag == TAG:
            return judge_pyc(name, data, source, path, mtime)
        if not would_load(data, source, mtime, own=False):
            return "unloaded", "no interpreter would load it"
        judged = self.foreign(tag, name, data, source, mtime) if self.foreign else None
        if judged is not None:
            return judged
        if self.recorded.get(pyc) == hashlib.sha256(data).hexdigest():
            return "same", ""
        return "unprovable", f"bytecode of {tag} is not provable by this Python ({TAG}); run the check with {tag}"

    def problems(self, path: str, source: bytes, whited: frozenset[str]) -> list[Problem]:
        folder, _, base = path.rpartition("/")
        stem, found = base[: -len(".py")], []
        for cache in self.folders(folder):
            for name in self.files.names(cache):
                match = _PYC.fullmatch(name)
                if not match or match["stem"] != stem:
                    continue
                pyc = f"{cache}/{name}"
                verdict, message = self.verdict(pyc, source, path)
                if verdict == "unloaded" and pyc in whited:
                    found.append(Problem("whiteout", pyc, f"should have been removed; {message}, but it is not ours"))
                elif verdict not in ("same", "unloaded"):
                    found.append(Problem(verdict, pyc, message))
        return found + self.shadows(folder, stem)

    def shadows(self, folder: str, stem: str) -> list[Problem]:
        """Extension modules and packages that the interpreter prefers to ``stem.py``."""
        compiled = re.compile(rf"{re.escape(stem)}(\.abi3|\.{re.escape(self.tag)}[a-z]*(-[^.]*)?)?\.so")
        where = f"{folder}/{stem}".lstrip("/")
        found = [f"{folder}/{name}" for name in self.files.names(folder) if compiled.fullmatch(name)]
        inits = re.compile(rf"__init__(\.pyc?|(\.abi3|\.{re.escape(self.tag)}[a-z]*(-[^.]*)?)?\.so)")
        found += [f"{where}/{name}" for name in self.files.names(where) if inits.fullmatch(name)]
        message = f"the interpreter prefers this to {where}.py, so the patched source does not run"
        return [Problem("shadowed", path.lstrip("/"), message) for path in found]


def bytecode_problems(
    files: Files,
    path: str,
    source: bytes,
    *,
    python: str = "",
    recorded: Mapping[str, str] | None = None,
    whiteouts: Iterable[str] = (),
    prefix: str | None = None,
    foreign: Foreign | None = None,
) -> list[Problem]:
    """What an interpreter would run instead of source file *path*: stale bytecode, packages, extension modules.

    *python* is the minor version whose extension modules count ("3.10"; this one's if empty), *recorded* the known
    sha256 by .pyc path, *prefix* a PYTHONPYCACHEPREFIX, *foreign* a judge for bytecode of other minor versions.
    """
    tag = f"cpython-{python.replace('.', '')}" if python else TAG
    return _Bytecode(files, tag, recorded or {}, prefix, foreign).problems(path, source, frozenset(whiteouts))


# --- the record -----------------------------------------------------------------------------------------------------


def _is_path(value: object) -> bool:
    if not isinstance(value, str) or not value or any(ord(c) < 32 or 0xD800 <= ord(c) < 0xE000 for c in value):
        return False
    return all(part not in ("", ".", "..") for part in value.split("/"))


def _rows(record: dict[str, Any], key: str, shape: Mapping[str, Callable[[object], bool]]) -> Iterator[str]:
    rows = record.get(key)
    if not isinstance(rows, list):
        yield f"'{key}' is not a list"
        return
    for number, row in enumerate(rows):
        for field, good in shape.items():
            if not isinstance(row, dict) or not good(row.get(field)):
                yield f"{key}[{number}]: '{field}' is missing or wrong"


def record_problems(record: object) -> list[Problem]:
    """What is wrong with the record itself: its shape, or a patch that it names without any file to prove."""
    if not isinstance(record, dict) or record.get("schema") != SCHEMA:
        return [Problem("record", "", f"not a graftwork record of schema {SCHEMA}")]

    def text(value: object) -> bool:
        return isinstance(value, str)

    def sha(value: object) -> bool:
        return isinstance(value, str) and re.fullmatch(r"[0-9a-f]{64}", value) is not None

    def size(value: object) -> bool:
        return isinstance(value, int)

    def names(value: object) -> bool:
        return isinstance(value, list) and all(isinstance(item, str) for item in value)

    engine = record.get("engine")
    root = engine.get("root") if isinstance(engine, dict) else None
    wrong = (
        []
        if isinstance(root, str) and (not root.strip("/") or _is_path(root.strip("/")))
        else ["'engine.root' is missing or wrong"]
    )
    if not re.fullmatch(r"3\.[0-9]{1,3}", str(record.get("python"))):
        wrong.append("'python' is not a minor version such as 3.10")
    wrong += _rows(record, "files", {"path": _is_path, "sha256": sha, "size": size})
    wrong += _rows(record, "bytecode_files", {"path": _is_path, "sha256": sha})
    wrong += _rows(record, "patches", {"id": text, "state": text, "files": names})
    kinds = {"patch": text, "file": _is_path, "function": text, "kind": _TEXT_KINDS.__contains__, "value": text}
    wrong += _rows(record, "markers", kinds)
    if not isinstance(record.get("whiteouts"), list) or not all(map(_is_path, record["whiteouts"])):
        wrong.append("'whiteouts' is not a list of paths")
    if not wrong:
        paths = {row["path"] for row in record["files"]}
        marked = {row["patch"] for row in record["markers"]}
        for patch in record["patches"]:
            wrong += [f"{patch['id']}: {path} is not among the files" for path in patch["files"] if path not in paths]
            if patch["files"] and patch["id"] not in marked:
                wrong.append(f"{patch['id']}: no marker proves it")
        wrong += [f"marker in {row['file']}, which is not among the files" for row in record["markers"]
                  if row["file"] not in paths]  # fmt: skip
    return [Problem("record", "", f"the record is spoiled: {text}") for text in wrong]


def _file_problems(row: dict[str, Any], path: str, data: bytes | None) -> Iterator[Problem]:
    if data is None:
        yield Problem("missing", path, "the file is not there")
        return
    if len(data) != row.get("size", len(data)):
        yield Problem("size", path, f"it has {len(data)} bytes, the record says {row['size']}")
        return
    found = hashlib.sha256(data).hexdigest()
    if found != row["sha256"]:
        yield Problem("hash", path, f"its sha256 is {found}, the record says {row['sha256']}")


def _source_of(pyc: str) -> str:
    """The source that a .pyc in __pycache__ belongs to, '' for anything else."""
    folder, _, name = pyc.rpartition("/")
    match = _PYC.fullmatch(name)
    return f"{folder[: -len('__pycache__')]}{match['stem']}.py" if match and folder.endswith("__pycache__") else ""


def _marker_problems(rows: Iterable[dict[str, Any]], path: str, code: CodeType) -> Iterator[Problem]:
    for row in rows:
        if not has_marker(code, row["function"], row["kind"], row["value"]):
            what = f"{row['kind']} {row['value']!r} is not in {row['function']}: {row['patch']} is not in this file"
            yield Problem("marker", path, what)


def check_record(
    record: object,
    files: Files,
    *,
    base: str | None = None,
    prefix: str | None = None,
    foreign: Foreign | None = None,
) -> list[Problem]:
    """Prove *record* on *files*; [] means proved. Nothing is imported or executed. Paths are those of *files*.

    *base* is the folder in *files* that holds the package (default: the record's engine root); *prefix* and
    *foreign* as in bytecode_problems. A file that cannot be read is a problem, never an exception.
    """
    wrong = record_problems(record)
    if wrong or not isinstance(record, dict):
        return wrong
    folder = (record["engine"]["root"] if base is None else base).strip("/")

    def at(path: str) -> str:
        return f"{folder}/{path}" if folder else path

    recorded = {at(row["path"]): row["sha256"] for row in record["bytecode_files"]}
    whited = frozenset(at(path) for path in record["whiteouts"])
    judge = _Bytecode(files, f"cpython-{record['python'].replace('.', '')}", recorded, prefix, foreign)
    problems: list[Problem] = []
    for row in record["files"]:
        path = at(row["path"])
        try:
            data = files.read(path)
            problems += _file_problems(row, path, data)
            if data is not None and path.endswith(".py"):
                code = compile_source(data, path)
                problems += _marker_problems((m for m in record["markers"] if m["file"] == row["path"]), path, code)
                problems += judge.problems(path, data, whited)
        except SyntaxError as error:
            problems.append(Problem("syntax", path, f"Python {sys.version.split()[0]} cannot compile it: {error}"))
        except (OSError, RecursionError) as error:
            problems.append(Problem("unreadable", path, f"it cannot be read: {error}"))
    sources = {at(row["path"]) for row in record["files"]}
    try:
        for row in record["bytecode_files"]:
            problems += _file_problems(row, at(row["path"]), files.read(at(row["path"])))
        for path in sorted(whited):
            # Bytecode that came back is judged above: an image that has run may hold a right one again.
            parent, _, name = path.rpartition("/")
            if _source_of(path) not in sources and name in files.names(parent):
                problems.append(Problem("whiteout", path, "should have been removed, but it is there"))
    except OSError as error:
        problems.append(Problem("unreadable", str(error.filename or ""), f"it cannot be read: {error.strerror}"))
    return problems


# --- the command ----------------------------------------------------------------------------------------------------


def _say(text: str) -> None:
    sys.stdout.write(text.encode("ascii", "backslashreplace").decode("ascii") + "\n")


def _load(file: Path) -> object:
    import json

    try:
        return json.loads(file.read_bytes())
    except (ValueError, RecursionError):
        return None


def _records(given: list[str], folder: Path) -> list[tuple[str, object]]:
    if given:
        return [(name, _load(Path(name))) for name in given]
    found = [(str(file), _load(file)) for file in sorted(folder.glob("*.json"))]
    ours = {"schema", "graftwork", "target"}
    return [(name, data) for name, data in found if not isinstance(data, dict) or ours & set(data)]


def _report(name: str, record: object, problems: list[Problem]) -> None:
    _say(f"{name}: {record.get('target') if isinstance(record, dict) else 'not a record'}")
    bad = {problem.path for problem in problems}
    if isinstance(record, dict) and not any(problem.kind == "record" for problem in problems):
        root = record["engine"]["root"].strip("/")
        for row in record["files"]:
            path = f"{root}/{row['path']}" if root else row["path"]
            if path not in bad:
                _say(f"  ok    {path}")
    for problem in problems:
        _say(f"  FAIL  {problem.path + ': ' if problem.path else ''}{problem.message}")


def _child(action: str, path: str) -> int:
    """What graftwork asks of a Python of another minor version: make or judge a .pyc, from and to the pipes."""
    import json

    if action == "--pyc":
        source = sys.stdin.buffer.read()
        # Version 2 has no references, whose places depend on how often this process uses a string.
        try:
            body = marshal.dumps(compile_source(source, path), 2)
        except SyntaxError as error:
            sys.stderr.write(f"{type(error).__name__}: {error}")
            return 1
        header = importlib.util.MAGIC_NUMBER + (0b11).to_bytes(4, "little") + importlib.util.source_hash(source)
        sys.stdout.buffer.write(header + body)
        return 0
    asked = json.loads(sys.stdin.buffer.read())
    data, source = (bytes.fromhex(asked[key]) for key in ("pyc", "source"))
    sys.stdout.write(json.dumps(judge_pyc(asked["name"], data, source, path, asked["mtime"])))
    return 0


def main(argv: list[str] | None = None) -> int:
    """Run the self-check; the exit status. 0 proved, 4 a proof failed, 2 usage."""
    import argparse
    import json

    arguments = sys.argv[1:] if argv is None else argv
    if len(arguments) == 2 and arguments[0] in ("--pyc", "--judge"):
        return _child(*arguments)
    parser = argparse.ArgumentParser(prog="check.py", description="Prove that the recorded patches are in this tree.")
    parser.add_argument("--root", default="/", help="where the image's files lie (default: /)")
    parser.add_argument("--record", action="append", default=[], help="a record (default: every one beside check.py)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    try:
        records = _records(options.record, Path(__file__).resolve().parent)
    except (OSError, ValueError) as error:
        parser.error(f"cannot read the record: {error}")
    if not records:
        parser.error("no record beside check.py: name one with --record FILE")
    if not Path(options.root).is_dir():
        parser.error(f"--root {options.root!r} is not a folder")
    prefix = sys.pycache_prefix or os.environ.get("PYTHONPYCACHEPREFIX")
    reports = [(name, data, check_record(data, Disk(options.root), prefix=prefix)) for name, data in records]
    proved = not any(problems for _, _, problems in reports)
    if options.json:
        found = [{"record": name, "problems": [p._asdict() for p in problems]} for name, _, problems in reports]
        _say(json.dumps({"proved": proved, "python": TAG, "records": found}))
    else:
        for report in reports:
            _report(*report)
        _say("proved" if proved else f"NOT PROVED: {sum(len(report[2]) for report in reports)} problem(s)")
    return 0 if proved else 4


if __name__ == "__main__":
    sys.exit(main())
