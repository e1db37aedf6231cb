"""A deployment of stand-in engines as a real job, and what its components wrote down."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slurm.cluster import Cluster, processes_of, until

from graftwork.launch import slurm
from graftwork.launch.deployment import (
    STOP_ENGINES,
    STOP_FIRST,
    STOP_LAST,
    Bounds,
    Component,
    Deployment,
    Node,
    Order,
    Ready,
    Role,
)

ENGINE = Path(__file__).with_name("engine.py")
ORDERS: dict[Role, Order] = {
    "router": STOP_FIRST,
    "sidecar": STOP_FIRST,
    "store-master": STOP_LAST,
    "store-client": STOP_LAST,
}


@dataclass(frozen=True)
class Line:
    """A line of a component's log: when (ns), which process, what."""

    at: int
    pid: int
    text: str


def component(name: str, node: int, role: Role, *arguments: str, port: bool = True, **changed: Any) -> Component:
    """A stand-in engine (``engine.py``) that is ready when its port is listened on."""
    argv = [sys.executable, "-ESs", str(ENGINE), *arguments, *(["--port", "{port:http}"] if port else [])]
    ready = Ready(kind="tcp", port="http", bound_s=90) if port else Ready(kind="none")
    given = {"ready": ready, "order": ORDERS.get(role, STOP_ENGINES), "drain_s": 30} | changed
    return Component(name=name, node=node, role=role, argv=argv, ports={"http": 1} if port else {}, **given)


def deployment(*components: Component, nodes: int = 2, gpus: int = 0) -> Deployment:
    """*components* with bounds that a loaded machine keeps."""
    bounds = Bounds(engine_s=60, drain_s=100, lead_s=130)
    shape = Node(gpus=gpus, memory_gib=1)
    return Deployment(
        name="stand-in",
        engine="vllm",
        version="0.24.0",
        nodes=nodes,
        node=shape,
        components=list(components),
        bounds=bounds,
    )


def pair(*decode: str, drain: float = 0.3) -> Deployment:
    """Two engines on two nodes, a router and a store; *decode* are more arguments of the second engine."""
    slow = ("--drain", str(drain))
    return deployment(
        component("store", 0, "store-master"),
        component("prefill", 0, "prefill", *slow),
        component("decode", 1, "decode", *slow, *decode),
        component("router", 0, "router"),
    )


@dataclass
class Deployed:
    """A submitted job; *run* is its shared folder."""

    cluster: Cluster
    folder: Path
    job: str
    names: list[str]

    @property
    def run(self) -> Path:
        return self.folder / "jobs" / f"{self.job}.0"

    def log(self) -> str:
        """What Slurm wrote for the job."""
        return (self.folder / "jobs" / f"{self.job}.log").read_text("utf-8", "replace")

    def ready(self) -> Deployed:
        """Wait until every component serves; AssertionError with the job's log if one has died."""
        for name in self.names:
            notice = self.run / "board" / f"ready-{name}"
            until(lambda notice=notice: notice.exists() or self.markers(), f"{name} ready in {self.folder}")  # type: ignore[misc]
            assert not self.markers(), self.log()
        return self

    def lines(self, name: str) -> list[Line]:
        """What the component *name* wrote."""
        found = [line.split(" ", 2) for line in (self.run / "logs" / f"{name}.log").read_text("utf-8").splitlines()]
        return [Line(int(at), int(pid), text) for at, pid, text in found]

    def texts(self, name: str) -> list[str]:
        return [line.text for line in self.lines(name)]

    def at(self, name: str, text: str) -> int:
        """When *name* wrote *text* for the first time, in ns."""
        return next(line.at for line in self.lines(name) if line.text == text)

    def markers(self) -> dict[str, Any]:
        """The crash markers, by file name."""
        return {path.name: json.loads(path.read_text("utf-8")) for path in self.run.glob("CRASH_*")}

    def scratch(self) -> list[Path]:
        """The private folders of the job's nodes that are there."""
        return list((self.cluster.folder / "tmp").glob(f"gw-{self.job}-*"))

    def ended(self) -> tuple[str, str]:
        """JobState and ExitCode once the job has ended, and nothing of it lives."""
        found = self.cluster.ended(self.job)
        left = processes_of(self.cluster, self.job)
        until(lambda: not processes_of(self.cluster, self.job), f"no process of job {self.job}: {left}")
        return found


def submit(cluster: Cluster, plan: Deployment, folder: Path, *options: str) -> Deployed:
    """Write *plan* as a job and submit it."""
    script = slurm.write(plan, folder, slurm.Job(sbatch=options, python=sys.executable))[0]
    return Deployed(cluster, folder, cluster.submit(script), [part.name for part in plan.components])
