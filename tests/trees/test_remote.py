from __future__ import annotations

import hashlib
import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import requests
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from graftwork.errors import GraftworkError, MissingFile, PinError, TreeError, UnreachableError
from graftwork.names import Sha256, rel_path
from graftwork.trees.cache import Cache, sha256_of
from graftwork.trees.fetch import fetch_whole
from graftwork.trees.index import Location, PackageIndex
from graftwork.trees.pipconf import PipSettings
from graftwork.trees.ranges import RangeReader
from graftwork.trees.remote import RemoteWheelTree, WheelPin, open_wheel
from graftwork.trees.session import open_session
from graftwork.trees.wheel import WheelTree

RUN = rel_path("eng/run.py")
URL = "/files/eng.whl"
REAL = WheelPin(
    "sglang",
    "sglang-0.5.15.post1-cp311-cp311-manylinux_2_34_x86_64.whl",
    Sha256("8e182e1c449197cb6f98716a7cf432a3ea7af78c172f9b840ab28ad9e6cda9b4"),
    Sha256("cadcad96617c7bed915ef0e397e197a233e34fed20e3973ee53cb3b8851cb975"),
)
PATCHED = (
    rel_path("sglang/srt/layers/attention/dsa/dsa_indexer.py"),
    rel_path("sglang/srt/mem_cache/pool_host/common.py"),
)


class OneServer:
    """A source whose file is on the test server."""

    def __init__(self, server: Any, path: Path) -> None:
        server.files[URL] = path.read_bytes()
        self.session = open_session(PipSettings(retries=1), backoff=0)
        self.url = server.origin + URL + "?token=secret"

    def find(self, project: str, filename: str, sha256: Sha256) -> Location:
        return Location(filename, sha256, url=self.url)


class NoNetwork:
    @property
    def session(self) -> requests.Session:
        raise AssertionError("no network is needed")

    def find(self, project: str, filename: str, sha256: Sha256) -> Location:
        raise AssertionError("no index is needed")


@pytest.fixture
def big(make_wheel: Callable[..., Path]) -> Path:
    """Larger than the end that is read first, with files that do not compress."""
    noise = random.Random(1)
    files = {"eng/run.py": b"def run():\r\n    return 1\r\n"}
    files |= {f"eng/data{i:03}.bin": noise.randbytes(20_000) for i in range(100)}
    files |= {"eng/last.py": b"x = 1\n"}
    return make_wheel(files)


def pin_of(path: Path) -> WheelPin:
    with WheelTree(path) as tree:
        return WheelPin("eng", path.name, sha256_of(path), tree.record_sha256())


def test_only_what_is_needed_is_moved_and_the_second_time_nothing(server: Any, cache: Cache, big: Path) -> None:
    tree = open_wheel(pin_of(big), cache, OneServer(server, big))
    assert isinstance(tree, RemoteWheelTree)
    assert tree.read(RUN) == b"def run():\r\n    return 1\r\n"
    assert tree.read(rel_path("eng/data050.bin")) == WheelTree(big).read(rel_path("eng/data050.bin"))
    assert tree.how == "ranges"
    assert tree.moved_bytes < 600_000 < big.stat().st_size
    assert tree.requests == len(server.asked(URL)) == 3
    again = RemoteWheelTree(pin_of(big), cache, NoNetwork())
    assert again.read(RUN) == b"def run():\r\n    return 1\r\n"
    assert again.read(rel_path("eng/data050.bin")) == tree.read(rel_path("eng/data050.bin"))
    assert (again.how, again.moved_bytes, again.requests) == ("cache", 0, 0)
    assert set(again.paths()) == set(WheelTree(big).paths())
    assert again.exists(RUN)
    assert not again.exists(rel_path("eng/none.py"))
    with pytest.raises(MissingFile):
        again.read(rel_path("eng/none.py"))
    assert again.read(rel_path("eng-1.2.3.dist-info/RECORD")).endswith(b"RECORD,,\n")


def test_directory_larger_than_the_first_read(server: Any, big: Path) -> None:
    source = OneServer(server, big)
    data = big.read_bytes()
    reader = RangeReader(source.url, source.session, tail=1000)
    size = len(data)
    for first, last in [(size - 5000, size - 1), (size - 9000, size - 3000), (10, 19), (size - 100, size - 1)]:
        assert reader.fetch((first, last)).read() == data[first : last + 1]
    assert reader.moved_bytes == 1000 + 4000 + 4000 + 10
    assert reader.requests == 4


@pytest.mark.parametrize("fault", ["no suffix ranges", "small wheel", "small wheel without ranges"])
def test_servers_that_are_odd_but_usable(
    server: Any, cache: Cache, big: Path, make_wheel: Callable[..., Path], fault: str
) -> None:
    path = make_wheel() if fault.startswith("small") else big
    server.suffix_ranges = fault != "no suffix ranges"
    server.ranges = fault != "small wheel without ranges"
    tree = RemoteWheelTree(pin_of(path), cache, OneServer(server, path))
    assert tree.read(RUN) == WheelTree(path).read(RUN)
    assert tree.how == "ranges"


def test_server_without_ranges_gives_the_whole_wheel(server: Any, cache: Cache, big: Path) -> None:
    server.ranges = False
    seen: list[int] = []
    tree = RemoteWheelTree(pin_of(big), cache, OneServer(server, big), progress=lambda done, _: seen.append(done))
    assert tree.read(RUN) == WheelTree(big).read(RUN)
    assert (tree.how, seen[-1]) == ("whole", big.stat().st_size)
    assert cache.verified(pin_of(big).sha256)


def test_server_that_stops_to_serve_ranges(server: Any, cache: Cache, big: Path) -> None:
    tree = RemoteWheelTree(pin_of(big), cache, OneServer(server, big))
    assert tree.read(rel_path("eng/last.py"))
    server.ranges = False
    assert tree.read(RUN) == WheelTree(big).read(RUN)
    assert tree.how == "whole"


def test_whole_wheel_in_the_cache_is_used(server: Any, cache: Cache, big: Path) -> None:
    source = OneServer(server, big)
    pin = pin_of(big)
    fetch_whole(source.find("", pin.filename, pin.sha256), cache, lambda: source.session)
    tree = RemoteWheelTree(pin, cache, NoNetwork())
    assert tree.read(RUN)
    assert tree.how == "whole"


def test_without_a_pinned_record_the_whole_wheel_is_fetched(server: Any, cache: Cache, big: Path) -> None:
    pin = WheelPin("eng", big.name, sha256_of(big))
    tree = open_wheel(pin, cache, OneServer(server, big))
    assert isinstance(tree, WheelTree)
    assert tree.record_sha256() == pin_of(big).record_sha256
    assert open_wheel(pin, cache, NoNetwork()).read(RUN) == tree.read(RUN)
    with pytest.raises(ValueError, match="only when the sha256 of its RECORD is pinned"):
        RemoteWheelTree(pin, cache, NoNetwork())


def test_local_source_is_used_where_it_is(tmp_path: Path, cache: Cache, big: Path) -> None:
    index = PackageIndex(PipSettings(no_index=True, find_links=(str(tmp_path),)))
    tree = RemoteWheelTree(pin_of(big), cache, index)
    assert tree.read(RUN) == WheelTree(big).read(RUN)


def test_cut_connections_are_asked_again(server: Any, cache: Cache, big: Path) -> None:
    server.cuts = [100_000, 0, 524_288, 10]
    tree = RemoteWheelTree(pin_of(big), cache, OneServer(server, big))
    assert tree.read(RUN) == WheelTree(big).read(RUN)
    server.cuts = [5] * 9
    with pytest.raises(UnreachableError, match="cut 4 times; the last time after 0 bytes") as caught:
        tree.read(rel_path("eng/data010.bin"))
    assert "secret" not in caught.value.message


@pytest.mark.parametrize(("status", "error"), [(404, UnreachableError), (500, UnreachableError)])
def test_server_errors(server: Any, cache: Cache, big: Path, status: int, error: type[GraftworkError]) -> None:
    server.statuses = [status] * 9
    with pytest.raises(error, match=f"answered {status}") as caught:
        RemoteWheelTree(pin_of(big), cache, OneServer(server, big)).read(RUN)
    assert "secret" not in caught.value.message
    server.statuses = [500]
    assert RemoteWheelTree(pin_of(big), cache, OneServer(server, big)).read(RUN)


def test_record_other_than_the_locks_is_refused_before_it_is_used(server: Any, cache: Cache, big: Path) -> None:
    pin = pin_of(big)
    tree = RemoteWheelTree(WheelPin("eng", pin.filename, pin.sha256, Sha256("1" * 64)), cache, OneServer(server, big))
    with pytest.raises(PinError) as caught:
        tree.exists(RUN)
    assert "1" * 64 in caught.value.message
    assert str(pin.record_sha256) in caught.value.message
    assert not cache.root.exists()


def test_changed_file_is_refused_and_not_cached(server: Any, cache: Cache, make_wheel: Callable[..., Path]) -> None:
    """The right RECORD, another file: only RECORD's own hash was pinned, and it vouches for the rest."""
    good = make_wheel({"eng/run.py": b"def run(): return 1\n"})
    pin = pin_of(good)
    record = WheelTree(good).read(rel_path("eng-1.2.3.dist-info/RECORD"))
    evil = make_wheel({"eng/run.py": b"def run(): return 2\n"}, record=record)
    tree = RemoteWheelTree(pin, cache, OneServer(server, evil))
    with pytest.raises(PinError) as caught:
        tree.read(RUN)
    for data in (b"def run(): return 1\n", b"def run(): return 2\n"):
        assert hashlib.sha256(data).hexdigest() in caught.value.message
    assert cache.get(Sha256(hashlib.sha256(b"def run(): return 2\n").hexdigest())) is None


def test_file_that_record_names_and_the_wheel_lacks(server: Any, cache: Cache, make_wheel: Callable[..., Path]) -> None:
    good = make_wheel()
    pin = pin_of(good)
    record = WheelTree(good).read(rel_path("eng-1.2.3.dist-info/RECORD"))
    tree = RemoteWheelTree(pin, cache, OneServer(server, make_wheel({"eng/__init__.py": b""}, record=record)))
    with pytest.raises(PinError, match=r"RECORD names eng/run\.py, the wheel lacks it"):
        tree.read(RUN)


def test_file_that_changes_while_it_is_read(server: Any, cache: Cache, big: Path) -> None:
    tree = RemoteWheelTree(pin_of(big), cache, OneServer(server, big))
    assert tree.read(rel_path("eng/last.py"))
    server.files[URL] += b"more"
    with pytest.raises(TreeError, match="changed while it was read"):
        tree.read(RUN)


def test_spoiled_cache_entry_is_read_anew(server: Any, cache: Cache, big: Path) -> None:
    RemoteWheelTree(pin_of(big), cache, OneServer(server, big)).read(RUN)
    for entry in (p for p in cache.root.rglob("*") if p.is_file()):
        entry.write_bytes(b"spoiled")
    tree = RemoteWheelTree(pin_of(big), cache, OneServer(server, big))
    assert tree.read(RUN) == WheelTree(big).read(RUN)
    assert len(cache.warnings) == 2


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    flips=st.lists(st.tuples(st.integers(1, 4000), st.integers(1, 255)), max_size=4),
    cut=st.none() | st.integers(1, 4000),
)
def test_broken_wheels_give_the_right_bytes_or_an_error_of_ours(
    server: Any, make_wheel: Callable[..., Path], flips: list[tuple[int, int]], cut: int | None
) -> None:
    path = make_wheel()
    pin, right = pin_of(path), WheelTree(path).read(RUN)
    data = bytearray(path.read_bytes())
    for from_end, mask in flips:
        data[-from_end] ^= mask
    path.write_bytes(data[: -cut if cut else None])
    with tempfile.TemporaryDirectory() as folder:
        try:
            assert RemoteWheelTree(pin, Cache(Path(folder)), OneServer(server, path)).read(RUN) == right
        except GraftworkError as error:
            assert error.exit_code in (2, 5, 6)


@pytest.mark.real
def test_real_wheel_moves_under_one_megabyte_and_then_nothing(cache: Cache) -> None:
    tree = RemoteWheelTree(REAL, cache, PackageIndex())
    first = [tree.read(path) for path in PATCHED]
    assert tree.how == "whole" or 0 < tree.moved_bytes < 1_000_000
    offline = RemoteWheelTree(REAL, cache, NoNetwork())
    assert [offline.read(path) for path in PATCHED] == first
    assert offline.how == "cache"


@pytest.mark.real
def test_real_wheel_whole(shared_cache: Cache) -> None:
    tree = open_wheel(REAL, shared_cache, PackageIndex(), whole=True)
    assert isinstance(tree, WheelTree)
    assert tree.record_sha256() == REAL.record_sha256
    assert sum(1 for path in tree.paths() if tree.read(path)) > 3000


@pytest.mark.real
def test_real_index_says_what_there_is_instead() -> None:
    with pytest.raises(PinError, match=r"has wheels for .*cp311-cp311-manylinux_2_34_x86_64"):
        PackageIndex().find("sglang", REAL.filename.replace("x86_64", "riscv64"), REAL.sha256)
    with pytest.raises(PinError, match=REAL.sha256):
        PackageIndex().find("sglang", REAL.filename, Sha256("0" * 64))
