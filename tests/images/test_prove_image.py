"""A whole image proved by what its merged layers hold; what a stranger would overlook is found."""

from __future__ import annotations

import copy
import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from oci.quirky import Quirky, serve
from tiny import Entry, Store, Workshop, base_layers, on_top, put_image, sha, tar_of, tiny_workshop


@pytest.fixture
def registry() -> Iterator[Quirky]:
    with serve() as found:
        put_image(Store(found.host), "base/toy", "1", base_layers())
        yield found


@pytest.fixture
def store(registry: Quirky) -> Store:
    return Store(registry.host)


@pytest.fixture
def workshop(tmp_path: Path, registry: Quirky) -> Workshop:
    found = tiny_workshop(tmp_path)
    found.ok("push", "--base", f"{registry.host}/base/toy:1", "--to", f"{registry.host}/team/toy:1")
    return found


def rewritten(store: Store, new: str, change: Any) -> None:
    """The image with its configuration and manifest changed by hand."""
    _, manifest = store.manifest("team/toy", "1")
    config = store.config("team/toy", "1")
    manifest = copy.deepcopy(manifest)
    change(config, manifest)
    manifest["config"] |= store.blob("team/toy", json.dumps(config).encode())
    store.put("team/toy", new, manifest)


def test_only_the_layers_that_decide_are_read(workshop: Workshop, store: Store, registry: Quirky) -> None:
    _, manifest = store.manifest("team/toy", "1")
    mark = len(registry.seen)
    workshop.ok("verify", "--image", f"{store.host}/team/toy:1")
    read = [
        layer["digest"] for layer in manifest["layers"] if any(layer["digest"] in s.path for s in registry.seen[mark:])
    ]
    assert manifest["layers"][-1]["digest"] in read and manifest["layers"][0]["digest"] not in read


def test_a_swapped_base_layer(workshop: Workshop, store: Store) -> None:
    def swap(config: dict[str, Any], manifest: dict[str, Any]) -> None:
        tar = tar_of([Entry("usr", mode=0o755)])
        manifest["layers"][0] |= store.blob("team/toy", gzip.compress(tar, mtime=0))
        config["rootfs"]["diff_ids"][0] = sha(tar)

    rewritten(store, "swapped", swap)
    said = workshop.refused(4, "verify", "--image", f"{store.host}/team/toy:swapped")
    assert "layer 0 holds sha256" in said and "base/toy" in said


def test_a_base_that_moved_to_the_images_own_repository_is_compared(
    workshop: Workshop, store: Store, registry: Quirky
) -> None:
    """After a mirror the base is found by digest where the image is; where it is nowhere, that is said."""
    name, tags = "base/toy", registry.tags.pop("base/toy")
    manifests = registry.manifests.pop(name)
    done = workshop.run("verify", "--image", f"{store.host}/team/toy:1")
    assert done.code == 0 and "base layers were not compared" in done.out and tags["1"] in done.out
    registry.manifests[name] = manifests
    assert "not compared" not in workshop.run("verify", "--image", f"{store.host}/team/toy:1").out


def test_labels_that_were_lost_and_a_platform_that_was_changed(workshop: Workshop, store: Store) -> None:
    rewritten(store, "bare", lambda config, manifest: config["config"].pop("Labels"))
    said = workshop.refused(4, "verify", "--image", f"{store.host}/team/toy:bare")
    assert "the label graftwork.payload is missing" in said
    rewritten(store, "arm", lambda config, manifest: config.update(architecture="arm64"))
    said = workshop.refused(4, "verify", "--image", f"{store.host}/team/toy:arm", "--platform", "linux/arm64")
    assert "the image is for linux/arm64, the record for linux/amd64" in said


def test_another_target_and_another_image_altogether(workshop: Workshop, store: Store) -> None:
    rewritten(store, "squashed", lambda c, m: (m["layers"].pop(), c["rootfs"]["diff_ids"].pop()))
    said = workshop.refused(4, "verify", "--image", f"{store.host}/team/toy:squashed")
    assert "it was never grafted for t, or was built without it" in said
    assert "404" in workshop.refused(6, "verify", "--image", f"{store.host}/team/none:1")


def test_stale_bytecode_under_a_cache_prefix_is_found(workshop: Workshop, store: Store) -> None:
    """PYTHONPYCACHEPREFIX of the image's environment is where its interpreter would look."""
    record = json.loads((workshop.root / "dist/t/record.json").read_bytes())
    when, size = record["epoch"], record["files"][0]["size"]
    head = b"\x6f\x0d\x0d\x0a" + bytes(4) + when.to_bytes(4, "little") + size.to_bytes(4, "little")
    stale = Entry("var/pyc/opt/toy/toy/pool.cpython-310.pyc", head + b"code of before")
    env = ["PATH=/usr/bin:/bin", "PYTHONPYCACHEPREFIX=/var/pyc"]
    on_top(store, "team/toy", "1", "prefix", [stale], config={"Env": env})
    done = workshop.run("verify", "--image", f"{store.host}/team/toy:prefix")
    assert done.code == 4 and "var/pyc/opt/toy/toy/pool.cpython-310.pyc" in done.err, done.err


@pytest.mark.parametrize("which", ["manifest", "config", "layer"])
def test_bytes_that_are_not_their_digest(workshop: Workshop, store: Store, registry: Quirky, which: str) -> None:
    raw, manifest = store.manifest("team/toy", "1")
    digest = {"manifest": sha(raw), "config": manifest["config"]["digest"], "layer": manifest["layers"][-1]["digest"]}
    registry.quirks.spoil = {digest[which]}
    name = f"{store.host}/team/toy@{sha(raw)}"
    assert digest[which][:19] in workshop.refused(5, "verify", "--image", name)
