"""A push against every odd registry: it succeeds or says why not, and the tag never names a broken image."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from oci.quirky import Quirks, Quirky, serve
from tiny import Done, Entry, Store, Workshop, base_layers, put_image, tiny_workshop
from toys import TOY_SOURCE

# How each mode may end: 0, or an exit code and words that must be in the message.
MODES: dict[str, tuple[dict[str, Any], int, str]] = {
    "mounts": ({}, 0, ""),
    "mount 202": ({"mount": 202}, 8, "started an upload instead of mounting"),
    "mount 400": ({"mount": 400}, 8, "answered 400"),
    "mount 401": ({"mount": 401}, 8, "answered 401"),
    "mount 405": ({"mount": 405}, 8, "answered 405"),
    "bearer": ({"auth": "bearer"}, 0, ""),
    "mount needs the source's scope": ({"auth": "bearer", "mount_needs_source_scope": True}, 0, ""),
    "no token for the source": ({"auth": "bearer", "mount_needs_source_scope": True, "withheld": {"base/toy"}}, 6, ""),
    "no token for the target": ({"auth": "bearer", "withheld": {"team/toy"}}, 6, "docker login"),
    # More uses than requests at once: no client can work where another thread's request ends its token.
    "tokens that expire mid-push": ({"auth": "bearer", "token_uses": 10}, 0, ""),
    "access_token": ({"auth": "bearer", "token_key": "access_token", "expires_in": None}, 0, ""),
    "no ranges": ({"ranges": "ignored"}, 0, ""),
    "wrong ranges": ({"ranges": "wrong"}, 0, ""),
    "chunks refused": ({"chunked": 405}, 0, ""),
    "one request refused": ({"monolithic": 400}, 0, ""),
    "only chunks": ({"monolithic": 400, "streamed": 405}, 0, ""),
    "only streams": ({"monolithic": 400, "chunked": 416}, 0, ""),
    "no way to upload": ({"monolithic": 400, "streamed": 405, "chunked": 405}, 6, "uploading blob"),
    "small bodies only": ({"largest_body": 100}, 6, "413"),
    "429 for a while": ({"limited": 3}, 0, ""),
    "429 for ever": ({"limited": 10**6}, 6, "limits requests"),
    "a long Retry-After": ({"limited": 10**6, "retry_after": "86400"}, 6, "86400"),
    "503 for a while": ({"failing": 3}, 0, ""),
    "503 on every PUT": ({"failing": 10**6, "failing_methods": "PUT"}, 6, "503"),
    "503 for ever": ({"failing": 10**6}, 6, "503"),
    "answers cut": ({"cut_answers": 2, "cut_after": 100}, 0, ""),
    "bodies cut": ({"cut_uploads": 3, "cut_after": 100}, 0, ""),
    "bodies cut for ever": ({"cut_uploads": 10**6, "cut_after": 100}, 6, "cut"),
    "uploads forgotten": ({"cut_uploads": 2, "forget_uploads": 2}, 0, ""),
    "answers lost": ({"lose_answers": 4}, 0, ""),
    "no digest header": ({"digest_header": "missing"}, 0, ""),
    "a wrong digest header": ({"digest_header": "wrong"}, 5, "sha256:0000"),
    "relative Location": ({"location": "relative"}, 0, ""),
    "Location with a query": ({"location": "query"}, 0, ""),
    "no HEAD": ({"head": False}, 0, ""),
    "schema 1": ({"schema_1": True}, 2, "schema 1"),
}


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    return tiny_workshop(tmp_path_factory.mktemp("ship"))


@pytest.fixture
def registry() -> Iterator[Quirky]:
    """With the base, a tag that is there already, and a base whose layers no cache of a build knows."""
    with serve() as found:
        put_image(Store(found.host), "base/toy", "1", base_layers())
        yield found


def push(workshop: Workshop, registry: Quirky, *more: object) -> Done:
    base, to = f"{registry.host}/base/toy:1", f"{registry.host}/team/toy:1"
    return workshop.run("push", "--base", base, "--to", to, *more)


def intact(registry: Quirky, old: str = "") -> bool:
    """Whether the tag is absent (or still *old*), or names an image of which everything is there."""
    registry.quirks = Quirks()
    found = registry.tags.get("team/toy", {}).get("1", "")
    return found == old or Store(registry.host).complete("team/toy", "1") == []


@pytest.mark.parametrize("mode", MODES)
def test_a_push_to_every_kind_of_registry(workshop: Workshop, registry: Quirky, mode: str) -> None:
    quirks, code, says = MODES[mode]
    if mode != "wrong ranges":
        assert push(workshop, registry, "--dist", workshop.root / "dist-index").code == 0  # the base is indexed
        for place in (registry.blobs, registry.manifests, registry.tags):
            place.pop("team/toy")
    registry.quirks = Quirks(**quirks)
    done = push(workshop, registry)
    tagged = bool(registry.tags.get("team/toy"))
    assert intact(registry)
    assert (done.code, says in done.err) == (code, True), (done.code, done.err)
    if code:
        assert "next:" in done.err or code == 5
    if code == 8:
        assert "nothing was pushed" in done.err and not tagged
    if code == 0:
        assert tagged
        assert push(workshop, registry).code == 0  # and again


def test_what_cannot_be_mounted_is_copied_if_that_is_allowed(workshop: Workshop, registry: Quirky) -> None:
    registry.quirks = Quirks(mount=202)
    done = push(workshop, registry, "--max-bytes", 10**6)
    assert done.code == 0 and "3 copied" in done.out
    assert intact(registry) and registry.tags["team/toy"]
    assert registry.cancelled == 3  # no upload that a mount began is left


def test_a_spoiled_base_blob_is_not_taken(workshop: Workshop, registry: Quirky) -> None:
    """Once the configuration, once a layer that has to be copied."""
    _, manifest = Store(registry.host).manifest("base/toy", "1")
    for digest in (manifest["config"]["digest"], manifest["layers"][1]["digest"]):
        registry.quirks = Quirks(mount=405, spoil={digest})
        done = push(workshop, registry, "--max-bytes", 10**6)
        assert done.code == 5 and digest[:19] in done.err, done.err
        assert intact(registry) and "1" not in registry.tags.get("team/toy", {})


def test_an_old_tag_stays_until_the_new_image_is_whole(workshop: Workshop, registry: Quirky) -> None:
    store = Store(registry.host)
    old = put_image(store, "team/toy", "1", base_layers(b"old = 1\n"))
    no_way = {"monolithic": 400, "streamed": 405, "chunked": 405}
    for fault in ({"failing": 10**6, "failing_methods": "PUT"}, {"cut_uploads": 10**6}, no_way):
        registry.quirks = Quirks(**fault)
        assert push(workshop, registry).code == 6
        assert registry.tags["team/toy"]["1"] == old and intact(registry, old)
    assert push(workshop, registry).code == 0 and registry.tags["team/toy"]["1"] != old and intact(registry)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.fixed_dictionaries(
        {},
        optional={
            "mount": st.sampled_from([201, 202, 400, 401, 405]),
            "chunked": st.sampled_from([202, 405, 416]),
            "streamed": st.sampled_from([202, 400]),
            "monolithic": st.sampled_from([201, 400, 404]),
            "failing": st.integers(0, 12),
            "limited": st.integers(0, 6),
            "cut_answers": st.integers(0, 8),
            "cut_uploads": st.integers(0, 8),
            "cut_after": st.integers(1, 50_000),
            "lose_answers": st.integers(0, 6),
            "forget_uploads": st.integers(0, 3),
            "auth": st.sampled_from(["", "bearer"]),
            "token_uses": st.integers(1, 5),
            "upload_range": st.sampled_from(["right", "zero", "missing", "stuck", "frozen", "bytes"]),
            "upload_status": st.sampled_from([204, 404, 202]),
            "location": st.sampled_from(["absolute", "relative", "query"]),
            "digest_header": st.sampled_from(["right", "missing"]),
            "head": st.booleans(),
            "min_chunk": st.sampled_from([0, 10_000]),
        },
    ),
    st.booleans(),
)
def test_any_mixture_of_faults_leaves_no_broken_tag(
    workshop: Workshop, registry: Quirky, quirks: dict[str, Any], copy: bool
) -> None:
    for place in (registry.blobs, registry.manifests, registry.tags):
        place.pop("team/toy", None)
    registry.uploads.clear()
    registry.quirks = Quirks(**quirks)
    done = push(workshop, registry, *(["--max-bytes", 10**7] if copy else []))
    tagged = bool(registry.tags.get("team/toy"))
    assert intact(registry)
    assert done.code in (0, 5, 6, 8), done.err
    assert tagged or done.code, done.err
    assert push(workshop, registry).code == 0 and intact(registry)  # once it behaves, the same command ends well


@pytest.mark.parametrize("room", [4096, 32_768, 69_632])
def test_a_full_disk_is_told_and_leaves_no_half_image(
    workshop: Workshop, registry: Quirky, tmp_path: Path, room: int
) -> None:
    """A tmpfs of *room* bytes; the image has more, in layers that do not shrink."""
    if os.geteuid() != 0:
        pytest.skip("a small file system needs root")
    layers = base_layers(TOY_SOURCE.encode(), [Entry("opt/big", random.Random(1).randbytes(400_000))])
    put_image(Store(registry.host), "base/toy", "1", layers)
    base, disk = f"{registry.host}/base/toy:1", tmp_path / "disk"
    disk.mkdir()
    mount = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={room}", "tmpfs", disk], check=False)
    if mount.returncode:
        pytest.skip("no tmpfs may be mounted here")
    try:
        for to in (f"oci:{disk}/out:x", f"docker-archive:{disk}/out.tar"):
            said = workshop.refused(2, "image", "--base", base, "--to", to, "--full")
            assert f"cannot write {'the image layout ' if to.startswith('oci') else ''}{disk}" in said
            assert "No space left on device" in said and "next: " in said
            shutil.rmtree(disk / "out", ignore_errors=True)
            assert [path.name for path in disk.iterdir()] == [".out.lock"]
        done = workshop.run("push", "--base", base, "--to", f"{registry.host}/team/toy:1", "--dist", disk)
        # Only the last room is enough for the payload; then no more than the documents about it can be missing.
        assert done.code == 2 and f"cannot write {disk}" in done.err.replace("the image layout ", "")
        assert bool(registry.tags.get("team/toy")) == ("sbom" in done.err or "provenance" in done.err)
        assert intact(registry)
    finally:
        subprocess.run(["umount", disk], check=True)


@pytest.mark.parametrize("seed", range(30))
def test_a_killed_push_leaves_the_tag_whole_and_can_be_repeated(
    workshop: Workshop, registry: Quirky, seed: int
) -> None:
    """SIGKILL at any instant of a run that copies, uploads and tags; requests are slow enough to be hit."""
    registry.quirks = Quirks(mount=202)
    old = put_image(Store(registry.host), "team/toy", "1", base_layers(b"old = 1\n"))
    base, to = f"{registry.host}/base/toy:1", f"{registry.host}/team/toy:1"
    chosen = random.Random(seed)
    mark = len(registry.seen)
    process = workshop.spawn("push", "--base", base, "--to", to, "--max-bytes", 10**6)
    wanted = mark + chosen.randrange(1, 30)
    while process.poll() is None and len(registry.seen) < wanted:
        time.sleep(0.0005)
    time.sleep(chosen.random() * 0.01)
    process.kill()
    process.communicate()
    assert intact(registry, old)
    registry.quirks = Quirks(mount=202)
    done = push(workshop, registry, "--max-bytes", 10**6)
    assert done.code == 0 and registry.tags["team/toy"]["1"] != old and intact(registry), done.err
