"""The Dockerfile as text; that it builds is in tests/real."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import msgspec
import pytest
from toys import Toy

from graftwork.images import dockerfile
from graftwork.images.payload import PayloadSpec, record_for
from graftwork.images.record import BytecodeFile, Record


@pytest.fixture
def record(spec: PayloadSpec) -> Record:
    return record_for(spec, {})


def lines(toy: Toy, record: Record, folder: Path, base: str | None = None) -> list[str]:
    written = dockerfile.write(toy.catalog.target("t"), record, base, folder)
    assert [path.name for path in written] == ["Dockerfile", "docker-bake.json"]
    return written[0].read_text("utf-8").splitlines()


def test_files_are_copied_by_name_with_the_owner_that_the_base_gives_them(
    toy: Toy, record: Record, tmp_path: Path
) -> None:
    files = [msgspec.structs.replace(record.files[0], uid=7, gid=8), *record.files[1:]]
    pyc = BytecodeFile("sglang/srt/__pycache__/indexer.cpython-310.pyc", "0" * 64)
    copies = [line for line in lines(toy, msgspec.structs.replace(record, files=files, bytecode_files=[pyc]), tmp_path)
              if line.startswith("COPY")]  # fmt: skip
    shown = {}
    for line in copies:
        options, _, words = line.partition(" [")
        *sources, folder = json.loads("[" + words)
        shown |= dict.fromkeys(sources, (options, folder))
    root = record.engine.root
    assert shown[f"{root}/{files[0].path}"] == ("COPY --from=payload --chown=7:8", f"{root}/sglang/srt/")
    assert shown[f"{root}/{files[1].path}"] == ("COPY --from=payload --chown=0:0", f"{root}/sglang/srt/")
    assert shown[f"{root}/{pyc.path}"][1] == f"{root}/sglang/srt/__pycache__/"
    assert shown["/usr/share/graftwork/check.py"][1] == "/usr/share/graftwork/"
    assert f"/{record.path}" in shown and len(shown) == 5


def test_stale_bytecode_goes_before_the_images_own_python_checks(toy: Toy, record: Record, tmp_path: Path) -> None:
    (run,) = [line for line in lines(toy, record, tmp_path) if line.startswith("RUN ")]
    remove, check = shlex.split(run[4:].partition(" && ")[0]), shlex.split(run.partition(" && ")[2])
    assert remove[:2] == ["rm", "-f"] and check == ["/usr/bin/python3", "/usr/share/graftwork/check.py"]
    assert set(remove[2:]) == {f"{record.engine.root}/{path}" for path in record.whiteouts} and len(remove) > 4


def test_the_pinned_base_or_the_named_one(toy: Toy, record: Record, tmp_path: Path) -> None:
    assert f"FROM example/toy:1.0@sha256:{'0' * 64}" in lines(toy, record, tmp_path)
    assert "FROM registry.test/b:1" in lines(toy, record, tmp_path, "registry.test/b:1")
    bake = json.loads((tmp_path / "docker-bake.json").read_bytes())["target"]["default"]
    assert bake["contexts"]["payload"].endswith("oci:t") and bake["platforms"] == ["linux/amd64"]
