"""The services that other tests lean on: they run, they are ours, and nothing of them is left."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import socket
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
from counting import counting
from services import Engine, Registry, Unavailable, engine, listens, program, registry, runs

pytestmark = pytest.mark.registry


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Registry]:
    try:
        with registry(tmp_path / "registry") as found:
            yield found
    except Unavailable as error:
        pytest.skip(str(error))


@pytest.fixture
def docker(tmp_path: Path, local: Registry) -> Iterator[Engine]:
    try:
        with engine(tmp_path / "engine", registries=[local.host]) as found:
            yield found
    except Unavailable as error:
        pytest.skip(str(error))


def mounts_below(folder: Path) -> list[str]:
    return [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(folder) in line]


def test_the_registry_is_the_process_that_was_started(local: Registry) -> None:
    port = int(local.host.partition(":")[2])
    assert listens(local.pid, port) and not listens(os.getpid(), port)
    mark = local.mark()
    assert requests.get(f"{local.url}/v2/", timeout=5).status_code == 200
    assert [(r.method, r.path, r.status) for r in local.requests(mark)] == [("GET", "/v2/", 200)]


def test_a_port_taken_by_another_is_not_mistaken_for_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, local: Registry
) -> None:
    """The first port that is tried belongs to a registry of someone else; the second is free."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        free = int(probe.getsockname()[1])
    ports = [int(local.host.partition(":")[2]), free]
    monkeypatch.setattr("services._free_port", lambda: ports.pop(0))
    with registry(tmp_path / "second") as second:
        assert second.host == f"127.0.0.1:{free}" and second.pid != local.pid


def test_a_registry_that_cannot_start_says_why(
    tmp_path: Path, local: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services._registry_config", lambda *_: "version: 9.9\n")
    with pytest.raises(Unavailable, match="unsupported version"), registry(tmp_path / "broken"):
        pass


def test_a_missing_program_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("services._SEARCH", str(tmp_path))
    with pytest.raises(Unavailable, match=r"dockerd is not installed \(Debian package docker.io\)"), engine(tmp_path):
        pass


def test_the_counter_counts_every_byte(local: Registry) -> None:
    blob = os.urandom(3 << 20)
    with counting(local.host) as door:
        place = requests.post(f"http://{door.host}/v2/standin/blobs/uploads/", timeout=5).headers["Location"]
        assert door.host in place, "the registry sends clients back through the door"
        digest = "sha256:" + hashlib.sha256(blob).hexdigest()
        stored = requests.put(place, params={"digest": digest}, data=blob, timeout=20)
        assert stored.status_code == 201 and len(blob) < door.sent < len(blob) + 4096
        answer = requests.get(f"http://{door.host}/v2/standin/blobs/{digest}", timeout=20)
        assert answer.content == blob and len(blob) < door.received < len(blob) + 4096


def rootfs(tmp_path: Path) -> Path:
    busybox = shutil.which("busybox")
    if not busybox:
        pytest.skip("busybox is not installed")
    packed = tmp_path / "rootfs.tar"
    with tarfile.open(packed, "w") as archive:
        archive.add(busybox, "bin/busybox")
    return packed


@pytest.mark.engine
def test_the_engine_imports_runs_builds_pushes_and_pulls(docker: Engine, local: Registry, tmp_path: Path) -> None:
    with rootfs(tmp_path).open("rb") as packed:
        docker.docker("import", "-", f"{local.host}/standin/box:1", stdin=packed)
    shown = docker.docker("run", "--rm", "--network", "none", f"{local.host}/standin/box:1", "/bin/busybox", "id", "-u")
    assert shown.stdout == "0\n"
    context = tmp_path / "context"
    context.mkdir()
    (context / "Dockerfile").write_text(f'FROM {local.host}/standin/box:1\nRUN ["/bin/busybox", "touch", "/made"]\n')
    docker.docker("build", "--network", "none", "-t", f"{local.host}/standin/box:2", str(context))
    docker.docker("push", f"{local.host}/standin/box:2")
    docker.docker("image", "rm", "-f", f"{local.host}/standin/box:2", f"{local.host}/standin/box:1")
    docker.docker("pull", f"{local.host}/standin/box:2")
    command = ["/bin/busybox", "ls", "/made"]
    assert docker.docker("run", "--rm", "--network=none", f"{local.host}/standin/box:2", *command).stdout == "/made\n"


@pytest.mark.engine
@pytest.mark.parametrize("how", ["ended", "killed"])
def test_an_engine_leaves_nothing_mounted_or_running(tmp_path: Path, how: str) -> None:
    folder = tmp_path / "engine"
    try:
        with engine(folder) as found:
            containerd = int((folder / "exec/containerd/containerd.pid").read_text())
            assert runs(containerd) and mounts_below(folder)
            if how == "killed":
                os.kill(found.pid, signal.SIGKILL)
    except Unavailable as error:
        pytest.skip(str(error))
    assert not mounts_below(folder)
    assert not runs(found.pid) and not runs(containerd)
    shutil.rmtree(folder)


@pytest.mark.engine
def test_an_engine_in_a_folder_with_a_long_name(tmp_path: Path) -> None:
    """A socket's path has at most 107 bytes; the folder of a test may have more."""
    try:
        with engine(tmp_path / ("long-" * 25)) as found:
            assert len(found.host) < 107
            with rootfs(tmp_path).open("rb") as packed:
                found.docker("import", "-", "box", stdin=packed)
            assert found.docker("run", "--rm", "--network=none", "box", "/bin/busybox", "id", "-u").stdout == "0\n"
    except Unavailable as error:
        pytest.skip(str(error))


@pytest.mark.engine
def test_an_engine_that_cannot_start_shows_its_log(tmp_path: Path) -> None:
    try:
        program("dockerd", "docker.io")
        if os.geteuid() != 0:
            pytest.skip("needs root")
        with pytest.raises(Unavailable, match="nonsense"), engine(tmp_path / "engine", drivers=["nonsense"]):
            pass
    except Unavailable as error:
        pytest.skip(str(error))
