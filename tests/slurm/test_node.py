"""The node's side without Slurm: one node, started as the job's folder holds it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from slurm.cluster import until
from slurm.deployed import ENGINE, component, deployment

from graftwork.launch import slurm
from graftwork.launch.deployment import Component, Deployment, Ready, render_json
from graftwork.launch.node.supervise import Crash, self_check
from graftwork.launch.ports import free_block

SHIM = Path(__file__).with_name("shim.py")


class Started:
    """A node's task, its run folder and what its components wrote."""

    def __init__(self, folder: Path, names: list[str], process: subprocess.Popen[bytes]) -> None:
        self.folder, self.names, self.process = folder, names, process
        self.run = folder / "run"

    def ready(self) -> Started:
        for name in self.names:
            until((self.run / "board" / f"ready-{name}").exists, f"{name} ready: {self.said()}")
        return self

    def ended(self) -> int:
        """The exit code of the task, once nothing that it started lives."""
        code = self.process.wait(120)
        until(lambda: not self.left(), f"no process of the node: {self.left()}", 10)
        return code

    def left(self) -> list[str]:
        mark = f"GRAFTWORK_TEST={self.folder}".encode()
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal():
                try:
                    if mark in (entry / "environ").read_bytes().split(b"\0"):
                        found.append(entry.name)
                except OSError:
                    continue  # it ended meanwhile, or belongs to another user
        return found

    def said(self) -> str:
        return (self.folder / "said").read_text()

    def texts(self, name: str) -> list[str]:
        return [line.split(" ", 2)[2] for line in (self.run / "logs" / f"{name}.log").read_text().splitlines()]

    def marker(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.run / "CRASH_0").read_text())
        return found


@contextmanager
def started(folder: Path, plan: Deployment, python: str = sys.executable) -> Iterator[Started]:
    """Run *plan* from the shipped modules; what is left at the end is killed."""
    for name, text in {**slurm.shipped(), "deployment.json": render_json(plan).decode()}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    command = [python, "-EsB", *(str(folder / name) for name in ("lib/start.py", "deployment.json", "run"))]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("SLURM")} | {"GRAFTWORK_TEST": str(folder)}
    with (folder / "said").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
    task = Started(folder, [part.name for part in plan.components], process)
    try:
        yield task
    finally:
        for pid in task.left():
            os.kill(int(pid), signal.SIGKILL)
        process.wait()


def one(*parts: Component) -> Deployment:
    return deployment(*parts, nodes=1)


@pytest.mark.parametrize("number", [signal.SIGURG, signal.SIGTERM])
def test_a_signal_drains_in_order(tmp_path: Path, number: signal.Signals) -> None:
    parts = [component("store", 0, "store-master"), component("decode", 0, "decode"), component("router", 0, "router")]
    with started(tmp_path, one(*parts)) as task:
        task.ready().process.send_signal(number)
        task.process.send_signal(signal.SIGURG)
        assert task.ended() == 0
    assert [task.texts(name) for name in task.names] == [["up", "TERM", "unpinned after 1"]] * 3
    assert not list(task.run.glob("CRASH_*"))


def test_a_port_that_the_user_chose(tmp_path: Path) -> None:
    """It is neither looked for nor held against the child, but kept from others, and said to who waits for it."""
    with free_block(1) as block:
        number = block.base
    part = component("decode", 0, "decode", fixed={"http": number})
    with started(tmp_path, one(part)) as task:
        task.ready().process.send_signal(signal.SIGURG)
        assert task.ended() == 0
    published = json.loads((task.run / "board/node-0").read_text())
    assert published["ports"] == {"decode/http": number}


def test_a_chosen_port_of_another_deployment_is_a_crash(tmp_path: Path) -> None:
    with (
        free_block(1) as block,
        started(tmp_path, one(component("d", 0, "decode", fixed={"http": block.base}))) as task,
    ):
        assert task.ended() == 0
    assert "was chosen, but another deployment" in task.marker()["reason"]


@pytest.mark.parametrize("rc", [0, 3])
def test_a_component_that_ends_is_a_crash(tmp_path: Path, rc: int) -> None:
    decode = component("decode", 0, "decode", "--until", str(tmp_path / "die"), "--rc", str(rc))
    parts = [decode, component("prefill", 0, "prefill")]
    with started(tmp_path, one(*parts)) as task:
        task.ready()
        (tmp_path / "die").touch()
        assert task.ended() == 0, "the batch script decides: a task that fails may end the others"
    marker = task.marker()
    assert (marker["component"], marker["rc"], marker["node"]) == ("decode", rc, 0)
    assert "ended by itself" in marker["reason"] and "decode.log" in marker["reason"]
    assert task.texts("prefill") == ["up", "TERM", "unpinned after 1"]


def test_a_crash_that_cannot_be_written_down_is_an_exit_code(tmp_path: Path) -> None:
    with started(tmp_path, one(component("decode", 0, "decode", "--until", str(tmp_path / "die")))) as task:
        task.ready()
        (task.run / "CRASH_0" / "in the way").mkdir(parents=True)
        (tmp_path / "die").touch()
        assert task.ended() == 3
    assert "crash marker could not be written" in task.said()


def test_what_cannot_be_started_is_a_crash(tmp_path: Path) -> None:
    absent = Component(name="decode", role="decode", node=0, argv=["no-such-engine"])
    with started(tmp_path, one(absent)) as task:
        assert task.ended() == 0
    assert task.marker()["reason"] == "no-such-engine: no such program on this node"


def test_of_the_store_what_a_wrapper_leaves_behind_is_told(tmp_path: Path) -> None:
    wrapped = [sys.executable, "-ESs", str(SHIM), sys.executable, "-ESs", str(ENGINE), "--port", "{port:http}"]
    ready = Ready(kind="tcp", port="http", bound_s=90)
    parts = [
        Component(name=name, role=role, node=0, argv=wrapped, ports={"http": 1}, ready=ready, order=order, drain_s=2)
        for name, role, order in (("client", "store-client", 2), ("decode", "decode", 1))
    ]
    with started(tmp_path, one(*parts)) as task:  # type: ignore[arg-type]
        task.ready().process.send_signal(signal.SIGURG)
        assert task.ended() == 0
    assert task.texts("client") == ["up", "TERM", "unpinned after 1"]
    assert task.texts("decode") == ["up"], "an engine's workers are ending already: waited for, then killed"
    assert "killed decode" in task.said()


def test_a_killed_supervisor_is_replaced(tmp_path: Path) -> None:
    with started(tmp_path, one(component("decode", 0, "decode", "--orphan"))) as task:
        task.ready()
        (supervisor,) = _children(task.process.pid)
        os.kill(supervisor, signal.SIGKILL)
        assert task.ended() == 0
    assert task.marker()["component"] == "supervisor"
    assert task.texts("decode")[-2:] == ["TERM", "unpinned after 1"]


def test_a_supervisor_killed_while_it_drains_tells_nobody_twice(tmp_path: Path) -> None:
    with started(tmp_path, one(component("decode", 0, "decode", "--drain", "2"))) as task:
        task.ready().process.send_signal(signal.SIGURG)
        until(lambda: "TERM" in task.texts("decode"), "the signal")
        (supervisor,) = [pid for pid in _children(task.process.pid) if _argv(pid)[1:2] == ["-EsB"]]
        os.kill(supervisor, signal.SIGKILL)
        assert task.ended() == 0
    assert task.texts("decode") == ["up", "TERM", "unpinned after 1"]


def _argv(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_files_and_placeholders_reach_the_component(tmp_path: Path) -> None:
    show = 'cat "$CONF"; echo "$1 $2"; ls -d "$3"; exec sleep 600'
    part = Component(
        name="decode",
        role="decode",
        node=0,
        argv=["sh", "-c", show, "sh", "{host:0}", 'it\'s {{"a": 1}}', "{tmp}"],
        env={"CONF": "{run}/decode/conf.json", "GRAFTWORK_TEST": str(tmp_path)},
        files={"decode/conf.json": '{{"port": {port:http}}}\n'},
        ports={"http": 2},
    )
    with started(tmp_path, one(part)) as task:
        log = task.run / "logs/decode.log"
        until(lambda: log.exists() and log.read_text().count("\n") == 3, "three lines")
        conf, words, tmp = log.read_text().splitlines()
        task.process.send_signal(signal.SIGURG)
        assert task.ended() == 0
    ports = json.loads((task.run / "board/node-0").read_text())["ports"]
    assert json.loads(conf) == {"port": ports["decode/http"]}
    assert words.endswith('it\'s {"a": 1}')
    assert not Path(tmp).exists(), "the private folder goes with the job"


def test_the_oldest_python_of_a_node(tmp_path: Path) -> None:
    found = [shutil.which("python3.8"), *Path.home().glob(".pyenv/versions/3.8.*/bin/python")]
    pythons = [str(path) for path in found if path and subprocess.run([path, "-c", ""]).returncode == 0]
    if not pythons:
        pytest.skip("no Python 3.8 on this machine")
    parts = [component("decode", 0, "decode", "--orphan"), component("router", 0, "router")]
    with started(tmp_path, one(*parts), pythons[0]) as task:
        task.ready().process.send_signal(signal.SIGURG)
        assert task.ended() == 0
    assert [task.texts(name)[-2:] for name in task.names] == [["TERM", "unpinned after 1"]] * 2


@pytest.mark.parametrize("code", [0, 4])
def test_the_image_is_proved_first(tmp_path: Path, code: int) -> None:
    check = tmp_path / "check.py"
    self_check(sys.executable, check)
    check.write_text(f"raise SystemExit({code})")
    if code:
        with pytest.raises(Crash, match="does not hold its patches"):
            self_check(sys.executable, check)
    else:
        self_check(sys.executable, check)
