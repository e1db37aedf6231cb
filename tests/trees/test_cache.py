from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest

from graftwork.names import Sha256
from graftwork.trees.cache import Cache, CacheError, cache_folder, sha256_of


@pytest.mark.parametrize(
    ("env", "folder"),
    [
        ({"GRAFTWORK_CACHE": "/c", "XDG_CACHE_HOME": "/x"}, "/c"),
        ({"GRAFTWORK_CACHE": "", "XDG_CACHE_HOME": "/x"}, "/x/graftwork"),
        ({"XDG_CACHE_HOME": "relative"}, str(Path.home() / ".cache/graftwork")),
        ({}, str(Path.home() / ".cache/graftwork")),
    ],
)
def test_cache_folder(env: dict[str, str], folder: str) -> None:
    assert cache_folder(env) == Path(folder)


def test_put_and_get(cache: Cache) -> None:
    sha256 = cache.put(b"data")
    assert sha256 == hashlib.sha256(b"data").hexdigest()
    assert cache.get(sha256) == b"data"
    assert cache.put(b"data") == sha256
    assert cache.verified(sha256) == cache.path(sha256)
    assert sha256_of(cache.path(sha256)) == sha256
    assert [p for p in cache.root.rglob("*") if p.is_file()] == [cache.path(sha256)]


def test_miss(cache: Cache) -> None:
    assert cache.get(Sha256("0" * 64)) is None
    assert cache.verified(Sha256("0" * 64)) is None
    assert not cache.root.exists()
    assert cache.warnings == []


@pytest.mark.parametrize("how", ["get", "verified"])
def test_spoiled_entry_is_removed_and_told(cache: Cache, how: str) -> None:
    sha256 = cache.put(b"data")
    cache.path(sha256).write_bytes(b"dat")
    assert getattr(cache, how)(sha256) is None
    assert not cache.path(sha256).exists()
    [warning] = cache.warnings
    assert sha256 in warning
    assert hashlib.sha256(b"dat").hexdigest() in warning


def test_warnings_go_where_the_caller_wants(tmp_path: Path) -> None:
    heard: list[str] = []
    cache = Cache(tmp_path, warn=heard.append)
    sha256 = cache.put(b"data")
    cache.path(sha256).write_bytes(b"")
    cache.get(sha256)
    assert len(heard) == 1


def test_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(CacheError, match=r"the cache cannot be used: .*Not a directory") as caught:
        Cache(tmp_path / "file").put(b"data")
    assert "GRAFTWORK_CACHE" in caught.value.hint
    assert caught.value.exit_code == 2
    with pytest.raises(CacheError, match="Not a directory"):
        Cache(tmp_path / "file").get(Sha256("0" * 64))


def test_folder_that_may_not_be_written(tmp_path: Path) -> None:
    """In a process that is not root, which may write everywhere."""
    code = """
import os, sys
from pathlib import Path
from graftwork.trees.cache import Cache, CacheError
if os.geteuid() == 0:
    os.setuid(65534)
try:
    Cache(Path(sys.argv[1])).put(b"data")
except CacheError as error:
    print(error.message)
"""
    tmp_path.chmod(0o500)
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert "Permission denied" in done.stdout


def test_full_disk_leaves_nothing_behind(tmp_path: Path) -> None:
    """A file-size limit stands in for the disk: the same write fails half-way."""
    code = """
import resource, signal, sys
from pathlib import Path
from graftwork.trees.cache import Cache, CacheError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    Cache(Path(sys.argv[1])).put(bytes(5000))
except CacheError as error:
    print(error.message, error.hint)
"""
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert "the file is larger than this process may write" in done.stdout
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == []


def test_two_processes_put_the_same_entry_at_once(tmp_path: Path) -> None:
    code = """
import sys
from pathlib import Path
from graftwork.trees.cache import Cache
cache = Cache(Path(sys.argv[1]))
for _ in range(200):
    sha256 = cache.put(bytes(100_000))
    assert cache.get(sha256) == bytes(100_000)
assert cache.warnings == []
"""
    running = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path)]) for _ in range(2)]
    assert [process.wait() for process in running] == [0, 0]
