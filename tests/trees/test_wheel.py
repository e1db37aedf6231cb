from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graftwork.errors import GraftworkError, MissingFile, PinError, TreeError
from graftwork.names import Sha256, rel_path
from graftwork.trees.record import Row, parse_record, record_path
from graftwork.trees.wheel import WheelTree

RUN = rel_path("eng/run.py")
ZERO = "sha256=" + "A" * 43


def test_reads_every_file_of_the_wheel(make_wheel: Callable[..., Path]) -> None:
    path = make_wheel()
    with WheelTree(path) as tree, zipfile.ZipFile(path) as file:
        assert set(tree.paths()) == set(file.namelist())
        for name in tree.paths():
            assert tree.read(name) == file.read(name)
        assert tree.record_sha256() == hashlib.sha256(file.read(tree.record_path)).hexdigest()
        assert tree.origin == path.name


def test_missing_file(make_wheel: Callable[..., Path]) -> None:
    tree = WheelTree(make_wheel())
    assert not tree.exists(rel_path("eng/none.py"))
    with pytest.raises(MissingFile, match=r"eng/none\.py: not in eng-1\.2\.3"):
        tree.read(rel_path("eng/none.py"))


def test_file_that_record_does_not_name(make_wheel: Callable[..., Path]) -> None:
    tree = WheelTree(make_wheel(record=b"eng-1.2.3.dist-info/RECORD,,\n"))
    with pytest.raises(PinError, match=r"eng/run\.py is in the wheel but not in its RECORD"):
        tree.read(RUN)


def test_other_hash_names_both(make_wheel: Callable[..., Path]) -> None:
    tree = WheelTree(make_wheel({"eng/run.py": b"mine"}, record=f"eng/run.py,{ZERO},4\n".encode()))
    with pytest.raises(PinError) as caught:
        tree.read(RUN)
    assert hashlib.sha256(b"mine").hexdigest() in caught.value.message
    assert "0" * 64 in caught.value.message
    assert caught.value.exit_code == 5


def test_record_that_is_not_the_pinned_one(make_wheel: Callable[..., Path]) -> None:
    path = make_wheel()
    pinned = WheelTree(path).record_sha256()
    assert WheelTree(path, record_sha256=pinned).read(RUN)
    with pytest.raises(PinError, match="the lock pins " + "1" * 64) as caught:
        WheelTree(path, record_sha256=Sha256("1" * 64))
    assert pinned in caught.value.message


def test_what_is_no_wheel(tmp_path: Path, make_wheel: Callable[..., Path]) -> None:
    with pytest.raises(TreeError, match="cannot be read"):
        WheelTree(tmp_path / "none.whl")
    (tmp_path / "text.whl").write_text("<html>404</html>")
    with pytest.raises(TreeError, match=r"text\.whl: damaged zip archive"):
        WheelTree(tmp_path / "text.whl")
    cut = make_wheel()
    cut.write_bytes(cut.read_bytes()[:-30])
    with pytest.raises(TreeError, match="damaged zip archive"):
        WheelTree(cut)


def test_record_path() -> None:
    assert record_path(["a/RECORD", "a.dist-info/x/RECORD", "a.dist-info/RECORD"], "w") == "a.dist-info/RECORD"
    with pytest.raises(PinError, match="holds no RECORD"):
        record_path(["a/RECORD"], "w")
    with pytest.raises(PinError, match=r"more than one RECORD: a.*, b"):
        record_path(["b.dist-info/RECORD", "a.dist-info/RECORD"], "w")


def test_parse_record_with_quoted_names_and_without_sizes() -> None:
    text = f'"eng/a,b.py",{ZERO},12\r\neng/c.py,{ZERO},\n\neng.dist-info/RECORD,,\neng.dist-info/RECORD.jws,,\n'
    assert parse_record(text.encode(), "w") == {
        "eng/a,b.py": Row(Sha256("0" * 64), 12),
        "eng/c.py": Row(Sha256("0" * 64), None),
        "eng.dist-info/RECORD": Row(None, None),
        "eng.dist-info/RECORD.jws": Row(None, None),
    }


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("eng/a.py,,\n", "no hash for eng/a.py"),
        ("eng/a.py,md5=abc,1\n", "only sha256"),
        ("eng/a.py,sha256=!!,1\n", "broken hash"),
        ("eng/a.py,sha256=AAAA,1\n", "broken hash"),
        (f"../a.py,{ZERO},1\n", "not a path inside"),
        (f"eng/a.py,{ZERO},1\neng/a.py,{ZERO},2\n", "two different rows for eng/a.py"),
        (f"eng/a.py,{ZERO}\n", "RECORD is broken"),
        (f"eng/a.py,{ZERO},many\n", "RECORD is broken"),
        (f'"eng/a.py,{ZERO},1\n', "RECORD is broken"),
    ],
)
def test_broken_record(text: str, says: str) -> None:
    with pytest.raises(PinError, match=says):
        parse_record(text.encode(), "w")


@given(st.binary(max_size=200) | st.text(alphabet='a/.,="\n\r shA256-_0', max_size=120).map(str.encode))
def test_any_record_is_parsed_or_an_error_of_ours(data: bytes) -> None:
    try:
        rows = parse_record(data, "w")
    except GraftworkError:
        return
    assert all(not path.startswith("/") and ".." not in path.split("/") for path in rows)
