"""image, push, verify, lock and mirror as commands, on a base of a few kilobytes in a registry of this process."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from oci.quirky import Quirky, serve
from tiny import (
    GRAFTWORK,
    POOL,
    PYC,
    RECORD,
    TYPES,
    Entry,
    Store,
    Workshop,
    base_layers,
    on_top,
    put_image,
    put_index,
    sha,
    tiny_workshop,
    white_out,
)
from toys import ROOT, TOY_SOURCE


def push(workshop: Workshop, store: Store, base: str, name: str = "team/toy", *more: str) -> dict[str, Any]:
    return workshop.ok("push", "--base", base, "--to", f"{store.host}/{name}:1", *more)


KINDS = {
    "oci-gzip": ("oci", ["gzip"]),
    "oci-zstd": ("oci", ["zstd"]),
    "oci-none": ("oci", ["none"]),
    "oci-mixed": ("oci", ["gzip", "zstd", "none"]),
    "docker-gzip": ("docker", ["gzip"]),
    "docker-mixed": ("docker", ["none", "gzip", "zstd"]),
}


def test_bases_of_every_kind_keep_layers_and_family_and_get_the_same_payload(workshop: Workshop, store: Store) -> None:
    payloads = set()
    for name, (family, compressions) in KINDS.items():
        put_image(store, f"base/{name}", "1", base_layers(), family=family, compressions=compressions)
        done = push(workshop, store, f"{store.host}/base/{name}:1", f"team/{name}")
        _, before = store.manifest(f"base/{name}", "1")
        _, after = store.manifest(f"team/{name}", "1")
        assert after["layers"][:-1] == before["layers"], name
        assert after["mediaType"] == TYPES[family]["manifest"] == before["mediaType"]
        assert after["layers"][-1]["mediaType"] == TYPES[family]["gzip"]
        assert after["config"]["mediaType"] == TYPES[family]["config"]
        assert store.complete(f"team/{name}", "1") == []
        assert done["base_bytes_copied"] == 0
        payloads.add(after["layers"][-1]["digest"])
        assert workshop.ok("verify", "--image", f"{store.host}/team/{name}:1", "--deep")["proved"]
    assert len(payloads) == 1


def test_the_configuration_of_the_base_is_kept_and_owners_are_its(workshop: Workshop, store: Store, base: str) -> None:
    done = push(workshop, store, base)
    before, after = store.config("base/toy", "1"), store.config("team/toy", "1")
    assert {k: v for k, v in after["config"].items() if k != "Labels"} == before["config"]
    assert after["rootfs"]["diff_ids"][:-1] == before["rootfs"]["diff_ids"] and after["created"] == before["created"]
    file = done["record"]["files"][0]
    assert (file["mode"], file["uid"]) == ("0640", 1000)
    assert {"path": "opt/toy/toy", "mode": "2775", "uid": 1000, "gid": 1000} in done["record"]["folders"]


def test_of_an_index_the_targets_platform_is_grafted_and_the_others_are_named(
    workshop: Workshop, store: Store, registry: Quirky
) -> None:
    put_index(store, "base/two", "1", ["linux/amd64", "linux/arm64", "unknown/unknown"])
    base = f"{store.host}/base/two:1"
    done = push(workshop, store, base)
    assert "also has linux/arm64; not grafted (say --platform all)" in done["said"]
    assert list(done["platforms"]) == ["linux/amd64"] and "unknown" not in done["said"]
    _, top = store.manifest("team/toy", "1")
    assert "layers" in top
    said = workshop.refused(2, "push", "--base", base, "--to", f"{store.host}/team/x:1", "--platform", "linux/s390x")
    assert "has no linux/s390x" in said and "linux/amd64, linux/arm64" in said
    put_index(store, "base/other", "1", ["linux/arm64", "linux/ppc64le"])
    said = workshop.refused(2, "push", "--base", f"{store.host}/base/other:1", "--to", f"{store.host}/team/x:1")
    assert "linux/amd64" in said and "linux/arm64, linux/ppc64le" in said
    assert not registry.tags.get("team/x")


@pytest.mark.parametrize("family", ["oci", "docker"])
def test_all_platforms_of_an_index_are_grafted_and_proved(workshop: Workshop, store: Store, family: str) -> None:
    put_index(store, "base/two", "1", ["linux/amd64", "linux/arm64"], family)
    base = f"{store.host}/base/two:1"
    done = push(workshop, store, base, "team/two", "--platform", "all")
    _, top = store.manifest("team/two", "1")
    assert top["mediaType"] == TYPES[family]["index"]
    assert [item["platform"]["architecture"] for item in top["manifests"]] == ["amd64", "arm64"]
    assert [item["digest"] for item in top["manifests"]] == list(done["platforms"].values())
    assert store.complete("team/two", "1") == []
    for platform in ("linux/amd64", "linux/arm64"):
        assert workshop.ok("verify", "--image", f"{store.host}/team/two:1", "--platform", platform)["proved"]
    again = push(workshop, store, f"{store.host}/team/two:1", "team/again", "--platform", "all")
    assert again["grafted"] == done["grafted"]


def test_grafting_what_was_grafted_is_grafting_the_base(workshop: Workshop, store: Store, base: str) -> None:
    first = push(workshop, store, base)
    again = push(workshop, store, f"{store.host}/team/toy:1", "team/again")
    assert again["grafted"] == first["grafted"] and again["base"] == base
    into = push(workshop, store, f"{store.host}/team/toy:1", "team/toy")  # onto its own tag
    assert into["grafted"] == first["grafted"] and store.complete("team/toy", "1") == []


def test_an_image_built_from_a_grafted_one(workshop: Workshop, store: Store, base: str) -> None:
    first = push(workshop, store, base)
    on_top(store, "team/toy", "1", "from", [Entry("opt/extra.txt", b"more")])
    said = workshop.refused(4, "verify", "--image", f"{store.host}/team/toy:from")
    assert "a layer was put on it after it was grafted; graft it again" in said
    again = workshop.ok("push", "--base", f"{store.host}/team/toy:from", "--to", f"{store.host}/team/toy:over")
    _, layers = store.manifest("team/toy", "over")
    assert layers["layers"][-1]["digest"] == first["layer"] and len(layers["layers"]) == 5
    assert again["grafted"] != first["grafted"]


OLD = TOY_SOURCE.encode()


@pytest.mark.parametrize(
    ("layer", "says"),
    [
        ([Entry(POOL, OLD, mode=0o640, owner=1000)], "pool.py"),
        ([white_out(POOL)], "pool.py"),
        ([Entry(PYC, b"\x6f\x0d\x0d\x0a" + bytes(12) + b"stale")], "pool.cpython-310.pyc"),
        ([Entry(f"{PYC[:-4]}.opt-1.pyc", b"\x6f\x0d\x0d\x0a" + bytes(12) + b"stale")], "opt-1"),
        ([white_out(RECORD)], f"has no /{RECORD}: it was never grafted for t"),
        ([Entry(RECORD, b"{}")], "record"),
        ([Entry("opt/toy/toy/.wh..wh..opq", b"")], "pool.py"),
        ([Entry("opt/toy", link="elsewhere")], "pool.py"),
    ],
    ids=["the old file", "no file", "stale bytecode", "stale -O bytecode", "no record", "bad record", "opaque", "link"],
)
def test_what_an_upper_layer_spoils_is_caught(
    workshop: Workshop, store: Store, base: str, layer: list[Entry], says: str
) -> None:
    push(workshop, store, base)
    on_top(store, "team/toy", "1", "spoiled", layer)
    done = workshop.run("verify", "--image", f"{store.host}/team/toy:spoiled", "--json")
    assert done.code == 4 and says in done.err, done.err
    assert "next:" in done.err and "proved" not in done.document


def test_another_copy_that_was_installed_afterwards_is_found(workshop: Workshop, store: Store, base: str) -> None:
    """The layers of its base are not there to compare with, so only --deep can tell."""
    push(workshop, store, base)
    copy = "usr/local/lib/python3.10/dist-packages/toy"
    on_top(store, "team/toy", "1", "pip", [Entry(copy, mode=0o755), Entry(f"{copy}/__init__.py", b"")])
    said = workshop.refused(4, "verify", "--image", f"{store.host}/team/toy:pip", "--deep")
    assert "imports toy from /usr/local/lib/python3.10/dist-packages" in said and "the patches are in /opt/toy" in said


def test_a_configuration_that_does_not_fit_its_layers(workshop: Workshop, store: Store, base: str) -> None:
    push(workshop, store, base)
    _, manifest = store.manifest("team/toy", "1")
    del manifest["layers"][0]
    store.put("team/toy", "odd", manifest)
    for command in (["verify", "--image", f"{store.host}/team/toy:odd"],
                    ["push", "--base", f"{store.host}/team/toy:odd", "--to", f"{store.host}/team/x:1"]):  # fmt: skip
        assert "3 layers, its configuration has 4 diff_ids" in workshop.refused(5, *command)


def test_a_file_without_its_marker_is_caught_by_name(workshop: Workshop, store: Store, base: str) -> None:
    """Somebody changed the patched file by hand and corrected the record's sum: the marker is looked for in code."""
    done = push(workshop, store, base)
    record = {**done["record"], "files": [dict(row) for row in done["record"]["files"]]}
    spoiled = OLD.replace(b"count = rows", b"count = min(rows, padded)")
    record["files"][0] |= {"sha256": hashlib.sha256(spoiled).hexdigest(), "size": len(spoiled)}
    layer = [Entry(POOL, spoiled, mode=0o640, owner=1000), Entry(RECORD, json.dumps(record).encode())]
    on_top(store, "team/toy", "1", "spoiled", layer)
    said = workshop.refused(4, "verify", "--image", f"{store.host}/team/toy:spoiled")
    assert "_toy_clip" in said and "Pool.take" in said


def test_an_image_of_an_older_revision_and_one_that_was_never_grafted(
    workshop: Workshop, store: Store, base: str, tmp_path: Path
) -> None:
    push(workshop, store, base)
    file = workshop.root / "patches/toy/rows/patch.toml"
    file.write_text(file.read_text("utf-8").replace('revision = "R2"', 'revision = "R3"'), "utf-8")
    said = workshop.refused(4, "verify", "--image", f"{store.host}/team/toy:1")
    assert "holds toy/rows R2, the target wants toy/rows R3" in said and "graftwork image t" in said
    said = workshop.refused(4, "verify", "--image", base)
    assert f"has no /{RECORD}: it was never grafted for t" in said and "graftwork push t" in said


def test_a_base_whose_file_is_not_the_wheels_gives_its_own_bytes(workshop: Workshop, store: Store) -> None:
    """The comment is the base's own, so the result must have it; the build says where the file is from."""
    own = OLD.replace(b"# how many rows", b"# how many rows, says the vendor")
    layers = base_layers(OLD, [Entry(POOL, own, mode=0o640, owner=1000)], [Entry("opt/filler", os.urandom(300_000))])
    put_image(store, "base/own", "1", layers)
    base = f"{store.host}/base/own:1"
    first = workshop.run("push", "--base", base, "--to", f"{store.host}/team/own:1")
    assert first.code == 0 and "read from the base: toy/pool.py" in first.out, first.err
    done = push(workshop, store, base, "team/own")
    assert done["facts"] == ["cache"] and done["bytes_in"] < 10_000
    tar = store.read_blob("team/own", done["layer"])
    assert b"says the vendor" in gzip.decompress(tar) and b"_toy_clip" in gzip.decompress(tar)
    assert workshop.ok("verify", "--image", f"{store.host}/team/own:1")["proved"]


def test_a_drifted_base_is_refused_and_nothing_is_pushed(workshop: Workshop, store: Store, registry: Quirky) -> None:
    put_image(store, "base/drift", "1", base_layers(OLD.replace(b"count = rows", b"count = rows + 0")))
    done = workshop.run("push", "--base", f"{store.host}/base/drift:1", "--to", f"{store.host}/team/x:1")
    assert done.code == 3 and "toy/rows" in done.err and "count = rows + 0" in done.out  # the nearest candidate
    assert not registry.tags.get("team/x")
    assert not registry.blobs.get("team/x")


def test_another_copy_that_the_interpreter_imports_is_refused(workshop: Workshop, store: Store) -> None:
    """dist-packages come before what a .pth adds: patching /opt/toy would change nothing."""
    copy = "usr/local/lib/python3.10/dist-packages/toy"
    layers = base_layers(
        OLD, [Entry(copy, mode=0o755), Entry(f"{copy}/__init__.py", b""), Entry(f"{copy}/pool.py", OLD)]
    )
    put_image(store, "base/copy", "1", layers)
    said = workshop.refused(5, "push", "--base", f"{store.host}/base/copy:1", "--to", f"{store.host}/team/x:1")
    assert "/usr/local/lib/python3.10/dist-packages" in said and "/opt/toy" in said


def test_a_base_without_the_engine(workshop: Workshop, store: Store) -> None:
    put_image(store, "base/empty", "1", base_layers()[:2])
    said = workshop.refused(2, "push", "--base", f"{store.host}/base/empty:1", "--to", f"{store.host}/team/x:1")
    assert "has no /opt/toy/toy" in said and "base.root" in said


def test_another_registry_wants_permission_or_a_mirror(workshop: Workshop, store: Store, base: str) -> None:
    with serve() as other:
        to = f"{other.host}/team/toy:1"
        said = workshop.refused(8, "push", "--base", base, "--to", to)
        total = sum(layer["size"] for layer in store.manifest("base/toy", "1")[1]["layers"])
        assert f"lacks 3 base layers and cannot mount them: {total} bytes" in said and "nothing was pushed" in said
        assert not other.tags and not any(other.blobs.values())
        allowed = int(said.partition("--max-bytes ")[2].partition(",")[0])
        assert workshop.run("push", "--base", base, "--to", to, "--max-bytes", total).code == 8
        assert not any(other.blobs.values())
        done = push(workshop, Store(other.host), base, "team/toy", "--max-bytes", str(allowed))
        assert done["base_bytes_copied"] == total and Store(other.host).complete("team/toy", "1") == []
        again = workshop.ok("push", "--base", base, "--to", to)
        assert again["base_bytes_copied"] == 0 and again["written"][0]["present"] == 3


def test_a_mirror_makes_a_push_without_base_bytes(workshop: Workshop, store: Store, base: str) -> None:
    with serve() as other:
        copy = f"{other.host}/mirror/toy:1"
        subprocess.run([*GRAFTWORK, "mirror", base, copy], check=True, capture_output=True, env=workshop.full)
        done = push(workshop, Store(other.host), copy)
        assert (done["base_bytes_copied"], done["written"][0]["mounted"]) == (0, 3)


def test_a_budget_that_the_scan_would_exceed(workshop: Workshop, store: Store, base: str) -> None:
    said = workshop.refused(8, "push", "--base", base, "--to", f"{store.host}/team/x:1", "--max-bytes", "500")
    assert "the budget is 500" in said


def test_references_are_read_before_anything_is_built(workshop: Workshop, base: str, store: Store) -> None:
    for to, says in [
        (f"{store.host}/team/x@sha256:{'0' * 64}", "needs a tag"),
        ("bad ref", "not an image reference"),
        (f"{store.host}/team/x:1@sha256:{'0' * 64}", "needs a tag, not a digest"),
    ]:
        assert says in workshop.refused(2, "push", "--base", base, "--to", to)
        assert not (workshop.root / "dist").exists()


def test_destinations_of_image_hold_the_same_payload(workshop: Workshop, base: str, tmp_path: Path) -> None:
    to = [f"oci:{tmp_path / 'sparse'}:x", f"docker-archive:{tmp_path / 'image.tar'}"]
    done = workshop.ok("image", "--base", base, "--to", to[0], "--to", to[1])
    full = workshop.ok("image", "--base", base, "--to", f"oci:{tmp_path / 'full'}:x", "--full")
    assert full["grafted"] == done["grafted"] and full["layer"] == done["layer"]
    assert [path.name for path in (tmp_path / "sparse/blobs/sha256").iterdir() if path.stat().st_size > 40_000] == [
        done["layer"].partition(":")[2]
    ]
    for image in (*to, f"oci:{tmp_path / 'full'}:x"):
        proof = workshop.ok("verify", "--image", image)
        assert proof["proved"], image
    # What was grafted, read from any of them, is the base again.
    again = workshop.ok("image", "--base", f"oci:{tmp_path / 'full'}:x", "--to", f"oci:{tmp_path / 'again'}:x")
    assert again["grafted"] == done["grafted"] and again["bytes_in"] == 0


def test_a_sparse_layout_says_that_it_lacks_layers(workshop: Workshop, base: str, tmp_path: Path, store: Store) -> None:
    workshop.ok("image", "--base", base, "--to", f"oci:{tmp_path / 'sparse'}:x")
    shutil.rmtree(tmp_path / "cache/bases")
    said = workshop.refused(2, "image", "--base", f"oci:{tmp_path / 'sparse'}:x", "--to", f"oci:{tmp_path / 'y'}:x")
    assert "lacks the blob" in said and "sparse" in said


def test_no_folder_of_this_machine_is_written_into_an_image(workshop: Workshop, base: str, tmp_path: Path) -> None:
    workshop.ok("image", "--base", base, "--to", f"oci:{tmp_path / 'one'}:x", "--full")
    subprocess.run(["cp", "-r", tmp_path / "one", tmp_path / "two"], check=True)
    for source in ("one", "two"):
        blobs = tmp_path / source / "blobs/sha256"
        index = json.loads((tmp_path / source / "index.json").read_bytes())
        manifest = json.loads((blobs / index["manifests"][0]["digest"][7:]).read_bytes())
        del manifest["layers"][-1]
        config = json.loads((blobs / manifest["config"]["digest"][7:]).read_bytes())
        config["config"].pop("Labels")
        config["rootfs"]["diff_ids"].pop()
        write_layout(tmp_path / f"bare-{source}", manifest, config, blobs)
    done = [
        workshop.ok("image", "--base", f"oci:{tmp_path / name}:x", "--to", f"oci:{tmp_path / 'out'}:x")
        for name in ("bare-one", "bare-two")
    ]
    assert done[0]["grafted"] == done[1]["grafted"] and done[0]["base"] == "oci:x"
    written = b"".join(path.read_bytes() for path in (tmp_path / "out/blobs/sha256").iterdir())
    assert str(tmp_path).encode() not in written


def write_layout(folder: Path, manifest: dict[str, Any], config: dict[str, Any], blobs: Path) -> None:
    shutil.copytree(blobs, folder / "blobs/sha256")
    for document in (config, manifest):
        if document is manifest:
            raw = json.dumps(config).encode()
            manifest["config"] |= {"digest": sha(raw), "size": len(raw)}
        data = json.dumps(document).encode()
        (folder / "blobs/sha256" / sha(data)[7:]).write_bytes(data)
    row = {"mediaType": manifest["mediaType"], "digest": sha(data), "size": len(data)}
    row["annotations"] = {"org.opencontainers.image.ref.name": "x"}
    (folder / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [row]}), "utf-8")
    (folder / "oci-layout").write_text('{"imageLayoutVersion":"1.0.0"}', "utf-8")


def pinned(tmp_path: Path, store: Store, name: str = "pin/toy") -> Workshop:
    digest = put_image(store, name, "1.0", base_layers())
    return tiny_workshop(tmp_path, image=f"{store.host}/{name}:1.0", digest=digest)


def test_lock_indexes_the_pinned_base_and_notices_a_moved_tag(tmp_path: Path, store: Store, registry: Quirky) -> None:
    workshop = pinned(tmp_path, store)
    workshop.ok("lock")
    index = json.loads((workshop.root / "deploy/docker/locks/t.base.json").read_bytes())
    assert index["root"] == "/opt/toy" and any(row["path"] == POOL for row in index["paths"])
    assert "is still sha256" in workshop.ok("lock", "--check")["base"]
    shutil.rmtree(tmp_path / "cache/bases", ignore_errors=True)
    mark = len(registry.seen)
    done = workshop.ok("push", "--to", f"{store.host}/team/toy:1")
    assert done["facts"] == ["lock"] and done["bytes_in"] < 3000
    moved = [seen for seen in registry.seen[mark:] if seen.method == "GET" and "/blobs/" in seen.path]
    assert len(moved) == 1  # the configuration; no layer
    put_image(store, "pin/toy", "1.0", base_layers(OLD + b"# moved\n"))
    said = workshop.refused(5, "lock", "--check")
    assert "is now sha256" in said and "the target pins" in said and "the tag moved" in said


def test_lock_of_a_copy_of_the_base_and_of_another_image(tmp_path: Path, store: Store) -> None:
    workshop = pinned(tmp_path, store)
    put_image(store, "copy/toy", "x", base_layers())
    done = workshop.ok("lock", "--base", f"{store.host}/copy/toy:x")
    assert "2 files" in done["base"] or "1 files" in done["base"]
    put_image(store, "wrong/toy", "x", base_layers(OLD + b"#\n"))
    said = workshop.refused(5, "lock", "--base", f"{store.host}/wrong/toy:x")
    assert "wrong/toy:x is sha256" in said and "pins sha256" in said


def test_image_without_a_reachable_base_builds_the_payload_and_says_so(tmp_path: Path) -> None:
    workshop = tiny_workshop(tmp_path, image="127.0.0.1:9/nobody/toy:1")
    done = workshop.run("image")
    assert done.code == 0 and "none was grafted" in done.out and "graftwork image t --base REF" in done.out
    said = workshop.refused(6, "image", "--require-base")
    assert "127.0.0.1:9" in said and "next:" in said
    assert "127.0.0.1:9" in workshop.refused(6, "push", "--to", "127.0.0.1:9/team/x:1")
    assert "127.0.0.1:9" in workshop.refused(6, "image", "--to", f"oci:{tmp_path / 'x'}:x")


def test_a_target_that_pins_no_base(tmp_path: Path, store: Store, base: str) -> None:
    """Its payload is built and proved; what needs a base asks for one, and takes any that fits."""
    workshop = tiny_workshop(tmp_path, image="", digest="")
    done = workshop.run("image")
    assert done.code == 0 and "none was grafted: the target pins none: made up for a test" in done.out
    assert "REF is an image of toy 1.0 for none, linux/amd64 with Python 3.10" in done.out
    assert "proved" in workshop.run("verify").out
    for words in (["image", "--require-base"], ["push", "--to", f"{store.host}/x/y:1"], ["image", "--dockerfile"]):
        assert "pins no base" in workshop.refused(2, *words)
    assert push(workshop, store, base)["base"] == base
    assert workshop.ok("verify", "--image", f"{store.host}/team/toy:1")["proved"]
    assert workshop.ok("lock")["base"] == workshop.ok("lock", "--check")["base"] == "the target pins none"
    assert "could be compared" in workshop.refused(2, "lock", "--base", base)


def test_a_base_that_is_there_but_was_never_indexed_is_not_read_by_surprise(tmp_path: Path, store: Store) -> None:
    workshop = pinned(tmp_path, store)
    done = workshop.ok("image")
    assert done["base"] is None and "was never indexed; graftwork lock t does it" in done["why"]
    workshop.ok("lock")
    assert workshop.ok("image")["base_bytes_copied"] == 0


def test_a_pinned_base_with_other_bytes_is_a_fault_and_not_an_absence(
    tmp_path: Path, store: Store, registry: Quirky
) -> None:
    workshop = pinned(tmp_path, store)
    registry.quirks.spoil = set(registry.manifests["pin/toy"])
    said = workshop.refused(5, "image")
    assert "sha256" in said


def test_make_image_with_a_base(workshop: Workshop, base: str, tmp_path: Path) -> None:
    """The Makefile's variables; what it would install is there already."""
    venv = tmp_path / "venv"
    venv.mkdir()
    (venv / "bin").symlink_to(Path(sys.executable).parent)
    (venv / ".run").touch()
    args = f"--catalog {workshop.root} --json"
    command = ["make", "-s", "image", "TARGET=t", f"BASE={base}", f"ARGS={args}", f"VENV={venv}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=workshop.full, check=False)
    assert done.returncode == 0, done.stderr
    layout = json.loads(done.stdout)["written"][0]["to"]
    assert layout == f"oci:{workshop.root / 'dist/t/image'}:t"
    assert workshop.ok("verify", "--image", layout)["proved"]


def test_a_payload_built_without_its_base_is_the_one_that_is_grafted(tmp_path: Path, store: Store) -> None:
    """With the base in the lock, modes, owners and folders are the base's, whether or not it can be reached."""
    digest = put_image(store, "base/toy", "1", base_layers())
    workshop = tiny_workshop(tmp_path, digest=digest)
    workshop.ok("lock", "--base", f"{store.host}/base/toy:1")
    pushed = push(workshop, store, f"{store.host}/base/toy:1")
    alone = workshop.ok("image")
    assert alone["base"] is None and alone["layer"] == pushed["layer"]


def test_a_payload_of_a_base_that_differs_from_the_wheel_needs_the_base(tmp_path: Path, store: Store) -> None:
    digest = put_image(store, "base/toy", "1", base_layers(TOY_SOURCE.replace("# how many", "# of how many").encode()))
    workshop = tiny_workshop(tmp_path, digest=digest)
    workshop.ok("lock", "--base", f"{store.host}/base/toy:1")
    assert "differs from the pinned wheel's" in workshop.refused(6, "image")
