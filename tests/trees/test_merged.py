from __future__ import annotations

import gzip
import io
import tarfile
from pathlib import Path

import pytest
from backports import zstd
from hypothesis import given, settings
from hypothesis import strategies as st
from oci.layers import info, sha, store, tar

from graftwork.errors import MissingFile, PinError, TreeError
from graftwork.oci.blobs import LayoutBlobs
from graftwork.oci.tarscan import Kind
from graftwork.trees.layer_facts import LayerRef
from graftwork.trees.merged import MergedView

DIR, SYM, LNK = tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE
Members = list[tuple[tarfile.TarInfo, bytes]]


def file(path: str, data: str = "", **fields: object) -> tuple[tarfile.TarInfo, bytes]:
    return info(path, **fields), data.encode()


def folder(path: str, **fields: object) -> tuple[tarfile.TarInfo, bytes]:
    return info(path, DIR, **fields), b""


def link(path: str, to: str) -> tuple[tarfile.TarInfo, bytes]:
    return info(path, SYM, linkname=to), b""


def hard(path: str, to: str) -> tuple[tarfile.TarInfo, bytes]:
    return info(path, LNK, linkname=to), b""


def view(root: Path, *layers: Members, index: bool = False) -> MergedView:
    """The merged view of *layers*, lowest first, packed in turn as tar, gzip and zstd."""
    refs = []
    for number, members in enumerate(layers):
        raw = tar(members)
        blob = [raw, gzip.compress(raw, mtime=0), zstd.compress(raw)][number % 3]
        refs.append(LayerRef(store(root, blob), len(blob), "", sha(raw)))
    return MergedView(LayoutBlobs(root), refs, index=index)


def content(merged: MergedView, path: str) -> str | None:
    return None if merged.stat(path) is None else merged.read(path).decode()


def test_the_top_layer_wins_and_scanning_stops_there(tmp_path: Path) -> None:
    merged = view(tmp_path, [file("a/x", "old")], [folder("a"), file("a/x", "new")], [file("b", "b")])
    assert content(merged, "/a/x") == "new"
    assert merged.scans == [2, 1]
    assert content(merged, "b") == "b"
    assert merged.scans == [2, 1, 2]


def test_a_batch_is_one_scan_a_layer_and_what_a_layer_lacks_is_remembered(tmp_path: Path) -> None:
    merged = view(tmp_path, [file("a/x", "x"), file("a/y", "y")], [file("b", "b")])
    merged.want(["a/x", "a/y", "nothing"])
    assert merged.scans == [1, 0]
    assert merged.stat("nothing/at/all") is None and merged.stat("c") is None
    assert merged.scans == [1, 0]
    assert merged.moved == sum(ref.size for ref in merged.layers)


def test_white_outs_and_opaque_folders(tmp_path: Path) -> None:
    base = [folder("a", mode=0o750, uid=7), file("a/x", "x"), file("a/y", "y"), file("b/z", "z"), file("c/d/e", "e")]
    top = [
        file("a/.wh.x"),
        folder("b"),
        file("b/.wh..wh..opq"),
        file("b/new", "new"),
        file(".wh.c"),
        file("a/.wh..wh.plnk"),
    ]
    merged = view(tmp_path, base, top)
    assert [content(merged, path) for path in ("a/x", "a/y", "b/z", "b/new", "c/d/e", "c/d", "c")] == [
        *(None, "y", None, "new", None, None, None),
    ]
    found = merged.stat("a")
    assert found is not None and (found.mode, found.uid, found.implied) == (0o750, 7, False)


def test_a_white_out_does_not_hide_its_own_layer(tmp_path: Path) -> None:
    merged = view(
        tmp_path,
        [file("a/x", "old"), file("a/y", "old")],
        [file("a/x", "new"), file("a/.wh.x"), file("a/.wh..wh..opq")],
    )
    assert content(merged, "a/x") == "new" and content(merged, "a/y") is None


def test_files_and_folders_replace_each_other(tmp_path: Path) -> None:
    layers = [[folder("a"), file("a/x", "1")], [file("a", "file")], [folder("a"), file("a/y", "3")]]
    merged = view(tmp_path, *layers)
    assert content(merged, "a/x") is None and content(merged, "a/y") == "3"
    assert content(view(tmp_path, *layers[:2]), "a") == "file"
    assert content(view(tmp_path, *layers[:2]), "a/x") is None
    again = view(tmp_path, [file("a/x", "1")], [file("a", "file"), folder("a"), file("a/z", "z")])
    assert content(again, "a/x") is None and content(again, "a/z") == "z"
    undone = view(tmp_path, [], [file("a/x", "1"), file("a", "file")])
    assert content(undone, "a/x") is None and content(undone, "a") == "file"


def test_folders_keep_what_the_base_gave_them(tmp_path: Path) -> None:
    base = info("opt/app", DIR, mode=0o2750, uid=10, gid=20, mtime=77)
    base.pax_headers = {"SCHILY.xattr.user.k": "v"}
    merged = view(tmp_path, [(base, b""), file("opt/app/x", "x")], [file("opt/app/y", "y")])
    found = merged.stat("opt/app")
    assert found is not None
    assert (found.mode, found.uid, found.gid, found.mtime, found.xattrs) == (0o2750, 10, 20, 77, {"user.k": b"v"})
    outer = merged.stat("opt")
    assert outer is not None and (outer.kind, outer.mode, outer.implied) == (Kind.FOLDER, 0o755, True)
    over = view(tmp_path, [file("opt", "a file")], [file("opt/y", "y")]).stat("opt")
    assert over is not None and over.kind is Kind.FOLDER


def test_hard_links_in_the_layer_and_to_a_lower_one(tmp_path: Path) -> None:
    merged = view(
        tmp_path,
        [file("lib/old", "old", mode=0o600)],
        [
            file("lib/a", "first"),
            hard("lib/b", "lib/a"),
            file("lib/a", "second"),
            hard("lib/c", "lib/old"),
            hard("lib/d", "lib/b"),
        ],
    )
    assert [content(merged, f"lib/{name}") for name in "abcd"] == ["second", "first", "old", "first"]
    found = merged.stat("lib/c")
    assert found is not None and (found.kind, found.layer, found.size) == (Kind.FILE, 0, 3)
    gone = view(tmp_path, [], [hard("a", "nowhere")])
    with pytest.raises(TreeError, match="hard link to nowhere, which is not there"):
        gone.stat("a")


def test_links_in_the_middle_are_followed_across_layers(tmp_path: Path) -> None:
    layers = [
        [
            link("sgl/python/pkg", "/opt/checkout/pkg"),
            link("opt/checkout", "../srv/src"),
            file("srv/src/pkg/x.py", "old"),
        ],
        [file("srv/src/pkg/x.py", "new")],
    ]
    merged = view(tmp_path, *layers)
    found = merged.stat("sgl/python/pkg/x.py")
    assert found is not None and (found.path, found.layer) == ("srv/src/pkg/x.py", 1)
    assert merged.read("sgl/python/pkg/x.py") == b"new"
    itself = merged.stat("sgl/python/pkg", follow=False)
    assert itself is not None and (itself.kind, itself.link) == (Kind.SYMLINK, "/opt/checkout/pkg")
    assert merged.stat("sgl/python/pkg/x.py/deeper") is None
    assert merged.scans.count(1) <= 2 and merged.scans.count(0) <= 2


def test_links_out_of_the_root_stay_in_it_and_loops_end(tmp_path: Path) -> None:
    merged = view(tmp_path, [link("a/up", "../../../../etc"), file("etc/x", "x"), link("l1", "l2"), link("l2", "l1/y")])
    assert content(merged, "a/up/x") == "x"
    with pytest.raises(TreeError, match="a loop"):
        merged.stat("l1/z")
    assert merged.stat("a/up/../etc/x") is not None


def test_a_detour_through_a_link_is_told(tmp_path: Path) -> None:
    merged = view(tmp_path, [link("lib", "usr/lib"), file("usr/lib/x", "old")], [file("lib/x", "new")])
    merged.stat("lib/y")
    assert merged.notes == [
        f"layer {merged.layers[1].digest} has files below /lib, a link: they are found by that name only"
    ]
    replaced = view(tmp_path, [link("lib", "usr/lib")], [folder("lib"), file("lib/x", "new")])
    assert replaced.stat("lib/y") is None and replaced.notes == []


def test_names_are_exact_in_case_and_in_unicode_form(tmp_path: Path) -> None:
    merged = view(tmp_path, [file("a/Readme", "1"), file("a/caf\u00e9", "2")])
    assert content(merged, "a/readme") is None and content(merged, "a/cafe\u0301") is None
    assert content(merged, "a/caf\u00e9") == "2"


def test_listings(tmp_path: Path) -> None:
    base = [file("p/__pycache__/a.cpython-312.pyc"), file("p/__pycache__/b.pyc"), file("p/x/deep/er")]
    middle = [file("p/__pycache__/.wh.b.pyc"), file("p/__pycache__/c.pyc")]
    merged = view(tmp_path, base, middle, [file("q", "q")])
    assert merged.names("p/__pycache__").names == ("a.cpython-312.pyc", "c.pyc")
    assert merged.names("p").names == ("__pycache__", "x")
    assert merged.names("q").names == () and merged.names("nothing").names == ()
    opaque = view(tmp_path, base, [folder("p"), file("p/.wh..wh..opq"), file("p/new")])
    assert opaque.names("p").names == ("new",)
    assert opaque.scans == [1]
    linked = view(tmp_path, [*base, link("way", "p")])
    assert linked.names("way/__pycache__").names == ("a.cpython-312.pyc", "b.pyc")


def test_a_shallow_listing_opens_nothing_and_says_what_it_may_lack(tmp_path: Path) -> None:
    merged = view(tmp_path, [file("p/low")], [folder("p"), file("p/high")])
    merged.want(["p/high"], ["p"], deep=False)
    shallow = merged.names("p", deep=False)
    assert (shallow.names, shallow.complete, merged.scans) == (("high",), False, [1])
    deep = merged.names("p")
    assert (deep.names, deep.complete) == (("high", "low"), True)


def test_what_cannot_be_read_is_refused(tmp_path: Path) -> None:
    merged = view(tmp_path, [folder("d"), (info("fifo", tarfile.FIFOTYPE), b"")])
    with pytest.raises(MissingFile):
        merged.read("nothing")
    with pytest.raises(TreeError, match="is a folder"):
        merged.read("d")
    with pytest.raises(TreeError, match="is a other"):
        merged.read("fifo")


def test_a_layer_that_is_not_the_one_named_gives_nothing(tmp_path: Path) -> None:
    merged = view(tmp_path, [file("a", "a")], [file("b", "b")])
    path = tmp_path / "blobs" / "sha256" / merged.layers[1].digest.partition(":")[2]
    good = path.read_bytes()
    path.write_bytes(good[:-9] + b"x" + good[-8:])
    with pytest.raises(PinError, match="holds other bytes"):
        merged.stat("b")
    path.write_bytes(good[:-9])
    with pytest.raises(PinError, match=r"has .* bytes, its descriptor says"):
        merged.stat("b")
    path.unlink()
    with pytest.raises(MissingFile, match="lacks the blob"):
        merged.stat("b")
    path.write_bytes(good)
    assert content(merged, "b") == "b"
    wrong = LayerRef(merged.layers[0].digest, merged.layers[0].size, "", "sha256:" + "0" * 64)
    with pytest.raises(PinError, match="configuration says"):
        MergedView(LayoutBlobs(tmp_path), [wrong]).stat("a")


# A reference that unpacks into dicts, in the order of the archive, as containerd's naive applier does.
Tree = dict[str, tuple[str, str, int]]


def remove(tree: Tree, path: str) -> None:
    for inner in [p for p in tree if p == path or p.startswith(f"{path}/")]:
        del tree[inner]


def unpack(layers: list[Members]) -> Tree:
    tree: Tree = {}
    for members in layers:
        mine: set[str] = set()
        for member, data in members:
            path, _, name = member.name.rpartition("/")
            path, target = member.name, f"{path}/{name[4:]}".lstrip("/")
            if name == ".wh..wh..opq":
                inside = [p for p in tree if p.startswith(f"{member.name.rpartition('/')[0]}/") and p not in mine]
                keep = {up for p in mine for up in parents(p)}
                for p in inside:
                    if p not in keep:
                        del tree[p]
                continue
            if name.startswith(".wh."):
                keep = mine | {up for p in mine for up in parents(p)}
                for p in [p for p in tree if (p == target or p.startswith(f"{target}/")) and p not in keep]:
                    del tree[p]
                continue
            for up in reversed(parents(path)):
                if tree.get(up, ("", "", 0))[0] not in ("folder",):
                    remove(tree, up)
                    tree[up] = ("folder", "", 0o755)
            if member.type == DIR:
                if path in tree and tree[path][0] != "folder":
                    remove(tree, path)
                tree[path] = ("folder", "", member.mode)
            else:
                remove(tree, path)
                mine -= {p for p in mine if p.startswith(f"{path}/")}
                tree[path] = (
                    ("symlink", member.linkname, member.mode)
                    if member.type == SYM
                    else ("file", data.decode(), member.mode)
                )
            mine.add(path)
    return tree


def parents(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:n]) for n in range(len(parts) - 1, 0, -1)]


NAME = st.sampled_from(["a", "b", "c"])
PATH = st.lists(NAME, min_size=1, max_size=3).map("/".join)
MODE = st.sampled_from([0o600, 0o644, 0o755])
ITEM = st.one_of(
    st.builds(lambda p, d, m: file(p, d, mode=m), PATH, st.sampled_from(["1", "2", "3"]), MODE),
    st.builds(lambda p, m: folder(p, mode=m), PATH, MODE),
    st.builds(lambda p: file("/".join([*p.split("/")[:-1], ".wh." + p.split("/")[-1]])), PATH),
    st.builds(lambda p: file(f"{p}/.wh..wh..opq"), PATH),
)


def well_formed(members: Members) -> Members:
    """Leave out what no unpacker takes: members below a file of the same layer."""
    kept: Members = []
    kinds: dict[str, bool] = {}
    for member, data in members:
        name = member.name.rpartition("/")[2]
        if any(kinds.get(up) is False for up in parents(member.name)):
            continue
        if not name.startswith(".wh."):
            kinds[member.name] = member.type == DIR
            for up in parents(member.name):
                kinds[up] = True
            if member.type != DIR:
                kinds = {p: k for p, k in kinds.items() if not p.startswith(f"{member.name}/")}
        kept.append((member, data))
    # Unpackers differ in whether a white-out may come after what it must not hide; writers put them first.
    return sorted(kept, key=lambda item: not item[0].name.rpartition("/")[2].startswith(".wh."))


EVERY = sorted({"/".join(p) for n in (1, 2, 3) for p in __import__("itertools").product("abc", repeat=n)})


@settings(max_examples=400, deadline=None)
@given(
    st.lists(st.lists(ITEM, max_size=7).map(well_formed), min_size=1, max_size=5), st.permutations(EVERY), st.booleans()
)
def test_random_stacks_equal_what_unpacking_gives(tmp_path_factory, layers, order, batch) -> None:  # type: ignore[no-untyped-def]
    tree = unpack(layers)
    merged = view(tmp_path_factory.getbasetemp() / "stacks", *layers)
    if batch:
        merged.want(order[:10])
    for path in order:
        found = merged.stat(path, follow=False)
        if path not in tree:
            assert found is None, path
            continue
        kind, data, mode = tree[path]
        assert found is not None, path
        assert (found.kind.value, found.mode) == (kind, mode), path
        if kind == "file":
            assert merged.read(path).decode() == data, path
    for path in order[:5]:
        expected = {p.rpartition("/")[2] for p in tree if p.rpartition("/")[0] == path}
        assert set(merged.names(path).names) == expected, path


def test_the_reference_agrees_with_a_hand_made_case() -> None:
    tree = unpack([[file("a/x", "1"), file("a/y", "2")], [file("a/.wh.x"), folder("b")], [file("a", "f")]])
    assert tree == {"a": ("file", "f", 0o644), "b": ("folder", "", 0o755)}
    assert io.BytesIO(tar([file("a")])).read(1) == b"a"
