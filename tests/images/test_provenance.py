"""Provenance: what it says, that it says it the same anywhere, and that a wrong one is noticed."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oci.quirky import serve
from toys import OLD, TOY_PATCH, WITH_OLD, Toy

from graftwork.catalog.catalog import Catalog
from graftwork.errors import ProofError, TreeError
from graftwork.images.payload import PayloadSpec, record_for
from graftwork.images.provenance import (
    BUILD_TYPE,
    PREDICATE,
    STATEMENT,
    artifact,
    base_uri,
    catalog_inputs,
    check_statement,
    image_uri,
    statement,
    wheel_uri,
)
from graftwork.images.record import Base, Record, render_record
from graftwork.names import RelPath
from graftwork.oci.canonical import canonical_json
from graftwork.oci.families import OCI, Document
from graftwork.oci.model import MANIFEST, Descriptor, Platform, sha256_digest
from graftwork.oci.referrers import attach, referrers
from graftwork.oci.registry import Registry
from graftwork.oci.transport import Transport

IMAGE = Descriptor(MANIFEST, "sha256:" + "a" * 64, 1234, platform=Platform("amd64", "linux"))
LAYER = "sha256:" + "b" * 64
INPUTS = {RelPath("patches/sglang/rows/patch.toml"): "c" * 64, RelPath("deploy/docker/targets/tiny.toml"): "d" * 64}


@pytest.fixture
def record(spec: PayloadSpec) -> Record:
    return msgspec.structs.replace(record_for(spec, {}), graftwork="0")


def made(record: Record, **changes: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(statement(record, IMAGE, LAYER, INPUTS, **{"base": record.base, **changes}))
    return found


def test_the_golden_digest(record: Record) -> None:
    """A change here changes every provenance: it must be meant. The record's own hash changes with its schema."""
    found = made(record)
    del found["predicate"]["runDetails"]["byproducts"]
    assert (
        sha256_digest(canonical_json(found))
        == "sha256:81ef374e1a40e9ecbb6308cab3520a9ee7b3ce0e76a724d1da0f7b40b033239f"
    )


def test_subjects_and_parameters(record: Record) -> None:
    found = made(record, name="registry.example/team/engine:v1")
    assert (found["_type"], found["predicateType"]) == (STATEMENT, PREDICATE)
    assert found["subject"] == [
        {"name": "registry.example/team/engine:v1", "digest": {"sha256": "a" * 64}},
        {"name": "tiny payload layer", "digest": {"sha256": "b" * 64}},
    ]
    definition = found["predicate"]["buildDefinition"]
    assert definition["buildType"] == BUILD_TYPE
    base = definition["externalParameters"].pop("base")
    assert definition["externalParameters"] == {
        "target": "tiny",
        "platform": "linux/amd64",
        "sourceDateEpoch": 1700000000,
    }
    assert base == base_uri(record.base, "linux/amd64") and base.startswith(
        f"pkg:oci/base@{record.base.digest}?arch=amd64"
    )
    details = found["predicate"]["runDetails"]
    assert details["byproducts"][0]["digest"] == {"sha256": hashlib.sha256(render_record(record)).hexdigest()}
    assert set(details["metadata"]) == {"invocationId"}  # and no time of day


def test_dependencies_are_all_by_hash(record: Record) -> None:
    rows = made(record)["predicate"]["buildDefinition"]["resolvedDependencies"]
    assert [next(iter(row["digest"].values()))[0] for row in rows] == ["1", "2", "3", "d", "c"]
    assert [row.get("name") for row in rows[3:]] == sorted(INPUTS)
    bare = made(record, base=None)["predicate"]["buildDefinition"]
    assert [row["name"] for row in bare["resolvedDependencies"][:1]] == ["sglang-1.2.3-py3-none-any.whl"]
    assert bare["externalParameters"]["base"] is None


def test_another_build_is_another_invocation(record: Record) -> None:
    def invocation(record: Record, **changes: Any) -> str:
        found: str = made(record, **changes)["predicate"]["runDetails"]["metadata"]["invocationId"]
        return found

    first = invocation(record)
    assert first == invocation(record)
    later = msgspec.structs.replace(record, epoch=record.epoch + 1)
    assert len({first, invocation(later), invocation(record, base=None)}) == 3


@pytest.mark.parametrize(
    "name", ["oci:/home/somebody/layout:v1", "docker-archive:/srv/x.tar", "docker:engine", "A/b c"]
)
def test_no_path_of_this_machine_gets_in(record: Record, name: str) -> None:
    local = Base(name, "sha256:" + "9" * 64)
    text = statement(record, IMAGE, LAYER, INPUTS, base=local, name=name).decode()
    assert "9" * 64 in text and "somebody" not in text and "/srv" not in text and "docker:" not in text
    assert json.loads(text)["subject"][0]["name"] == "tiny"
    for word in (socket.gethostname(), str(Path.home()), str(Path.cwd())):
        assert word not in text


_SCRIPT = """
import json, sys
from graftwork.images.provenance import statement
from graftwork.images.record import parse_record
from graftwork.oci.model import Descriptor
record = parse_record(sys.stdin.buffer.read(), "stdin")
inputs = json.loads(sys.argv[1])
image = Descriptor(*json.loads(sys.argv[2]))
sys.stdout.buffer.write(statement(record, image, sys.argv[3], inputs, base=record.base))
"""


def test_the_same_bytes_in_another_process(record: Record, tmp_path: Path) -> None:
    image = json.dumps([IMAGE.media_type, IMAGE.digest, IMAGE.size])
    want = statement(record, IMAGE, LAYER, INPUTS, base=record.base)
    for seed, zone, inputs in (("0", "UTC", INPUTS), ("77", "Asia/Tokyo", dict(reversed(INPUTS.items())))):
        env = {**os.environ, "PYTHONHASHSEED": seed, "TZ": zone, "HOME": str(tmp_path), "USER": "x", "LC_ALL": "C"}
        command = [sys.executable, "-c", _SCRIPT, json.dumps(inputs), image, LAYER]
        done = subprocess.run(
            command, input=render_record(record), cwd=tmp_path, env=env, capture_output=True, check=True
        )
        assert done.stdout == want


def test_it_is_checked_against_image_and_record(record: Record) -> None:
    data = statement(record, IMAGE, LAYER, INPUTS, base=record.base)
    assert check_statement(data, IMAGE.digest, record)["_type"] == STATEMENT
    assert check_statement(data, LAYER)
    other = "sha256:" + "e" * 64
    with pytest.raises(ProofError, match=f"is about {IMAGE.digest}, {LAYER}, not about the image {other}"):
        check_statement(data, other)
    changed = msgspec.structs.replace(record, epoch=1)
    with pytest.raises(ProofError, match=r"names the record sha256:[0-9a-f]{64}, the image holds sha256:"):
        check_statement(data, IMAGE.digest, changed)


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("_type", "https://in-toto.io/Statement/v0.1", "has _type 'https://in-toto.io/Statement/v0.1', expected"),
        ("predicateType", "https://slsa.dev/provenance/v0.2", "has predicateType"),
        ("subject", None, "is about nothing"),
        ("subject", [{"name": "x"}, 3, {"digest": "sha256:aa"}], "is about nothing"),
        ("predicate", [], "has no predicate"),
        ("predicate", {}, "has no runDetails"),
        ("predicate", {"runDetails": {"byproducts": 3}}, "names the record nowhere"),
    ],
)
def test_a_spoiled_statement(record: Record, key: str, value: object, says: str) -> None:
    spoiled = {**made(record), key: value}
    with pytest.raises(ProofError, match=says):
        check_statement(json.dumps(spoiled).encode(), IMAGE.digest, record)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["digest", "sha256", "x"]), inner),
    max_leaves=8,
)


@given(st.binary(max_size=30) | _JSON.map(lambda value: json.dumps(value).encode()), _JSON)
def test_nonsense_is_a_proof_error(data: bytes, subject: object) -> None:
    for document in (
        data,
        b"[" * 100_000,
        canonical_json({"_type": STATEMENT, "predicateType": PREDICATE, "subject": subject}),
    ):
        with pytest.raises(ProofError):
            check_statement(document, "sha256:" + "f" * 64)


def test_inputs_of_every_target(catalog: Catalog) -> None:
    assert catalog.target_names
    for name in catalog.target_names:
        target = catalog.target(name)
        found = catalog_inputs(catalog, name, catalog.patches(target))
        assert {f"deploy/docker/targets/{name}.toml", f"deploy/docker/locks/{name}.json"} <= set(found)
        assert {f"patches/{patch}/patch.toml" for patch in target.patches} <= set(found)
        earlier = "patches/sglang/dsa-indexer-rows/revisions/P1V2.toml"
        assert (earlier in found) == ("sglang/dsa-indexer-rows" in target.patches)
        assert not [path for path in found if "/tests/" in path or path.endswith(("README.md", ".pyc"))]
        for path, sha256 in found.items():
            assert hashlib.sha256((catalog.root / path).read_bytes()).hexdigest() == sha256


def test_inputs_hold_what_edits_name(toy: Toy) -> None:
    toy.write("deploy/docker/locks/t.json", "{}")
    edits = '\n[[edit]]\nid = "new"\nkind = "file"\npath = "toy/extra"\nsource = "extra"\n'
    toy.patch("rows", TOY_PATCH.replace("\n[[marker]]", f"{edits}\n[[marker]]", 1))
    toy.write("patches/toy/rows/extra/a.py", "A = 1\n")
    toy.write("patches/toy/rows/extra/__pycache__/a.pyc", "x")
    toy.write("patches/toy/rows/tests/test_a.py", "x")
    before = catalog_inputs(toy.catalog, "t", toy.patches)
    assert set(before) == {
        "deploy/docker/locks/t.json",
        "deploy/docker/targets/t.toml",
        "patches/toy/rows/extra/a.py",
        "patches/toy/rows/patch.toml",
    }
    toy.write("patches/toy/rows/extra/a.py", "A = 2\n")
    after = catalog_inputs(toy.catalog, "t", toy.patches)
    assert [path for path in before if before[path] != after[path]] == ["patches/toy/rows/extra/a.py"]


def test_inputs_hold_earlier_revisions(toy: Toy) -> None:
    """They decide whether a tree is outdated."""
    toy.write("deploy/docker/locks/t.json", "{}")
    toy.patch("rows", WITH_OLD)
    edit = '[[edit]]\nid = "new"\nkind = "file"\npath = "toy/old.py"\nsource = "revisions/old.py"\n'
    toy.write("patches/toy/rows/old.toml", f"{edit}{OLD}")
    toy.write("patches/toy/rows/revisions/old.py", "A = 1\n")
    found = catalog_inputs(toy.catalog, "t", toy.patches)
    assert {"patches/toy/rows/old.toml", "patches/toy/rows/revisions/old.py"} <= set(found)


def test_inputs_without_a_lock(toy: Toy) -> None:
    with pytest.raises(TreeError, match=r"locks/t\.json: No such file"):
        catalog_inputs(toy.catalog, "t", toy.patches)


@pytest.mark.parametrize("version", ["1.2.3", "0.5.15.post1", "0.33.0+rocm720", "1!2.0"])
def test_package_urls_are_canonical(record: Record, version: str) -> None:
    packageurl = pytest.importorskip("packageurl")
    record = msgspec.structs.replace(
        record,
        engine=msgspec.structs.replace(record.engine, version=version),
        wheel=msgspec.structs.replace(record.wheel, file=f"sglang-{version}-py3-none-any.whl"),
    )
    base = Base("registry.example:5000/team/my_engine:v1.2", "sha256:" + "1" * 64)
    for uri in (wheel_uri(record), base_uri(base, "linux/arm64/v8"), image_uri("", base.digest, fallback="tiny")):
        assert packageurl.PackageURL.from_string(uri).to_string() == uri
    assert "?arch=arm64&repository_url=registry.example:5000/team/my_engine&tag=v1.2" in base_uri(
        base, "linux/arm64/v8"
    )


def test_an_artifact_is_what_the_image_spec_says() -> None:
    raw, blobs = artifact(IMAGE, "application/x.test", b"payload", "text/plain", {"a": "ä"}, 1_700_000_000)
    assert raw == artifact(IMAGE, "application/x.test", b"payload", "text/plain", {"a": "ä"}, 1_700_000_000)[0]
    found = json.loads(raw)
    assert found["subject"] == {"mediaType": MANIFEST, "digest": IMAGE.digest, "size": 1234}
    assert found["artifactType"] == "application/x.test"
    assert found["annotations"] == {"a": "ä", "org.opencontainers.image.created": "2023-11-14T22:13:20Z"}
    # image-spec: the empty descriptor, whose digest everybody knows
    assert found["config"] == {
        "mediaType": "application/vnd.oci.empty.v1+json",
        "digest": "sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a",
        "size": 2,
        "data": "e30=",
    }
    named = [
        (found["config"]["digest"], found["config"]["size"]),
        (found["layers"][0]["digest"], found["layers"][0]["size"]),
    ]
    assert sorted(named) == sorted((sha256_digest(blob), len(blob)) for blob in blobs)


@pytest.mark.parametrize("keeps_list", [True, False])
def test_an_artifact_is_found_from_its_image(keeps_list: bool) -> None:
    with serve(referrers=keeps_list) as quirky, Registry(Transport(quirky.host)) as registry:
        subject = canonical_json({"schemaVersion": 2, "mediaType": MANIFEST, "config": {}, "layers": []})
        image = Descriptor(MANIFEST, sha256_digest(subject), len(subject))
        raw, blobs = artifact(image, "application/x.test", b"payload", "text/plain", {"a": "b"}, 0)
        for blob in blobs:
            quirky.put("team/engine", blob)
        assert attach(registry, "team/engine", Document(raw, json.loads(raw), OCI.manifest)) is keeps_list
        found = referrers(registry, "team/engine", image.digest, "application/x.test")
        assert [row["digest"] for row in found] == [sha256_digest(raw)]
        assert referrers(registry, "team/engine", image.digest, "application/y") == []


@pytest.mark.oci
def test_skopeo_reads_an_artifact(tmp_path: Path) -> None:
    skopeo = shutil.which("skopeo")
    if skopeo is None:
        pytest.skip("skopeo is not installed: scripts/install-services")
    raw, blobs = artifact(IMAGE, "application/x.test", b"payload", "text/plain", {}, 0)
    store = tmp_path / "blobs/sha256"
    store.mkdir(parents=True)
    for blob in (raw, *blobs):
        (store / sha256_digest(blob)[7:]).write_bytes(blob)
    (tmp_path / "oci-layout").write_text('{"imageLayoutVersion":"1.0.0"}')
    entry = {"mediaType": MANIFEST, "digest": sha256_digest(raw), "size": len(raw)}
    (tmp_path / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [entry]}))
    done = subprocess.run([skopeo, "inspect", "--raw", f"oci:{tmp_path}"], capture_output=True, check=True)
    assert done.stdout == raw
