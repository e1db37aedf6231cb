"""Where a base comes from: layouts with names and indexes, references, and what is wrong with broken ones."""

from __future__ import annotations

import json
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from oci.quirky import serve
from tiny import Store, base_layers, put_image, put_index, sha

from graftwork.errors import GraftworkError, MissingFile, UsageError
from graftwork.images.graft import strip
from graftwork.images.sources import open_source, split_layout
from graftwork.oci.model import Platform
from graftwork.oci.traffic import Traffic

AMD64 = Platform.parse("linux/amd64")


@pytest.fixture
def store() -> Iterator[Store]:
    with serve() as registry:
        yield Store(registry.host)


def layout_of(store: Store, name: str, reference: str, folder: Path, tags: list[str]) -> Path:
    """A registry's image as a layout, written plainly."""
    blobs = folder / "blobs/sha256"
    blobs.mkdir(parents=True, exist_ok=True)

    def keep(reference: str) -> dict[str, Any]:
        raw, data = store.manifest(name, reference)
        (blobs / sha(raw)[7:]).write_bytes(raw)
        for item in [data["config"], *data["layers"]] if "config" in data else []:
            (blobs / item["digest"][7:]).write_bytes(store.read_blob(name, item["digest"]))
        for item in data.get("manifests", []):
            keep(item["digest"])
        return {"mediaType": data["mediaType"], "digest": sha(raw), "size": len(raw)}

    row = keep(reference)
    rows = [{**row, "annotations": {"org.opencontainers.image.ref.name": tag}} for tag in tags]
    (folder / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": rows}), "utf-8")
    (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}', "utf-8")
    return folder


def base_of(text: str, platform: Platform = AMD64) -> str:
    with open_source(text, Traffic()) as source:
        base = source.base(platform)
        strip(base)  # what a graft takes for granted
        return base.manifest.digest


def test_a_layout_is_named_with_a_tag_and_without_one_if_it_holds_one_image(store: Store, tmp_path: Path) -> None:
    digest = put_image(store, "b", "1", base_layers())
    one = layout_of(store, "b", "1", tmp_path / "one", ["x"])
    assert base_of(f"oci:{one}") == base_of(f"oci:{one}:x") == digest
    two = layout_of(store, "b", "1", tmp_path / "two", ["x", "y"])
    assert base_of(f"oci:{two}:y") == digest
    with pytest.raises(UsageError, match=r"holds 2 images \(no tag was given\); it holds: x, y"):
        base_of(f"oci:{two}")
    with pytest.raises(UsageError, match=r"holds 0 images named 'z'"):
        base_of(f"oci:{two}:z")


@pytest.mark.parametrize(
    ("text", "folder", "tag"),
    [
        ("/a/b:t", "/a/b", "t"),
        ("/a/b", "/a/b", None),
        ("/a:5/b", "/a:5/b", None),
        ("a:t", "a", "t"),
        ("/a/b:team/engine:1", "/a/b:team/engine", "1"),
    ],
)
def test_splitting_a_layouts_name(text: str, folder: str, tag: str | None) -> None:
    assert split_layout(text) == (Path(folder), tag)


def test_a_folder_whose_name_has_a_colon(store: Store, tmp_path: Path) -> None:
    digest = put_image(store, "b", "1", base_layers())
    folder = layout_of(store, "b", "1", tmp_path / "a:b", ["x"])
    assert base_of(f"oci:{folder}") == base_of(f"oci:{folder}:x") == digest


def test_an_index_in_a_layout(store: Store, tmp_path: Path) -> None:
    put_index(store, "b", "1", ["linux/amd64", "linux/arm64", "unknown/unknown"])
    folder = layout_of(store, "b", "1", tmp_path / "two", ["x"])
    with open_source(f"oci:{folder}", Traffic()) as source:
        assert list(source.platforms()) == ["linux/amd64", "linux/arm64"]
        assert source.base(AMD64).manifest.digest != source.base(Platform.parse("linux/arm64")).manifest.digest
        with pytest.raises(UsageError, match=r"has no linux/s390x; it has: linux/amd64, linux/arm64"):
            source.base(Platform.parse("linux/s390x"))


def test_an_image_of_another_platform(store: Store) -> None:
    put_image(store, "b", "1", base_layers(), platform="linux/arm64")
    with pytest.raises(UsageError, match="is for linux/arm64, asked for linux/amd64"):
        base_of(f"{store.host}/b:1")


def test_names_that_a_base_cannot_have(tmp_path: Path) -> None:
    for text, says in [
        (f"oci:{tmp_path / 'none'}", "is not an OCI image layout"),
        ("docker:toy", "an image in an engine will not do here"),
        ("not a name", "not an image reference"),
        ("oci:", "is not an OCI image layout"),
    ]:
        with pytest.raises(UsageError, match=says):
            base_of(text)


def test_a_layout_without_its_blobs(store: Store, tmp_path: Path) -> None:
    put_image(store, "b", "1", base_layers())
    folder = layout_of(store, "b", "1", tmp_path / "one", ["x"])
    subprocess.run(["rm", "-r", folder / "blobs"], check=True)
    with pytest.raises(MissingFile, match="lacks the blob"):
        base_of(f"oci:{folder}")


def test_broken_documents_never_end_in_a_traceback(store: Store, tmp_path: Path) -> None:
    """Any part of index.json, manifest or configuration replaced; the digests are made right again."""
    put_image(store, "b", "1", base_layers())
    folder = layout_of(store, "b", "1", tmp_path / "one", ["x"])
    blobs = folder / "blobs/sha256"
    index = json.loads((folder / "index.json").read_bytes())
    manifest = json.loads((blobs / index["manifests"][0]["digest"][7:]).read_bytes())
    config = json.loads((blobs / manifest["config"]["digest"][7:]).read_bytes())
    chosen, refused = random.Random(8), 0
    values: list[Any] = [None, 1, -1, "", "x", [], {}, True, 1.5, f"sha256:{'0' * 64}", ["a"], {"a": 1}, [{}]]
    for _ in range(600):
        new = json.loads(json.dumps([config, manifest, index]))
        which = chosen.randrange(3)
        if which < 2:
            spoil(new[which], chosen, values)
        if isinstance(new[1].get("config"), dict) and which == 0:
            new[1]["config"] |= keep(blobs, new[0])
        new[2]["manifests"][0] |= keep(blobs, new[1])
        if which == 2:
            spoil(new[2], chosen, values)
        (folder / "index.json").write_text(json.dumps(new[2]), "utf-8")
        try:
            base_of(f"oci:{folder}:x")
        except GraftworkError as error:
            refused += 1
            assert error.exit_code in (2, 5)
    assert 100 < refused < 600


def keep(blobs: Path, document: dict[str, Any]) -> dict[str, Any]:
    raw = json.dumps(document).encode()
    (blobs / sha(raw)[7:]).write_bytes(raw)
    return {"digest": sha(raw), "size": len(raw)}


def spoil(document: Any, chosen: random.Random, values: list[Any]) -> None:
    """Replace or remove one part of *document*, at any depth."""
    keys = list(document) if isinstance(document, dict) else list(range(len(document)))
    key = chosen.choice(keys)
    if isinstance(document[key], dict | list) and document[key] and chosen.random() < 0.7:
        spoil(document[key], chosen, values)
    elif chosen.random() < 0.25:
        del document[key]
    else:
        document[key] = chosen.choice(values)
