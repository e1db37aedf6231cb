"""docker-archive files: written so that others read them, read as others write them, and refused with a reason."""

from __future__ import annotations

import gzip
import io
import json
import random
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest
from tiny import base_layers, config_of, packed, sha, tar_of

from graftwork.errors import GraftworkError, UsageError
from graftwork.images.docker_archive import open_archive, save_archive
from graftwork.images.sources import open_source
from graftwork.oci.families import DOCKER, Document, read_config, read_manifest
from graftwork.oci.model import Platform
from graftwork.oci.traffic import Traffic

AMD64 = Platform.parse("linux/amd64")
TARS = [tar_of(entries) for entries in base_layers()]


def image(tars: list[bytes]) -> tuple[Document, Document]:
    raw = json.dumps(config_of(tars)).encode()
    layers = [{"mediaType": DOCKER.layer_tar, "digest": sha(tar), "size": len(tar)} for tar in tars]
    config = {"mediaType": DOCKER.config, "digest": sha(raw), "size": len(raw)}
    manifest = {"schemaVersion": 2, "mediaType": DOCKER.manifest, "config": config, "layers": layers}
    return (
        read_manifest(json.dumps(manifest).encode(), DOCKER.manifest, "m"),
        read_config(raw, DOCKER.config, "c"),
    )


class Layers:
    """Blobs of a test, by digest."""

    origin = "a test"

    def __init__(self, tars: list[bytes]) -> None:
        self.by_digest = {sha(tar): tar for tar in tars}

    def open(self, digest: str, size: int) -> io.BytesIO:
        return io.BytesIO(self.by_digest[digest])

    def range(self, digest: str, start: int, end: int) -> bytes:
        return self.by_digest[digest][start:end]


@pytest.fixture
def written(tmp_path: Path) -> Path:
    manifest, config = image(TARS)
    file = tmp_path / "new/image.tar"
    own = {sha(TARS[-1]): TARS[-1]}
    copied = save_archive(file, "toy:1", manifest, config, own, Layers(TARS[:-1]))
    assert copied == sum(map(len, TARS[:-1]))
    return file


def test_what_is_written_is_read_back_layer_for_layer(written: Path) -> None:
    _, config = image(TARS)
    assert written.stat().st_mode & 0o777 == 0o644 and [path.name for path in written.parent.iterdir()] == ["image.tar"]
    with open_archive(written) as archive:
        assert [layer.digest for layer in archive.manifest.layers] == config.data["rootfs"]["diff_ids"]
        for layer, tar in zip(archive.manifest.layers, TARS, strict=True):
            with archive.open(layer.digest, layer.size) as stream:
                assert stream.read(7) + stream.read() == tar
            assert archive.range(layer.digest, 512, 1024) == tar[512:1024]
            assert archive.range(layer.digest, len(tar) - 5, len(tar) + 50) == tar[-5:]


def test_the_same_image_gives_the_same_bytes(written: Path, tmp_path: Path) -> None:
    manifest, config = image(TARS)
    save_archive(tmp_path / "b.tar", "toy:1", manifest, config, {}, Layers(TARS))
    assert written.read_bytes() == (tmp_path / "b.tar").read_bytes()


def test_a_base_layer_with_other_bytes_is_not_written(tmp_path: Path) -> None:
    manifest, config = image(TARS)
    source = Layers(TARS)
    source.by_digest[sha(TARS[1])] = TARS[1][:-1] + b"x"
    (tmp_path / "image.tar").write_bytes(b"old")
    with pytest.raises(GraftworkError, match=sha(TARS[1])[7:19]) as refused:
        save_archive(tmp_path / "image.tar", "toy:1", manifest, config, {}, source)
    assert refused.value.exit_code == 5
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("image.tar", b"old")]


@pytest.mark.oci
def test_skopeo_reads_ours_and_we_read_skopeos(written: Path, tmp_path: Path) -> None:
    if not shutil.which("skopeo"):
        pytest.skip("skopeo is not installed: scripts/install-services")

    def skopeo(*arguments: str) -> str:
        return subprocess.run(["skopeo", *arguments], check=True, capture_output=True, text=True).stdout

    shown = json.loads(skopeo("inspect", f"docker-archive:{written}"))
    assert len(shown["Layers"]) == len(TARS) and shown["Env"] == ["PATH=/usr/bin:/bin", "KEPT=1"]
    skopeo("copy", f"docker-archive:{written}", f"docker-archive:{tmp_path / 'theirs.tar'}:toy:1")
    with open_archive(tmp_path / "theirs.tar") as archive:
        assert [layer.digest for layer in archive.manifest.layers] == [sha(tar) for tar in TARS]


def archive_of(path: Path, members: list[tuple[str, bytes, bytes, str]]) -> Path:
    with tarfile.open(path, "w") as tar:
        for name, data, kind, link in members:
            info = tarfile.TarInfo(name)
            info.size, info.type, info.linkname = len(data), kind, link
            tar.addfile(info, io.BytesIO(data))
    return path


FILE, LINK, FOLDER = tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.DIRTYPE
CONFIG = json.dumps(config_of([b""])).encode()


def listed(layers: Any = ("l",), config: Any = "c.json") -> bytes:
    return json.dumps([{"Config": config, "Layers": layers}]).encode()


def test_layers_that_an_engine_saves_compressed_keep_their_digests(written: Path, tmp_path: Path) -> None:
    """As one does that keeps its images in containerd: as blobs of an OCI layout, with a manifest.json beside."""
    raw = json.dumps(config_of(TARS)).encode()
    blobs = [packed(tar, how) for tar, how in zip(TARS, ("gzip", "zstd", "tar"), strict=True)]
    entry = {"Config": f"blobs/sha256/{sha(raw)[7:]}", "Layers": [f"blobs/sha256/{sha(blob)[7:]}" for blob in blobs]}
    file = tmp_path / "saved.tar"
    with tarfile.open(file, "w") as tar:
        named = {f"blobs/sha256/{sha(data)[7:]}": data for data in (*blobs, raw)}
        for name, data in {**named, "manifest.json": json.dumps([entry]).encode()}.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    with open_archive(file) as archive:
        found = archive.manifest.layers
        kinds = [DOCKER.layer_gzip, DOCKER.layer_zstd, DOCKER.layer_tar]
        assert [(layer.digest, layer.media_type) for layer in found] == list(zip(map(sha, blobs), kinds, strict=True))
        manifest, config = image(TARS)
        assert save_archive(tmp_path / "out.tar", "toy:1", archive.manifest, config, {}, archive) == sum(map(len, TARS))
    with open_archive(tmp_path / "out.tar") as again:
        assert [layer.digest for layer in again.manifest.layers] == [layer.digest for layer in manifest.layers]


def test_a_layer_that_older_engines_write_as_a_link(tmp_path: Path) -> None:
    members = [("manifest.json", listed(["x/l"]), FILE, ""), ("c.json", CONFIG, FILE, "")]
    file = archive_of(tmp_path / "a.tar", [*members, ("y/l", b"", FILE, ""), ("x/l", b"", LINK, "../y/l")])
    with open_archive(file) as archive:
        assert archive.manifest.layers[0].digest == sha(b"")


@pytest.mark.parametrize(
    ("members", "says"),
    [
        ([], "has no manifest.json"),
        ([("manifest.json", b"[{}, {}]", FILE, "")], "holds 2 images"),
        ([("manifest.json", b"[]", FILE, "")], "holds 0 images"),
        ([("manifest.json", b"{}", FILE, "")], "holds 0 images"),
        ([("manifest.json", b"[null]", FILE, "")], "cannot be read"),
        ([("manifest.json", b"[" * 100_000, FILE, "")], "cannot be read"),
        ([("manifest.json", b"\xff", FILE, "")], "cannot be read"),
        ([("manifest.json", listed(None), FILE, "")], "cannot be read"),
        ([("manifest.json", listed(config=5), FILE, "")], "cannot be read"),
        ([("manifest.json", listed(), FILE, "")], "has no c.json"),
        ([("manifest.json", listed(), FILE, ""), ("c.json", CONFIG, FILE, "")], "has no l"),
        ([("manifest.json", listed(), FILE, ""), ("c.json", CONFIG, FILE, ""), ("l", b"", LINK, "l")], "loop"),
        ([("manifest.json", listed(), FILE, ""), ("c.json", CONFIG, FILE, ""), ("l", b"", FOLDER, "")], "not a file"),
        ([("manifest.json", listed([]), FILE, ""), ("c.json", CONFIG, FILE, "")], "0 layers, but 1 diff_ids"),
        ([("manifest.json", listed(), FILE, ""), ("c.json", b'{"rootfs": "x"}', FILE, "")], "is not an image's"),
        ([("manifest.json", listed(), FILE, ""), ("c.json", b"\xff", FILE, "")], "not a JSON document"),
    ],
)
def test_a_broken_archive_is_refused_with_its_reason(
    tmp_path: Path, members: list[tuple[str, bytes, bytes, str]], says: str
) -> None:
    file = archive_of(tmp_path / "a.tar", members)
    with pytest.raises(UsageError, match=says) as refused, open_archive(file):
        pass
    assert str(file) in str(refused.value)


def test_what_is_no_tar_at_all(written: Path, tmp_path: Path) -> None:
    (tmp_path / "a.tar.gz").write_bytes(gzip.compress(written.read_bytes()))
    for path in (tmp_path / "a.tar.gz", tmp_path, tmp_path / "nothing"):
        with pytest.raises(UsageError, match="not a docker-archive"), open_archive(path):
            pass


def test_a_damaged_archive_never_ends_in_a_traceback(written: Path, tmp_path: Path) -> None:
    whole, chosen = written.read_bytes(), random.Random(4)
    refused = 0
    for _ in range(300):
        data = bytearray(whole[: chosen.randrange(len(whole))] if chosen.random() < 0.3 else whole)
        for _ in range(chosen.randrange(1, 4) if data else 0):
            data[-chosen.randrange(1, min(6000, len(data)) + 1)] = chosen.randrange(256)
        (tmp_path / "b.tar").write_bytes(data)
        try:
            with open_source(f"docker-archive:{tmp_path / 'b.tar'}", Traffic()) as source:
                source.base(AMD64)
        except GraftworkError as error:
            refused += 1
            assert error.exit_code in (2, 5)
    assert refused > 50
