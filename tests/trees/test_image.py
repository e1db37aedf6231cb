from __future__ import annotations

import base64
import gzip
import hashlib
import random
import tarfile
from pathlib import Path

import pytest
from backports import zstd
from oci.layers import info, sha, store, tar

from graftwork.catalog.base_index import BaseIndex, decode_index, encode_index
from graftwork.errors import MissingFile, PinError, TreeError, UsageError
from graftwork.names import RelPath, digest
from graftwork.oci.blobs import LayoutBlobs
from graftwork.trees.image import IndexedImageTree, build_index
from graftwork.trees.import_root import import_root
from graftwork.trees.layer_facts import LayerRef
from graftwork.trees.merged import MergedView

ROOT = "sgl-workspace/sglang/python"
A, B, C, GONE = (RelPath(f"sglang/srt/{name}.py") for name in ("a", "b", "c", "gone"))


def members(*files: tuple[str, str] | tuple[str, str, str]) -> list[tuple[tarfile.TarInfo, bytes]]:
    """(path, text), or (path, "->", target) for a link."""
    made = []
    for path, *rest in files:
        if len(rest) == 2:
            made.append((info(path, tarfile.SYMTYPE, linkname=rest[1]), b""))
        else:
            made.append((info(path), rest[0].encode()))
    return made


def filler(seed: int, size: int) -> list[tuple[tarfile.TarInfo, bytes]]:
    rng = random.Random(seed)
    return [(info(f"usr/lib/filler{seed}/{n}"), rng.randbytes(size // 40) + bytes(size // 20)) for n in range(20)]


def layers(root: Path) -> list[LayerRef]:
    base = [*filler(1, 12_000_000), (info(ROOT, tarfile.DIRTYPE, mode=0o2755, uid=5), b"")]
    base += members(
        (f"{ROOT}/{A}", "old a"), (f"{ROOT}/{B}", "base b"), (f"{ROOT}/sglang/srt/__pycache__/a.cpython-312.pyc", "x")
    )
    middle = [
        *filler(2, 2_000_000),
        *members((f"{ROOT}/{A}", "new a\n" * 1000), (f"{ROOT}/{C}", "c")),
        *filler(3, 200_000),
    ]
    refs = []
    for raw, pack in ((tar(base), gzip.compress), (tar(middle), gzip.compress), (tar(filler(4, 1000)), zstd.compress)):
        blob = pack(raw)
        refs.append(LayerRef(store(root, blob), len(blob), "application/vnd.oci.image.layer.v1.tar+gzip", sha(raw)))
    return refs


def made(root: Path, refs: list[LayerRef]) -> BaseIndex:
    view = MergedView(LayoutBlobs(root), refs, index=True)
    return build_index(
        *(view,),
        image="example.test/engine:1",
        digest=digest("sha256:" + "1" * 64),
        manifest=b"{}",
        config_digest=digest("sha256:" + "2" * 64),
        python="3.12",
        root=f"/{ROOT}",
        wanted=[A, B, C, GONE],
    )


def test_scanning_and_the_index_give_the_same_files(tmp_path: Path) -> None:
    refs = layers(tmp_path)
    view = MergedView(LayoutBlobs(tmp_path), refs)
    tree = IndexedImageTree(LayoutBlobs(tmp_path), decode_index(encode_index(made(tmp_path, refs)), "lock"))
    assert list(tree.paths()) == [A, B, C]
    for path, data in ((A, b"new a\n" * 1000), (B, b"base b"), (C, b"c")):
        assert tree.read(path) == view.read(f"{ROOT}/{path}") == data
    assert tree.exists(A) and not tree.exists(GONE)
    with pytest.raises(MissingFile):
        tree.read(GONE)
    with pytest.raises(TreeError):
        tree.read(RelPath("sglang/srt"))
    assert view.moved >= sum(ref.size for ref in refs)
    assert tree.moved < 700_000 < refs[0].size // 8 and not tree.notes


def test_the_index_says_what_the_base_has(tmp_path: Path) -> None:
    index = made(tmp_path, layers(tmp_path))
    facts = {item.path: item for item in index.paths}
    assert facts[f"{ROOT}/{A}"].layer == 1 and facts[f"{ROOT}/{B}"].layer == 0
    assert facts[f"{ROOT}/{GONE}"].kind == "absent"
    assert (facts[ROOT].mode, facts[ROOT].uid, facts[ROOT].kind) == (0o2755, 5, "folder")
    assert index.listed == {f"{ROOT}/sglang/srt/__pycache__": ["a.cpython-312.pyc"]}
    assert any("is named gzip" in note and "is zstd" in note for note in index.notes)
    assert base64.b64decode(index.manifest) == b"{}" and index.manifest_digest == sha(b"{}")


def test_the_index_is_the_same_each_time_and_survives_its_encoding(tmp_path: Path) -> None:
    refs = layers(tmp_path)
    first = encode_index(made(tmp_path, refs))
    assert encode_index(made(tmp_path, refs)) == first
    assert encode_index(decode_index(first, "lock")) == first
    for broken in (
        first[:-20],
        b"[]",
        first.replace(b'"point": 0', b'"point": 99'),
        first.replace(b'"schema": 1', b'"schema": 2'),
    ):
        with pytest.raises(UsageError, match="the lock"):
            decode_index(broken, "the lock")


def test_a_path_that_the_index_lacks_and_a_base_that_changed(tmp_path: Path) -> None:
    refs = layers(tmp_path)
    index = made(tmp_path, refs)
    tree = IndexedImageTree(LayoutBlobs(tmp_path), index)
    with pytest.raises(TreeError, match="was made without it"):
        tree.exists(RelPath("sglang/other.py"))
    blob = tmp_path / "blobs" / "sha256" / refs[1].digest.partition(":")[2]
    blob.write_bytes(bytes(len(blob.read_bytes())))
    with pytest.raises(PinError):
        tree.read(A)
    blob.unlink()
    with pytest.raises(MissingFile, match="lacks the blob"):
        tree.read(C)


def test_a_file_without_an_access_point_costs_its_layer_once(tmp_path: Path) -> None:
    far = [*filler(1, 30_000_000), *filler(5, 30_000_000), *filler(6, 30_000_000)]
    raw = tar([*far, *members((f"{ROOT}/{A}", "a"), (f"{ROOT}/{B}", "b"))])
    blob = zstd.compress(raw, 1)
    refs = [LayerRef(store(tmp_path, blob), len(blob), "", sha(raw))]
    index = made(tmp_path, refs)
    assert any("has no access point" in note for note in index.notes)
    tree = IndexedImageTree(LayoutBlobs(tmp_path), index)
    assert (tree.read(A), tree.read(B)) == (b"a", b"b")
    assert tree.moved == len(blob) and "read whole" in tree.notes[0]


# Which files the interpreter would import.

PY = "usr/lib/python3.12"
DEBIAN = [("usr/bin/python3.12", "elf"), (f"{PY}/os.py", ""), ("usr/bin/python3", "->", "python3.12")]
DEBIAN += [("usr/lib/python3/dist-packages/apt/__init__.py", "")]
VENV = [("opt/venv/bin/python", "->", "python3"), ("opt/venv/bin/python3", "->", "/usr/bin/python3")]
VENV += [("opt/venv/pyvenv.cfg", "home = /usr/bin\ninclude-system-site-packages = false\n")]
SITE = "opt/venv/lib/python3.12/site-packages"
FINDER = "MAPPING: dict[str, str] = {'sglang': '/sgl-workspace/sglang/python/sglang'}\nNAMESPACES = {}\n"
CHECKOUT = (f"{ROOT}/sglang/__init__.py", "")


def found(root: Path, *files: tuple[str, ...], interpreter: str = "/opt/venv/bin/python", **more: object):  # type: ignore[no-untyped-def]
    half = len(files) // 2
    refs = []
    for part in (files[:half], files[half:]):
        raw = tar(members(*part))  # type: ignore[arg-type]
        refs.append(LayerRef(store(root, raw), len(raw), "", sha(raw)))
    return import_root(MergedView(LayoutBlobs(root), refs), "sglang", "3.12", interpreter, **more)  # type: ignore[arg-type]


def test_site_packages_of_a_virtual_environment(tmp_path: Path) -> None:
    answer = found(
        tmp_path,
        *DEBIAN,
        *VENV,
        (f"{SITE}/sglang/__init__.py", ""),
        ("usr/lib/python3/dist-packages/sglang/__init__.py", ""),
    )
    assert (answer.root, answer.package, answer.via) == (SITE, f"{SITE}/sglang", "the virtual environment")
    assert "/usr/lib/python3/dist-packages" not in answer.searched and answer.complete


def test_debian_without_an_environment_and_an_environment_that_sees_the_system(tmp_path: Path) -> None:
    local = "usr/local/lib/python3.12/dist-packages"
    files = [*DEBIAN, (f"{local}/sglang/__init__.py", ""), ("usr/lib/python3/dist-packages/sglang/__init__.py", "")]
    assert found(tmp_path, *files, interpreter="/usr/bin/python3").root == local
    assert found(tmp_path, *files, interpreter="python3", env={"PATH": "/opt/none:/usr/bin"}).root == local
    seen = [(VENV[2][0], "include-system-site-packages = TRUE")]
    assert found(tmp_path, *files, *VENV[:2], *seen).root == local
    with pytest.raises(MissingFile, match="finds no sglang in"):
        found(tmp_path, *files, *VENV)


def test_a_prefix_of_its_own(tmp_path: Path) -> None:
    site = "opt/conda/lib/python3.12/site-packages"
    files = [
        ("opt/conda/bin/python3.12", "elf"),
        ("opt/conda/lib/python3.12/os.py", ""),
        (f"{site}/sglang/__init__.py", ""),
    ]
    assert found(tmp_path, *files, interpreter="/opt/conda/bin/python3.12").root == site
    with pytest.raises(TreeError, match="no standard library"):
        found(tmp_path, files[0], interpreter="/opt/conda/bin/python3.12")
    with pytest.raises(MissingFile, match="no such interpreter"):
        found(tmp_path, files[0], interpreter="/opt/venv/bin/python")


@pytest.mark.parametrize(
    "pth",
    [
        [(f"{SITE}/__editable__.sglang-0.5.pth", "/sgl-workspace/sglang/python")],
        [(f"{SITE}/easy-install.pth", "# made by setuptools\n/nowhere\n/sgl-workspace/sglang/python\n")],
        [(f"{SITE}/x.pth", "../../../../../sgl-workspace/sglang/python")],
        [
            (
                f"{SITE}/__editable__.sglang-0.5.pth",
                "import __editable___sglang_0_5_finder; __editable___sglang_0_5_finder.install()",
            ),
            (f"{SITE}/__editable___sglang_0_5_finder.py", FINDER),
        ],
    ],
)
def test_editable_installs_lead_to_the_checkout(tmp_path: Path, pth: list[tuple[str, str]]) -> None:
    answer = found(
        tmp_path,
        *DEBIAN,
        *VENV,
        *pth,
        CHECKOUT,
        (f"{SITE}/sglang-0.5.dist-info/direct_url.json", '{"dir_info": {"editable": true}}'),
    )
    assert answer.root == ROOT
    assert [note for note in answer.notes if "not followed" in note] == []
    assert any('"editable": true' in note for note in answer.notes)


def test_a_copy_in_site_packages_comes_before_what_pth_files_add(tmp_path: Path) -> None:
    pth = (f"{SITE}/__editable__.sglang-0.5.pth", "/sgl-workspace/sglang/python")
    assert found(tmp_path, *DEBIAN, *VENV, pth, CHECKOUT, (f"{SITE}/sglang/__init__.py", "")).root == SITE


def test_a_bare_folder_hides_the_editable_finder(tmp_path: Path) -> None:
    hook = "import __editable___sglang_0_5_finder; __editable___sglang_0_5_finder.install()"
    files = [(f"{SITE}/__editable__.s.pth", hook), (f"{SITE}/__editable___sglang_0_5_finder.py", FINDER), CHECKOUT]
    answer = found(tmp_path, *DEBIAN, *VENV, *files, (f"{SITE}/sglang/readme", ""))
    assert answer.root == SITE and any("yet hides /sgl-workspace" in note for note in answer.notes)


def test_pythonpath_comes_first_and_the_working_folder_is_mentioned(tmp_path: Path) -> None:
    files = [*DEBIAN, *VENV, (f"{SITE}/sglang/__init__.py", ""), CHECKOUT]
    answer = found(tmp_path, *files, env={"PYTHONPATH": "rel::/sgl-workspace/sglang/python"}, workdir=f"/{ROOT}")
    assert (answer.root, answer.via) == (ROOT, "PYTHONPATH")
    assert "'rel'" in answer.notes[0] and "finds first" in answer.notes[1]


def test_a_package_folder_that_is_a_link(tmp_path: Path) -> None:
    answer = found(tmp_path, *DEBIAN, *VENV, (f"{SITE}/sglang", "->", f"/{ROOT}/sglang"), CHECKOUT)
    assert (answer.root, answer.package) == (ROOT, f"{ROOT}/sglang")


@pytest.mark.parametrize("line", ["import os; exec(open('/x').read())", "import __editable___a_finder; evil()"])
def test_other_code_in_pth_files_is_told_and_not_run(tmp_path: Path, line: str) -> None:
    answer = found(
        tmp_path,
        *DEBIAN,
        *VENV,
        (f"{SITE}/zz.pth", line),
        (f"{SITE}/distutils-precedence.pth", "import os"),
        (f"{SITE}/sglang/__init__.py", ""),
    )
    assert [note for note in answer.notes if "runs code" in note] == [
        f"/{SITE}/zz.pth runs code at start-up, which was not followed: {line}"
    ]


@pytest.mark.parametrize("finder", ["MAPPING = open('/etc/passwd')", "MAPPING = {1: 2}", "def (", "x = 1"])
def test_a_finder_that_cannot_be_read_is_told(tmp_path: Path, finder: str) -> None:
    hook = "import __editable___sglang_0_5_finder; __editable___sglang_0_5_finder.install()"
    files = [
        (f"{SITE}/e.pth", hook),
        (f"{SITE}/__editable___sglang_0_5_finder.py", finder),
        (f"{SITE}/sglang/__init__.py", ""),
    ]
    assert any("mapping cannot be read" in note for note in found(tmp_path, *DEBIAN, *VENV, *files).notes)


def test_a_single_module_is_not_a_package(tmp_path: Path) -> None:
    with pytest.raises(TreeError, match="single module"):
        found(tmp_path, *DEBIAN, *VENV, (f"{SITE}/sglang.py", ""))


def test_bytes_kept_are_those_whose_hash_was_taken(tmp_path: Path) -> None:
    refs = layers(tmp_path)
    view = MergedView(LayoutBlobs(tmp_path), refs)
    fact = view.stat(f"{ROOT}/{B}")
    assert fact is not None and fact.sha256 == hashlib.sha256(b"base b").hexdigest()
