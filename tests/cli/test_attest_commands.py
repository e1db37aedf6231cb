"""SBOM, provenance and signature through the commands: beside the image, attached in the registry, verified by key."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import requests
from tiny import Store, Workshop

pytest.importorskip("cryptography", reason="the extra 'sign' is not installed: pip install graftwork[sign]")


def key_pair(folder: Path, name: str) -> tuple[Path, Path]:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    private, public = folder / f"{name}.key", folder / f"{name}.pub"
    private.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    public.write_bytes(
        key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    return private, public


def attached(store: Store, repository: str, digest: str) -> dict[str, Any]:
    """Artifact type -> payload of everything that refers to *digest*."""
    url = f"http://{store.host}/v2/{repository}"
    found = {}
    for row in requests.get(f"{url}/referrers/{digest}", timeout=10).json()["manifests"]:
        manifest = requests.get(f"{url}/manifests/{row['digest']}", timeout=10, headers={"Accept": "*/*"}).json()
        blob = requests.get(f"{url}/blobs/{manifest['layers'][0]['digest']}", timeout=10).content
        assert "sha256:" + hashlib.sha256(blob).hexdigest() == manifest["layers"][0]["digest"]
        assert manifest["subject"]["digest"] == digest
        found[row["artifactType"]] = json.loads(blob)
    return found


def test_documents_beside_the_image_and_attached_to_it(workshop: Workshop, store: Store, base: str) -> None:
    done = workshop.ok("push", "--base", base, "--to", f"{store.host}/team/toy:1")
    beside = {Path(name).name: json.loads(Path(name).read_bytes()) for name in done["documents"]}
    there = attached(store, "team/toy", done["grafted"])
    assert there == {
        "application/vnd.cyclonedx+json": beside["sbom.cdx.json"],
        "application/vnd.in-toto+json": beside["provenance.json"],
    }
    subjects = [row["digest"]["sha256"] for row in beside["provenance.json"]["subject"]]
    assert done["grafted"].partition(":")[2] in subjects
    (engine,) = [c for c in beside["sbom.cdx.json"]["components"] if c["name"] == "toy" and "pedigree" in c]
    (patch,) = engine["pedigree"]["patches"]
    assert "_toy_clip" in json.dumps(patch)
    again = workshop.ok("push", "--base", base, "--to", f"{store.host}/team/toy:1")
    assert attached(store, "team/toy", again["grafted"]) == there, "a second push attaches the same, not more"


def test_a_payload_has_documents_too_and_no_attest_leaves_them_out(workshop: Workshop, store: Store, base: str) -> None:
    alone = workshop.ok("image")
    assert [Path(name).name for name in alone["documents"]] == ["sbom.cdx.json", "provenance.json"]
    done = workshop.ok("push", "--base", base, "--to", f"{store.host}/team/toy:1", "--no-attest")
    assert done["documents"] == [] and attached(store, "team/toy", done["grafted"]) == {}


@dataclass(frozen=True)
class Keys:
    """Two pairs: ours, and a stranger's."""

    private: Path
    public: Path
    stranger: Path
    other: Path


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    return Keys(*key_pair(tmp_path, "ours"), *key_pair(tmp_path, "theirs"))


def test_signed_and_verified_by_key(workshop: Workshop, store: Store, base: str, keys: Keys) -> None:
    name = f"{store.host}/team/toy:1"
    unsigned = workshop.ok("push", "--base", base, "--to", name)
    assert "has no signature" in workshop.refused(4, "verify", "--image", name, "--key", keys.public)
    signed = workshop.ok("push", "--base", base, "--to", name, "--key", keys.private)
    assert signed["grafted"] == unsigned["grafted"], "a signature does not change the image"
    assert workshop.ok("verify", "--image", name, "--key", keys.public)["proved"] is True
    assert "is not signed by the key" in workshop.refused(4, "verify", "--image", name, "--key", keys.other)
    assert "application/vnd.dsse.envelope.v1+json" in attached(store, "team/toy", signed["grafted"])


def test_signed_provenance_is_where_cosign_looks_and_is_verified(
    workshop: Workshop, store: Store, base: str, keys: Keys
) -> None:
    name = f"{store.host}/team/toy:1"
    done = workshop.ok("push", "--base", base, "--to", name, "--key", keys.private)
    tags = f"http://{store.host}/v2/team/toy/manifests/{done['grafted'].replace(':', '-')}"
    (layer,) = requests.get(f"{tags}.att", timeout=10).json()["layers"]
    assert layer["mediaType"] == "application/vnd.dsse.envelope.v1+json"
    blob = requests.get(f"http://{store.host}/v2/team/toy/blobs/{layer['digest']}", timeout=10).content
    (beside,) = [Path(file) for file in done["documents"] if file.endswith(".dsse.json")]
    assert blob == beside.read_bytes()
    workshop.ok("push", "--base", base, "--to", name, "--key", keys.stranger)
    for one in (keys.public, keys.other):
        assert workshop.ok("verify", "--image", name, "--key", one)["proved"] is True
    assert len(requests.get(f"{tags}.att", timeout=10).json()["layers"]) == 2, "others' attestations are kept"


def test_an_image_that_is_signed_with_provenance_of_another_key(
    workshop: Workshop, store: Store, base: str, keys: Keys
) -> None:
    name = f"{store.host}/team/toy:1"
    workshop.ok("push", "--base", base, "--to", name, "--key", keys.private, "--no-attest")
    assert workshop.ok("verify", "--image", name, "--key", keys.public)["proved"] is True, (
        "signed, and nothing attested"
    )
    workshop.ok("push", "--base", base, "--to", name, "--key", keys.stranger)
    assert "has no provenance that the key" in workshop.refused(4, "verify", "--image", name, "--key", keys.public)


def test_keys_that_cannot_be_used(workshop: Workshop, store: Store, base: str, tmp_path: Path) -> None:
    name = f"{store.host}/team/toy:1"
    assert "No such file" in workshop.refused(2, "push", "--base", base, "--to", name, "--key", tmp_path / "none")
    (tmp_path / "bad").write_text("not a key")
    assert "bad" in workshop.refused(2, "push", "--base", base, "--to", name, "--key", tmp_path / "bad")
    absent = requests.get(f"http://{store.host}/v2/team/toy/manifests/1", timeout=10)
    assert absent.status_code == 404, "a key is read before anything is pushed"


def test_the_tag_is_written_when_the_documents_are_there(
    workshop: Workshop, store: Store, base: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from graftwork.errors import UnreachableError
    from graftwork.images import attest

    def cut(*_: object) -> int:
        raise UnreachableError("the registry went away")

    with monkeypatch.context() as broken:
        broken.setattr(attest, "attach", cut)
        assert "went away" in workshop.refused(6, "push", "--base", base, "--to", f"{store.host}/team/toy:1")
    url = f"http://{store.host}/v2/team/toy/manifests/1"
    assert requests.get(url, timeout=10).status_code == 404
    done = workshop.ok("push", "--base", base, "--to", f"{store.host}/team/toy:1")
    assert len(attached(store, "team/toy", done["grafted"])) == 2
    assert requests.get(url, timeout=10).status_code == 200
