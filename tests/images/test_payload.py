"""The payload: the same bytes anywhere, accepted by other tools, and every spoiled part noticed."""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import shlex
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graftwork.errors import MissingFile, PinError, ProofError, UsageError
from graftwork.images import payload as payloads
from graftwork.images.interpreters import Interpreter, find_interpreter
from graftwork.images.layer import Entry, Kind, build_layer
from graftwork.images.payload import Payload, PayloadFile, PayloadSpec, build_payload
from graftwork.images.prove import prove_layer, prove_tree
from graftwork.images.record import CHECK_PATH, Base, Launch, parse_record, pyc_paths, render_record
from graftwork.names import RelPath
from graftwork.oci.layout import read_layout, write_layout
from graftwork.oci.model import CONFIG, LAYER_GZIP, MANIFEST, Manifest, describe, encode

ROOT = "sgl-workspace/sglang/python"
PATH = RelPath("sglang/srt/indexer.py")
SOURCE = f"{ROOT}/{PATH}"
RECORD = "usr/share/graftwork/tiny.json"
PYC = f"{ROOT}/sglang/srt/__pycache__/indexer.cpython-310.pyc"
Edit = Callable[[dict[str, Entry]], object]


def entries(payload: Payload) -> dict[str, Entry]:
    """The layer's files and white-outs, as entries to build another layer from."""
    found = {}
    with tarfile.open(fileobj=io.BytesIO(gzip.decompress(payload.layer.blob))) as archive:
        for member in archive.getmembers():
            file = archive.extractfile(member)
            folder, _, name = member.name.rpartition("/")
            path, kind = member.name, Kind.FILE
            if name.startswith(".wh."):
                path, kind = f"{folder}/{name[4:]}", Kind.WHITEOUT
            if file is not None:
                found[path] = Entry(path, kind, file.read(), member.mode)
    return found


def rebuild(payload: Payload, edit: Edit, mtime: int | None = None) -> None:
    """Write the layout again with a spoiled layer whose digests are all right: only the proof can notice."""
    found = entries(payload)
    edit(found)
    layer = build_layer(found.values(), mtime=payload.record.epoch if mtime is None else mtime)
    old = read_layout(payload.layout, "tiny").config
    new = msgspec.structs.replace(old, rootfs=msgspec.structs.replace(old.rootfs, diff_ids=[layer.diff_id]))
    rewrite(payload, layer.blob, encode(new))


def rewrite(payload: Payload, blob: bytes, config: bytes) -> None:
    manifest = Manifest(2, describe(config, CONFIG), [describe(blob, LAYER_GZIP)], MANIFEST)
    write_layout(payload.layout, "tiny", manifest, config, [blob])


def unpack(payload: Payload, root: Path) -> Path:
    for entry in entries(payload).values():
        if entry.kind is Kind.FILE:
            (root / entry.path).parent.mkdir(parents=True, exist_ok=True)
            (root / entry.path).write_bytes(entry.data)
            os.utime(root / entry.path, (payload.record.epoch, payload.record.epoch))
    return root


@pytest.fixture
def payload(spec: PayloadSpec, tmp_path: Path) -> Payload:
    return build_payload(spec, tmp_path / "dist")


def test_the_golden_digest(spec: PayloadSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change here changes every image: it must be meant, and said in the changelog."""
    monkeypatch.setattr(payloads, "self_check", lambda: b"# check\n")
    monkeypatch.setattr(payloads, "__version__", "0")
    payload = build_payload(spec, tmp_path)
    found = {"layer": payload.layer.digest, "manifest": payload.digest}
    golden = Path(__file__).with_name("golden.json")
    if os.environ.get("GRAFTWORK_GOLDEN") == "write":  # make golden
        golden.write_text(json.dumps(found, indent=2) + "\n", "utf-8")
    assert json.loads(golden.read_text("utf-8")) == found


def test_a_payload_is_proved(payload: Payload) -> None:
    report = prove_layer(payload.layout, "tiny", payload.record).demand()
    assert report.proved and report.digest == payload.digest
    assert parse_record(payload.record_file.read_bytes(), "record.json") == payload.record


def test_what_the_layer_holds(payload: Payload) -> None:
    found = entries(payload)
    whited = {path for path, entry in found.items() if entry.kind is Kind.WHITEOUT}
    assert whited == {f"{ROOT}/{path}" for path in pyc_paths(PATH, "3.10")} and PYC in whited
    files = {path: entry.mode for path, entry in found.items() if path not in whited}
    extra = f"{ROOT}/sglang/srt/extra.txt"
    assert files == {SOURCE: 0o644, extra: 0o600, CHECK_PATH: 0o644, RECORD: 0o644}


def test_what_the_configuration_says(payload: Payload) -> None:
    config = read_layout(payload.layout, "tiny").config
    assert config.created == "2023-11-14T22:13:20Z"
    assert config.config.env == ["A=1", "B=2"]
    labels = config.config.labels
    assert labels["graftwork.patches"] == "sglang/rows@R2"
    assert labels["graftwork.base"] == f"{payload.record.base.image}@{payload.record.base.digest}"
    assert shlex.split(labels["graftwork.launch"]) == [
        *(f"{key}={value}" for key, value in sorted(payload.record.launch.env.items())),
        *payload.record.launch.args,
    ]
    assert [(step.created_by, step.empty_layer) for step in config.history] == [
        ("graftwork patch sglang/rows R2", True),
        ("graftwork image tiny", False),
    ]


def test_a_payload_for_no_base_in_particular_that_demands_nothing(spec: PayloadSpec, tmp_path: Path) -> None:
    payload = build_payload(replace(spec, base=Base("", ""), launch=Launch()), tmp_path)
    labels = read_layout(payload.layout, "tiny").config.config.labels
    assert not {"graftwork.base", "graftwork.launch"} & set(labels)
    assert prove_layer(payload.layout, "tiny", payload.record).demand().proved


HOSTS = [
    {"TZ": "Pacific/Kiritimati", "LC_ALL": "C", "PYTHONHASHSEED": "1"},
    {"TZ": "America/New_York", "LC_ALL": "C.UTF-8", "PYTHONHASHSEED": "2", "PYTHONOPTIMIZE": "2"},
    {"SOURCE_DATE_EPOCH": "5", "PYTHONUTF8": "0", "LANG": "POSIX", "PYTHONDONTWRITEBYTECODE": "1"},
]
BUILD = """
import os, pickle, sys
from pathlib import Path
from graftwork.images.payload import build_payload
os.umask(int(sys.argv[3], 8))
sys.stdout.write(build_payload(pickle.loads(Path(sys.argv[1]).read_bytes()), Path(sys.argv[2])).digest)
"""
# layer.py and what it needs are pure Python but for one import, so that a bare interpreter can run them.
LAYER = """
import hashlib, pickle, sys, types
from pathlib import Path
sys.path.insert(0, sys.argv[2])
model = sys.modules["graftwork.oci.model"] = types.ModuleType("model")
model.sha256_digest = lambda data: "sha256:" + hashlib.sha256(data).hexdigest()
from graftwork.images.layer import Entry, Kind, build_layer
rows = pickle.loads(Path(sys.argv[1]).read_bytes())
sys.stdout.write(build_layer([Entry(a, Kind(b), c, d) for a, b, c, d in rows], mtime=9).digest)
"""


def output(command: Sequence[str | Path], **environment: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **environment})
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("umask", ["022", "077"])
@pytest.mark.parametrize("host", HOSTS)
def test_another_host_gives_the_same_digest(
    spec: PayloadSpec, payload: Payload, tmp_path: Path, umask: str, host: dict[str, str]
) -> None:
    (tmp_path / "spec").write_bytes(pickle.dumps(spec))
    command = [sys.executable, "-c", BUILD, tmp_path / "spec", tmp_path / "again", umask]
    assert output(command, **host) == payload.digest


def test_another_python_gives_the_same_layer(payload: Payload, tmp_path: Path, interpreter: Interpreter) -> None:
    rows = [(entry.path, entry.kind.value, entry.data, entry.mode) for entry in entries(payload).values()]
    rows.append((f"é/{'d' * 120}/{'f' * 120}", "file", b"x" * 70_000, 0o755))
    (tmp_path / "rows").write_bytes(pickle.dumps(rows))
    source = Path(payloads.__file__).parents[2]
    expected = build_layer([Entry(a, Kind(b), c, d) for a, b, c, d in rows], mtime=9).digest
    assert output([interpreter.program, "-I", "-B", "-S", "-c", LAYER, tmp_path / "rows", source]) == expected


def test_the_order_of_files_and_labels_does_not_matter(spec: PayloadSpec, payload: Payload, tmp_path: Path) -> None:
    turned = {key: dict(reversed(list(getattr(spec, key).items()))) for key in ("files", "env", "labels")}
    assert build_payload(replace(spec, **turned), tmp_path / "again").digest == payload.digest


def test_every_input_changes_the_digest(spec: PayloadSpec, payload: Payload, tmp_path: Path) -> None:
    file = spec.files[PATH]
    others = [
        replace(spec, epoch=spec.epoch + 1),
        replace(spec, platform="linux/arm64"),
        replace(spec, env={}),
        replace(spec, labels={}),
        replace(spec, python="3.12"),
        replace(spec, files={**spec.files, PATH: replace(file, mode=0o755)}),
        replace(spec, files={**spec.files, PATH: replace(file, pristine=None)}),
        replace(spec, files={**spec.files, PATH: replace(file, data=file.data + b"\n")}),
    ]
    digests = {build_payload(other, tmp_path / "other").digest for other in others}
    assert len(digests | {payload.digest}) == 1 + len(others)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"epoch": -1}, "not a time"),
        ({"platform": "linux"}, "not a platform"),
        ({"files": {PATH: PayloadFile(b"", 0o4755)}}, r"not plain permission bits: sglang/srt/indexer.py \(4755\)"),
        ({"files": {RelPath("../x"): PayloadFile(b"")}}, "cannot hold this path"),
    ],
)
def test_unusable_input_is_refused_before_anything_is_written(
    spec: PayloadSpec, tmp_path: Path, change: dict[str, Any], says: str
) -> None:
    with pytest.raises(UsageError, match=says):
        build_payload(replace(spec, **change), tmp_path / "dist")
    assert not (tmp_path / "dist").exists()


class TestCheckedBytecode:
    @pytest.fixture
    def checked(self, spec: PayloadSpec, tmp_path: Path, interpreter: Interpreter) -> Payload:
        return build_payload(replace(spec, bytecode="checked", python=interpreter.minor), tmp_path / "checked")

    def test_is_in_the_layer_and_proved(self, checked: Payload, interpreter: Interpreter) -> None:
        paths = pyc_paths(PATH, interpreter.minor)
        assert [row.path for row in checked.record.bytecode_files] == paths[:1]
        assert checked.record.whiteouts == paths[1:]
        assert prove_layer(checked.layout, "tiny", checked.record).problems == ()

    def test_of_other_code_is_found_by_its_interpreter(self, checked: Payload, interpreter: Interpreter) -> None:
        path = f"{ROOT}/{checked.record.bytecode_files[0].path}"
        pyc = entries(checked)[path].data
        other = interpreter.checked_pyc(b"x = 1\n", "x.py")
        rebuild(checked, lambda found: found.update({path: Entry(path, data=pyc[:16] + other[16:])}))
        assert {problem.kind for problem in prove_layer(checked.layout, "tiny").problems} == {"hash", "stale"}

    def test_needs_that_python(self, spec: PayloadSpec, tmp_path: Path) -> None:
        with pytest.raises(ProofError, match=r"Python 3\.77 is needed"):
            build_payload(replace(spec, bytecode="checked", python="3.77"), tmp_path / "checked")
        assert not (tmp_path / "checked").exists()


SPOILED: dict[str, tuple[Edit, set[str]]] = {
    "byte": (lambda e: e.update({SOURCE: Entry(SOURCE, data=e[SOURCE].data.replace(b"q", b"p"))}), {"hash"}),
    "marker": (
        lambda e: e.update({SOURCE: Entry(SOURCE, data=e[SOURCE].data.replace(b"_fewer", b"_fewex"))}),
        {"hash", "marker"},
    ),
    "missing file": (lambda e: e.pop(SOURCE), {"missing"}),
    "missing check": (lambda e: e.pop(CHECK_PATH), {"missing"}),
    "missing white-out": (lambda e: e.pop(PYC), {"whiteout"}),
    "bytecode instead of white-out": (
        lambda e: e.update({PYC: Entry(PYC, data=b"o\r\r\n\1\0\0\0" + bytes(9))}),
        {"whiteout", "extra", "unprovable"},
    ),
    "extra white-out": (lambda e: e.update({"etc": Entry("etc", Kind.WHITEOUT)}), {"whiteout"}),
    "extra file": (lambda e: e.update({"etc/x": Entry("etc/x")}), {"extra"}),
    "hiding package": (
        lambda e: e.update({f"{SOURCE[:-3]}/__init__.py": Entry(f"{SOURCE[:-3]}/__init__.py")}),
        {"extra", "shadowed"},
    ),
    "mode": (lambda e: e.update({SOURCE: replace(e[SOURCE], mode=0o600)}), {"metadata"}),
    "owner": (lambda e: e.update({SOURCE: replace(e[SOURCE], uid=1000)}), {"metadata"}),
    "folder's mode": (lambda e: e.update({"usr": Entry("usr", Kind.FOLDER, mode=0o777)}), {"metadata"}),
}


class TestProof:
    """Layers whose digests are all right, so that only the proof can notice what is wrong in them."""

    @pytest.mark.parametrize("name", SPOILED)
    def test_spoiled_layer(self, payload: Payload, name: str) -> None:
        edit, kinds = SPOILED[name]
        rebuild(payload, edit)
        report = prove_layer(payload.layout, "tiny", payload.record)
        if name == "bytecode instead of white-out" and find_interpreter("3.10"):
            kinds = kinds - {"unprovable"} | {"stale"}
        assert {problem.kind for problem in report.problems} == kinds
        with pytest.raises(ProofError, match="is not proved"):
            report.demand()

    def test_untouched_layer_passes_the_same_way(self, payload: Payload) -> None:
        rebuild(payload, lambda found: None)
        assert prove_layer(payload.layout, "tiny", payload.record).proved

    def test_times(self, payload: Payload) -> None:
        rebuild(payload, lambda found: None, mtime=5)
        assert {problem.kind for problem in prove_layer(payload.layout, "tiny").problems} == {"metadata"}

    def test_another_record_beside_it(self, payload: Payload) -> None:
        other = parse_record(render_record(payload.record).replace(b"fewer rows", b"other rows"), "x")
        assert [problem.kind for problem in prove_layer(payload.layout, "tiny", other).problems] == ["record"]

    def test_a_record_that_forgets_old_bytecode(self, payload: Payload) -> None:
        def forget(found: dict[str, Entry]) -> None:
            del found[PYC]
            record = json.loads(found[RECORD].data)
            record["whiteouts"].remove(pyc_paths(PATH, "3.10")[0])
            found[RECORD] = Entry(RECORD, data=json.dumps(record).encode())

        rebuild(payload, forget)
        report = prove_layer(payload.layout, "tiny")
        assert [(problem.kind, problem.path) for problem in report.problems] == [("whiteout", PYC)]

    def test_another_diff_id(self, payload: Payload) -> None:
        config = read_layout(payload.layout, "tiny").config
        rootfs = msgspec.structs.replace(config.rootfs, diff_ids=["sha256:0"])
        rewrite(payload, payload.layer.blob, encode(msgspec.structs.replace(config, rootfs=rootfs)))
        with pytest.raises(ProofError, match="its diff_id is sha256:0"):
            prove_layer(payload.layout, "tiny")

    @pytest.mark.parametrize("how", ["cut", "more", "not gzip"])
    def test_a_layer_that_does_not_unpack(self, payload: Payload, how: str) -> None:
        blob = {"cut": payload.layer.blob[:-4], "more": payload.layer.blob + b"x", "not gzip": b"x" * 30}[how]
        rewrite(payload, blob, encode(read_layout(payload.layout, "tiny").config))
        with pytest.raises(ProofError, match=r"cut short|not gzip"):
            prove_layer(payload.layout, "tiny")

    @pytest.mark.parametrize(
        ("edit", "says"),
        [
            (lambda e: e.pop("usr/share/graftwork/tiny.json"), "holds no record"),
            (lambda e: e.update({RECORD: Entry(RECORD, data=b"{}")}), "is not a record of schema 1"),
            (lambda e: e.update({RECORD: Entry(RECORD, data=e[RECORD].data[:-5])}), "is not a record of schema 1"),
            (
                lambda e: e.update({RECORD: Entry(RECORD, data=e[RECORD].data.replace(b'"tiny"', b'"else"'))}),
                "the record of another target",
            ),
        ],
    )
    def test_spoiled_record(self, payload: Payload, edit: Edit, says: str) -> None:
        rebuild(payload, edit)
        with pytest.raises(ProofError, match=says):
            prove_layer(payload.layout, "tiny")

    def test_a_spoiled_blob_is_not_even_unpacked(self, payload: Payload) -> None:
        blob = payload.layout / "blobs/sha256" / payload.layer.digest.partition(":")[2]
        blob.write_bytes(blob.read_bytes()[:-1] + b"x")
        with pytest.raises(PinError, match=payload.layer.digest):
            prove_layer(payload.layout, "tiny")

    def test_another_name(self, payload: Payload) -> None:
        with pytest.raises(MissingFile, match="it holds: tiny"):
            prove_layer(payload.layout, "other")

    def test_folder(self, payload: Payload, tmp_path: Path) -> None:
        root = unpack(payload, tmp_path / "root") / ROOT
        assert prove_tree(payload.record, root).demand().proved
        (root / pyc_paths(PATH, "3.10")[0]).parent.mkdir()
        (root / pyc_paths(PATH, "3.10")[0]).write_bytes(b"old, and no Python would load it")
        assert prove_tree(payload.record, root).demand().proved
        (root / PATH).write_bytes(b"class Indexer: pass\n")
        with pytest.raises(ProofError, match="sglang/rows is not in this file"):
            prove_tree(payload.record, root).demand()
        with pytest.raises(UsageError, match="not a folder"):
            prove_tree(payload.record, root / "missing")

    @given(st.binary(max_size=50), st.integers(0, 400))
    def test_random_records_give_an_error_of_ours(self, data: bytes, at: int) -> None:
        for text in (data, b'{"schema":1}'[: at % 12] + data):
            with pytest.raises(ProofError, match="schema 1"):
                parse_record(text, "x")


def judge(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed (scripts/install-services)")
    return found


@pytest.mark.oci
def test_skopeo_accepts_it(payload: Payload) -> None:
    told = json.loads(output([judge("skopeo"), "inspect", f"oci:{payload.layout}:tiny"]))
    assert (told["Digest"], told["Layers"]) == (payload.digest, [payload.layer.digest])
    assert (told["Architecture"], told["Env"], told["Created"]) == ("amd64", ["A=1", "B=2"], "2023-11-14T22:13:20Z")


@pytest.mark.oci
def test_skopeo_copies_it_without_a_change(payload: Payload, tmp_path: Path) -> None:
    output([judge("skopeo"), "copy", f"oci:{payload.layout}:tiny", f"oci:{tmp_path / 'copy'}:tiny"])
    assert prove_layer(tmp_path / "copy", "tiny", payload.record).digest == payload.digest


@pytest.mark.oci
def test_umoci_unpacks_what_the_self_check_then_proves(payload: Payload, tmp_path: Path) -> None:
    bundle = tmp_path / "bundle"
    output([judge("umoci"), "unpack", "--rootless", "--image", f"{payload.layout}:tiny", str(bundle)])
    root = bundle / "rootfs"
    script = root / CHECK_PATH
    assert output([sys.executable, "-I", "-S", script, "--root", root]).endswith("proved\n")
    (root / SOURCE).write_bytes((root / SOURCE).read_bytes().replace(b"_fewer", b"_fewex"))
    done = subprocess.run([sys.executable, "-I", "-S", script, "--root", root], capture_output=True, check=False)
    assert done.returncode == 4
