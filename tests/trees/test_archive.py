from __future__ import annotations

import functools
import io
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graftwork.errors import GraftworkError, TreeError
from graftwork.names import rel_path
from graftwork.trees import archive as module
from graftwork.trees.archive import check_directory, read_member
from graftwork.trees.wheel import WheelTree

Members = list[tuple[zipfile.ZipInfo, bytes]]


def zipped(members: Members, **more: int) -> zipfile.ZipFile:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        for info, data in members:
            info.compress_type = more.get("compress_type", zipfile.ZIP_DEFLATED)
            file.writestr(info, data)
    return zipfile.ZipFile(buffer)


def member(name: str, *, mode: int = 0o100644) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name)
    info.external_attr = mode << 16
    return info


@pytest.mark.parametrize(
    ("members", "says"),
    [
        ([member("../evil.py")], r"\.\./evil\.py"),
        ([member("eng/../../evil.py")], "evil"),
        ([member("/etc/passwd")], "/etc/passwd"),
        ([member("eng\\evil.py")], "evil"),
        ([member("eng//a.py")], "a.py"),
        ([member("eng/./a.py")], "a.py"),
        ([member("eng/a\n.py")], "not a path"),
        ([member("eng/link", mode=0o120777)], "'eng/link' is a symbolic link"),
        ([member("eng/pipe", mode=0o010644)], "'eng/pipe' is a special file"),
        ([member("eng/a.py"), member("eng/b.py"), member("eng/a.py")], "two members for one path: 'eng/a.py'"),
        ([member("eng/\u00e9.py"), member("eng/e\u0301.py")], "two members for one path"),
        ([member("eng/a"), member("eng/a/")], "two members for one path"),
        ([member("eng/a"), member("eng/a/b.py")], "'eng/a' is a file and a folder"),
        ([member("eng/a/b.py"), member("eng/a")], "'eng/a' is a file and a folder"),
    ],
)
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_unsafe_members_are_named(members: list[zipfile.ZipInfo], says: str) -> None:
    file = zipped([(info, b"x") for info in members])
    with pytest.raises(TreeError, match=says) as caught:
        check_directory(file, "w.whl")
    assert caught.value.message.startswith("w.whl: unsafe zip archive")
    assert caught.value.hint


def test_ordinary_members_are_accepted() -> None:
    names = ["eng/", "eng/a.py", "eng/A.py", "eng/.hidden", "eng/sp ace.py", "eng/ü.py"]
    members = [(member(name, mode=0 if name == "eng/.hidden" else 0o100755), b"x") for name in names if name[-1] != "/"]
    file = zipped([(member("eng/", mode=0o040755), b""), *members])
    assert list(check_directory(file, "w.whl")) == names[1:]


def test_encrypted_member() -> None:
    file = zipped([(member("eng/a.py"), b"x")])
    file.infolist()[0].flag_bits |= 1
    with pytest.raises(TreeError, match=r"'eng/a\.py' is encrypted"):
        check_directory(file, "w.whl")


def test_bomb_of_one_large_member_is_refused_whole() -> None:
    file = zipped([(member("eng/a.py"), b"x"), (member("eng/bomb"), bytes(65 << 20))])
    with pytest.raises(TreeError, match=r"zip bomb: .* member 'eng/bomb'"):
        check_directory(file, "w.whl")


def test_one_library_of_zeros_does_not_condemn_a_wheel_but_is_not_read() -> None:
    file = zipped([(member("eng/a.py"), b"x = 1\n"), (member("eng/stub.so"), bytes(8 << 20))])
    files = check_directory(file, "w.whl")
    assert read_member(file, files[rel_path("eng/a.py")], "w.whl") == b"x = 1\n"
    with pytest.raises(TreeError, match=r"'eng/stub\.so': unpacks \d+ to 8388608 bytes, over 200 to 1"):
        read_member(file, files[rel_path("eng/stub.so")], "w.whl")


def test_bomb_of_overlapping_members() -> None:
    file = zipped([(member("eng/a"), b"a" * 1000), (member("eng/b"), b"b" * 1000)])
    file.infolist()[1].header_offset = file.infolist()[0].header_offset
    with pytest.raises(TreeError, match="reaches into what follows it"):
        check_directory(file, "w.whl")


def test_member_too_large_to_read() -> None:
    file = zipped([(member("eng/a"), b"a")])
    file.infolist()[0].file_size = (64 << 20) + 1
    with pytest.raises(TreeError, match="'eng/a': 67108865 bytes"):
        read_member(file, file.infolist()[0], "w.whl")


def test_too_many_members_and_too_many_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    file = zipped([(member(f"eng/{i}"), b"a") for i in range(5)])
    monkeypatch.setattr(module, "MAX_MEMBERS", 4)
    with pytest.raises(TreeError, match="5 members, more than 4"):
        check_directory(file, "w.whl")
    monkeypatch.undo()
    for info in file.infolist():
        info.file_size = 5 << 30
    with pytest.raises(TreeError, match="26843545600 bytes unpacked"):
        check_directory(file, "w.whl")


@pytest.mark.parametrize("declared", [3, 5])
def test_declared_size_differs_from_what_is_read(declared: int) -> None:
    file = zipped([(member("eng/a"), b"four")], compress_type=zipfile.ZIP_STORED)
    file.infolist()[0].file_size = declared
    with pytest.raises(TreeError, match="'eng/a'"):
        read_member(file, file.infolist()[0], "w.whl")


def test_crc_error_names_the_member(make_wheel: Callable[..., Path]) -> None:
    path = make_wheel()
    file = zipfile.ZipFile(path)
    info = file.getinfo("eng/large.py")
    data = bytearray(path.read_bytes())
    data[info.header_offset + 30 + len(info.filename) + info.compress_size // 2] ^= 0x40
    path.write_bytes(data)
    with pytest.raises(TreeError, match=r"eng/large\.py"):
        WheelTree(path).read(rel_path("eng/large.py"))


def test_compression_that_wheels_do_not_use() -> None:
    file = zipped([(member("eng/a"), b"a" * 99)], compress_type=zipfile.ZIP_LZMA)
    with pytest.raises(TreeError, match="compression method 14"):
        read_member(file, file.infolist()[0], "w.whl")


@functools.cache
def sound() -> tuple[bytes, dict[str, bytes]]:
    """A small wheel's bytes and its files, with a zip comment as padding that may be spoiled harmlessly."""
    from_conftest = {
        "eng/__init__.py": b"",
        "eng/a.py": b"def run():\n    return 1\n" * 9,
        "eng/stored.bin": bytes(range(64)),
    }
    import base64
    import hashlib

    record = "".join(
        f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b'=').decode()},{len(data)}\n"
        for name, data in from_conftest.items()
    )
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        for name, data in from_conftest.items():
            file.writestr(name, data, zipfile.ZIP_STORED if name.endswith("bin") else zipfile.ZIP_DEFLATED)
        file.writestr("eng-1.dist-info/RECORD", record + "eng-1.dist-info/RECORD,,\n")
        file.comment = b"comment"
    return buffer.getvalue(), from_conftest


def spoil(data: bytes, flips: list[tuple[int, int]], cut: int | None, front: bytes) -> bytes:
    spoiled = bytearray(data)
    for place, mask in flips:
        spoiled[place % len(spoiled)] ^= mask
    return front + bytes(spoiled[:cut])


@settings(max_examples=400, deadline=None)
@given(
    flips=st.lists(st.tuples(st.integers(0, 10_000), st.integers(1, 255)), max_size=4),
    cut=st.none() | st.integers(0, 900),
    front=st.sampled_from([b"", b"", b"junk", b"PK\x03\x04"]),
)
def test_broken_wheels_give_the_right_bytes_or_an_error_of_ours(
    flips: list[tuple[int, int]], cut: int | None, front: bytes
) -> None:
    data, files = sound()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "w.whl")
        path.write_bytes(spoil(data, flips, cut, front))
        try:
            with WheelTree(path) as tree:
                found = {name: tree.read(name) for name in list(tree.paths()) if not name.endswith("/RECORD")}
        except GraftworkError as error:
            assert "w.whl" in error.message
        else:
            # A flipped bit in a name of both zip and RECORD is still a wheel, of another name.
            assert set(found.values()) <= set(files.values())
            assert all(found[name] == files[name] for name in found.keys() & files.keys())


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=300))
def test_any_bytes_are_no_wheel(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "w.whl")
        path.write_bytes(data)
        with pytest.raises(GraftworkError):
            WheelTree(path)
