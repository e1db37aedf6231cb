from __future__ import annotations

import gzip
import io
import tarfile

import pytest
from backports import zstd
from hypothesis import given
from hypothesis import strategies as st
from oci.layers import PACKERS, info, sha, tar

from graftwork.errors import GraftworkError, MissingFile, PinError, TreeError, UsageError
from graftwork.oci.blobs import LayoutBlobs
from graftwork.oci.inflate import Codec, LayerStream, declared

TAR = tar([(info(f"a/{n}"), b"line %d\n" % n * 4000) for n in range(40)])
GZIP = "application/vnd.oci.image.layer.v1.tar+gzip"


class Slow(io.BytesIO):
    """A connection that gives a few bytes at a time."""

    def read(self, size: int | None = -1, /) -> bytes:
        return super().read(min(size or 0, 999))


def stream(blob: bytes, **fields: str) -> LayerStream:
    return LayerStream(Slow(blob), **{"digest": sha(blob), "diff_id": sha(TAR), **fields}, size=len(blob))  # type: ignore[arg-type]


@pytest.mark.parametrize("packer", PACKERS)
def test_every_compression_gives_the_tar_and_is_verified(packer: str) -> None:
    layer = stream(PACKERS[packer](TAR))
    assert b"".join(layer.pieces(1 << 40)) == TAR
    assert not layer.verified
    layer.finish()
    assert layer.verified and layer.position == len(TAR)


def test_reads_and_skips_keep_step() -> None:
    layer = stream(PACKERS["gzip-members"](TAR))
    assert layer.read(100) == TAR[:100]
    assert layer.skip(1_000_000) == 1_000_000
    assert layer.position == 1_000_100
    assert layer.read(70_000) == TAR[1_000_100:1_070_100]
    assert layer.skip(1 << 40) == len(TAR) - 1_070_100
    layer.finish()
    assert layer.verified


@pytest.mark.parametrize("packer", PACKERS)
@pytest.mark.parametrize("share", [0.001, 0.5, 0.999])
def test_a_cut_blob_is_not_taken_for_a_short_one(packer: str, share: float) -> None:
    blob = PACKERS[packer](TAR)
    with pytest.raises(PinError, match="ends after"):
        LayerStream(io.BytesIO(blob[: int(len(blob) * share)]), digest=sha(blob), size=len(blob)).finish()


def test_a_blob_that_its_publisher_cut_is_damage_not_another_blob() -> None:
    blob = PACKERS["gzip-6"](TAR)[:-9]
    with pytest.raises(TreeError, match="ends in the middle") as caught:
        stream(blob).finish()
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("packer", PACKERS)
def test_one_flipped_bit_is_another_blob(packer: str) -> None:
    blob = bytearray(PACKERS[packer](TAR))
    digest, size = sha(bytes(blob)), len(blob)
    blob[size // 2] ^= 4
    with pytest.raises(PinError, match="holds other bytes"):
        LayerStream(io.BytesIO(bytes(blob)), digest=digest, size=size).finish()


def test_more_bytes_than_stated_and_another_tar_than_the_configuration_says() -> None:
    blob = PACKERS["gzip-6"](TAR)
    with pytest.raises(PinError, match="is longer than"):
        LayerStream(io.BytesIO(blob + b"\0"), digest=sha(blob), size=len(blob)).finish()
    other = sha(b"another tar")
    with pytest.raises(PinError, match=f"unpacks to {sha(TAR)}.*says {other}"):
        stream(blob, diff_id=other).finish()


def test_garbage_behind_a_member_is_damage() -> None:
    with pytest.raises(TreeError, match="follow that are no gzip"):
        stream(PACKERS["gzip-6"](TAR) + b"garbage").finish()


def test_a_wrong_media_type_is_accepted_and_reported() -> None:
    layer = stream(zstd.compress(TAR), media_type=GZIP)
    layer.finish()
    assert layer.codec is Codec.ZSTD
    assert layer.notes == [f"layer {layer.digest} is named gzip ({GZIP}) and is zstd"]
    assert stream(gzip.compress(TAR), media_type=GZIP).notes == []


def test_media_types_of_both_families() -> None:
    assert declared("application/vnd.docker.image.rootfs.diff.tar.gzip") is Codec.GZIP
    assert declared("application/vnd.oci.image.layer.v1.tar+zstd") is Codec.ZSTD
    assert declared("application/vnd.docker.image.rootfs.diff.tar.zstd") is Codec.ZSTD
    assert declared("application/vnd.oci.image.layer.v1.tar") is Codec.TAR
    assert declared("") is None
    with pytest.raises(UsageError, match="encrypted"):
        declared("application/vnd.oci.image.layer.v1.tar+gzip+encrypted")


@pytest.mark.parametrize(("head", "name"), [(b"\xfd7zXZ\x00", "xz"), (b"BZh9", "bzip2"), (b"what", "77686174")])
def test_an_unknown_compression_is_named(head: bytes, name: str) -> None:
    blob = head + b"x" * 1000
    with pytest.raises(TreeError, match=f"neither tar, gzip nor zstd: {name}"):
        stream(blob)


def test_an_old_tar_without_magic_and_an_empty_layer() -> None:
    old = bytearray(tar([(info("a"), b"x")], tarfile.USTAR_FORMAT))
    old[257:265] = bytes(8)
    old[148:156] = b"%06o\0 " % (sum(old[:148]) + 256 + sum(old[156:512]))
    assert stream(bytes(old)).codec is Codec.TAR
    for packer in ("tar", "gzip-6", "zstd"):
        for empty in (bytes(1024), b""):
            blob = PACKERS[packer](empty)
            layer = LayerStream(io.BytesIO(blob), digest=sha(blob), size=len(blob), diff_id=sha(empty))
            layer.finish()
            assert layer.verified


@given(st.sampled_from(sorted(PACKERS)), st.data())
def test_damage_never_ends_in_a_traceback(packer: str, data: st.DataObject) -> None:
    blob = bytearray(PACKERS[packer](TAR[:20_000]))
    for _ in range(data.draw(st.integers(0, 3))):
        blob[data.draw(st.integers(0, len(blob) - 1))] = data.draw(st.integers(0, 255))
    broken = bytes(blob)
    layer = None
    try:
        layer = LayerStream(io.BytesIO(broken), digest=sha(broken), size=len(broken))
        layer.finish()
    except GraftworkError as error:
        assert error.exit_code == 2 and str(error)
    else:
        assert layer.verified


def test_a_sparse_layout_says_so(tmp_path) -> None:  # type: ignore[no-untyped-def]
    blobs = LayoutBlobs(tmp_path)
    with pytest.raises(MissingFile, match="lacks the blob") as caught:
        blobs.open(sha(b"x"), 1)
    assert "sparse" in caught.value.hint
    with pytest.raises(MissingFile):
        blobs.range(sha(b"x"), 0, 1)
    with pytest.raises(UsageError, match="not a digest"):
        blobs.open("sha256:../../etc/passwd", 1)
