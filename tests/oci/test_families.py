"""Documents of both families: kept byte for byte, and refused where they are old, foreign or ambiguous."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graftwork.errors import PinError, UsageError
from graftwork.oci.families import (
    DOCKER,
    OCI,
    check_bytes,
    check_digest,
    check_layers,
    read_config,
    read_manifest,
    refuse_foreign,
)
from graftwork.oci.model import Descriptor, sha256_digest

SHA = "sha256:" + "0" * 64


def manifest(layer_type: str, **extra: Any) -> bytes:
    config = {"mediaType": OCI.config, "digest": SHA, "size": 2}
    layer = {"mediaType": layer_type, "digest": SHA, "size": 3, "urls": ["kept"]}
    return json.dumps({"schemaVersion": 2, "config": config, "layers": [layer], **extra}).encode()


@pytest.mark.parametrize("family", [OCI, DOCKER])
def test_the_family_is_the_type_s_and_each_compression_is_known(family: Any) -> None:
    for kind in (family.layer_tar, family.layer_gzip, family.layer_zstd):
        found = read_manifest(manifest(kind, mediaType=family.manifest), family.manifest, "here")
        check_layers(found, "here")
        assert (found.family, found.is_index) == (family, False)
        assert found.layers == [Descriptor(kind, SHA, 3)]
    index = read_manifest(json.dumps({"mediaType": family.index, "manifests": []}).encode(), "", "here")
    assert (index.family, index.is_index, index.manifests) == (family, True, [])


def test_a_document_without_a_type_is_known_by_its_shape() -> None:
    assert read_manifest(manifest(OCI.layer_gzip), "text/plain", "here").media_type == OCI.manifest
    assert read_manifest(b'{"manifests": []}', "", "here").media_type == OCI.index


def test_layers_of_both_families_may_be_mixed() -> None:
    found = read_manifest(manifest(DOCKER.layer_gzip, mediaType=OCI.manifest), OCI.manifest, "here")
    check_layers(found, "here")
    assert found.family is OCI


def test_a_rewrite_keeps_what_it_does_not_know() -> None:
    raw = manifest(OCI.layer_gzip, mediaType=OCI.manifest, unknown={"b": [1, None, 1.5], "a": "ü"})
    found = read_manifest(raw, OCI.manifest, "here")
    assert found.raw == raw
    changed = found.rewritten(annotations={"x": "y"}, config=None)
    expected = {**json.loads(raw), "annotations": {"x": "y"}}
    del expected["config"]
    assert json.loads(changed.raw) == changed.data == expected
    assert found.data == json.loads(raw)
    assert changed.digest == sha256_digest(changed.raw)
    assert found.rewritten().rewritten().raw == found.rewritten().raw


@pytest.mark.parametrize(
    ("raw", "media_type", "says"),
    [
        (b"{", "", "not a JSON document"),
        (b"[]", "", "not a JSON object"),
        (b"\xff", "", "not a JSON document"),
        (b'{"a": NaN}', "", "NaN"),
        (b'{"a": "\\ud800"}', "", "not a JSON document"),
        (b"[" * 100_000, "", "not a JSON document"),
        (b'{"layers": [], "layers": []}', "", "twice: layers"),
        (b'{"schemaVersion": 1}', "", "schema 1"),
        (b"{}", "application/vnd.docker.distribution.manifest.v1+prettyjws", "schema 1"),
        (b'{"manifests": [], "layers": []}', OCI.index, "at once"),
        (b'{"manifests": []}', OCI.manifest, "not an image manifest"),
        (b'{"layers": []}', OCI.index, "not an image manifest"),
        (b'{"mediaType": "x/y"}', "", "it says to be x/y"),
        (manifest(OCI.layer_gzip, mediaType=OCI.manifest), DOCKER.manifest, "was served as"),
    ],
)
def test_what_is_refused(raw: bytes, media_type: str, says: str) -> None:
    with pytest.raises(UsageError, match=f"here.*{says}"):
        read_manifest(raw, media_type, "here")


@pytest.mark.parametrize(
    "kind",
    [
        "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip",
        "application/vnd.oci.image.layer.nondistributable.v1.tar",
        "application/vnd.oci.image.layer.nondistributable.v1.tar+zstd",
    ],
)
def test_foreign_layers_are_refused(kind: str) -> None:
    found = read_manifest(manifest(kind), "", "here")
    for check in (check_layers, refuse_foreign):
        with pytest.raises(UsageError, match="layer 0 is foreign"):
            check(found, "here")


def test_other_layers_than_an_image_s() -> None:
    found = read_manifest(manifest("application/vnd.in-toto+json"), "", "here")
    refuse_foreign(found, "here")
    with pytest.raises(UsageError, match="unknown type"):
        check_layers(found, "here")


@pytest.mark.parametrize(
    "change", [{"size": -1}, {"size": "3"}, {"digest": None}, {"mediaType": 1}, {"annotations": {"a": 1}}]
)
def test_a_descriptor_that_is_none(change: dict[str, Any]) -> None:
    data = json.loads(manifest(OCI.layer_gzip))
    data["layers"][0] |= change
    with pytest.raises(UsageError, match="layer 0"):
        _ = read_manifest(json.dumps(data).encode(), "", "here").layers


def test_bytes_are_checked_against_size_and_digest() -> None:
    good = Descriptor("x", sha256_digest(b"abc"), 3)
    assert check_bytes(b"abc", good, "here") == b"abc"
    with pytest.raises(PinError, match="4 bytes, its descriptor says 3"):
        check_bytes(b"abcd", good, "here")
    with pytest.raises(PinError, match="here: the digest is"):
        check_bytes(b"abd", good, "here")
    assert check_digest(b"", "sha512:" + hashlib.sha512(b"").hexdigest(), "here") == b""
    with pytest.raises(UsageError, match="not a digest"):
        check_digest(b"", "sha1:" + "0" * 40, "here")


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)


@given(st.dictionaries(st.text(max_size=5), _json, max_size=5))
def test_any_configuration_survives_a_rewrite(data: dict[str, Any]) -> None:
    try:
        found = read_config(json.dumps(data).encode(), OCI.config, "here")
    except UsageError:
        assert "\\ud" in json.dumps(data)  # half a character: it has no UTF-8
        return
    assert json.loads(found.rewritten(new=1).raw) == {**data, "new": 1}
