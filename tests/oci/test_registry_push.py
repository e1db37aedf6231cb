"""Writing to registries: each way of uploading, each refusal of it, mounts, manifests and referrers."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oci.quirky import Quirky, serve

from graftwork.errors import PinError, PolicyError, UnreachableError, UsageError
from graftwork.oci.canonical import canonical_json
from graftwork.oci.credentials import Credential
from graftwork.oci.errors import AccessError, RegistryError
from graftwork.oci.families import OCI, Document
from graftwork.oci.referrers import attach, referrers
from graftwork.oci.registry import Registry
from graftwork.oci.traffic import Patience, Traffic
from graftwork.oci.transport import Transport

REPO, SOURCE = "team/engine", "team/base"
DATA = bytes(range(256)) * 40
DIGEST = "sha256:" + hashlib.sha256(DATA).hexdigest()
CHUNKS = {"small": 0, "chunk": 3000}


@pytest.fixture(autouse=True)
def no_credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("REGISTRY_AUTH_FILE", str(tmp_path / "none.json"))


def client(registry: Quirky, **more: Any) -> Registry:
    patience = Patience(tries=4, backoff=0.0, connect=2, read=5, commit=5)
    return Registry(Transport(registry.host, patience=patience, sleep=lambda seconds: None, **more))


def open_at(offset: int) -> io.BytesIO:
    file = io.BytesIO(DATA)
    file.seek(offset)
    return file


def push(registry: Registry, **more: Any) -> bool:
    return registry.push_blob(REPO, DIGEST, len(DATA), open_at, **more)


def ways(server: Quirky) -> str:
    """The uploads' requests by their first letters: P(OST), C(hunk), S(tream), G(ET), W(hole PUT), E(mpty PUT)."""
    letters = {"POST": "P", "GET": "G", "DELETE": "D"}
    found = ""
    for seen in server.calls(part="/blobs/uploads/"):
        if seen.method == "PATCH":
            found += "C" if "Content-Range" in seen.headers else "S"
        elif seen.method == "PUT":
            found += "E" if seen.headers["Content-Length"] == "0" else "W"
        else:
            found += letters[seen.method]
    return found


def document(data: dict[str, Any], media_type: str = OCI.manifest) -> Document:
    return Document(canonical_json(data), data, media_type)


def image(server: Quirky, **extra: Any) -> Document:
    config = server.put(REPO, b"{}")
    entry = {"mediaType": OCI.config, "digest": config, "size": 2}
    return document({"schemaVersion": 2, "mediaType": OCI.manifest, "config": entry, "layers": [], **extra})


# Ways of uploading


def test_a_small_blob_takes_two_requests_and_a_known_one_none() -> None:
    with serve() as server, client(server) as registry:
        assert push(registry)
        assert ways(server) == "PW"
        assert server.blobs[REPO][DIGEST] == DATA
        assert not push(registry)
        assert ways(server) == "PW"
        assert registry.transport.traffic.bytes_out == len(DATA)


def test_a_large_blob_goes_in_chunks_and_tells_how_far_it_is() -> None:
    done: list[tuple[int, int]] = []
    with serve() as server, client(server) as registry:
        assert push(registry, progress=lambda at, size: done.append((at, size)), **CHUNKS)
        assert ways(server) == "PCCCCE"
        assert server.blobs[REPO][DIGEST] == DATA
    assert done == [(3000, 10240), (6000, 10240), (9000, 10240), (10240, 10240)]


def test_an_empty_blob_is_uploaded() -> None:
    empty = "sha256:" + hashlib.sha256(b"").hexdigest()
    for more in ({}, CHUNKS):
        with serve() as server, client(server) as registry:
            registry.push_blob(REPO, empty, 0, lambda offset: io.BytesIO(), **more)
            assert server.blobs[REPO][empty] == b""


@pytest.mark.parametrize("location", ["relative", "query", "elsewhere"])
@pytest.mark.parametrize("more", [{}, CHUNKS])
def test_location_in_each_form(location: str, more: dict[str, int]) -> None:
    with serve(location=location, auth="bearer") as server, client(server) as registry:
        push(registry, **more)
        assert server.blobs[REPO][DIGEST] == DATA


@pytest.mark.parametrize(
    ("quirks", "more", "expected"),
    [
        ({"monolithic": 400}, {}, "PWDPSE"),  # atlan#2020
        ({"monolithic": 405, "streamed": 405}, {}, "PWDPSDPCE"),
        ({"chunked": 405}, CHUNKS, "PCDPSE"),
        ({"chunked": 400, "streamed": 400}, CHUNKS, "PCDPSDPW"),
        ({"upload_range": "zero"}, CHUNKS, "PCGDPSE"),
        ({"upload_range": "frozen"}, CHUNKS, "PCG"),  # dotnet/sdk#33019
        ({"upload_range": "stuck"}, CHUNKS, "PCGCGCGCGE"),
        ({"upload_range": "missing"}, CHUNKS, "PCCCCE"),
        ({"upload_range": "bytes"}, CHUNKS, "PCCCCE"),
        ({"min_chunk": 5000}, CHUNKS, "PCCCE"),
        ({"min_chunk": 1 << 40}, CHUNKS, "PCE"),
    ],
)
def test_a_registry_that_refuses_one_way_gets_another(quirks: Any, more: Any, expected: str) -> None:
    with serve(**quirks) as server, client(server) as registry:
        push(registry, **more)
        assert server.blobs[REPO][DIGEST] == DATA
        assert ways(server).startswith(expected)


def test_a_refused_way_is_tried_last_the_next_time() -> None:
    other = DATA[::-1]
    digest = "sha256:" + hashlib.sha256(other).hexdigest()
    with serve(monolithic=400) as server, client(server) as registry:
        push(registry)
        before = len(ways(server))
        registry.push_blob(REPO, digest, len(other), lambda offset: io.BytesIO(other[offset:]))
        assert ways(server)[before:] == "PSE"


def test_when_every_way_is_refused_the_registry_s_reason_is_shown() -> None:
    with serve(monolithic=400, streamed=400, chunked=400) as server, client(server) as registry:
        with pytest.raises(RegistryError, match="UNSUPPORTED") as caught:
            push(registry)
        assert caught.value.status == 400
        assert server.uploads == {}


def test_a_chunk_that_is_too_large_is_made_smaller() -> None:
    data = bytes(9 << 20)
    digest = "sha256:" + hashlib.sha256(data).hexdigest()
    with serve(largest_body=2 << 20) as server, client(server) as registry:
        registry.push_blob(REPO, digest, len(data), lambda offset: io.BytesIO(data[offset:]), small=0, chunk=8 << 20)
        assert server.blobs[REPO][digest] == data
        assert "W" not in ways(server) and "S" not in ways(server)


def test_bytes_that_are_not_the_digest_s_are_a_pin_error() -> None:
    for more in ({}, CHUNKS):
        with serve() as server, client(server) as registry:
            with pytest.raises(PinError, match="DIGEST_INVALID"):
                registry.push_blob(REPO, "sha256:" + "0" * 64, len(DATA), open_at, **more)
            assert server.blobs.get(REPO, {}) == {}


def test_a_source_that_is_too_short_is_not_taken_for_a_cut() -> None:
    for more in ({}, CHUNKS):
        with serve() as server, client(server) as registry, pytest.raises(UsageError, match="ended 1 bytes early"):
            registry.push_blob(REPO, DIGEST, len(DATA) + 1, open_at, **more)


def test_a_failing_source_is_named_and_not_the_registry() -> None:
    def broken(offset: int) -> io.BytesIO:
        raise UnreachableError("the source is down")

    for more in ({}, CHUNKS):
        with serve() as server, pytest.raises(UnreachableError, match=r"^the source is down$"):
            client(server).push_blob(REPO, DIGEST, len(DATA), broken, **more)


def test_the_budget_stops_an_upload_before_it_starts() -> None:
    with serve() as server, client(server, traffic=Traffic(max_bytes=10_000)) as registry:
        with pytest.raises(PolicyError, match="10,240 bytes"):
            push(registry)
        assert ways(server) == ""


# Cuts and other trouble on the way


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 6), st.integers(0, 2999), st.booleans(), st.integers(0, 1), st.integers(0, 1), st.booleans())
def test_an_upload_survives_cuts(cuts: int, after: int, chunked: bool, forget: int, lose: int, status: bool) -> None:
    cuts = cuts if chunked and after and status else min(cuts, 3)
    quirks = {"cut_uploads": cuts, "cut_after": after, "forget_uploads": forget, "lose_answers": lose}
    quirks["upload_status"] = 204 if status else 405
    with serve(**quirks) as server, client(server) as registry:
        push(registry, **(CHUNKS if chunked else {}))
        assert server.blobs[REPO] == {DIGEST: DATA}


def test_only_the_rest_of_a_cut_chunk_is_sent_again() -> None:
    with serve(cut_uploads=1, cut_after=2000) as server, client(server) as registry:
        push(registry, small=0, chunk=1 << 20)
        ranges = [seen.headers.get("Content-Range") for seen in server.calls("PATCH")]
        assert ranges == ["0-10239", "2000-10239"]


def test_cuts_without_end_are_given_up() -> None:
    for more in ({}, CHUNKS):
        with serve(cut_uploads=1000, cut_after=0) as server, client(server) as registry:
            with pytest.raises(UnreachableError, match="cut 4 times at byte 0"):
                push(registry, **more)
            assert server.blobs.get(REPO, {}) == {}


def test_an_upload_that_is_cut_and_forgotten_at_the_same_place_is_given_up() -> None:
    with serve(cut_beyond=7000) as server, client(server) as registry:
        with pytest.raises(UnreachableError, match="cut 4 times at byte 6000"):
            push(registry, **CHUNKS)
        assert ways(server).count("C") == 3 * 5


def test_an_upload_of_an_earlier_run_is_gone_on_with() -> None:
    places: list[str] = []
    with serve(cut_uploads=1000, cut_after=0) as server, client(server) as registry:
        server.quirks.cut_uploads = 0

        def stop(at: int, size: int) -> None:
            if at == 6000:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            push(registry, progress=stop, remember=places.append, **CHUNKS)
        before = registry.transport.traffic.bytes_out
        push(client(server, traffic=registry.transport.traffic), location=places[-1], **CHUNKS)
        assert server.blobs[REPO][DIGEST] == DATA
        assert registry.transport.traffic.bytes_out - before == len(DATA) - 6000


def test_an_upload_that_was_forgotten_meanwhile_starts_anew() -> None:
    with serve() as server, client(server) as registry:
        push(registry, location=f"{server.url}/v2/{REPO}/blobs/uploads/gone", **CHUNKS)
        assert ways(server) == "GPCCCCE"


def test_5xx_in_the_middle_of_an_upload() -> None:
    for more in ({}, CHUNKS):
        with serve(failing=2, failing_methods="PATCH PUT") as server, client(server) as registry:
            push(registry, **more)
            assert server.blobs[REPO][DIGEST] == DATA


def test_429_in_the_middle_of_an_upload_sends_the_body_again() -> None:
    with serve() as server, client(server) as registry:
        started: list[int] = []

        def limit(at: int, size: int) -> None:
            if not started:
                started.append(at)
                server.quirks.limited = 2

        push(registry, progress=limit, **CHUNKS)
        assert server.blobs[REPO][DIGEST] == DATA


@pytest.mark.parametrize("uses", [1, 2, 3])
def test_a_token_that_expires_in_the_middle_of_an_upload_is_renewed(uses: int) -> None:
    with serve(auth="bearer", token_uses=uses) as server, client(server) as registry:
        push(registry, **CHUNKS)
        assert server.blobs[REPO][DIGEST] == DATA
        assert len(server.calls("GET", "/token")) >= 3


# Mounts


def test_a_mount_moves_no_bytes_and_asks_for_both_scopes() -> None:
    with serve(auth="bearer", mount_needs_source_scope=True) as server, client(server) as registry:
        digest = server.put(SOURCE, DATA)
        assert registry.mount(REPO, digest, SOURCE).mounted
        assert server.blobs[REPO][digest] == DATA
        token = server.calls("GET", "/token")[-1].path
        assert "team%2Fbase%3Apull&" in token and "team%2Fengine%3Apull%2Cpush" in token
        assert "origin" not in server.calls("POST")[-1].path
        assert (registry.transport.traffic.bytes_out, len(server.calls("POST"))) == (0, 1)


@pytest.mark.parametrize("status", [202, 400, 401, 405])
def test_a_mount_that_is_refused_is_an_answer_and_leaves_no_upload(status: int) -> None:
    with serve(mount=status) as server, client(server) as registry:
        digest = server.put(SOURCE, DATA)
        found = registry.mount(REPO, digest, SOURCE)
        assert (found.mounted, found.status) == (False, status)
        assert found.reason
        assert server.uploads == {}
        assert push(registry)


def test_a_token_without_the_source_s_scope_cannot_mount() -> None:
    with serve(auth="bearer", mount_needs_source_scope=True, withheld={SOURCE}) as server, client(server) as registry:
        digest = server.put(SOURCE, DATA)
        found = registry.mount(REPO, digest, SOURCE)
        assert (found.mounted, found.status) == (False, 202)
        assert server.uploads == {}


def test_a_mount_of_a_blob_that_the_source_lacks() -> None:
    with serve() as server, client(server) as registry:
        assert registry.mount(REPO, "sha256:" + "0" * 64, SOURCE).status == 202


def test_an_outage_is_not_taken_for_a_refused_mount() -> None:
    with serve(failing=100, failing_methods="POST") as server, pytest.raises(RegistryError, match="503"):
        client(server).mount(REPO, DIGEST, SOURCE)


# Manifests


def test_a_manifest_is_stored_byte_for_byte_under_tag_and_digest() -> None:
    with serve() as server, client(server) as registry:
        found = image(server, extra={"kept": True})
        registry.put_manifest(REPO, found, "v1")
        registry.put_manifest(REPO, found)
        assert server.manifests[REPO] == {found.digest: (OCI.manifest, found.raw)}
        assert server.tags[REPO] == {"v1": found.digest}


def test_a_manifest_whose_answer_is_lost_is_stored_again() -> None:
    with serve(lose_answers=1) as server, client(server) as registry:
        found = image(server)
        registry.put_manifest(REPO, found, "v1")
        assert len(server.calls("PUT", "manifests")) == 2
        assert registry.manifest(REPO, "v1").raw == found.raw


def test_a_registry_that_stores_something_else_is_found_out() -> None:
    with serve(digest_header="wrong") as server, pytest.raises(PinError, match="Docker-Content-Digest"):
        client(server).put_manifest(REPO, image(server), "v1")


def test_a_manifest_whose_blobs_are_missing_leaves_no_tag() -> None:
    with serve() as server, client(server) as registry:
        found = image(server)
        server.blobs[REPO].clear()
        with pytest.raises(RegistryError, match="MANIFEST_BLOB_UNKNOWN"):
            registry.put_manifest(REPO, found, "v1")
        assert server.tags.get(REPO, {}) == {}


def test_deleting() -> None:
    with serve() as server, client(server) as registry:
        found = image(server)
        registry.put_manifest(REPO, found)
        registry.delete_manifest(REPO, found.digest)
        registry.delete_blob(REPO, server.put(REPO, DATA))
        assert server.manifests[REPO] == {}
        server.quirks.delete = False
        with pytest.raises(RegistryError, match="405"):
            registry.delete_manifest(REPO, found.digest)


# Referrers


@pytest.mark.parametrize("native", [True, False])
def test_what_is_attached_is_found_from_its_subject(native: bool) -> None:
    with serve(referrers=native) as server, client(server) as registry:
        subject = image(server)
        registry.put_manifest(REPO, subject, "v1")
        assert referrers(registry, REPO, subject.digest) == []
        entry = {"mediaType": OCI.manifest, "digest": subject.digest, "size": len(subject.raw)}
        made = [
            image(server, subject=entry, artifactType=f"application/x.{number}", annotations={"n": str(number)})
            for number in range(3)
        ]
        for item in [*made, made[0]]:
            assert attach(registry, REPO, item) is native
        found = referrers(registry, REPO, subject.digest)
        assert sorted(item["digest"] for item in found) == sorted(item.digest for item in made)
        one = referrers(registry, REPO, subject.digest, "application/x.1")
        assert [item["digest"] for item in one] == [made[1].digest]
        fallback = "sha256-" + subject.digest.partition(":")[2]
        assert (fallback in server.tags[REPO]) is not native
        if not native:
            assert one[0]["annotations"] == {"n": "1"}


@pytest.mark.parametrize("native", [True, False])
def test_several_are_attached_with_one_list(native: bool) -> None:
    with serve(referrers=native) as server, client(server) as registry:
        subject, other = image(server), image(server, annotations={"other": "1"})
        entry = {"mediaType": OCI.manifest, "digest": subject.digest, "size": len(subject.raw)}
        made = [image(server, subject=entry, artifactType=f"application/x.{number}") for number in range(3)]
        assert attach(registry, REPO, *made) is native
        assert len(server.calls("PUT", "/manifests/sha256-")) == (0 if native else 1)
        found = referrers(registry, REPO, subject.digest)
        assert sorted(item["digest"] for item in found) == sorted(item.digest for item in made)
        mixed = image(server, subject={**entry, "digest": other.digest})
        with pytest.raises(UsageError, match="cannot be attached as one"):
            attach(registry, REPO, made[0], mixed)


def test_a_manifest_without_a_subject_is_not_attached() -> None:
    with serve() as server, client(server) as registry, pytest.raises(UsageError, match="no subject"):
        attach(registry, REPO, image(server))


def test_a_tag_that_only_looks_like_a_list_of_referrers_is_not_overwritten() -> None:
    with serve(referrers=False) as server, client(server) as registry:
        subject = image(server)
        tag = "sha256-" + subject.digest.partition(":")[2]
        registry.put_manifest(REPO, subject, tag)
        with pytest.raises(UsageError, match="no list of referrers"):
            referrers(registry, REPO, subject.digest)


def test_wrong_credentials_say_how_to_log_in() -> None:
    with serve(auth="bearer", user=("u", "right")) as server:
        registry = client(server, credential=Credential("u", "wrong-password"))
        with pytest.raises(AccessError, match="401") as caught:
            push(registry)
        assert f"docker login {server.host}" in caught.value.hint
        assert "wrong-password" not in f"{caught.value!r}{caught.value.hint}{vars(caught.value)}"
