"""Mirroring: every platform, byte for byte, gone on with after a cut, and never half a tag."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oci.debian_registry import running
from oci.quirky import Quirky, serve

from graftwork.errors import GraftworkError, PinError, PolicyError, UnreachableError, UsageError
from graftwork.images.mirror import MirrorReport, mirror
from graftwork.oci.families import DOCKER, OCI, Family
from graftwork.oci.flow import Flow
from graftwork.oci.model import Descriptor
from graftwork.oci.reference import ImageRef
from graftwork.oci.registry import Registry
from graftwork.oci.traffic import Patience, Traffic
from graftwork.oci.transport import Transport

REPO, OTHER = "team/base", "mirrored/base"
LAYERS = [bytes([number]) * (5000 + number) for number in range(4)]


@pytest.fixture(autouse=True)
def no_credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("REGISTRY_AUTH_FILE", str(tmp_path / "none.json"))


def client(host: str, **more: Any) -> Registry:
    patience = Patience(tries=4, backoff=0.0, connect=2, read=10)
    return Registry(Transport(host, patience=patience, sleep=lambda seconds: None, **more))


def store(server: Quirky, data: dict[str, Any], tag: str = "") -> dict[str, Any]:
    raw = json.dumps(data, indent=1).encode()
    digest = "sha256:" + hashlib.sha256(raw).hexdigest()
    server.manifests.setdefault(REPO, {})[digest] = (data["mediaType"], raw)
    if tag:
        server.tags.setdefault(REPO, {})[tag] = digest
    return {"mediaType": data["mediaType"], "digest": digest, "size": len(raw)}


def image(server: Quirky, layers: list[bytes], tag: str = "", family: Family = OCI, kind: str = "") -> dict[str, Any]:
    config = server.put(REPO, b'{"layers": %d}' % len(layers))
    entries = [
        {"mediaType": kind or family.layer_gzip, "digest": server.put(REPO, data), "size": len(data)} for data in layers
    ]
    data = {"schemaVersion": 2, "mediaType": family.manifest, "layers": entries, "unknown": "kept"}
    data["config"] = {"mediaType": family.config, "digest": config, "size": len(server.blobs[REPO][config])}
    return store(server, data, tag)


def index(server: Quirky, tag: str = "v1") -> dict[str, Any]:
    platforms = [image(server, LAYERS[:3]), image(server, LAYERS[2:], family=DOCKER)]
    attestation = image(server, [b"{}"], kind="application/vnd.in-toto+json")
    return store(
        server, {"schemaVersion": 2, "mediaType": OCI.index, "manifests": [*platforms, attestation, platforms[0]]}, tag
    )


def run(source: Quirky, target: Quirky, text: str = "v1", to: str = "v2", **more: Any) -> MirrorReport:
    options = more.pop("options", {})
    start = ImageRef.parse(f"{source.host}/{REPO}" + (f"@{text}" if ":" in text else f":{text}"))
    end = ImageRef.parse(f"{target.host}/{OTHER}" + (f"@{to}" if ":" in to else f":{to}"))
    return mirror(client(source.host, **options), start, client(target.host, **options), end, **more)


def test_every_platform_is_copied_byte_for_byte() -> None:
    seen: dict[str, int] = {}
    with serve() as source, serve() as target:
        root = index(source)
        report = run(source, target, progress=lambda digest, done, size: seen.update({digest: done}))
        assert target.manifests[OTHER] == source.manifests[REPO]
        assert target.blobs[OTHER] == source.blobs[REPO]
        assert target.tags[OTHER] == {"v2": root["digest"]}
        assert report.digest == root["digest"]
        assert (report.manifests, report.present, report.mounted, report.copied) == (4, 0, 0, 8)
        assert report.moved == sum(len(data) for data in source.blobs[REPO].values())
        assert seen == {digest: len(data) for digest, data in source.blobs[REPO].items()}
        again = run(source, target)
        assert (again.present, again.copied, again.moved) == (8, 0, 0)


def test_by_digest_and_to_a_digest() -> None:
    with serve() as source, serve() as target:
        root = image(source, LAYERS, "v1")
        report = run(source, target, text=root["digest"], to=root["digest"])
        assert report.digest == root["digest"]
        assert target.tags.get(OTHER, {}) == {}
        with pytest.raises(PinError, match="should become"):
            run(source, target, to="sha256:" + "0" * 64)


@pytest.mark.parametrize(("status", "mounted"), [(201, 5), (202, 0), (405, 0)])
def test_within_one_registry_blobs_are_mounted_where_it_can(status: int, mounted: int) -> None:
    with serve(mount=status) as server:
        root = image(server, LAYERS, "v1")
        report = run(server, server)
        assert (report.mounted, report.copied) == (mounted, 5 - mounted)
        assert server.tags[OTHER] == {"v2": root["digest"]}
        assert set(server.blobs[OTHER]) == set(server.blobs[REPO])


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 3), st.integers(0, 3), st.integers(1, 4000), st.booleans(), st.booleans())
def test_cuts_on_both_sides_are_survived(cuts: int, uploads: int, after: int, ranges: bool, forget: bool) -> None:
    kind = "yes" if ranges else "ignored"
    with (
        serve(cut_answers=cuts, cut_after=after, ranges=kind) as source,
        serve(cut_uploads=uploads, cut_after=after, forget_uploads=int(forget), monolithic=405) as target,
    ):
        image(source, LAYERS, "v1")
        run(source, target)
        assert target.blobs[OTHER] == source.blobs[REPO]


def test_wrong_bytes_at_the_source_leave_no_tag() -> None:
    with serve() as source, serve() as target:
        root = image(source, LAYERS, "v1")
        spoiled = "sha256:" + hashlib.sha256(LAYERS[3]).hexdigest()
        source.quirks.spoil = {spoiled}
        with pytest.raises(PinError, match=spoiled):
            run(source, target)
        assert (target.tags.get(OTHER, {}), target.manifests.get(OTHER, {})) == ({}, {})
        assert spoiled not in target.blobs[OTHER]
        source.quirks.spoil = set()
        report = run(source, target)
        assert (report.digest, report.present) == (root["digest"], 4)


@pytest.mark.parametrize("ranges", ["yes", "ignored"])
def test_a_flow_gives_any_part_again_and_checks_the_whole(ranges: str) -> None:
    with serve(ranges=ranges) as source:
        data = LAYERS[1]
        digest = source.put(REPO, data)
        for spoiled in (False, True):
            source.quirks.spoil = {digest} if spoiled else set()
            flow = Flow(client(source.host), REPO, Descriptor("x", digest, len(data)))
            parts = [flow.open_at(0).read(2000), flow.open_at(1000).read(500), flow.open_at(1500).read(1500)]
            assert [part[1:] for part in parts] == [data[1:2000], data[1001:1500], data[1501 : 1500 + len(parts[2])]]
            rest = flow.open_at(1500 + len(parts[2]))
            if spoiled:
                with pytest.raises(PinError, match="other bytes"):
                    list(iter(lambda: rest.read(1000), b""))  # noqa: B023 - read at once
            else:
                assert b"".join(iter(lambda: rest.read(1000), b"")) == data[1500 + len(parts[2]) :]  # noqa: B023
            flow.close()


def test_a_source_that_stays_down_is_the_one_that_is_named() -> None:
    with serve() as source, serve() as target:
        image(source, LAYERS, "v1")
        source.quirks.cut_answers, source.quirks.cut_after = 1000, 0
        with pytest.raises(UnreachableError, match=f"{source.host}/{REPO}"):
            run(source, target)


def test_the_budget_counts_both_directions_and_comes_first() -> None:
    with serve() as source, serve() as target:
        image(source, LAYERS, "v1")
        with pytest.raises(PolicyError, match="copying"):
            run(source, target, options={"traffic": Traffic(max_bytes=30_000)})
        assert target.calls("POST") == []
        run(source, target, options={"traffic": Traffic(max_bytes=60_000)})


def test_foreign_layers_are_not_copied() -> None:
    with serve() as source, serve() as target:
        image(source, LAYERS, "v1", kind="application/vnd.docker.image.rootfs.foreign.diff.tar.gzip")
        with pytest.raises(UsageError, match="foreign"):
            run(source, target)
        assert target.seen == []


@pytest.mark.parametrize("change", [{"size": 7}, {"digest": "sha256:../x"}, {"mediaType": "text/plain"}])
def test_an_index_that_lies_is_refused(change: dict[str, Any]) -> None:
    with serve() as source, serve() as target:
        child = {**image(source, LAYERS), **change}
        store(source, {"schemaVersion": 2, "mediaType": OCI.index, "manifests": [child]}, "v1")
        with pytest.raises(GraftworkError):
            run(source, target)
        assert target.seen == []


def test_an_index_that_is_too_deep_is_refused() -> None:
    with serve() as source, serve() as target:
        entry = image(source, LAYERS)
        for depth in range(6):
            entry = store(source, {"schemaVersion": 2, "mediaType": OCI.index, "manifests": [entry]}, f"d{depth}")
        assert run(source, target, text="d2").manifests == 4
        with pytest.raises(UsageError, match="levels"):
            run(source, target, text="d5")


def test_another_run_goes_on_with_an_unfinished_blob(tmp_path: Path) -> None:
    data = bytes(range(256)) * 4096 * 140  # 140 MiB: more than two chunks
    state = tmp_path / "state" / "mirror.json"
    with serve() as source, serve() as target:
        image(source, [data], "v1")

        def stop(digest: str, done: int, size: int) -> None:
            if size == len(data) and done < size:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            run(source, target, state=state, progress=stop)
        assert state.stat().st_mode & 0o777 == 0o600
        traffic = Traffic()
        run(source, target, state=state, options={"traffic": traffic})
        assert traffic.bytes_out < len(data) - (60 << 20)
        assert target.blobs[OTHER] == source.blobs[REPO]
        assert not state.exists()


@pytest.mark.parametrize("content", ["", "{", "[]", '{"a": 1}'])
def test_a_broken_state_file_only_costs_the_resumption(tmp_path: Path, content: str) -> None:
    (tmp_path / "state.json").write_text(content)
    with serve() as source, serve() as target:
        image(source, LAYERS, "v1")
        assert run(source, target, state=tmp_path / "state.json").copied == 5


@pytest.mark.registry
@pytest.mark.oci
def test_from_one_real_registry_to_another(tmp_path: Path) -> None:
    if shutil.which("skopeo") is None:
        pytest.skip("skopeo is not installed: scripts/install-services")
    with (
        serve() as made,
        running(tmp_path / "one") as one,
        running(tmp_path / "two") as two,
    ):
        root = image(made, [*LAYERS, bytes(9 << 20)], "v1")
        start = ImageRef.parse(f"{made.host}/{REPO}:v1")
        middle, end = ImageRef.parse(f"{one}/{REPO}:v1"), ImageRef.parse(f"{two}/{OTHER}:v2")
        mirror(client(made.host), start, client(one), middle)
        assert mirror(client(one), middle, client(two), end).digest == root["digest"]
        raw = subprocess.run(
            ["skopeo", "inspect", "--raw", "--tls-verify=false", f"docker://{end}"], capture_output=True, check=True
        )
        assert raw.stdout == made.manifests[REPO][root["digest"]][1]


@pytest.mark.registry
def test_a_large_layer_needs_little_memory(tmp_path: Path) -> None:
    size = 300 << 20
    program = f"""
import hashlib, resource, sys
from graftwork.images.mirror import mirror
from graftwork.oci.flow import Flow
from graftwork.oci.model import Descriptor
from graftwork.oci.reference import ImageRef
from graftwork.oci.registry import Registry
from graftwork.oci.transport import Transport
start, end = (ImageRef.parse(text) for text in sys.argv[1:])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
report = mirror(Registry(Transport(start.registry)), start, Registry(Transport(end.registry)), end)
assert report.moved > {size}, report
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    with running(tmp_path / "one") as one, running(tmp_path / "two") as two, serve() as made:
        image(made, [bytes(size)], "v1")
        start, end = ImageRef.parse(f"{made.host}/{REPO}:v1"), ImageRef.parse(f"{one}/{REPO}:v1")
        mirror(client(made.host), start, client(one), end)
        done = subprocess.run(
            [sys.executable, "-c", program, str(end), f"{two}/{OTHER}:v1"], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        assert int(done.stdout) < 60 << 10  # KiB
