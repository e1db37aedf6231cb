"""Grafting as a pure function: families, unknown keys, settings, history, and that a second graft is the first."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graftwork.errors import PinError, UsageError
from graftwork.images.graft import BASE_DIGEST, INPUT_DIGEST, MOST_LAYERS, PAYLOAD, Addition, Base, graft, strip
from graftwork.oci.families import DOCKER, OCI, Document, Family, read_config, read_manifest

DIGEST = "sha256:{:064x}"


def base(family: Family = OCI, layers: int = 3, run: Any = None, **more: Any) -> Base:
    config = {
        "architecture": "amd64",
        "os": "linux",
        "created": "2026-01-01T00:00:00Z",
        "author": "kept",
        "config": {"Env": ["PATH=/bin", "A=1"], "Entrypoint": ["/run"], "User": "1000", "Labels": {"x": "y"}}
        if run is None
        else run,
        "rootfs": {"type": "layers", "diff_ids": [DIGEST.format(100 + n) for n in range(layers)]},
        "history": [{"created_by": f"step {n}"} for n in range(layers)]
        + [{"created_by": "ENV A=1", "empty_layer": True}],
        "x-vendor": {"deep": [1, None]},
    }
    raw = json.dumps(config).encode()
    document = read_config(raw, family.config, "config")
    manifest = {
        "schemaVersion": 2,
        "mediaType": family.manifest,
        "config": {"mediaType": family.config, "digest": document.digest, "size": len(raw), "x-kept": 1},
        "layers": [{"mediaType": family.layer_gzip, "digest": DIGEST.format(n), "size": n + 1} for n in range(layers)],
        **more,
    }
    return Base("registry.test/base:1", read_manifest(json.dumps(manifest).encode(), family.manifest, "m"), document)


def addition(seed: int = 1, env: dict[str, str] | None = None, **more: Any) -> Addition:
    return Addition(
        digest=DIGEST.format(9000 + seed),
        diff_id=DIGEST.format(9900 + seed),
        size=10,
        env={"A": "2", "B": "3"} if env is None else env,
        labels={"graftwork.patches": f"p@{seed}", "x": "ours"},
        history=[
            {"created_by": f"graftwork patch p {seed}", "empty_layer": True},
            {"created_by": "graftwork image t", "comment": "payload"},
        ],
        **more,
    )


def as_base(family: Family, result: Any) -> Base:
    return Base("registry.test/patched:1", result.manifest, result.config)


@pytest.mark.parametrize("family", [OCI, DOCKER])
def test_layers_family_and_unknown_keys_are_kept(family: Family) -> None:
    start = base(family, annotations={"a": "b"}, subject={"kept": True})
    done = graft(start, addition())
    assert done.manifest.media_type == family.manifest
    assert done.manifest.data["layers"][:-1] == start.manifest.data["layers"]
    assert done.manifest.data["layers"][-1]["mediaType"] == family.layer_gzip
    assert done.manifest.data["subject"] == {"kept": True} and done.manifest.data["annotations"]["a"] == "b"
    assert done.manifest.data["config"]["x-kept"] == 1
    assert (done.manifest.data["config"]["digest"], done.manifest.data["config"]["size"]) == (
        done.config.digest,
        len(done.config.raw),
    )
    config = done.config.data
    assert config["author"] == "kept" and config["x-vendor"] == {"deep": [1, None]}
    assert config["config"]["Entrypoint"] == ["/run"] and config["config"]["User"] == "1000"
    assert config["config"]["Env"] == ["PATH=/bin", "A=2", "B=3"]
    assert config["rootfs"]["diff_ids"][-1] == addition().diff_id
    assert [item["created_by"] for item in config["history"]][-2:] == ["graftwork patch p 1", "graftwork image t"]
    assert len([h for h in config["history"] if not h.get("empty_layer")]) == len(config["rootfs"]["diff_ids"])
    assert config["created"] == "2026-01-01T00:00:00Z"


@pytest.mark.parametrize("family", [OCI, DOCKER])
@pytest.mark.parametrize(
    "run", [None, {}, {"Labels": None, "Env": None}, {"Labels": {}, "Env": []}, {"Env": ["B=0", "B=9"]}]
)
def test_grafting_a_grafted_image_is_grafting_its_base(family: Family, run: Any) -> None:
    start = base(family, run=run)
    first = graft(start, addition(1))
    again = graft(as_base(family, first), addition(1))
    assert again.replaced and not first.replaced
    assert again.manifest.digest == first.manifest.digest
    other = graft(as_base(family, first), addition(2, env={"C": "1"}, created="2026-02-02T00:00:00Z"))
    assert other.manifest.raw == graft(start, addition(2, env={"C": "1"}, created="2026-02-02T00:00:00Z")).manifest.raw
    assert graft(as_base(family, other), addition(1)).manifest.digest == first.manifest.digest


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from(["A=1", "A=2", "B=3", "B=", "PATH=/x", "C=A=1"]), max_size=4),
    st.dictionaries(st.sampled_from(["x", "y", "graftwork.patches"]), st.text(max_size=3), max_size=3),
    st.dictionaries(st.sampled_from(["A", "B", "D"]), st.sampled_from(["1", "2", ""]), max_size=3),
)
def test_strip_undoes_any_settings(env: list[str], labels: dict[str, str], added: dict[str, str]) -> None:
    run = {"Env": env, "Labels": labels}
    first = graft(base(run=copy.deepcopy(run)), addition(1, env=added))
    assert graft(as_base(OCI, first), addition(1, env=added)).manifest.digest == first.manifest.digest
    _, config, _ = strip(as_base(OCI, first))
    assert config["config"].get("Env", []) == env and config["config"]["Labels"] == labels


def test_an_image_built_from_ours_loses_only_our_layer() -> None:
    first = graft(base(), addition(1))
    config = copy.deepcopy(first.config.data)
    config["rootfs"]["diff_ids"].append(DIGEST.format(777))
    config["history"].append({"created_by": "RUN theirs"})
    config["config"]["Env"] = [*config["config"]["Env"][:-1], "B=theirs"]
    document = read_config(json.dumps(config).encode(), OCI.config, "c")
    manifest = first.manifest.rewritten(
        config={"mediaType": OCI.config, "digest": document.digest, "size": len(document.raw)},
        layers=[*first.manifest.data["layers"], {"mediaType": OCI.layer_gzip, "digest": DIGEST.format(70), "size": 1}],
    )
    done = graft(Base("x", manifest, document), addition(2, env={}))
    assert [layer.digest for layer in done.manifest.layers] == [
        *(DIGEST.format(n) for n in range(3)),
        DIGEST.format(70),
        addition(2).digest,
    ]
    assert done.config.data["config"]["Env"] == ["PATH=/bin", "A=1", "B=theirs"]
    assert [h["created_by"] for h in done.config.data["history"] if "theirs" in h["created_by"]] == ["RUN theirs"]


def test_the_input_is_named_and_base_annotations_are_kept() -> None:
    start = base(annotations={BASE_DIGEST: "sha256:real", "org.opencontainers.image.base.name": "real"})
    done = graft(start, addition())
    assert done.manifest.data["annotations"][BASE_DIGEST] == "sha256:real"
    assert done.manifest.data["annotations"][INPUT_DIGEST] == start.manifest.digest
    plain = graft(base(), addition())
    assert plain.manifest.data["annotations"][BASE_DIGEST] == base().manifest.digest
    docker = graft(base(DOCKER), addition())
    assert "annotations" not in docker.manifest.data
    assert docker.config.data["config"]["Labels"][INPUT_DIGEST] == base(DOCKER).manifest.digest


def test_what_cannot_be_grafted() -> None:
    graft(base(layers=MOST_LAYERS - 1), addition())
    with pytest.raises(UsageError, match="at most 127"):
        graft(base(layers=MOST_LAYERS), addition())
    foreign = base()
    rows = copy.deepcopy(foreign.manifest.data["layers"])
    rows[0]["mediaType"] = "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip"
    with pytest.raises(UsageError, match="foreign"):
        graft(Base("x", foreign.manifest.rewritten(layers=rows), foreign.config), addition())
    with pytest.raises(PinError, match="3 layers, its configuration has 2 diff_ids"):
        short = copy.deepcopy(foreign.config.data)
        short["rootfs"]["diff_ids"].pop()
        graft(Base("x", foreign.manifest, Document(b"", short, OCI.config)), addition())


def test_copied_labels_without_the_layer_are_refused() -> None:
    spoiled = copy.deepcopy(graft(base(), addition()).config.data)
    spoiled["config"]["Labels"][PAYLOAD] = DIGEST.format(1)
    done = graft(base(), addition())
    with pytest.raises(PinError, match="not one of its layers"):
        graft(Base("x", done.manifest, Document(b"", spoiled, OCI.config)), addition())
