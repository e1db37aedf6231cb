"""Running a file's own text alone: what is taken, what is dropped, and that nothing is left behind."""

from __future__ import annotations

import os
import subprocess
import sys
import traceback

import pytest

from graftwork.errors import MissingFile, UsageError
from graftwork.harness.isolate import (
    load_class,
    load_function,
    load_module,
    load_until,
    read_engine_file,
    stub,
    stubbed,
)

SOURCE = """\
import nothing_there.at_all

LIMIT = 3
flag = switch()


@decorate_me
def outer(x: Missing) -> Missing:
    return x + LIMIT


class Base: ...


@register("thing")
class Thing(Base, metaclass=Meta):
    size = explode()

    @staticmethod
    def double(x):
        return 2 * x

    @property
    def name(self):
        assert self.ok, "not ok"
        return self.double(LIMIT)

    def fails(self):
        raise KeyError("here")


TABLE: dict = {"outer": outer}
later = undefined_name
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "engine.py"
    path.write_text(SOURCE)
    return path


def test_function_is_taken_alone_without_decorator_and_annotations(file):
    assert load_function(file, "outer", {"LIMIT": 10})(1) == 11
    assert load_function(file, "Thing.fails", {}).__name__ == "fails"


def test_class_keeps_only_the_members_asked_for(file):
    thing = load_class(file, "Thing", ["double", "name"], {"LIMIT": 4})
    one = thing()
    one.ok = True
    assert (thing.__bases__, thing.double(5), one.name()) == ((object,), 10, 8)
    assert not hasattr(thing, "fails")
    assert not hasattr(thing, "size")


def test_missing_member_is_an_error_unless_optional(file):
    with pytest.raises(UsageError, match=r"Thing\.absent is defined 0 times"):
        load_class(file, "Thing", ["absent"], {})
    assert load_class(file, "Thing", ["absent", "double"], {}, optional=["absent"]).double(1) == 2


def test_two_definitions_are_not_a_choice(file):
    file.write_text(SOURCE + "\n\ndef outer(): ...\n")
    with pytest.raises(UsageError, match="outer is defined 2 times"):
        load_function(file, "outer", {})


def test_until_stops_at_the_name_and_skips_imports(file):
    names = load_until(file, "TABLE", {"switch": lambda: 7, "decorate_me": lambda f: f, **_for_thing()})
    assert (names["flag"], list(names["TABLE"])) == (7, ["outer"])
    assert "later" not in names


def _for_thing():
    return {"register": lambda name: lambda cls: cls, "Meta": type, "explode": lambda: 1}


def test_optimize_drops_asserts(file):
    kept = load_class(file, "Thing", ["name", "double"], {"LIMIT": 1})()
    gone = load_class(file, "Thing", ["name", "double"], {"LIMIT": 1}, optimize=2)()
    kept.ok = gone.ok = False
    with pytest.raises(AssertionError):
        kept.name()
    assert gone.name() == 2


def test_traceback_names_the_file_and_line(file):
    with pytest.raises(KeyError) as caught:
        load_class(file, "Thing", ["fails"], {})().fails()
    last = traceback.extract_tb(caught.value.__traceback__)[-1]
    assert (last.filename, last.lineno) == (str(file), SOURCE[: SOURCE.index("raise KeyError")].count("\n") + 1)


def test_stubs_are_there_inside_and_gone_outside(file):
    file.write_text("from json.deep.er import answer\nimport json.deep\n")
    import json

    with pytest.raises(ZeroDivisionError), stubbed(stub("json.deep.er", answer=42)):
        assert load_module(file, "json.loaded").answer == 42
        assert not hasattr(sys.modules["json"], "loads")
        raise ZeroDivisionError
    assert sys.modules["json"] is json
    assert not [name for name in sys.modules if name.startswith("json.deep") or name == "json.loaded"]


def test_read_engine_file_names_what_it_looked_for(file):
    assert read_engine_file(file.parent, "absent.py", "engine.py") == file
    with pytest.raises(MissingFile, match=r"absent\.py, gone\.py"):
        read_engine_file(file.parent, "absent.py", "gone.py")


@pytest.mark.parametrize(
    ("given", "outcome"),
    [
        ([], "1 skipped"),
        (["--engine-tree=nowhere"], "no sglang/ in it"),
        (["--engine-tree=bare"], "no version found"),
        (["--engine-tree=tree"], "1 passed"),
        (["--engine-tree=checkout"], "1 passed"),
        (["--engine-tree=tree", "--engine=vllm"], "no vllm/ in it"),
        (["--engine-tree=tree", "patches/vllm/x"], "no vllm/ in it"),
    ],
    ids=["unset", "no-such-tree", "no-version", "tree", "checkout", "other-engine", "other-patch"],
)
def test_plugin(tmp_path, given, outcome):
    for package in ("tree/sglang", "checkout/python/sglang", "bare/sglang"):
        (tmp_path / package).mkdir(parents=True)
        if not package.startswith("bare"):
            (tmp_path / package / "_version.py").write_text("__version__ = version = '0.5.16'\n")
    test = "def test_it(engine_version, engine_tree):\n    assert str(engine_version) == '0.5.16'\n"
    for engine in ("sglang", "vllm"):
        (tmp_path / f"patches/{engine}/x").mkdir(parents=True)
        (tmp_path / f"patches/{engine}/x/test_it.py").write_text(test)
    given = given if "patches/vllm/x" in given else [*given, "patches/sglang/x"]
    env = {key: value for key, value in os.environ.items() if not key.startswith(("GRAFTWORK_", "PYTEST_"))}
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "graftwork.harness.plugin", *given]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert outcome in done.stdout
