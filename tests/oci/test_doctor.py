"""The doctor finds each quirk that is there, none that is not, and leaves nothing that it could remove."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from oci.debian_registry import running
from oci.quirky import Quirky, serve

from graftwork.errors import UnreachableError
from graftwork.images.doctor import Examination, examine
from graftwork.oci.errors import AccessError
from graftwork.oci.registry import Registry
from graftwork.oci.traffic import Patience
from graftwork.oci.transport import Transport

REPO = "team/probe"


@pytest.fixture(autouse=True)
def no_credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("REGISTRY_AUTH_FILE", str(tmp_path / "none.json"))


def run(host: str) -> Examination:
    patience = Patience(tries=3, backoff=0.0, connect=2, read=10)
    with Registry(Transport(host, patience=patience, sleep=lambda seconds: None)) as registry:
        return examine(registry, REPO)


def verdicts(found: Examination) -> dict[str, str]:
    return {finding.name: finding.verdict for finding in found.findings}


def rest(server: Quirky) -> list[Any]:
    return [
        *(blobs for blobs in server.blobs.values() if blobs),
        *(found for found in server.manifests.values() if found),
    ]


def test_a_registry_without_quirks_can_do_everything() -> None:
    with serve() as server:
        found = run(server.host)
        answers = verdicts(found)
        resume = answers.pop("resume a cut chunk")
        assert set(answers.values()) == {"yes"}, found
        assert resume == "no"  # this registry only counts a chunk when it is whole
        assert (found.left, rest(server), server.uploads) == ([], [], {})


@pytest.mark.parametrize(
    ("quirks", "name", "says"),
    [
        ({"monolithic": 400}, "upload in one request", "400"),
        ({"streamed": 405}, "upload as one stream", "405"),
        ({"chunked": 400}, "upload in chunks", "400"),
        ({"upload_range": "zero"}, "upload in chunks", "stands still"),
        ({"ranges": "ignored"}, "ranged reads", "whole blob"),
        ({"ranges": "wrong"}, "ranged reads", "asked for bytes"),
        ({"mount": 202}, "mount across repositories", "upload instead"),
        ({"mount": 405}, "mount across repositories", "405"),
        ({"head": False}, "HEAD of manifests", "GET was needed"),
        ({"digest_header": "missing"}, "HEAD of manifests", "GET was needed"),
        ({"referrers": False}, "referrers API", "404"),
        ({"delete": False}, "delete manifests", "405"),
        ({"delete": False}, "delete blobs", "405"),
    ],
)
def test_each_quirk_is_found_and_no_other(quirks: dict[str, Any], name: str, says: str) -> None:
    with serve(**quirks) as server:
        found = run(server.host)
    details = {finding.name: finding.detail for finding in found.findings}
    assert verdicts(found)[name] == "no"
    assert says in details[name]
    expected = {name, "resume a cut chunk", *(["delete manifests", "delete blobs"] if "delete" in quirks else [])}
    assert {key for key, verdict in verdicts(found).items() if verdict != "yes"} == expected


def test_what_could_not_be_removed_is_named() -> None:
    with serve(delete=False) as server:
        found = run(server.host)
        blobs = {f"{server.host}/{name}@{digest}" for name, blobs in server.blobs.items() for digest in blobs}
        manifests = {f"{server.host}/{REPO}@{digest}" for digest in server.manifests[REPO]}
        assert set(found.left) == blobs | manifests


def test_a_least_size_of_chunks_is_kept_to_or_not_tried() -> None:
    with serve(min_chunk=200_000) as server:
        found = run(server.host)
        detail = next(finding.detail for finding in found.findings if finding.name == "upload in chunks")
        assert "200,000" in detail and verdicts(found)["upload in chunks"] == "yes"
        server.quirks.min_chunk = 1 << 30
        assert verdicts(run(server.host))["upload in chunks"] == "unclear"


def test_a_registry_that_takes_no_push_is_an_error() -> None:
    with serve(auth="basic", user=("u", "p")) as server, pytest.raises(AccessError):
        run(server.host)
    with pytest.raises(UnreachableError):
        run("127.0.0.1:1")


@pytest.mark.registry
@pytest.mark.parametrize("delete", [True, False])
def test_the_real_registry(tmp_path: Path, delete: bool) -> None:
    with running(tmp_path / "registry", delete=delete) as host:
        found = run(host)
        answers = verdicts(found)
        assert answers.pop("resume a cut chunk") in ("no", "unclear")
        no = {name for name, verdict in answers.items() if verdict != "yes"}
        assert no == {"referrers API", *([] if delete else ["delete manifests", "delete blobs"])}, found
        assert bool(found.left) is not delete
