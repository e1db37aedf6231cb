"""What a build knows of its base: kept, made again where it is spoiled, never trusted over the bytes themselves."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from oci.quirky import Quirks, Quirky, serve
from tiny import POOL, Entry, Store, Workshop, base_layers, put_image, tiny_workshop
from toys import TOY_PATCH, TOY_SOURCE, Toy

from graftwork.catalog.base_index import BaseIndex, IndexedPath
from graftwork.images.base_facts import Facts, wanted_files
from graftwork.images.record import Folder

OWN = TOY_SOURCE.encode().replace(b"# how many rows", b"# how many rows, says the vendor")
NOISE = [Entry("opt/noise", random.Random(2).randbytes(200_000))]


@pytest.fixture
def registry() -> Iterator[Quirky]:
    with serve() as found:
        yield found


@pytest.fixture
def workshop(tmp_path: Path) -> Workshop:
    return tiny_workshop(tmp_path)


def put(registry: Quirky, source: bytes = OWN, compression: str = "gzip") -> None:
    """A base whose file is not the wheel's, in a layer of some size."""
    layers = base_layers(TOY_SOURCE.encode(), [*NOISE, Entry(POOL, source, mode=0o640, owner=1000)])
    put_image(Store(registry.host), "base/toy", "1", layers, compressions=[compression])


def push(registry: Quirky) -> tuple[str, ...]:
    return "push", "--base", f"{registry.host}/base/toy:1", "--to", f"{registry.host}/team/toy:1"


def kept(workshop: Workshop) -> Path:
    (found,) = (Path(workshop.environment["GRAFTWORK_CACHE"]) / "bases").iterdir()
    return found


def test_every_file_that_can_make_a_patch_obsolete_is_wanted_of_the_base(toy: Toy) -> None:
    rule = '\n[[obsolete_when]]\nfile = "toy/one.py"\nreason = "r"\ndefines = "f"\n'
    toy.patch("rows", TOY_PATCH + rule + '[[obsolete_when.also]]\nfile = "toy/two.py"\ndefines = "f"\n')
    assert wanted_files(toy.patches, toy.engine) == ["toy/one.py", "toy/pool.py", "toy/two.py"]


@pytest.mark.parametrize("compression", ["gzip", "zstd", "none"])
def test_the_bases_own_file_is_read_by_range_once_its_place_is_known(
    workshop: Workshop, registry: Quirky, compression: str
) -> None:
    put(registry, compression=compression)
    verb, *arguments = push(registry)
    first = workshop.ok(verb, *arguments)
    mark = len(registry.seen)
    again = workshop.ok(verb, *arguments)
    assert (first["facts"], again["facts"], first["layer"]) == (["scanned"], ["cache"], again["layer"])
    ranged = [seen for seen in registry.seen[mark:] if "Range" in seen.headers]
    assert len(ranged) == 1
    if compression == "none":  # the others have an access point every few MiB
        assert again["bytes_in"] < 20_000 < first["bytes_in"]
    assert b"says the vendor" in gzip.decompress(Store(registry.host).read_blob("team/toy", again["layer"]))


@pytest.mark.parametrize(
    "quirks", [{"ranges": "ignored"}, {"ranges": "wrong"}, {"ranges": "short"}, {"cut_answers": 9}]
)
def test_ranges_that_a_registry_gets_wrong_never_reach_the_image(
    workshop: Workshop, registry: Quirky, quirks: dict[str, Any]
) -> None:
    put(registry)
    verb, *arguments = push(registry)
    good = workshop.ok(verb, *arguments)
    registry.quirks = Quirks(**quirks)
    done = workshop.run(verb, *arguments, "--json")
    assert done.code in (0, 5, 6) and (done.code or done.document["layer"] == good["layer"]), done.err
    assert done.code == 0 or "blob sha256:" in done.err


def test_a_base_blob_that_changed_under_its_digest_is_refused(workshop: Workshop, registry: Quirky) -> None:
    """A registry that serves other bytes than when the base was indexed: the file's own sha256 tells."""
    put(registry, compression="none")
    verb, *arguments = push(registry)
    workshop.ok(verb, *arguments)
    for digest, data in registry.blobs["base/toy"].items():
        registry.blobs["base/toy"][digest] = data.replace(b"says the vendor", b"says the EVIL  ")
    said = workshop.refused(5, verb, *arguments)
    assert "layer sha256:" in said and "next: " in said


@pytest.mark.parametrize("data", [b"", b"{}", b"not json", b"[" * 50_000])
def test_a_spoiled_kept_index_is_made_again(workshop: Workshop, registry: Quirky, data: bytes) -> None:
    put(registry)
    verb, *arguments = push(registry)
    good = workshop.ok(verb, *arguments)
    kept(workshop).write_bytes(data)
    again = workshop.ok(verb, *arguments)
    assert again["facts"] == ["scanned"] and again["grafted"] == good["grafted"]


def test_an_index_with_a_wrong_place_is_noticed_by_the_files_sum(workshop: Workshop, registry: Quirky) -> None:
    put(registry)
    verb, *arguments = push(registry)
    workshop.ok(verb, *arguments)
    index = json.loads(kept(workshop).read_bytes())
    for row in index["paths"]:
        row["offset"] = row.get("offset", 0) and row["offset"] + 1
    kept(workshop).write_text(json.dumps(index), "utf-8")
    said = workshop.refused(5, verb, *arguments)
    assert "layer sha256:" in said and "graftwork lock" in said


def test_facts_are_of_layers_not_of_names(workshop: Workshop, registry: Quirky) -> None:
    """The same layers under another name and manifest are known; other layers under the same name are not."""
    put(registry)
    verb, *arguments = push(registry)
    workshop.ok(verb, *arguments)
    layers = base_layers(TOY_SOURCE.encode(), [*NOISE, Entry(POOL, OWN, mode=0o640, owner=1000)])
    put_image(Store(registry.host), "copy/toy", "x", layers, family="docker")
    copy = f"{registry.host}/copy/toy:x"
    assert workshop.ok("push", "--base", copy, "--to", f"{registry.host}/team/b:1")["facts"] == ["cache"]
    put(registry, OWN + b"# more\n")
    assert workshop.ok(verb, *arguments)["facts"] == ["scanned"]


def test_paths_and_folders_are_told_as_the_base_has_them() -> None:
    rows = [
        IndexedPath(path="r", kind="folder", mode=0o755),
        IndexedPath(path="r/p", kind="folder", mode=0o2775, uid=7, gid=8),
        IndexedPath(path="r/p/a.py", kind="file", mode=0o644, sha256="0" * 64),
        IndexedPath(path="r/p/gone.py", kind="absent"),
    ]
    digest = "sha256:" + "0" * 64
    index = BaseIndex(
        schema=1, image="i", digest=digest, manifest_digest=digest, manifest="", config_digest=digest, python="3.10",
        root="/r", layers=[], paths=rows, points=[],
    )  # fmt: skip
    facts = Facts(index, "lock")
    found = facts.of("p/a.py")
    assert found is not None and found.mode == 0o644
    assert facts.of("p/gone.py") is None and facts.of("p/other.py") is None
    assert facts.folders(["p/a.py", "p/new/b.py"]) == (Folder("r", "0755", 0, 0), Folder("r/p", "2775", 7, 8))
