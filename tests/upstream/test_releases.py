"""Which releases there are, which wheel stands for each, and what holds a later reading to the first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version
from upstream.toy_releases import ToyIndex, toy_catalog, wheel

from graftwork.errors import PinError, UnreachableError, UsageError
from graftwork.names import Sha256
from graftwork.trees.cache import Cache
from graftwork.trees.index import PackageIndex
from graftwork.trees.pipconf import PipSettings
from graftwork.upstream.releases import FirstUse, Release, find_releases, in_range, oldest_named, open_release


def found(index: ToyIndex, cache: Cache, spec: str = "", pins: Any = None, patches: Any = ()) -> list[Release]:
    client, _ = index.client(cache)
    return find_releases(client, "toy", pins or {}, FirstUse(cache), in_range(spec, patches))


def names(releases: list[Release]) -> list[str]:
    return [str(release.version) for release in releases]


def test_all_final_releases_in_order_of_version(index: ToyIndex, cache: Cache) -> None:
    index.add("toy-0.10-py3-none-any.whl", wheel("0.10", ""))
    index.add("toy-1.0.tar.gz", b"a source distribution")
    index.add("toy_other-1.0-py3-none-any.whl", b"another project")
    assert names(found(index, cache)) == ["0.7", "0.8", "0.9", "0.10", "1.0", "1.1", "1.2", "1.3", "1.4", "1.5"]


def test_the_default_begins_one_release_before_the_oldest_version_that_a_patch_names(
    index: ToyIndex, cache: Cache, tmp_path: Path
) -> None:
    patches = toy_catalog(tmp_path / "toy").patches
    assert oldest_named(patches) == Version("0.9")
    assert names(found(index, cache, patches=patches))[:2] == ["0.8", "0.9"]


def test_a_specifier_takes_pre_releases_only_when_it_names_one(index: ToyIndex, cache: Cache) -> None:
    assert names(found(index, cache, ">=1.2,<1.4")) == ["1.2", "1.3"]
    assert names(found(index, cache, ">=1.5")) == ["1.5"]
    assert names(found(index, cache, ">=1.5,<=2.0rc1")) == ["1.5", "2.0rc1"]
    with pytest.raises(UsageError, match="--versions"):
        in_range("newest", ())


def test_a_yanked_file_counts_only_where_a_lock_pins_it(index: ToyIndex, cache: Cache) -> None:
    (release,) = found(index, cache, "==1.2")
    index.yanked = {"1.2"}
    index.publish()
    assert found(index, cache, "==1.2") == []
    (again,) = found(index, cache, "==1.2", {release.location.sha256: Sha256("a" * 64)})
    assert (again.trust, again.record_sha256) == ("lock", "a" * 64)


def test_the_wheel_that_stands_for_a_release(index: ToyIndex, cache: Cache) -> None:
    index.remove("toy-1.0-py3-none-any.whl")
    for tag in (
        "cp311-cp311-manylinux_2_34_x86_64",
        "cp310-cp310-manylinux_2_34_x86_64",
        "cp39-cp39-win_amd64",
        "cp38-cp38-manylinux_2_34_aarch64",
    ):
        index.add(f"toy-1.0-{tag}.whl", wheel("1.0", tag))
    (oldest,) = found(index, cache, "==1.0")
    assert oldest.location.filename == "toy-1.0-cp310-cp310-manylinux_2_34_x86_64.whl"
    assert oldest.trust == "index"
    client, _ = index.client(cache)
    (other,) = client.listed("toy", lambda names: [name for name in names if "cp311" in name])
    (pinned,) = found(index, cache, "==1.0", {other.sha256: Sha256("b" * 64)})
    assert pinned.location == other


def test_first_use_is_noted_and_later_readings_are_held_to_it(index: ToyIndex, cache: Cache, tmp_path: Path) -> None:
    client, _ = index.client(cache)
    (release,) = found(index, cache, "==1.0")
    assert release.record_sha256 is None
    with open_release(release, cache, client) as tree:
        tree.read("toy/pool.py")  # type: ignore[arg-type]
        record = tree.record_sha256
    assert record is not None
    FirstUse(cache).put(release.location.sha256, record)
    (again,) = found(index, cache, "==1.0")
    assert again.record_sha256 == record
    # The same listing, another archive behind it, and nothing of it in a cache.
    index.server.files["/files/toy-1.0-py3-none-any.whl"] = wheel("1.0", "import os\n")
    with pytest.raises(PinError, match="RECORD has sha256"), open_release(again, Cache(tmp_path / "b"), client) as tree:
        tree.read("toy/pool.py")  # type: ignore[arg-type]


def test_the_first_note_stays_and_a_spoiled_one_is_told(cache: Cache) -> None:
    notes = FirstUse(cache)
    one, two = Sha256("1" * 64), Sha256("2" * 64)
    notes.put(one, one)
    notes.put(one, two)
    assert notes.get(one) == one
    assert notes.get(two) is None
    (file,) = (path for path in (cache.root / "records").rglob("*") if path.is_file())
    file.write_bytes(file.read_bytes().replace(b"\n1", b"\n3"))
    assert notes.get(one) is None
    assert "spoiled" in cache.warnings[0]


def test_wheels_in_a_local_folder(cache: Cache, tmp_path: Path) -> None:
    (tmp_path / "wheels").mkdir()
    for version in ("1.0", "1.1"):
        (tmp_path / f"wheels/toy-{version}-py3-none-any.whl").write_bytes(wheel(version, "x = 1\n"))
    client = PackageIndex(PipSettings(find_links=(str(tmp_path / "wheels"),), no_index=True))
    releases = find_releases(client, "toy", {}, FirstUse(cache), in_range("", ()))
    assert names(releases) == ["1.0", "1.1"]
    with open_release(releases[0], cache, client) as tree:
        assert tree.read("toy/pool.py") == b"x = 1\n"  # type: ignore[arg-type]
        assert (tree.moved_bytes, tree.how) == (0, "whole")


def test_a_source_that_cannot_be_asked_is_no_empty_list(index: ToyIndex, cache: Cache) -> None:
    index.server.statuses = [500]
    with pytest.raises(UnreachableError):
        found(index, cache)
