"""Layouts: every byte verified on reading, and no instant at which one is half written."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graftwork.errors import GraftworkError, MissingFile, PinError, TreeError, UsageError
from graftwork.oci import layout
from graftwork.oci.layout import read_layout, write_layout
from graftwork.oci.model import (
    CONFIG,
    LAYER_GZIP,
    MANIFEST,
    Descriptor,
    ImageConfig,
    Manifest,
    Platform,
    RootFS,
    describe,
    encode,
    sha256_digest,
)


def write(folder: Path, blob: bytes = b"layer", name: str = "tiny") -> Descriptor:
    config = encode(ImageConfig("arm64", "linux", RootFS([sha256_digest(blob)]), variant="v8"))
    manifest = Manifest(2, describe(config, CONFIG), [describe(blob, LAYER_GZIP)], MANIFEST)
    return write_layout(folder, name, manifest, config, [blob])


def blob_files(folder: Path) -> list[Path]:
    return sorted((folder / "blobs/sha256").iterdir())


def test_what_is_there_already_is_left_and_anything_else_is_replaced(tmp_path: Path) -> None:
    file = tmp_path / "a"
    for before, kept in ((b"same", True), (b"Same", False), (b"same, longer", False)):
        file.write_bytes(before)
        file.chmod(0o644)
        inode = file.stat().st_ino
        layout.replace_file(file, b"same")
        assert (file.stat().st_ino == inode, file.read_bytes()) == (kept, b"same")
    file.chmod(0o600)
    layout.replace_file(file, b"same")
    assert file.stat().st_mode & 0o777 == 0o644
    file.rename(tmp_path / "b")
    file.symlink_to(tmp_path / "b")
    layout.replace_file(file, b"same")
    assert not file.is_symlink() and file.read_bytes() == b"same"


def test_what_is_written_is_read(tmp_path: Path) -> None:
    descriptor = write(tmp_path / "oci")
    image = read_layout(tmp_path / "oci", "tiny")
    assert image.descriptor == descriptor
    assert image.descriptor.platform == Platform("arm64", "linux", "v8")
    assert image.blob(image.manifest.layers[0]) == b"layer"
    assert image.config.rootfs.type == "layers"


def test_the_documents_have_the_form_of_the_specification(tmp_path: Path) -> None:
    descriptor = write(tmp_path)
    assert json.loads((tmp_path / "oci-layout").read_bytes()) == {"imageLayoutVersion": "1.0.0"}
    assert json.loads((tmp_path / "index.json").read_bytes()) == {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [
            {
                "mediaType": "application/vnd.oci.image.manifest.v1+json",
                "digest": descriptor.digest,
                "size": descriptor.size,
                "annotations": {"org.opencontainers.image.ref.name": "tiny"},
                "platform": {"architecture": "arm64", "os": "linux", "variant": "v8"},
            }
        ],
    }


def test_another_image_replaces_the_first_and_foreign_files_stay(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / ".graftwork-left").write_text("of a killed run")
    (tmp_path / "blobs/sha256/.graftwork-left").write_text("of a killed run")
    write(tmp_path, b"other", "second")
    assert read_layout(tmp_path, "second").manifest.layers[0].size == 5
    assert len(blob_files(tmp_path)) == 3
    assert sorted(path.name for path in tmp_path.iterdir()) == ["blobs", "index.json", "notes.txt", "oci-layout"]
    with pytest.raises(MissingFile, match="no image named 'tiny'; it holds: second"):
        read_layout(tmp_path, "tiny")


def test_modes_do_not_depend_on_the_umask(tmp_path: Path) -> None:
    old = os.umask(0o077)
    try:
        write(tmp_path / "oci")
    finally:
        os.umask(old)
    assert {path.stat().st_mode & 0o777 for path in blob_files(tmp_path / "oci")} == {0o644}


def test_a_spoiled_blob_is_written_again(tmp_path: Path) -> None:
    write(tmp_path)
    for path in blob_files(tmp_path):
        path.write_bytes(b"spoiled")
    write(tmp_path)
    assert read_layout(tmp_path, "tiny").manifest.layers


@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize("how", ["flip", "cut", "more", "gone"])
def test_every_spoiled_blob_is_noticed(tmp_path: Path, number: int, how: str) -> None:
    write(tmp_path)
    path = blob_files(tmp_path)[number]
    data = path.read_bytes()
    if how == "gone":
        path.unlink()
    else:
        path.write_bytes({"flip": bytes([data[0] ^ 1]) + data[1:], "cut": data[:-1], "more": data + b"x"}[how])
    with pytest.raises(MissingFile if how == "gone" else PinError, match="sha256:"):
        image = read_layout(tmp_path, "tiny")
        image.blob(image.manifest.layers[0])


def test_two_images_of_one_name_are_refused(tmp_path: Path) -> None:
    write(tmp_path)
    index = json.loads((tmp_path / "index.json").read_bytes())
    (tmp_path / "index.json").write_text(json.dumps({**index, "manifests": index["manifests"] * 2}))
    with pytest.raises(UsageError, match="2 images named"):
        read_layout(tmp_path, "tiny")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"digest": "sha256:../../x"}, "not a digest"),
        ({"digest": "md5:1"}, "not a digest"),
        ({"size": -1}, "-1 bytes"),
        ({"size": 1 << 40}, "the limit is"),
        ({"mediaType": "application/vnd.oci.image.index.v1+json"}, "not an OCI image manifest"),
        ({"size": "5"}, "not a valid index"),
    ],
)
def test_a_hostile_index_is_refused(tmp_path: Path, change: dict[str, object], says: str) -> None:
    write(tmp_path)
    index = json.loads((tmp_path / "index.json").read_bytes())
    index["manifests"][0].update(change)
    (tmp_path / "index.json").write_text(json.dumps(index))
    with pytest.raises(UsageError, match=says):
        read_layout(tmp_path, "tiny")


@given(st.binary(max_size=60) | st.sampled_from([b"[" * 100000, b"{}", b'{"schemaVersion":2,"manifests":[{}]}']))
def test_any_index_gives_an_error_of_ours(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    folder = tmp_path_factory.mktemp("layout")
    (folder / "index.json").write_bytes(data)
    with pytest.raises(GraftworkError):
        read_layout(folder, "tiny")


def test_no_layout(tmp_path: Path) -> None:
    with pytest.raises(MissingFile, match=r"not an OCI image layout: it has no index\.json"):
        read_layout(tmp_path, "tiny")


def test_cannot_write(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(TreeError, match="cannot write the image layout"):
        write(tmp_path / "file" / "oci")


def test_a_manifest_without_its_blobs_is_not_written(tmp_path: Path) -> None:
    config = encode(ImageConfig("amd64", "linux", RootFS([])))
    manifest = Manifest(2, describe(config, CONFIG), [describe(b"absent", LAYER_GZIP)], MANIFEST)
    with pytest.raises(PinError, match=sha256_digest(b"absent")):
        write_layout(tmp_path / "oci", "tiny", manifest, config, [])
    assert not (tmp_path / "oci").exists()


def test_platform_text() -> None:
    assert str(Platform.parse("linux/arm64/v8")) == "linux/arm64/v8"
    for text in ("linux", "linux/", "a/b/c/d"):
        with pytest.raises(UsageError, match="not a platform"):
            Platform.parse(text)


WRITER = """
import sys
from pathlib import Path
from graftwork.oci.layout import write_layout
from graftwork.oci.model import *
for number in range(100000):
    blob = b"%d" % (number % 7) * 50000
    config = encode(ImageConfig("amd64", "linux", RootFS([sha256_digest(blob)])))
    manifest = Manifest(2, describe(config, CONFIG), [describe(blob, LAYER_GZIP)], MANIFEST)
    write_layout(Path(sys.argv[1]), "tiny", manifest, config, [blob])
    sys.stdout.write("."); sys.stdout.flush()
"""


def test_a_killed_writer_leaves_a_usable_layout(tmp_path: Path) -> None:
    for round_ in range(15):
        with subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE) as writer:
            assert writer.stdout is not None
            writer.stdout.read(1 + round_)
            threading.Event().wait(round_ / 10000)
            writer.send_signal(signal.SIGKILL)
        image = read_layout(tmp_path, "tiny")
        assert sha256_digest(image.blob(image.manifest.layers[0])) == image.config.rootfs.diff_ids[0]
    write(tmp_path)
    assert len(blob_files(tmp_path)) == 3


def test_blobs_are_cleared_away_only_under_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def clean(folder: Path, keep: object, **options: object) -> None:
        with (tmp_path / ".oci.lock").open("ab") as other, pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        seen.append(folder.name)

    monkeypatch.setattr(layout, "_clean", clean)
    write(tmp_path / "oci")
    assert seen == ["sha256", "oci"]


def test_writers_at_once_leave_a_usable_layout(tmp_path: Path) -> None:
    writers = [
        threading.Thread(target=lambda n=n: [write(tmp_path / "oci", bytes([n])) for _ in range(15)]) for n in range(4)
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    image = read_layout(tmp_path / "oci", "tiny")
    assert len(image.blob(image.manifest.layers[0])) == 1
    assert len(blob_files(tmp_path / "oci")) == 3
