from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import requests

from graftwork.errors import PinError, UnreachableError
from graftwork.names import Sha256
from graftwork.trees import fetch
from graftwork.trees.cache import Cache
from graftwork.trees.fetch import fetch_whole
from graftwork.trees.index import Location
from graftwork.trees.pipconf import PipSettings
from graftwork.trees.session import open_session

DATA = os.urandom(1 << 20) * 3
SHA = Sha256(hashlib.sha256(DATA).hexdigest())
WHEEL = "/files/eng.whl"


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "_PAUSE", 0)


def location(server: Any, *, sha256: Sha256 = SHA, size: int | None = None, query: str = "") -> Location:
    server.files.setdefault(WHEEL, DATA)
    return Location("eng.whl", sha256, url=server.origin + WHEEL + query, size=size)


def session() -> requests.Session:
    return open_session(PipSettings(retries=2), backoff=0)


def never() -> requests.Session:
    raise AssertionError("no network is needed")


def part_of(cache: Cache) -> Path:
    path = cache.path(SHA)
    return path.with_name(path.name + ".part")


def test_downloads_once(server: Any, cache: Cache) -> None:
    seen: list[tuple[int, int | None]] = []
    path = fetch_whole(location(server), cache, session, progress=lambda done, total: seen.append((done, total)))
    assert path == cache.path(SHA)
    assert path.read_bytes() == DATA
    assert seen[0] == (0, len(DATA))
    assert seen[-1] == (len(DATA), len(DATA))
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert fetch_whole(location(server), cache, never) == path
    assert not part_of(cache).exists()


def test_resumes_where_the_connection_was_cut(server: Any, cache: Cache) -> None:
    server.cuts = [15 << 16, (8 << 16) + 5]
    assert fetch_whole(location(server), cache, session).read_bytes() == DATA
    first, second, third = server.asked(WHEEL)
    assert "range" not in first
    assert (second["range"], second["if-range"]) == (f"bytes={15 << 16}-", '"one"')
    assert third["range"] == f"bytes={23 << 16}-"


def test_resumes_what_an_earlier_run_left(server: Any, cache: Cache) -> None:
    server.cuts = [(15 << 16) + 5] + [0] * 5
    with pytest.raises(UnreachableError, match=f"cut 5 times without progress, at {15 << 16} bytes"):
        fetch_whole(location(server), cache, session)
    server.log.clear()
    assert fetch_whole(location(server), cache, session).read_bytes() == DATA
    [again] = server.asked(WHEEL)
    assert (again["range"], again["if-range"]) == (f"bytes={15 << 16}-", '"one"')


def test_file_that_changed_meanwhile_starts_anew(server: Any, cache: Cache) -> None:
    server.cuts = [1_000_000] + [0] * 5
    old = location(server)
    server.files[WHEEL] = b"x" * len(DATA)
    with pytest.raises(UnreachableError):
        fetch_whole(old, cache, session)
    server.files[WHEEL], server.etag = DATA, '"two"'
    assert fetch_whole(old, cache, session).read_bytes() == DATA


@pytest.mark.parametrize("leftover", [b"x" * 5000, DATA + b"more", DATA], ids=["another", "longer", "whole"])
def test_leftover_of_another_file_without_validator(server: Any, cache: Cache, leftover: bytes) -> None:
    part_of(cache).parent.mkdir(parents=True)
    part_of(cache).write_bytes(leftover)
    assert fetch_whole(location(server), cache, session).read_bytes() == DATA


def test_weak_validator_is_not_used(server: Any, cache: Cache) -> None:
    server.etag, server.cuts = 'W/"one"', [1_000_000]
    assert fetch_whole(location(server), cache, session).read_bytes() == DATA
    assert "if-range" not in server.asked(WHEEL)[1]


def test_server_without_ranges_starts_anew(server: Any, cache: Cache) -> None:
    server.ranges, server.cuts = False, [1_000_000]
    assert fetch_whole(location(server), cache, session).read_bytes() == DATA


def test_body_without_a_length(server: Any, cache: Cache) -> None:
    server.length = False
    assert fetch_whole(location(server), cache, session).read_bytes() == DATA
    server.cuts = [1000]
    with pytest.raises(PinError):
        fetch_whole(location(server), Cache(cache.root / "other"), session)


def test_wrong_bytes_are_removed_and_both_hashes_named(server: Any, cache: Cache) -> None:
    server.files[WHEEL] = b"another file"
    with pytest.raises(PinError) as caught:
        fetch_whole(location(server, query="?token=secret"), cache, session)
    assert SHA in caught.value.message
    assert hashlib.sha256(b"another file").hexdigest() in caught.value.message
    assert "secret" not in caught.value.message
    assert not part_of(cache).exists()
    assert not cache.path(SHA).exists()


def test_size_other_than_the_indexs(server: Any, cache: Cache) -> None:
    with pytest.raises(PinError, match=f"announces {len(DATA)} bytes, the index 17"):
        fetch_whole(location(server, size=17), cache, session)
    server.length = False
    with pytest.raises(PinError, match="more than 17 bytes"):
        fetch_whole(location(server, size=17), cache, session)
    assert not part_of(cache).exists()


def test_transient_errors_are_retried(server: Any, cache: Cache) -> None:
    server.statuses = [500, 503]
    assert fetch_whole(location(server), cache, session).read_bytes() == DATA


@pytest.mark.parametrize(("status", "asked"), [(404, 1), (403, 1), (500, 3)])
def test_errors_that_stay(server: Any, cache: Cache, status: int, asked: int) -> None:
    server.statuses = [status] * 10
    with pytest.raises(UnreachableError, match=f"answered {status}") as caught:
        fetch_whole(location(server, query="?sig=secret"), cache, session)
    assert "secret" not in caught.value.message
    assert len(server.asked(WHEEL)) == asked


def test_redirect_keeps_credentials_and_queries_out_of_messages(server: Any, other_server: Any, cache: Cache) -> None:
    server.redirects[WHEEL] = f"{other_server.origin}/cdn?sig=secret"
    other_server.statuses = [403]
    url = (server.origin + WHEEL).replace("//", "//user:hidden@")
    with pytest.raises(UnreachableError, match="answered 403") as caught:
        fetch_whole(Location("eng.whl", SHA, url=url), cache, session)
    assert "secret" not in caught.value.message
    assert "hidden" not in caught.value.message
    assert "authorization" not in other_server.asked("/cdn")[0]
    other_server.files["/cdn"] = DATA
    assert fetch_whole(Location("eng.whl", SHA, url=url), cache, session).read_bytes() == DATA


def test_local_file_is_used_where_it_is(tmp_path: Path, cache: Cache) -> None:
    (tmp_path / "eng.whl").write_bytes(DATA)
    local = Location("eng.whl", SHA, path=tmp_path / "eng.whl")
    assert fetch_whole(local, cache, never) == tmp_path / "eng.whl"
    (tmp_path / "eng.whl").write_bytes(b"changed")
    with pytest.raises(PinError, match=SHA):
        fetch_whole(local, cache, never)
    assert (tmp_path / "eng.whl").exists()


def test_spoiled_cache_entry_is_fetched_anew(server: Any, cache: Cache) -> None:
    path = fetch_whole(location(server), cache, session)
    path.write_bytes(DATA[:-1])
    assert fetch_whole(location(server), cache, session).read_bytes() == DATA
    assert len(cache.warnings) == 1


CHILD = """
import resource, signal, sys
from pathlib import Path
from graftwork.errors import GraftworkError
from graftwork.trees.cache import Cache
from graftwork.trees.fetch import fetch_whole
from graftwork.trees.index import Location
from graftwork.trees.pipconf import PipSettings
from graftwork.trees.session import open_session
folder, url, sha256, limit = sys.argv[1:]
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
if int(limit):
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit), int(limit)))
try:
    path = fetch_whole(Location("eng.whl", sha256, url=url), Cache(Path(folder)), lambda: open_session(PipSettings()),
                       waiting=lambda: print("waits"))
    print(path.stat().st_size)
except GraftworkError as error:
    print(type(error).__name__, error.message)
"""


def child(cache: Cache, server: Any, limit: int = 0) -> subprocess.Popen[str]:
    arguments = [str(cache.root), str(location(server).url), SHA, str(limit)]
    return subprocess.Popen([sys.executable, "-c", CHILD, *arguments], stdout=subprocess.PIPE, text=True)


def test_two_processes_download_once(server: Any, cache: Cache) -> None:
    server.delay = 1.5
    said = [process.communicate()[0].split() for process in [child(cache, server), child(cache, server)]]
    assert sorted(said) == [[str(len(DATA))], ["waits", str(len(DATA))]]
    assert len(server.asked(WHEEL)) == 1
    assert cache.path(SHA).read_bytes() == DATA


def test_full_disk_is_a_clear_error_and_the_next_run_goes_on(server: Any, cache: Cache) -> None:
    said, _ = child(cache, server, limit=1_000_000).communicate()
    assert said.startswith("CacheError the cache cannot be used: ")
    assert "the file is larger than this process may write" in said
    assert part_of(cache).stat().st_size == 1_000_000
    assert fetch_whole(location(server), cache, session).read_bytes() == DATA
    assert server.asked(WHEEL)[-1]["range"] == "bytes=1000000-"
