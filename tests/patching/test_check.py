"""The self-check, in this process and run by every Python of this host, against what an import really does."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import marshal
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from types import CodeType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graftwork.patching import check
from graftwork.patching.check import bytecode_problems, check_record, compile_source, functions, has_marker, judge_pyc

NEW = b"VALUE = 2\ndef rows(q):\n    'text'\n    assert q\n    _fewer = len(q)\n    return _fewer\n"
OLD = b"VALUE = 1\ndef rows(q):\n    'text'\n    assert q\n    _other = len(q)\n    return _other\n"
MODULE = "sglang/srt/indexer.py"
TIME = 1_700_000_000
RECORD: dict[str, Any] = {
    "schema": 1,
    "target": "tiny",
    "engine": {"name": "sglang", "version": "1", "root": "/"},
    "python": f"3.{sys.version_info[1]}",
    "patches": [{"id": "sglang/rows", "state": "pending", "files": [MODULE]}],
    "files": [{"path": MODULE, "sha256": hashlib.sha256(NEW).hexdigest(), "size": len(NEW)}],
    "bytecode_files": [],
    "whiteouts": [],
    "markers": [
        {"patch": "sglang/rows", "file": MODULE, "function": "rows", "kind": "local", "value": "_fewer"},
    ],
}


def all_pythons() -> Iterator[str]:
    """Python 3.8 to 3.13 as far as PATH, pyenv and this process have them: one program a minor version."""
    folders = [Path(folder) for folder in os.environ.get("PATH", "").split(os.pathsep) if folder]
    folders += [found for folder in folders for found in sorted(folder.parent.glob("versions/*/bin"))]
    for minor in range(8, 14):
        own = [Path(sys.executable)] if minor == sys.version_info[1] else []
        for program in own + [folder / f"python3.{minor}" for folder in folders]:
            if (
                program.is_file()
                and subprocess.run([program, "-c", ""], capture_output=True, check=False).returncode == 0
            ):
                yield str(program)
                break


PYTHONS = list(all_pythons())


@pytest.fixture(params=PYTHONS, ids=lambda path: Path(path).name)
def python(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A patched tree with fixed times, and its record in record.json beside it."""
    root = tmp_path / "root"
    file = root / MODULE
    file.parent.mkdir(parents=True)
    for package in (root / "sglang", root / "sglang/srt"):
        (package / "__init__.py").touch()
    file.write_bytes(NEW)
    os.utime(file, (TIME, TIME))
    (tmp_path / "record.json").write_text(json.dumps(RECORD))
    return root


def run(python: str, *arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    return subprocess.run(
        [python, *map(str, arguments)], capture_output=True, text=True, check=False, env={**clean, **environment}
    )


@lru_cache
def minor(python: str) -> str:
    return run(python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])").stdout.strip()


def self_check(python: str, tree: Path, **environment: str) -> tuple[int, list[dict[str, str]]]:
    """Exit status and problems of check.py as that Python runs it, for its own minor version."""
    record = tree.parent / "record.json"
    data = json.loads(record.read_text())
    data["python"] = minor(python)
    record.write_text(json.dumps(data))
    done = run(python, "-I", "-S", check.__file__, "--root", tree, "--record", record, "--json", **environment)
    assert done.stderr == "", done.stderr
    return done.returncode, json.loads(done.stdout)["records"][0]["problems"]


def imported(python: str, tree: Path, *options: str, **environment: str) -> str:
    """What an import really gives: 1 from the old code, 2 from the new."""
    code = f"import sys; sys.path.insert(0, {str(tree)!r}); import sglang.srt.indexer as m; print(m.VALUE)"
    done = run(python, "-B", "-s", *options, "-c", code, **environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def plant(
    python: str, tree: Path, source: bytes, mode: str, optimize: int = 0, mtime: int = TIME, prefix: str = ""
) -> Path:
    """Have *python* write the bytecode of *source* where it would look for that of the tree's module."""
    old = tree.parent / "other" / "indexer.py"
    old.parent.mkdir(exist_ok=True)
    old.write_bytes(source)
    os.utime(old, (mtime, mtime))
    code = (
        "import sys, importlib.util as u, py_compile as p\n"
        "sys.pycache_prefix = sys.argv[5] or None\n"
        "opt = int(sys.argv[4])\n"
        "to = u.cache_from_source(sys.argv[2], optimization=opt or '')\n"
        "p.compile(sys.argv[1], to, doraise=True, optimize=opt, invalidation_mode=p.PycInvalidationMode[sys.argv[3]])\n"
        "print(to)\n"
    )
    done = run(python, "-c", code, old, tree / MODULE, mode, str(optimize), prefix)
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip())


MODES = ("TIMESTAMP", "UNCHECKED_HASH", "CHECKED_HASH")


def test_a_clean_tree_is_proved(python: str, tree: Path) -> None:
    assert self_check(python, tree) == (0, [])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("optimize", [0, 1, 2])
def test_bytecode_of_the_new_source_is_proved(python: str, tree: Path, mode: str, optimize: int) -> None:
    plant(python, tree, NEW, mode, optimize)
    assert imported(python, tree, *["-O"] * optimize) == "2"
    assert self_check(python, tree) == (0, [])


def test_line_tables_do_not_matter(tree: Path) -> None:
    pyc = plant(sys.executable, tree, NEW, "UNCHECKED_HASH")
    code = compile_source(NEW, MODULE)
    pyc.write_bytes(pyc.read_bytes()[:16] + marshal.dumps(code.replace(co_linetable=b"")))
    assert check_record(RECORD, check.Disk(str(tree))) == []
    pyc.write_bytes(pyc.read_bytes()[:16] + marshal.dumps(code.replace(co_stacksize=99)))
    assert [problem.kind for problem in check_record(RECORD, check.Disk(str(tree)))] == ["stale"]


@pytest.mark.parametrize("mode", MODES[:2])
@pytest.mark.parametrize("optimize", [0, 1, 2])
def test_stale_bytecode_that_python_runs_is_found(python: str, tree: Path, mode: str, optimize: int) -> None:
    plant(python, tree, OLD, mode, optimize)
    assert imported(python, tree, *["-O"] * optimize) == "1"
    status, problems = self_check(python, tree)
    assert (status, [problem["kind"] for problem in problems]) == (4, ["stale"])


@pytest.mark.parametrize(("mode", "mtime"), [("TIMESTAMP", TIME + 1), ("CHECKED_HASH", TIME)])
def test_old_bytecode_that_python_ignores_is_harmless(python: str, tree: Path, mode: str, mtime: int) -> None:
    plant(python, tree, OLD, mode, mtime=mtime)
    assert imported(python, tree) == "2"
    assert self_check(python, tree) == (0, [])


@pytest.mark.parametrize("length", [0, 4, 15])
def test_bytecode_cut_short_is_harmless(python: str, tree: Path, length: int) -> None:
    pyc = plant(python, tree, OLD, "UNCHECKED_HASH")
    pyc.write_bytes(pyc.read_bytes()[:length])
    assert imported(python, tree) == "2"
    assert self_check(python, tree) == (0, [])


@pytest.mark.parametrize(("flags", "value"), [(0, "1"), (1, "1"), (2, "1"), (3, "2"), (4, "2"), (5, "2")])
def test_every_flag_is_read_as_python_reads_it(python: str, tree: Path, flags: int, value: str) -> None:
    pyc = plant(python, tree, OLD, "TIMESTAMP")
    data = pyc.read_bytes()
    pyc.write_bytes(data[:4] + flags.to_bytes(4, "little") + data[8:])
    assert imported(python, tree) == value
    assert self_check(python, tree)[0] == (4 if value == "1" else 0)


def test_checked_hash_of_the_source_over_other_code_is_found(python: str, tree: Path) -> None:
    good = plant(python, tree, NEW, "CHECKED_HASH").read_bytes()
    pyc = plant(python, tree, OLD, "CHECKED_HASH")
    pyc.write_bytes(good[:16] + pyc.read_bytes()[16:])
    assert imported(python, tree) == "1"
    assert [problem["kind"] for problem in self_check(python, tree)[1]] == ["stale"]


def test_times_are_compared_in_32_bits(python: str, tree: Path) -> None:
    os.utime(tree / MODULE, (TIME + (1 << 32), TIME + (1 << 32)))
    plant(python, tree, OLD, "TIMESTAMP")
    assert imported(python, tree) == "1"
    assert self_check(python, tree)[0] == 4


def test_pycache_prefix_is_searched(python: str, tree: Path) -> None:
    prefix = str(tree.parent / "prefix")
    plant(python, tree, OLD, "TIMESTAMP", prefix=prefix)
    assert imported(python, tree, PYTHONPYCACHEPREFIX=prefix) == "1"
    assert [problem["kind"] for problem in self_check(python, tree, PYTHONPYCACHEPREFIX=prefix)[1]] == ["stale"]
    assert self_check(python, tree) == (0, [])


def test_pycache_prefix_inside_the_image_is_searched(tree: Path) -> None:
    pyc = plant(sys.executable, tree, OLD, "TIMESTAMP")
    inside = tree / "var/cache/sglang/srt" / pyc.name
    inside.parent.mkdir(parents=True)
    pyc.rename(inside)
    assert check_record(RECORD, check.Disk(str(tree))) == []
    found = check_record(RECORD, check.Disk(str(tree)), prefix="/var/cache")
    assert [(problem.kind, problem.path) for problem in found] == [("stale", f"var/cache/sglang/srt/{pyc.name}")]


def test_package_that_hides_the_module_is_found(python: str, tree: Path) -> None:
    package = tree / "sglang/srt/indexer"
    package.mkdir()
    (package / "__init__.py").write_bytes(OLD)
    assert imported(python, tree) == "1"
    status, problems = self_check(python, tree)
    assert (status, problems[0]["kind"]) == (4, "shadowed")


def test_extension_module_that_hides_the_module_is_found(python: str, tree: Path) -> None:
    suffixes = run(python, "-c", "import importlib.machinery as m; print(*m.EXTENSION_SUFFIXES)").stdout.split()
    for suffix in suffixes:
        hidden = tree / f"sglang/srt/indexer{suffix}"
        hidden.touch()
        assert [problem["kind"] for problem in self_check(python, tree)[1]] == ["shadowed"], suffix
        hidden.unlink()
    (tree / "sglang/srt/indexer.cpython-34m.so").touch()  # of a Python that this one would not load
    (tree / "sglang/srt/indexer_extra.so").touch()
    assert self_check(python, tree) == (0, [])


@pytest.mark.parametrize(
    ("data", "kinds"),
    [
        (NEW.replace(b"2", b"3"), ["hash"]),
        (NEW + b"\n", ["size"]),
        (NEW.replace(b"_fewer", b"_fewex"), ["hash", "marker"]),
        (NEW.replace(b"    _fewer = len(q)\n", b"    # _fewer\n"), ["size", "marker"]),
        (b"def", ["size", "syntax"]),
        (b"\xff\xfe" + NEW, ["size", "syntax"]),
        (NEW + b"\0", ["size", "syntax"]),
        (None, ["missing"]),
    ],
)  # fmt: skip
def test_spoiled_file_is_found(python: str, tree: Path, data: bytes | None, kinds: list[str]) -> None:
    if data is None:
        (tree / MODULE).unlink()
    else:
        (tree / MODULE).write_bytes(data)
    status, problems = self_check(python, tree)
    assert (status, [problem["kind"] for problem in problems]) == (4, kinds)


def test_marker_counts_only_in_its_function(tree: Path) -> None:
    text = b"VALUE = 2\ndef rows(q):\n    return len(q)\ndef dead():\n    _fewer = '_fewer'\n    return _fewer\n"
    (tree / MODULE).write_bytes(text)
    record = {
        **RECORD,
        "files": [{**RECORD["files"][0], "sha256": hashlib.sha256(text).hexdigest(), "size": len(text)}],
    }
    assert [problem.kind for problem in check_record(record, check.Disk(str(tree)))] == ["marker"]


def whited(tree: Path) -> dict[str, Any]:
    pyc = plant(sys.executable, tree, NEW, "TIMESTAMP")
    return {**RECORD, "whiteouts": [str(pyc.relative_to(tree))]}


def test_white_out_that_did_not_take_is_found(tree: Path) -> None:
    record = whited(tree)
    plant(sys.executable, tree, OLD, "TIMESTAMP", mtime=TIME - 5)  # Python would not load it, but it should be gone
    assert [problem.kind for problem in check_record(record, check.Disk(str(tree)))] == ["whiteout"]
    plant(sys.executable, tree, OLD, "TIMESTAMP")
    assert [problem.kind for problem in check_record(record, check.Disk(str(tree)))] == ["stale"]


def test_white_out_of_another_file_must_be_absent(tree: Path) -> None:
    (tree / "sglang/gone.py").touch()
    record = {**RECORD, "whiteouts": ["sglang/gone.py"]}
    assert [problem.kind for problem in check_record(record, check.Disk(str(tree)))] == ["whiteout"]
    (tree / "sglang/gone.py").unlink()
    assert check_record(record, check.Disk(str(tree))) == []


def test_an_image_that_has_run_may_have_compiled_the_new_source_again(tree: Path) -> None:
    assert check_record(whited(tree), check.Disk(str(tree))) == []


def test_recorded_bytecode_must_be_there_unchanged(tree: Path) -> None:
    pyc = plant(sys.executable, tree, NEW, "CHECKED_HASH")
    row = {"path": str(pyc.relative_to(tree)), "sha256": hashlib.sha256(pyc.read_bytes()).hexdigest()}
    record = {**RECORD, "bytecode_files": [row]}
    assert check_record(record, check.Disk(str(tree))) == []
    pyc.write_bytes(pyc.read_bytes()[:-1])
    assert {problem.kind for problem in check_record(record, check.Disk(str(tree)))} == {"hash", "stale"}
    pyc.unlink()
    assert [problem.kind for problem in check_record(record, check.Disk(str(tree)))] == ["missing"]


class TestForeignBytecode:
    """Bytecode of a Python that is not running."""

    @pytest.fixture
    def foreign(self, tree: Path) -> Path:
        pyc = tree / "sglang/srt/__pycache__/indexer.cpython-399.pyc"
        pyc.parent.mkdir()
        stamp = TIME.to_bytes(4, "little") + len(NEW).to_bytes(4, "little")
        pyc.write_bytes(b"\x99\x0d\r\n" + bytes(4) + stamp + b"any code")
        return pyc

    def problems(self, tree: Path, **options: Any) -> list[str]:
        found = bytecode_problems(check.Disk(str(tree)), MODULE, NEW, **options)
        return [problem.kind for problem in found]

    def test_is_not_provable_here(self, tree: Path, foreign: Path) -> None:
        assert self.problems(tree) == ["unprovable"]

    def test_is_harmless_if_it_would_not_load(self, tree: Path, foreign: Path) -> None:
        os.utime(tree / MODULE, (TIME + 1, TIME + 1))
        assert self.problems(tree) == []

    @pytest.mark.parametrize("flags", [1, 3])
    def test_by_hash_is_assumed_to_load(self, tree: Path, foreign: Path, flags: int) -> None:
        foreign.write_bytes(b"\x99\x0d\r\n" + flags.to_bytes(4, "little") + bytes(8))
        assert self.problems(tree) == ["unprovable"]

    def test_is_proved_by_the_record(self, tree: Path, foreign: Path) -> None:
        path = str(foreign.relative_to(tree))
        assert self.problems(tree, recorded={path: hashlib.sha256(foreign.read_bytes()).hexdigest()}) == []
        assert self.problems(tree, recorded={path: "0" * 64}) == ["unprovable"]

    def test_is_proved_by_its_own_interpreter(self, tree: Path, foreign: Path) -> None:
        asked = []

        def judge(tag: str, name: str, data: bytes, source: bytes, mtime: int) -> tuple[str, str] | None:
            asked.append((tag, name, data, source, mtime))
            return ("stale", "other code") if len(asked) == 1 else ("same", "")

        assert self.problems(tree, foreign=judge) == ["stale"]
        assert self.problems(tree, foreign=judge) == []
        assert asked[0] == ("cpython-399", "indexer.cpython-399.pyc", foreign.read_bytes(), NEW, TIME)


SAMPLE = """
TOP = ("deep", frozenset({"set"}))
PICK = [x.made for x in ()] or (lambda: lambda_name)
def twice(): first = 1
def twice(): second = f"{0} piece"
class Indexer:
    "a docstring"
    field = 1
    def rows(self, q):
        local = q.attribute
        def inner():
            return local, outside
        return inner
if TOP:
    def twice(): third = ("a", ("b", "nested"))
"""


class TestMarkers:
    code = compile_source(SAMPLE.encode(), "sample.py")

    @pytest.mark.parametrize(
        ("qualname", "count"),
        [
            ("<module>", 1),
            ("twice", 3),
            ("Indexer", 1),
            ("Indexer.rows", 1),
            ("Indexer.rows.inner", 1),
            ("Indexer.rows.<locals>.inner", 1),
            ("rows", 0),
            ("inner", 0),
            ("", 0),
            ("Indexer.rows.inner.x", 0),
        ],
    )
    def test_functions(self, qualname: str, count: int) -> None:
        found = functions(self.code, qualname)
        assert len(found) == count
        assert all(code.co_name == qualname.rpartition(".")[2] for code in found)

    @pytest.mark.parametrize(
        ("function", "kind", "value"),
        [
            ("Indexer.rows", "local", "local"),
            ("Indexer.rows.inner", "local", "local"),
            ("Indexer.rows", "name", "outside"),
            ("Indexer.rows", "attribute", "attribute"),
            ("Indexer", "name", "field"),
            ("Indexer", "attribute", "attribute"),
            ("twice", "local", "first"),
            ("twice", "local", "third"),
            ("twice", "constant", " piece"),
            ("twice", "constant", "nested"),
            ("<module>", "name", "TOP"),
            ("<module>", "attribute", "made"),
            ("<module>", "name", "lambda_name"),
            ("<module>", "constant", "deep"),
        ],
    )
    def test_present(self, function: str, kind: str, value: str) -> None:
        assert has_marker(self.code, function, kind, value)

    @pytest.mark.parametrize(
        ("function", "kind", "value"),
        [
            ("<module>", "local", "local"),
            ("<module>", "name", "outside"),
            ("<module>", "name", "field"),
            ("twice", "local", "local"),
            ("Indexer.rows.inner", "attribute", "attribute"),
            ("Indexer.rows", "name", "local"),
            ("twice", "constant", "piece"),
            ("missing", "name", "TOP"),
        ],
    )
    def test_absent(self, function: str, kind: str, value: str) -> None:
        assert not has_marker(self.code, function, kind, value)

    def test_set_constants(self) -> None:
        code = compile_source(b"def f(x): return x in {'one', 'two'}", "x.py")
        assert has_marker(code, "f", "constant", "two")

    def test_unknown_kind(self) -> None:
        with pytest.raises(ValueError, match=r"'comment'.*local, name"):
            has_marker(self.code, "<module>", "comment", "TOP")

    def test_generic_functions_and_classes_are_found(self, python: str) -> None:
        code = (
            f"import sys; sys.path.insert(0, {str(Path(check.__file__).parent)!r}); import check\n"
            "if sys.version_info < (3, 12): sys.exit(0)\n"
            "c = check.compile_source(b'class A[T]:\\n def f[U](self): mark = 1\\n', 'x.py')\n"
            "sys.exit(0 if check.has_marker(c, 'A.f', 'local', 'mark') else 1)\n"
        )
        assert run(python, "-B", "-S", "-c", code).returncode == 0


def test_compile_ignores_warnings_and_our_own_future_imports() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        code = compile_source(b"x = 1 is 1\ns = '\\d'\ndef f(a: undefined_name): pass\n", "x.py")
    assert "undefined_name" in code.co_names


def spoiled_records() -> Iterator[Any]:
    yield from (None, 1, [], {}, "x", {"schema": 2}, {"schema": 1})
    for key in RECORD:
        yield {name: value for name, value in RECORD.items() if name != key or name == "target"} | (
            {"schema": "1"} if key == "target" else {}
        )
    for path in ("../x", "/etc/passwd", "a//b", "", "a\0b", "\ud800", 3):
        yield {**RECORD, "files": [{**RECORD["files"][0], "path": path}]}
    yield {**RECORD, "files": []}
    yield {**RECORD, "markers": []}
    yield {**RECORD, "markers": [{**RECORD["markers"][0], "kind": "comment"}]}
    yield {**RECORD, "markers": [{**RECORD["markers"][0], "file": "sglang/other.py"}]}
    yield {**RECORD, "engine": {"root": "/a/../b"}}
    yield {**RECORD, "whiteouts": ["../x"]}


@pytest.mark.parametrize("record", list(spoiled_records()))
def test_spoiled_record_is_a_problem(tree: Path, record: object) -> None:
    problems = check_record(record, check.Disk(str(tree)))
    assert problems and {problem.kind for problem in problems} == {"record"}


class TestCommand:
    def test_default_records_lie_beside_it(self, python: str, tree: Path) -> None:
        folder = tree / "usr/share/graftwork"
        folder.mkdir(parents=True)
        script = folder / "check.py"
        script.write_bytes(Path(check.__file__).read_bytes())
        assert run(python, "-I", "-S", script, "--root", tree).returncode == 2
        (folder / "sbom.json").write_text('{"bomFormat": "CycloneDX"}')
        assert run(python, "-I", "-S", script, "--root", tree).returncode == 2
        (folder / "tiny.json").write_text(json.dumps(RECORD))
        done = run(python, "-I", "-S", script, "--root", tree)
        assert (done.returncode, done.stdout.splitlines()[1:]) == (0, [f"  ok    {MODULE}", "proved"])
        (folder / "tiny.json").write_text(json.dumps(RECORD)[:-9])
        done = run(python, "-I", "-S", script, "--root", tree)
        assert (done.returncode, done.stderr) == (4, "")
        assert "not a graftwork record" in done.stdout

    def test_says_what_is_wrong(self, tree: Path) -> None:
        (tree / MODULE).write_bytes(OLD)
        done = run(sys.executable, check.__file__, "--root", tree, "--record", tree.parent / "record.json")
        assert done.returncode == 4
        assert f"FAIL  {MODULE}: its sha256 is {hashlib.sha256(OLD).hexdigest()}, the record says" in done.stdout
        assert "local '_fewer' is not in rows: sglang/rows is not in this file" in done.stdout
        assert done.stdout.endswith("NOT PROVED: 2 problem(s)\n")

    @pytest.mark.parametrize("arguments", [["--record", "missing.json"], ["--root", "missing"], ["--no"], ["x"]])
    def test_usage(self, python: str, tree: Path, arguments: list[str]) -> None:
        given = arguments if "--record" in arguments else [*arguments, "--record", str(tree.parent / "record.json")]
        done = run(python, check.__file__, *given)
        assert done.returncode == 2
        assert "Traceback" not in done.stderr


PYC = importlib.util.MAGIC_NUMBER + (1).to_bytes(4, "little") + bytes(8)
CODE = marshal.dumps(compile_source(SAMPLE.encode(), "sample.py"))


@given(st.binary(max_size=200), st.sampled_from([b"", PYC, PYC[:4], PYC + CODE[:30]]))
def test_random_bytecode_never_raises(data: bytes, start: bytes) -> None:
    verdict, _ = judge_pyc("sample.pyc", start + data, SAMPLE.encode(), "sample.py", 0)
    assert verdict in ("unloaded", "stale")


@given(st.integers(0, len(CODE) - 1), st.integers(1, 255))
def test_a_flipped_byte_never_passes(at: int, flip: int) -> None:
    body = bytearray(CODE)
    body[at] ^= flip
    verdict, _ = judge_pyc("x.pyc", PYC + bytes(body), SAMPLE.encode(), "sample.py", 0)
    # Another file name or line table, or another spelling of the same constant, does not change what runs.
    assert verdict == "stale" or alike(marshal.loads(bytes(body)), compile_source(SAMPLE.encode(), "sample.py"))


def alike(one: object, other: object) -> bool:
    """Whether two constants, or two code objects attribute by attribute, run the same."""
    if not isinstance(one, CodeType) or not isinstance(other, CodeType):
        return type(one) is type(other) and one == other
    told = ("co_filename", "co_firstlineno", "co_linetable", "co_lnotab", "co_lines", "co_positions", "co_consts")
    data = [name for name in dir(one) if name.startswith("co_") and name not in told and name != "co_branches"]
    return (
        all(getattr(one, name) == getattr(other, name) for name in data)
        and len(one.co_consts) == len(other.co_consts)
        and all(map(alike, one.co_consts, other.co_consts))
    )


TEXTS = st.sampled_from(["", "x", "..", "a/b", "/", "\0", "\ud800", "3.10", "a" * 64, MODULE, "local", "rows"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*RECORD, "path", "id"]), inner),
    max_leaves=20,
)


@given(st.dictionaries(st.sampled_from([*RECORD]), JSON))
def test_random_record_never_raises(change: dict[str, Any]) -> None:
    record = {**RECORD, **change}
    assert check_record(record, check.Disk("/nonexistent"))


@given(st.dictionaries(st.sampled_from(["path", "sha256", "size", "function", "kind", "value", "file"]), JSON))
def test_random_rows_never_raise(change: dict[str, Any]) -> None:
    for key in ("files", "markers", "bytecode_files"):
        row = {**RECORD["markers"][0], **RECORD["files"][0], **change}
        assert check_record({**RECORD, key: [row]}, check.Disk("/nonexistent"))
