from __future__ import annotations

import io
import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st
from oci.layers import info, sha, tar

from graftwork.errors import TreeError
from graftwork.oci.inflate import LayerStream
from graftwork.oci.tarscan import Kind, Member, TarScan

KINDS = {tarfile.REGTYPE: Kind.FILE, tarfile.DIRTYPE: Kind.FOLDER, tarfile.SYMTYPE: Kind.SYMLINK}
KINDS |= {tarfile.LNKTYPE: Kind.HARDLINK, tarfile.FIFOTYPE: Kind.OTHER, tarfile.CHRTYPE: Kind.OTHER}


def scan(data: bytes) -> list[tuple[Member, bytes]]:
    reader = TarScan(LayerStream(io.BytesIO(data), digest=sha(data), size=len(data)), "layer L")
    return [(member, b"".join(reader.data(member))) for member in reader]


def one(data: bytes) -> Member:
    ((member, _),) = scan(data)
    return member


def resealed(data: bytes, at: int, new: bytes) -> bytes:
    """The tar with other bytes in its first header, and the checksum that fits them."""
    raw = bytearray(data)
    raw[at : at + len(new)] = new
    raw[148:156] = b"%06o\0 " % (sum(raw[:148]) + 256 + sum(raw[156:512]))
    return bytes(raw)


NAMES = st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="/"), min_size=1, max_size=120)
PATHS = st.lists(NAMES.filter(lambda n: n not in (".", "..")), min_size=1, max_size=4).map("/".join)
MEMBERS = st.tuples(
    PATHS,
    st.sampled_from(sorted(KINDS)),
    st.integers(0, 0o7777),
    st.integers(0, 2**40),
    st.binary(max_size=1500),
    st.integers(0, 2**40),
    st.dictionaries(
        NAMES.filter(lambda n: "=" not in n),
        st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=30),
        max_size=2,
    ),
)


@given(st.lists(MEMBERS, max_size=6), st.sampled_from([tarfile.PAX_FORMAT, tarfile.GNU_FORMAT]))
def test_reads_what_tarfile_writes(wanted: list[tuple], form: int) -> None:  # type: ignore[type-arg]
    made = []
    for path, kind, mode, owner, data, mtime, xattrs in wanted:
        member = info(
            path, kind, mode=mode, uid=owner, gid=owner // 2, mtime=mtime, linkname="to/x" if kind in b"12" else ""
        )
        if form == tarfile.PAX_FORMAT:
            member.pax_headers = {f"SCHILY.xattr.{key}": value for key, value in xattrs.items()}
        made.append((member, data if kind == tarfile.REGTYPE else b""))
    raw = tar(made, form)
    found = scan(raw)
    assert len(found) == len(made)
    for (path, kind, mode, owner, _, mtime, xattrs), (_, data), (member, got) in zip(wanted, made, found, strict=True):
        assert (member.path, member.kind, member.mode, member.mtime) == (path, KINDS[kind], mode, mtime)
        assert (member.uid, member.gid, got, member.size) == (owner, owner // 2, data, len(data))
        assert member.link == ("to/x" if kind in b"12" else "")
        assert raw[member.offset : member.offset + member.size] == data
        # An empty value of an attribute is a value (pax would unset the key; Go's reader keeps it).
        expected = {key: value.encode() for key, value in xattrs.items()} if form == tarfile.PAX_FORMAT else {}
        assert member.xattrs == expected


@pytest.mark.parametrize(
    ("name", "path"), [("./a/b", "a/b"), ("/a//b/", "a/b"), ("./", ""), ("a/../b", "b"), ("a/./b", "a/b")]
)
def test_names_are_normalised(name: str, path: str) -> None:
    assert one(tar([(info(name, tarfile.DIRTYPE), b"")], tarfile.USTAR_FORMAT)).path == path


@pytest.mark.parametrize("name", ["../x", "a/../../x", "/../x"])
def test_a_name_that_leaves_the_root_is_refused(name: str) -> None:
    with pytest.raises(TreeError, match=r"layer L: .*leaves the root"):
        scan(tar([(info(name), b"")]))
    with pytest.raises(TreeError, match="leaves the root"):
        scan(tar([(info("a", tarfile.LNKTYPE, linkname=name), b"")]))
    symlink = one(tar([(info("a", tarfile.SYMTYPE, linkname=name), b"")]))
    assert symlink.link == name


def test_a_cut_tar_is_told_apart_from_a_whole_one() -> None:
    raw = tar([(info("a" * 300), b"x" * 5000), (info("b"), b"y")])
    end = len(raw.rstrip(b"\0"))
    for cut in (511, 600, 1100, 1600, 3000, 5000, 6900):
        assert cut < end
        with pytest.raises(TreeError, match="ends"):
            scan_bytes(raw[:cut])
    # The end marker may be missing, as Go's writer leaves it when it is not closed.
    last = scan(raw)[-1][0]
    assert len(scan(raw[: last.offset + 512])) == 2


def scan_bytes(data: bytes) -> None:
    class Source(io.BytesIO):
        position = 0

        def skip(self, size: int) -> int:
            return len(self.read(size))

        def pieces(self, size: int):  # type: ignore[no-untyped-def]
            yield self.read(size)

    list(TarScan(Source(data), "layer L"))


def test_a_spoiled_header_in_the_middle_is_not_the_end() -> None:
    raw = bytearray(tar([(info("a"), b"x"), (info("b"), b"y")]))
    raw[1024 + 3] ^= 1
    with pytest.raises(TreeError, match="checksum"):
        scan(bytes(raw))


def test_sizes_beyond_reason() -> None:
    small = tar([(info("a"), b"x")], tarfile.GNU_FORMAT)
    with pytest.raises(TreeError, match="too large"):
        scan(resealed(small, 124, b"\x80" + b"\x7f" * 11))
    with pytest.raises(TreeError, match="negative"):
        scan(resealed(small, 124, b"\xff" * 12))
    with pytest.raises(TreeError, match=r"ends .* bytes before the end of 'a'"):
        scan(resealed(small, 124, b"\x80" + (1 << 50).to_bytes(11, "big")))
    with pytest.raises(TreeError, match="extended header has"):
        scan(resealed(resealed(small, 124, b"77777777777 "), 156, b"x"))
    with pytest.raises(TreeError, match="not an octal"):
        scan(resealed(small, 108, b"99x    \0"))


@pytest.mark.parametrize("record", [b"9 path\n", b"99 path=x\n", b"x path=x\n", b"10 size=-\n", b"13 mtime=xx\n"])
def test_malformed_pax_records(record: bytes) -> None:
    header = tar([(info("h", tarfile.XHDTYPE), record)], tarfile.USTAR_FORMAT)[:1024]
    with pytest.raises(TreeError, match=r"pax record|not a"):
        scan(header + tar([(info("a"), b"")]))


def test_sparse_files_are_facts_without_data() -> None:
    sparse = resealed(tar([(info("a"), b"x" * 700), (info("b"), b"y")], tarfile.GNU_FORMAT), 156, b"S")
    (first, data), (second, _) = scan(sparse)
    assert (first.kind, data, second.path) == (Kind.OTHER, b"", "b")


def test_global_headers_change_nothing() -> None:
    header = tar([(info("h", tarfile.XGLTYPE), b"9 uid=17\n")], tarfile.USTAR_FORMAT)[:1024]
    assert one(header + tar([(info("a"), b"")])).uid == 0


@given(st.binary(max_size=3000), st.integers(0, 4))
def test_noise_never_ends_in_a_traceback(noise: bytes, blocks: int) -> None:
    start = tar([(info("a" * 200, uid=2**33), b"x" * 600)])[: 512 * blocks]
    try:
        scan_bytes(start + noise)
    except TreeError as error:
        assert "layer L" in str(error)


def test_a_checksum_of_signed_bytes_is_accepted() -> None:
    raw = bytearray(tar([(info("caf\u00e9"), b"x")], tarfile.GNU_FORMAT))
    signed = sum(byte - 256 * (byte > 127) for byte in raw[:148] + raw[156:512]) + 256
    raw[148:156] = b"%06o\0 " % signed
    assert one(bytes(raw)).path == "caf\u00e9"
    raw[148:156] = b"%06o\0 " % (signed + 1)
    with pytest.raises(TreeError, match="checksum"):
        scan_bytes(bytes(raw))
