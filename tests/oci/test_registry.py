"""Reading from registries: what is checked, what is tried again, and what is said when it fails."""

from __future__ import annotations

import json
import socket
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oci.quirky import Quirky, serve

from graftwork.errors import PinError, PolicyError, UnreachableError, UsageError
from graftwork.oci.credentials import Credential
from graftwork.oci.errors import AccessError, NotFoundError, RangesRefusedError, RegistryError
from graftwork.oci.families import DOCKER, OCI
from graftwork.oci.registry import Registry, RepositoryBlobs
from graftwork.oci.traffic import Patience, Traffic
from graftwork.oci.transport import Transport

REPO = "team/engine"
DATA = bytes(range(256)) * 64


@pytest.fixture(autouse=True)
def no_credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("REGISTRY_AUTH_FILE", str(tmp_path / "none.json"))


def client(registry: Quirky, waits: list[float] | None = None, **more: Any) -> Registry:
    seen = [] if waits is None else waits
    patience = more.pop("patience", Patience(tries=4, backoff=0.0, connect=2, read=5, commit=5))
    return Registry(Transport(registry.host, patience=patience, sleep=seen.append, **more))


def store(registry: Quirky, tag: str = "v1", family: Any = OCI, **extra: Any) -> str:
    config = registry.put(REPO, b"{}")
    layer = registry.put(REPO, DATA)
    data = {
        "schemaVersion": 2,
        "mediaType": family.manifest,
        "config": {"mediaType": family.config, "digest": config, "size": 2},
        "layers": [{"mediaType": family.layer_gzip, "digest": layer, "size": len(DATA)}],
        **extra,
    }
    raw = json.dumps(data, indent=3).encode()
    import hashlib

    digest = "sha256:" + hashlib.sha256(raw).hexdigest()
    registry.manifests.setdefault(REPO, {})[digest] = (family.manifest, raw)
    registry.tags.setdefault(REPO, {})[tag] = digest
    return digest


# Manifests


@pytest.mark.parametrize("family", [OCI, DOCKER])
def test_a_manifest_by_tag_and_by_digest_keeps_its_bytes(family: Any) -> None:
    with serve() as server, client(server) as registry:
        digest = store(server, family=family, unknown={"kept": 1})
        for reference in ("v1", digest):
            found = registry.manifest(REPO, reference)
            assert found.raw == server.manifests[REPO][digest][1]
            assert (found.digest, found.family, found.media_type) == (digest, family, family.manifest)
        assert registry.find_manifest(REPO, "v1") == found.descriptor()
        assert all(kind in server.calls("GET", "manifests")[0].headers["Accept"] for kind in (OCI.index, DOCKER.index))


def test_an_absent_manifest_is_named() -> None:
    with serve() as server, client(server) as registry:
        with pytest.raises(NotFoundError, match=f"{server.host}/{REPO}:v9.*404.*MANIFEST_UNKNOWN") as caught:
            registry.manifest(REPO, "v9")
        assert (caught.value.exit_code, caught.value.codes, caught.value.method) == (6, ("MANIFEST_UNKNOWN",), "GET")
        assert registry.find_manifest(REPO, "v9") is None


def test_a_manifest_with_other_bytes_is_refused() -> None:
    with serve() as server, client(server) as registry:
        digest = store(server)
        server.quirks.spoil = {digest}
        with pytest.raises(PinError, match=digest):
            registry.manifest(REPO, digest)
        with pytest.raises(PinError, match="Docker-Content-Digest"):
            registry.manifest(REPO, "v1")
        server.quirks.digest_header = "missing"
        with pytest.raises(PinError, match=digest):
            registry.manifest(REPO, digest)


def test_docker_content_digest_may_be_missing_but_not_wrong() -> None:
    with serve(digest_header="missing") as server, client(server) as registry:
        digest = store(server)
        assert registry.manifest(REPO, "v1").digest == digest
        found = registry.find_manifest(REPO, "v1")
        assert found is not None and found.digest == digest
        server.quirks.digest_header = "wrong"
        for ask in (registry.manifest, registry.find_manifest):
            with pytest.raises(PinError, match="0000"):
                ask(REPO, digest)


def test_without_head_a_get_tells() -> None:
    with serve(head=False) as server, client(server) as registry:
        digest = store(server)
        found = registry.find_manifest(REPO, "v1")
        assert found is not None and found.digest == digest
        assert registry.find_manifest(REPO, "v2") is None
        layer = server.put(REPO, DATA)
        assert registry.find_blob(REPO, layer)
        assert not registry.find_blob(REPO, "sha256:" + "0" * 64)


def test_a_refused_head_says_that_it_has_no_body() -> None:
    with serve(auth="basic", user=("u", "p")) as server, pytest.raises(AccessError, match="HEAD has no body"):
        client(server).find_manifest(REPO, "v1")


def test_schema_1_is_refused_whatever_was_asked_for() -> None:
    with serve(schema_1=True, digest_header="missing") as server, client(server) as registry:
        store(server)
        with pytest.raises(UsageError, match="schema 1"):
            registry.manifest(REPO, "v1")


def test_a_manifest_of_another_type_than_it_says_is_refused() -> None:
    with serve(content_type=DOCKER.index) as server, client(server) as registry:
        store(server)
        with pytest.raises(UsageError, match="was served as"):
            registry.manifest(REPO, "v1")
        server.quirks.content_type = "application/octet-stream"
        assert registry.manifest(REPO, "v1").media_type == OCI.manifest


def test_tags_come_page_by_page() -> None:
    with serve(page=2) as server, client(server) as registry:
        for number in range(5):
            store(server, f"v{number}")
        assert list(registry.tags(REPO)) == [f"v{number}" for number in range(5)]
        assert len(server.calls("GET", "tags")) == 3
        server.tags[REPO] = {}
        assert list(registry.tags(REPO)) == []


# Blobs


def test_a_blob_is_streamed_and_checked() -> None:
    with serve() as server, client(server) as registry:
        digest = server.put(REPO, DATA)
        with registry.open_blob(REPO, digest, len(DATA)) as stream:
            assert b"".join(iter(lambda: stream.read(1000), b"")) == DATA
        assert registry.transport.traffic.bytes_in == len(DATA) + 2  # and the ping's


@pytest.mark.parametrize("times", [1, 3, 12])
def test_a_cut_blob_goes_on_where_it_stopped(times: int) -> None:
    with serve(cut_answers=times, cut_after=1000) as server, client(server) as registry:
        digest = server.put(REPO, DATA)
        with registry.open_blob(REPO, digest, len(DATA)) as stream:
            assert stream.read() == DATA
        ranges = [seen.headers.get("Range") for seen in server.calls("GET", "/blobs/")]
        assert ranges[:2] == [None, f"bytes=1000-{len(DATA) - 1}"]
        assert len(ranges) == times + 1


def test_a_cut_blob_is_read_again_where_ranges_are_ignored() -> None:
    with serve(cut_answers=2, cut_after=1000, ranges="ignored") as server, client(server) as registry:
        digest = server.put(REPO, DATA)
        with registry.open_blob(REPO, digest, len(DATA)) as stream:
            assert stream.read() == DATA


def test_cuts_without_headway_end() -> None:
    with serve(cut_answers=1000, cut_after=0) as server, client(server) as registry:
        digest = server.put(REPO, DATA)
        with pytest.raises(UnreachableError, match="at byte 0") as caught:
            registry.open_blob(REPO, digest, len(DATA)).read()
        assert caught.value.exit_code == 6


def test_wrong_bytes_are_refused_before_the_last_of_them_is_given() -> None:
    with serve() as server, client(server) as registry:
        digest = server.put(REPO, DATA)
        server.quirks.spoil = {digest}
        got = []
        with pytest.raises(PinError, match=digest), registry.open_blob(REPO, digest, len(DATA)) as stream:
            while True:
                got.append(stream.read(1000))
        assert len(b"".join(got)) < len(DATA)


@pytest.mark.parametrize("size", [len(DATA) - 1, len(DATA) + 1])
def test_a_blob_of_another_size_is_refused(size: int) -> None:
    with serve() as server, client(server) as registry:
        digest = server.put(REPO, DATA)
        with pytest.raises(PinError, match=f"{len(DATA)} bytes .* {size}"):
            registry.open_blob(REPO, digest, size)


def test_an_empty_blob() -> None:
    with serve() as server, client(server) as registry:
        digest = server.put(REPO, b"")
        assert registry.open_blob(REPO, digest, 0).read() == b""
        with pytest.raises(PinError, match="other bytes"):
            registry.open_blob(REPO, "sha256:" + "0" * 64, 0)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, len(DATA) - 1), st.integers(1, 4000), st.integers(0, 2))
def test_any_range_is_that_slice(start: int, length: int, cuts: int) -> None:
    with serve(cut_answers=cuts, cut_after=700) as server, client(server) as registry:
        digest = server.put(REPO, DATA)
        expected = DATA[start : start + length]
        assert registry.blob_range(REPO, digest, len(DATA), start, start + length) == expected
        assert RepositoryBlobs(registry, REPO).range(digest, start, start + length) == expected


@pytest.mark.parametrize("ranges", ["wrong", "short"])
def test_another_range_than_the_one_asked_for_is_refused(ranges: str) -> None:
    with serve(ranges=ranges) as server, client(server) as registry:
        digest = server.put(REPO, DATA)
        with pytest.raises(RegistryError, match="asked for bytes 10-19, got"):
            registry.blob_range(REPO, digest, len(DATA), 10, 20)


def test_a_whole_answer_to_a_range_is_reported_and_not_read() -> None:
    with serve(ranges="ignored") as server, client(server) as registry:
        digest = server.put(REPO, DATA * 100)
        with pytest.raises(RangesRefusedError):
            registry.blob_range(REPO, digest, len(DATA) * 100, 10, 20)
        assert registry.transport.traffic.bytes_in < 100


def test_a_redirected_blob_takes_the_range_but_no_credentials() -> None:
    with serve() as storage, serve(auth="basic", user=("u", "p"), redirect_to=storage.url) as server:
        digest = server.put(REPO, DATA)
        storage.put("any", DATA)
        registry = client(server, credential=Credential("u", "p"))
        assert registry.blob_range(REPO, digest, len(DATA), 5, 9) == DATA[5:9]
        assert registry.open_blob(REPO, digest, len(DATA)).read() == DATA
        assert "Authorization" in server.calls("GET", "/blobs/")[-1].headers
        assert [("Authorization" in seen.headers, seen.headers.get("Range")) for seen in storage.seen] == [
            (False, "bytes=5-8"),
            (False, None),
        ]


def test_messages_have_no_query_of_a_redirect() -> None:
    with serve() as storage, serve(redirect_to=storage.url) as server, client(server) as registry:
        digest = server.put(REPO, DATA)
        with pytest.raises(NotFoundError) as caught:
            registry.open_blob(REPO, digest, len(DATA))
        assert "elsewhere" in str(caught.value)
        assert "very-secret" not in f"{caught.value!r} {caught.value.hint} {caught.value.url}"


@pytest.mark.parametrize("target", ["http://registry.example/x", "ftp://127.0.0.1/x", "file:///etc/passwd"])
def test_a_redirect_to_something_unsafe_is_not_followed(target: str) -> None:
    with serve(redirect_to=target) as server, client(server) as registry:
        digest = server.put(REPO, DATA)
        with pytest.raises(RegistryError, match="sends us to"):
            registry.open_blob(REPO, digest, len(DATA))


@pytest.mark.parametrize("digest", ["sha256:../../x", "sha256:" + "A" * 64, "md5:" + "0" * 32, "", "sha256:"])
def test_a_digest_that_is_none_never_reaches_a_url(digest: str) -> None:
    with serve() as server, client(server) as registry:
        for ask in (
            lambda: registry.open_blob(REPO, digest, 1),
            lambda: registry.find_blob(REPO, digest),
            lambda: registry.mount(REPO, digest, "x"),
        ):
            with pytest.raises(UsageError, match="not a digest"):
                ask()
        assert server.seen == []


# Waiting, trying again, giving up


def test_429_is_waited_for_as_long_as_the_registry_asks() -> None:
    waits: list[float] = []
    with serve(limited=2, retry_after="7") as server, client(server, waits) as registry:
        digest = server.put(REPO, DATA)
        assert registry.find_blob(REPO, digest)
    assert waits == [7.0, 7.0]


def test_a_retry_after_with_a_date() -> None:
    waits: list[float] = []
    with serve(limited=1, retry_after="Mon, 01 Jan 2001 00:00:00 GMT") as server, client(server, waits) as registry:
        assert not registry.find_blob(REPO, "sha256:" + "0" * 64)
    assert waits == [0.0]


def test_a_wait_of_hours_is_an_error_that_says_so() -> None:
    with serve(limited=1, retry_after="7200") as server, client(server) as registry:
        with pytest.raises(RegistryError, match="429") as caught:
            registry.find_blob(REPO, "sha256:" + "0" * 64)
        assert "7200 s" in caught.value.hint


@pytest.mark.parametrize(("failing", "ends_well"), [(3, True), (4, False)])
def test_5xx_is_tried_again_a_few_times(failing: int, ends_well: bool) -> None:
    waits: list[float] = []
    patience = Patience(tries=4, backoff=0.5)
    with serve() as server, client(server, waits, patience=patience) as registry:
        digest = server.put(REPO, DATA)
        registry.transport.connect()
        server.quirks.failing = failing
        if ends_well:
            assert registry.find_blob(REPO, digest)
        else:
            with pytest.raises(RegistryError, match="503"):
                registry.find_blob(REPO, digest)
    assert waits == [0.5, 1.0, 2.0]


def test_a_registry_that_is_down_is_unreachable() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        host = f"127.0.0.1:{held.getsockname()[1]}"
        registry = Registry(Transport(host, sleep=lambda seconds: None))
        with pytest.raises(UnreachableError, match=r"cannot reach http://127.0.0.1.*refused") as caught:
            registry.manifest(REPO, "v1")
        assert caught.value.exit_code == 6


def test_a_server_that_is_no_registry_says_so() -> None:
    with serve(ping=404) as server, pytest.raises(RegistryError, match=f"the registry {server.host}.*404"):
        client(server).manifest(REPO, "v1")


def test_plain_http_is_for_this_machine_only(monkeypatch: pytest.MonkeyPatch) -> None:
    urls: list[str] = []

    def exchange(self: Any, method: str, url: str, *rest: Any) -> Any:
        from graftwork.oci.wire import CutError

        urls.append(url)
        raise CutError("stop", before=True)

    monkeypatch.setattr("graftwork.oci.wire.Wire.exchange", exchange)
    with pytest.raises(UnreachableError):
        Transport("registry.example", sleep=lambda seconds: None).connect()
    assert {url.partition(":")[0] for url in urls} == {"https"}
    urls.clear()
    with pytest.raises(UnreachableError):
        Transport("registry.example", insecure=True, sleep=lambda seconds: None).connect()
    assert [url.partition(":")[0] for url in urls[:2]] == ["https", "http"]
    with pytest.raises(UsageError, match="not a registry"):
        Transport("registry.example/team")


def test_a_proxy_is_not_used_for_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    with serve() as server, client(server) as registry:
        assert not registry.find_blob(REPO, "sha256:" + "0" * 64)


def test_requests_carry_no_cookies_no_netrc_and_ask_for_the_bytes_as_they_are(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login somebody password secret\n")
    with serve() as server, client(server) as registry:
        digest = server.put(REPO, DATA)
        for _ in range(2):
            assert registry.find_blob(REPO, digest)
            assert registry.open_blob(REPO, digest, len(DATA)).read() == DATA
        for seen in server.seen:
            assert not {"Cookie", "Authorization"} & set(seen.headers)
            assert seen.headers["Accept-Encoding"] == "identity"


# The budget


def test_the_budget_is_checked_before_a_byte_moves() -> None:
    with serve() as server, client(server, traffic=Traffic(max_bytes=len(DATA))) as registry:
        digest = server.put(REPO, DATA)
        registry.transport.connect()
        before = len(server.seen)
        with pytest.raises(PolicyError, match=r"16,384 bytes .* budget is 16,384") as caught:
            registry.open_blob(REPO, digest, len(DATA))
        assert caught.value.exit_code == 8
        assert len(server.seen) == before
        assert registry.blob_range(REPO, digest, len(DATA), 0, 100) == DATA[:100]


def test_a_client_can_be_shared_by_threads() -> None:
    with serve(auth="bearer") as server, client(server) as registry:
        digests = [server.put(REPO, DATA + bytes([number])) for number in range(12)]
        found: list[bytes] = []

        def read(digest: str) -> None:
            found.append(registry.open_blob(REPO, digest, len(DATA) + 1).read())

        threads = [threading.Thread(target=read, args=(digest,)) for digest in digests]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert {data[-1] for data in found} == set(range(12))
        assert len(server.calls("GET", "/token")) == 1
        assert registry.transport.traffic.requests == len(server.seen)


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=300), st.sampled_from(["application/json", OCI.index, OCI.manifest, "text/html", ""]))
def test_any_answer_is_a_manifest_or_a_clear_error(raw: bytes, kind: str) -> None:
    from graftwork.oci.families import read_manifest

    with pytest.raises(UsageError, match="here"):
        read_manifest(raw, kind, "here")
