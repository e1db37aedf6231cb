"""The SBOM: valid by CycloneDX's own schema, patches with diffs that git applies, the same bytes anywhere."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from packaging.version import Version
from toys import TAKE, TOY_SOURCE, Toy, codemod, head, local

from graftwork.catalog.catalog import Catalog, wheel_for
from graftwork.catalog.patches import PatchFile, Upstream
from graftwork.catalog.seen import Seen
from graftwork.errors import GraftworkError, UnreachableError
from graftwork.images import sbom as sbom_module
from graftwork.images.from_plan import payload_spec
from graftwork.images.payload import PayloadSpec, record_for
from graftwork.images.record import Base, Record, render_record
from graftwork.images.sbom import patch_diffs, patch_type, sbom, upstream_url
from graftwork.oci.canonical import readable_json
from graftwork.oci.model import MANIFEST, Descriptor, Platform, sha256_digest
from graftwork.patching.assess import Engine
from graftwork.patching.memo import remembering
from graftwork.patching.plan import Plan, plan
from graftwork.trees.cache import Cache
from graftwork.trees.folder import FolderTree

IMAGE = Descriptor(MANIFEST, "sha256:" + "a" * 64, 1234, platform=Platform("amd64", "linux"))
DIFF = (
    "--- a/sglang/srt/indexer.py\n+++ b/sglang/srt/indexer.py\n@@ -1 +1 @@\n"
    '-\tmin(a, b) <&> "ä"\n+\tx\n\\ No newline at end of file\n'
)
DIFFS = {"sglang/rows": DIFF}


def link(ref: str, kind: str, relation: str, state: str = "open") -> Upstream:
    return msgspec.convert({"ref": ref, "kind": kind, "relation": relation, "assumes": state}, Upstream)


def seen(*patches: PatchFile) -> dict[str, Seen]:
    """All that is assumed was also seen."""
    rows = [
        {"ref": row.ref, "kind": row.kind, "state": row.assumes, "as_of": "2026-09-23", "method": "read"}
        for spec in patches
        for row in spec.upstream
    ]
    return {row["ref"]: msgspec.convert(row, Seen) for row in rows if row["ref"]}


def entry(*upstream: Upstream, id: str = "sglang/rows") -> PatchFile:
    return PatchFile(
        id=id,
        revision="R2",
        title="fewer rows",
        symptom="it dies with 'lengths'",
        why="rows differ",
        drop_when="upstream does it",
        edit=[],
        marker=[],
        upstream=list(upstream),
    )


LINKS = (
    link("sgl-project/sglang#2", "pull", "own"),
    link("sgl-project/sglang#1", "issue", "own"),
    link("sgl-project/sglang#3", "issue", "same-class"),
    link("sgl-project/sglang#4", "pull", "precedent", "merged"),
)


@pytest.fixture
def record(spec: PayloadSpec) -> Record:
    return msgspec.structs.replace(record_for(spec, {"sglang/__pycache__/x.pyc": b"x"}), graftwork="0")


def made(record: Record, patches: list[PatchFile] | None = None, **changes: Any) -> dict[str, Any]:
    patches = [entry(*LINKS)] if patches is None else patches
    arguments = {"base": record.base, "seen": seen(*patches), **changes}
    data = sbom(record, IMAGE, patches, DIFFS, **arguments)
    validate(data)
    found: dict[str, Any] = json.loads(data)
    return found


def validate(data: bytes) -> None:
    """By the schema that CycloneDX publishes, strictly."""
    from cyclonedx.exception import MissingOptionalDependencyException
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    try:
        problem = JsonStrictValidator(SchemaVersion.V1_6).validate_str(data.decode())
    except MissingOptionalDependencyException:
        pytest.skip("cyclonedx-python-lib[json-validation] is not installed")
    assert problem is None, problem


def part(found: dict[str, Any], ref: str) -> dict[str, Any]:
    return next(item for item in found["components"] if item["bom-ref"] == ref)


def facts(component: dict[str, Any]) -> list[tuple[str, str]]:
    return [(row["name"].removeprefix("graftwork:"), row["value"]) for row in component["properties"]]


def test_the_golden_digest(record: Record) -> None:
    """A change here changes every SBOM: it must be meant. The record's own hash changes with its schema."""
    found = made(record)
    rows = found["metadata"]["component"]["properties"]
    rows[:] = [row for row in rows if row["name"] != "graftwork:record.sha256"]
    assert (
        sha256_digest(readable_json(found)) == "sha256:6d506aab4586b16430eabf814cce18aa7c8ecf1acc7129e13b7f09d107ac0717"
    )


def test_the_image(record: Record) -> None:
    found = made(record, name="registry.example:5000/team/engine:v1")
    image = found["metadata"]["component"]
    assert image["purl"] == (
        f"pkg:oci/engine@{IMAGE.digest}?arch=amd64&repository_url=registry.example:5000/team/engine&tag=v1"
    )
    assert (image["type"], image["hashes"]) == ("container", [{"alg": "SHA-256", "content": "a" * 64}])
    assert ("record.sha256", hashlib.sha256(render_record(record)).hexdigest()) in facts(image)
    assert found["metadata"]["timestamp"] == "2023-11-14T22:13:20+00:00"
    assert found["metadata"]["tools"]["components"] == [
        {"bom-ref": "tool", "name": "graftwork", "type": "application", "version": "0"}
    ]
    depends = {row["ref"]: row.get("dependsOn", []) for row in found["dependencies"]}
    assert depends["image"] == ["base", "engine"]
    assert part(found, "base")["purl"].startswith(f"pkg:oci/base@{record.base.digest}?arch=amd64&repository_url=")
    assert found["compositions"] == [{"aggregate": "incomplete", "assemblies": ["base", "engine", "image"]}]


def test_the_engine_is_the_wheel_with_patches(record: Record) -> None:
    engine = part(made(record), "engine")
    assert engine["purl"] == "pkg:pypi/sglang@1.2.3"
    assert "hashes" not in engine  # it is not the wheel any more
    (wheel,) = engine["pedigree"]["ancestors"]
    assert wheel["purl"] == "pkg:pypi/sglang@1.2.3?file_name=sglang-1.2.3-py3-none-any.whl"
    assert wheel["hashes"] == [{"alg": "SHA-256", "content": "2" * 64}]
    (patch,) = engine["pedigree"]["patches"]
    assert patch["type"] == "unofficial"
    assert patch["diff"] == {"text": {"contentType": "text/x-diff", "content": DIFF}}
    ours, theirs = sorted(patch["resolves"], key=lambda issue: issue["id"] != "sglang/rows")
    assert ours == {
        "type": "defect",
        "id": "sglang/rows",
        "name": "fewer rows",
        "description": "it dies with 'lengths'",
        "source": {"name": "graftwork patch catalog"},
        "references": [
            "https://github.com/sgl-project/sglang/issues/1",
            "https://github.com/sgl-project/sglang/issues/3",
            "https://github.com/sgl-project/sglang/pull/2",
        ],
    }
    assert theirs == {
        "type": "defect",
        "id": "sgl-project/sglang#1",
        "source": {"name": "sgl-project/sglang", "url": "https://github.com/sgl-project/sglang/issues/1"},
    }
    precedent = ("patch:sglang/rows:upstream", "precedent pull sgl-project/sglang#4 merged as of 2026-09-23")
    assert precedent in facts(engine)


def test_every_file_of_the_layer(record: Record) -> None:
    files = {item["name"]: item for item in part(made(record), "engine")["components"]}
    root = record.engine.root
    assert set(files) == {f"{root}/{row.path}" for row in [*record.files, *record.bytecode_files]}
    for row in record.files:
        item = files[f"{root}/{row.path}"]
        assert item["type"] == "file" and item["hashes"] == [{"alg": "SHA-256", "content": row.sha256}]
        assert facts(item) == [("file", "patched" if row.pristine else "new"), ("patch", "sglang/rows")]
        ancestors = item.get("pedigree", {}).get("ancestors", [])
        assert [old["hashes"][0]["content"] for old in ancestors] == ([row.pristine] if row.pristine else [])
    assert facts(files[f"{root}/sglang/__pycache__/x.pyc"]) == [("file", "bytecode")]


@pytest.mark.parametrize("state", ["obsolete", "not-needed", "allowed: status is stale"])
def test_patches_that_are_not_in_it_are_recorded(record: Record, state: str) -> None:
    absent = msgspec.structs.replace(record.patches[0], id="sglang/other", state=state, files=[])
    record = msgspec.structs.replace(record, patches=[*record.patches, absent])
    found = made(record, [entry(), entry(id="sglang/other")])
    assert len(part(found, "engine")["pedigree"]["patches"]) == 1
    assert ("patch:sglang/other:state", state) in facts(found["metadata"]["component"])


@pytest.mark.parametrize("ids", [("sglang/rows", "sglang/a"), ("sglang/a", "sglang/rows")])
def test_patches_stand_in_the_order_of_the_target(record: Record, ids: tuple[str, str]) -> None:
    rows = [msgspec.structs.replace(record.patches[0], id=id) for id in ids]
    diffs = {"sglang/rows": DIFF, "sglang/a": DIFF.replace("min", "max")}
    patches = [entry(*LINKS, id="sglang/a"), entry(*LINKS)]
    data = sbom(msgspec.structs.replace(record, patches=rows), IMAGE, patches, diffs, base=None)
    found = part(json.loads(data), "engine")["pedigree"]["patches"]
    assert [patch["diff"]["text"]["content"] for patch in found] == [diffs[id] for id in ids]


def test_no_patch_at_all(record: Record) -> None:
    engine = part(made(msgspec.structs.replace(record, patches=[], files=[]), []), "engine")
    assert "patches" not in engine["pedigree"] and len(engine["components"]) == 1


def test_a_bare_payload_has_no_base(record: Record) -> None:
    found = made(record, base=None)
    assert [item["bom-ref"] for item in found["components"]] == ["engine"]
    assert ("payload", "bare") in facts(found["metadata"]["component"])
    assert found["compositions"][0]["assemblies"] == ["engine", "image"]
    assert record.base.digest not in json.dumps(found)


def test_no_path_of_this_machine_gets_in(record: Record) -> None:
    local = Base("oci:/home/somebody/layout:v1", "sha256:" + "9" * 64)
    text = json.dumps(made(record, base=local, name="docker-archive:/home/somebody/x.tar"))
    assert "somebody" not in text and "9" * 64 in text


@pytest.mark.parametrize(
    ("links", "kind"),
    [
        ((), "unofficial"),
        ((link("a/b#1", "pull", "own"),), "unofficial"),
        ((link("a/b#1", "pull", "same-fix", "merged"),), "unofficial"),
        ((link("a/b#1", "issue", "own", "closed"), link("a/b#2", "pull", "own", "closed")), "unofficial"),
        ((link("a/b#1", "pull", "own", "merged"),), "backport"),
    ],
)
def test_the_type_of_a_patch(record: Record, links: tuple[Upstream, ...], kind: str) -> None:
    assert patch_type(entry(*links), seen(entry(*links))) == kind
    assert patch_type(entry(*links), {}) == "unofficial"
    assert part(made(record, [entry(*links)]), "engine")["pedigree"]["patches"][0]["type"] == kind


def test_an_upstream_page() -> None:
    assert upstream_url(link("a/b.c#12", "pull", "own")) == "https://github.com/a/b.c/pull/12"
    assert upstream_url(link("a/b.c#12", "issue", "own")) == "https://github.com/a/b.c/issues/12"


def test_a_patch_without_its_diff_is_our_fault(record: Record) -> None:
    for patches, diffs, says in (
        ([entry()], {}, "its diff is not given"),
        ([], DIFFS, "its catalog entry is not given"),
    ):
        with pytest.raises(GraftworkError, match=f"sglang/rows is in the image, but {says}") as caught:
            sbom(record, IMAGE, patches, diffs, base=None)
        assert caught.value.exit_code == 70


_SCRIPT = """
import pickle, sys
from graftwork.images.sbom import sbom
arguments, named = pickle.load(sys.stdin.buffer)
sys.stdout.buffer.write(sbom(*arguments, **named))
"""


def test_the_same_bytes_in_another_process(record: Record, tmp_path: Path) -> None:
    """Other hash seeds, time zones, homes; and the catalog's patches in another order."""
    second = msgspec.structs.replace(record.patches[0], id="sglang/a")
    record = msgspec.structs.replace(record, patches=[*record.patches, second])
    patches, diffs = [entry(*LINKS), entry(*LINKS, id="sglang/a")], {**DIFFS, "sglang/a": DIFF}
    want = sbom(record, IMAGE, patches, diffs, base=record.base)
    for seed, order in (("0", 1), ("1", -1), ("4242", -1)):
        given = pickle.dumps(
            ((record, IMAGE, patches[::order], dict(list(diffs.items())[::order])), {"base": record.base})
        )
        env = {**os.environ, "PYTHONHASHSEED": seed, "TZ": "Asia/Tokyo", "HOME": str(tmp_path), "LC_ALL": "C"}
        done = subprocess.run([sys.executable, "-c", _SCRIPT], input=given, env=env, capture_output=True, check=True)
        assert done.stdout == want


def test_nothing_heavy_is_imported_at_the_start() -> None:
    code = "import sys, graftwork.images.sbom; print([m for m in sys.modules if m in ('cyclonedx', 'packageurl')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


# The diff of each patch


CAPPED = {"match": "count = min(rows, padded)", "becomes": "count = _toy_second = max(min(rows, padded), 1)"}
SECOND = head("toy/second", "S1", title="At least one row") + codemod("one", TAKE, CAPPED)
SECOND += '\n[[edit]]\nid = "new"\nkind = "file"\npath = "toy/extra"\nsource = "extra"\n' + local(TAKE, "_toy_second")


def toy_plan(toy: Toy) -> Plan:
    toy.patch("second", SECOND)
    toy.write("patches/toy/second/extra/a.py", "A = 1\x0c\nB = 'ä'")
    toy.write("patches/toy/second/extra/empty.py", "")
    toy.target(lambda text: text.replace('["toy/rows"]', '["toy/rows", "toy/second"]'))
    return plan(FolderTree(toy.tree), toy.patches, toy.engine)


def git_apply(folder: Path, diff: str) -> None:
    git = shutil.which("git")
    if git is None:
        pytest.skip("git is not installed")
    subprocess.run([git, "init", "-q", folder], check=True)
    subprocess.run([git, "-C", folder, "apply", "--whitespace=nowarn", "-"], input=diff.encode(), check=True)


def test_diffs_of_patches_that_build_on_each_other(toy: Toy) -> None:
    planned = toy_plan(toy)
    assert planned.refusal() is None, [item.reasons for item in planned.patches]
    diffs = patch_diffs(planned)
    assert list(diffs) == ["toy/rows", "toy/second"]
    assert "+        count = min(rows, padded)" in diffs["toy/rows"]
    assert (
        "-        count = min(rows, padded)" in diffs["toy/second"] and "+        _toy_clip" not in diffs["toy/second"]
    )
    git_apply(toy.tree, "".join(diffs.values()))
    for change in planned.patched:
        assert (toy.tree / change.path).read_bytes() == change.new, change.path


def test_a_binary_file_is_named(toy: Toy) -> None:
    toy_plan(toy)
    (toy.root / "patches/toy/second/extra/blob.bin").write_bytes(b"\xff\x00")
    diff = patch_diffs(plan(FolderTree(toy.tree), toy.patches, toy.engine))["toy/second"]
    assert "Binary files /dev/null and b/toy/extra/blob.bin differ\n" in diff


# What is remembered

NAMES = [
    "",
    "registry.example:5000/team/engine:v1",
    "registry.example/a_b/c.d-e:1",
    "127.0.0.1:5000/x/y:t",
    "oci:dir:t",
]


@pytest.mark.parametrize("name", NAMES)
def test_a_name_that_is_put_in_afterwards_is_the_one_that_it_is_made_with(record: Record, name: str) -> None:
    for base in (record.base, None):
        anonymous = sbom(record, IMAGE, [entry(*LINKS)], DIFFS, base=base)
        assert sbom_module.named(anonymous, record, IMAGE, name) == sbom(
            record, IMAGE, [entry(*LINKS)], DIFFS, base=base, name=name
        )


def test_the_second_sbom_of_one_plan_is_remembered(
    toy: Toy, record: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    real = sbom
    monkeypatch.setattr(sbom_module, "sbom", lambda *a, **k: (asked.append("x"), real(*a, **k))[1])
    planned = toy_plan(toy)
    rows = msgspec.structs.replace(record.patches[0], id="toy/rows", files=["toy/pool.py"])
    record = msgspec.structs.replace(record, patches=[rows])

    def made(plan: Plan, name: str, image: Descriptor = IMAGE) -> bytes:
        return sbom_module.remembered(record, image, plan, base=record.base, name=name)

    without = [made(planned, name) for name in NAMES]
    asked.clear()
    with remembering(Cache(tmp_path / "cache")):
        assert [made(planned, name) for name in NAMES] == without
        assert len(asked) == 1
        made(planned, "", msgspec.structs.replace(IMAGE, digest="sha256:" + "b" * 64))
        assert len(asked) == 2, "another image is another question"
        toy.write("tree/toy/pool.py", TOY_SOURCE + "# longer\n")
        other = made(plan(FolderTree(toy.tree), toy.patches, toy.engine), "")
        assert len(asked) == 3, "as is another text"
        monkeypatch.setattr(sbom_module, "_code", lambda: b"another")
        made(planned, "")
        assert len(asked) == 4, "as is other code"
    assert other == made(plan(FolderTree(toy.tree), toy.patches, toy.engine), "")


@pytest.mark.real
@pytest.mark.parametrize("name", ["rocm-gfx950", "rocm-gfx942"])
def test_the_real_targets(catalog: Catalog, name: str, tmp_path: Path) -> None:
    from graftwork.names import sha256_hex
    from graftwork.trees.cache import Cache
    from graftwork.trees.index import PackageIndex
    from graftwork.trees.remote import WheelPin, open_wheel

    target = catalog.target(name)
    lock, pin = catalog.lock(target), wheel_for(target)
    vouched = {wheel.sha256: wheel.record_sha256 for wheel in lock.wheels}[pin.sha256]
    try:
        wheel = open_wheel(
            WheelPin(target.engine, pin.file, sha256_hex(pin.sha256), sha256_hex(vouched)), Cache(), PackageIndex()
        )
    except UnreachableError as error:
        pytest.skip(f"the package index is not reachable: {error}")
    with wheel:
        planned = plan(wheel, catalog.patches(target), Engine(Version(target.version), target.platform))
    diffs = patch_diffs(planned)
    record = record_for(payload_spec(target, planned, lock), {})
    for change in planned.patched:
        (tmp_path / change.path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / change.path).write_bytes(change.pristine or b"")
    for diff in diffs.values():
        git_apply(tmp_path, diff)
    for row in record.files:
        assert hashlib.sha256((tmp_path / row.path).read_bytes()).hexdigest() == row.sha256
    data = sbom(record, IMAGE, [patch.spec for patch in catalog.patches(target)], diffs, base=record.base)
    validate(data)
    texts = [patch["diff"]["text"]["content"] for patch in part(json.loads(data), "engine")["pedigree"]["patches"]]
    assert sorted(texts) == sorted(diffs.values()) and len(texts) == len(target.patches)
