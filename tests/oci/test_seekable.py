from __future__ import annotations

import gzip
import hashlib
import json
import random
import shutil
import subprocess
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from backports import zstd
from hypothesis import given, settings
from hypothesis import strategies as st
from oci.layers import PACKERS, info, sha, store, tar

from graftwork.errors import PinError
from graftwork.oci import deflate
from graftwork.oci.blobs import LayoutBlobs
from graftwork.oci.inflate import Codec, LayerStream
from graftwork.oci.seekable import SPAN, Access, PointKind, Recorder, plain_access, read_at
from graftwork.oci.tarscan import TarScan


class Counting(LayoutBlobs):
    moved = 0
    opened = 0

    def open(self, digest: str, size: int):  # type: ignore[no-untyped-def]
        self.opened += 1
        return super().open(digest, size)

    def range(self, digest: str, start: int, end: int) -> bytes:
        data = super().range(digest, start, end)
        self.moved += len(data)
        return data


def source_text(seed: int, size: int) -> bytes:
    """Text with the repetition of source code."""
    rng = random.Random(seed)
    words = [
        "def ",
        "return ",
        "self.",
        "\n    ",
        "tensor",
        "index",
        "(",
        ")",
        " = ",
        "if ",
        "rows",
        "torch.",
        ", ",
        "None",
    ]
    words += ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz_", k=rng.randint(3, 12))) for _ in range(300)]
    return "".join(rng.choices(words, k=size // 5)).encode()[:size]


def layer(count: int = 300, size: int = 30_000) -> bytes:
    """About nine megabytes: text, random bytes and zeros in turn."""
    rng = random.Random(7)
    made = [source_text, lambda seed, size: rng.randbytes(size), lambda seed, size: bytes(size)]
    return tar([(info(f"opt/f{n}.py"), made[0 if n % 5 < 3 else n % 5 - 2](n, size + n)) for n in range(count)])


LAYER = layer()
WANTED = {f"opt/f{n}.py" for n in (0, 1, 2, 40, 41, 100, 151, 152, 153, 154, 250, 299)}


def index(blobs: LayoutBlobs, digest: str, size: int) -> dict[str, tuple[int, int, str, Access | None]]:
    recorder = Recorder()
    found = {}
    with blobs.open(digest, size) as raw:
        stream = LayerStream(raw, digest=digest, size=size, tap=recorder)
        scan = TarScan(stream, "layer")
        for member in scan:
            if member.path in WANTED:
                probe = recorder.want(member.offset, member.size)
                digest_of = hashlib.sha256(b"".join(scan.data(member))).hexdigest()
                found[member.path] = member, probe, digest_of
        stream.finish()
        plain = stream.codec is Codec.TAR
    return {
        path: (m.offset, m.size, h, plain_access(m.offset, m.size) if plain else probe.access(h) if probe else None)
        for path, (m, probe, h) in found.items()
    }


@pytest.mark.parametrize("packer", sorted(set(PACKERS) - {"zstd", "gzip-fixed"}))
def test_every_wanted_file_is_read_by_a_short_range(packer: str, tmp_path: Path) -> None:
    blob = PACKERS[packer](LAYER)
    blobs = Counting(tmp_path)
    digest = store(tmp_path, blob)
    facts = index(blobs, digest, len(blob))
    assert set(facts) == WANTED
    for path, (start, size, digest_of, access) in facts.items():
        assert access is not None, path
        assert 0 <= start - access.point.out <= SPAN
        blobs.moved = 0
        assert read_at(blobs, digest, access, start, size, digest_of) == LAYER[start : start + size]
        assert blobs.moved == access.end - access.point.offset <= SPAN + size + 70_000
    assert blobs.opened == 1


def test_a_late_file_in_a_gzip_is_read_from_the_middle(tmp_path: Path) -> None:
    blob = PACKERS["gzip-6"](LAYER)
    facts = index(LayoutBlobs(tmp_path), store(tmp_path, blob), len(blob))
    access = facts["opt/f250.py"][3]
    assert access is not None and access.point.kind is PointKind.BLOCK and access.point.offset > len(blob) // 2
    first, second = facts["opt/f152.py"][3], facts["opt/f153.py"][3]
    assert first is not None and second is not None and first.point is second.point


def test_one_zstd_frame_has_no_way_in_but_its_start(tmp_path: Path) -> None:
    blob = zstd.compress(LAYER)
    facts = index(LayoutBlobs(tmp_path), store(tmp_path, blob), len(blob))
    near, far = facts["opt/f1.py"][3], facts["opt/f299.py"][3]
    assert near is not None and near.point.out == 0
    assert far is None


def test_fixed_codes_alone_have_no_boundary_to_be_found(tmp_path: Path) -> None:
    blob = PACKERS["gzip-fixed"](LAYER)
    facts = index(LayoutBlobs(tmp_path), store(tmp_path, blob), len(blob))
    for path, (start, size, digest_of, access) in facts.items():
        if access is not None:
            found = read_at(LayoutBlobs(tmp_path), sha(blob), access, start, size, digest_of)
            assert found == LAYER[start : start + size], path


@pytest.mark.parametrize("packer", ["gzip-6", "zstd-frames", "tar"])
def test_another_blob_or_a_wrong_index_is_found(packer: str, tmp_path: Path) -> None:
    blob = PACKERS[packer](LAYER)
    digest = store(tmp_path, blob)
    start, size, digest_of, access = index(LayoutBlobs(tmp_path), digest, len(blob))["opt/f250.py"]
    assert access is not None
    path = tmp_path / "blobs" / "sha256" / digest.partition(":")[2]
    with pytest.raises(PinError, match="the index says " + "0" * 64):
        read_at(LayoutBlobs(tmp_path), digest, access, start, size, "0" * 64)
    spoiled = bytearray(blob)
    middle = (access.point.offset + access.end) // 2
    spoiled[middle : middle + 9000] = b"spoiled! " * 1000
    path.write_bytes(spoiled)
    with pytest.raises(PinError):
        read_at(LayoutBlobs(tmp_path), digest, access, start, size, digest_of)
    path.write_bytes(blob[:middle])
    with pytest.raises(PinError, match=r"sha256|index was made from"):
        read_at(LayoutBlobs(tmp_path), digest, access, start, size, digest_of)


@pytest.mark.parametrize("bits", range(8))
def test_the_lead_in_brings_zlib_to_any_bit(bits: int) -> None:
    """A stream is written behind *bits* foreign bits, and read through the lead-in, stored blocks and all."""
    packer = zlib.compressobj(6, zlib.DEFLATED, -15)
    text = source_text(1, 50_000)
    bare = packer.compress(text) + packer.flush(zlib.Z_FINISH)
    moved = (int.from_bytes(bare, "little") << bits | (0b1010101 & (1 << bits) - 1)).to_bytes(len(bare) + 1, "little")
    lead = deflate.lead_in(deflate.Start(0, bits), moved[0])
    decoder = zlib.decompressobj(-15)
    assert decoder.decompress(lead + moved[1:]) == text
    assert decoder.eof


@given(st.integers(0, 1 << 30), st.integers(1, 9), st.integers(0, 400_000))
@settings(max_examples=60, deadline=None)
def test_a_found_start_decodes_the_rest_byte_for_byte(seed: int, level: int, at: int) -> None:
    text = source_text(seed, 600_000)
    packer = zlib.compressobj(level, zlib.DEFLATED, -15)
    bare = packer.compress(text) + packer.flush()
    decoder = zlib.decompressobj(-15)
    fed = at % (len(bare) // 2)
    before = decoder.decompress(bare[:fed])
    found = deflate.find_start(decoder, before[-deflate.WINDOW :], len(before), bare[fed:], len(text))
    assert found is not None
    start, out, window = found
    assert window == text[max(out - deflate.WINDOW, 0) : out]
    rest = bare[fed + start.offset :]
    again = zlib.decompressobj(-15, zdict=window)
    assert again.decompress(deflate.lead_in(start, rest[0]) + rest[1:]) == text[out:]


def by_gzip(folder: Path) -> bytes:
    return subprocess.run(["gzip", "-9", "-n"], input=LAYER, capture_output=True, check=True).stdout


def by_skopeo(folder: Path) -> bytes:
    """Go's parallel gzip, which most registries' layers were written with or alike."""
    raw, config = (
        folder / "in",
        {"architecture": "amd64", "os": "linux", "rootfs": {"type": "layers", "diff_ids": [sha(LAYER)]}},
    )
    kind = "application/vnd.oci.image."

    def put(data: bytes, media_type: str) -> dict[str, object]:
        return {"digest": store(raw, data), "size": len(data), "mediaType": kind + media_type}

    layers = [put(LAYER, "layer.v1.tar")]
    parts = {"schemaVersion": 2, "config": put(json.dumps(config).encode(), "config.v1+json"), "layers": layers}
    manifest = put(json.dumps(parts).encode(), "manifest.v1+json") | {
        "annotations": {"org.opencontainers.image.ref.name": "t"}
    }
    (raw / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [manifest]}))
    (raw / "oci-layout").write_text('{"imageLayoutVersion":"1.0.0"}')
    ways = ["--dest-compress", "--dest-compress-format", "gzip"]
    command = ["skopeo", "--insecure-policy", "copy", "-q", *ways, f"oci:{raw}:t", f"oci:{folder / 'out'}:t"]
    subprocess.run(command, check=True, capture_output=True)
    return max((folder / "out" / "blobs" / "sha256").iterdir(), key=lambda path: path.stat().st_size).read_bytes()


@pytest.mark.parametrize(
    ("program", "pack"), [("gzip", by_gzip), pytest.param("skopeo", by_skopeo, marks=pytest.mark.oci)]
)
def test_boundaries_are_found_in_what_other_writers_make(
    program: str, pack: Callable[[Path], bytes], tmp_path: Path
) -> None:
    if shutil.which(program) is None:
        pytest.skip(f"no {program}")
    blob = pack(tmp_path)
    assert blob.startswith(b"\x1f\x8b")
    facts = index(LayoutBlobs(tmp_path), store(tmp_path, blob), len(blob))
    for path, (start, size, digest_of, access) in facts.items():
        assert access is not None, path
        assert read_at(LayoutBlobs(tmp_path), sha(blob), access, start, size, digest_of) == LAYER[start : start + size]
    last = facts["opt/f299.py"][3]
    assert last is not None and last.point.offset > len(blob) // 2


def test_history_stays_small(tmp_path: Path) -> None:
    """What the recorder keeps of a layer of 60 MB, compressible and not, stays near its span."""
    rng = random.Random(3)
    parts = [rng.randbytes(1 << 20) if n % 2 else source_text(n, 1 << 20) for n in range(8)]
    raw = tar([(info(f"f{n}", tarfile.REGTYPE), parts[n % 8]) for n in range(60)])
    for blob in (gzip.compress(raw, 1), zstd.compress(raw)):
        recorder = Recorder()
        stream = LayerStream(
            LayoutBlobs(tmp_path).open(store(tmp_path, blob), len(blob)), digest=sha(blob), size=len(blob), tap=recorder
        )
        largest = 0
        while stream.skip(1 << 20):
            largest = max(largest, sum(len(data) for _, data in recorder._pieces))
        stream.finish()
        assert largest < 2 * SPAN
        assert len(recorder._marks) < 60
