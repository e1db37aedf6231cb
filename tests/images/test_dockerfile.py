"""The Dockerfile as text, and the tar that it adds; that they build is in tests/real."""

from __future__ import annotations

import json
import shlex
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest
from toys import Toy

from graftwork.images import dockerfile
from graftwork.images.payload import PayloadSpec, build_payload
from graftwork.images.record import CHECK_PATH, Record
from graftwork.names import TargetName


@pytest.fixture
def record(toy: Toy, spec: PayloadSpec, tmp_path: Path) -> Record:
    return build_payload(replace(spec, target=TargetName("t")), tmp_path).record


def lines(toy: Toy, record: Record, folder: Path, base: str | None = None) -> list[str]:
    written = dockerfile.write(toy.catalog.target("t"), record, base, folder / "t")
    assert [path.name for path in written] == ["Dockerfile", "docker-bake.json", "payload.tar"]
    return written[0].read_text("utf-8").splitlines()


def test_the_files_are_added_as_the_payload_has_them_and_nothing_else(toy: Toy, record: Record, tmp_path: Path) -> None:
    assert "ADD payload.tar /" in lines(toy, record, tmp_path)
    with tarfile.open(tmp_path / "t/payload.tar") as tar:
        found = {member.name: member for member in tar}
    root = record.engine.root.strip("/")
    assert set(found) == {*(f"{root}/{file.path}" for file in record.files), record.path, CHECK_PATH}
    for file in record.files:
        member = found[f"{root}/{file.path}"]
        assert (f"{member.mode:04o}", member.uid, member.gid) == (file.mode, file.uid, file.gid)
        assert (member.mtime, member.size) == (record.epoch, file.size)
    again = (tmp_path / "t/payload.tar").read_bytes()
    lines(toy, record, tmp_path)
    assert (tmp_path / "t/payload.tar").read_bytes() == again


def test_stale_bytecode_goes_before_the_images_own_python_checks(toy: Toy, record: Record, tmp_path: Path) -> None:
    (run,) = [line for line in lines(toy, record, tmp_path) if line.startswith("RUN ")]
    remove, check = shlex.split(run[4:].partition(" && ")[0]), shlex.split(run.partition(" && ")[2])
    assert remove[:2] == ["rm", "-f"] and check == ["/usr/bin/python3", "/usr/share/graftwork/check.py"]
    assert set(remove[2:]) == {f"{record.engine.root}/{path}" for path in record.whiteouts} and len(remove) > 4


def test_the_pinned_base_or_the_named_one(toy: Toy, record: Record, tmp_path: Path) -> None:
    assert f"FROM example/toy:1.0@sha256:{'0' * 64}" in lines(toy, record, tmp_path)
    assert "FROM registry.test/b:1" in lines(toy, record, tmp_path, "registry.test/b:1")
    bake = json.loads((tmp_path / "t/docker-bake.json").read_bytes())["target"]["default"]
    assert bake["tags"] == ["t:latest"] and bake["platforms"] == ["linux/amd64"]
