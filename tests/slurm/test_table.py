"""What Slurm itself does with signals: the facts that the batch script is built on, each on a bare job of its own.

One job for each row, all at once: a batch script with a trap, srun in the background, a task on each node that drains.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from slurm.cluster import KILL_WAIT_S, Cluster, until

pytestmark = [pytest.mark.slurm, pytest.mark.xdist_group("slurm")]

TASK = """
import os, signal, sys, time
log = os.open(f"{sys.argv[1]}/task{os.environ['SLURM_NODEID']}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
told = []
def note(number, _):
    told.append(number)
    os.write(log, signal.Signals(number).name.encode() + b" ")
for number in (signal.SIGTERM, signal.SIGURG):
    signal.signal(number, note)
os.write(log, b"up ")
if sys.argv[2] == "fails" and os.environ["SLURM_NODEID"] == "1":
    while not os.path.exists(f"{sys.argv[1]}/go"):
        time.sleep(0.05)
    sys.exit(3)
while not told:
    time.sleep(0.05)
time.sleep(float(sys.argv[3]))
os.write(log, b"drained")
"""

BATCH = """#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=1 --output={folder}/log
trap 'echo TERM >>{folder}/batch; {trap}' TERM
srun --kill-on-bad-exit={bad} --wait=0 {python} -ESs {folder}/task.py {folder} {kind} {drain} </dev/null &
srun=$!
while kill -0 $srun 2>/dev/null; do wait $srun; done
wait $srun
"""


@dataclass(frozen=True)
class Row:
    """An action on a job whose trap does *trap*: does the batch shell see it, what does a task write (a pattern)?"""

    action: str
    trap: str
    batch: bool
    tasks: str
    state: str
    code: str
    drain: float = 1.0
    kind: str = "drains"


KILLED = "up (SIGTERM )?"
FORWARD_TERM = "scancel --signal=TERM $SLURM_JOB_ID"
FORWARD_URG = "scancel --signal=URG $SLURM_JOB_ID"
ROWS = {
    "step": Row("scancel --signal=TERM", ":", False, "up SIGTERM drained", "COMPLETED", "0:0"),
    "batch-alone": Row("scancel --batch --signal=TERM", ":", True, "up ", "RUNNING", "0:0"),
    "to-srun": Row("scancel --batch --signal=TERM", "kill -TERM $srun", True, KILLED, "FAILED", "137:0", 3),
    "forward": Row("scancel --batch --signal=TERM", FORWARD_TERM, True, "up SIGTERM drained", "COMPLETED", "0:0"),
    "forward-urg": Row("scancel --batch --signal=TERM", FORWARD_URG, True, "up SIGURG drained", "COMPLETED", "0:0"),
    "full": Row("scancel --full --signal=TERM", ":", True, KILLED, "FAILED", "137:0", 3),
    "plain": Row("scancel", ":", True, "up SIGTERM ", "CANCELLED", "", KILL_WAIT_S + 20),
    "bad-exit": Row("touch go", ":", False, "up SIGTERM ", "FAILED", "137:0", KILL_WAIT_S + 20, "fails"),
}


@dataclass(frozen=True)
class Started:
    """A submitted row."""

    job: str
    folder: Path

    def task(self, node: int) -> str:
        path = self.folder / f"task{node}"
        return path.read_text() if path.exists() else ""


@pytest.fixture(scope="module")
def started(slurm_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Started]:
    """All jobs, their tasks up, the action of each taken."""
    found = {}
    for name, row in ROWS.items():
        folder = tmp_path_factory.mktemp(name)
        (folder / "task.py").write_text(TASK)
        bad = int(row.kind == "fails")
        words = {"trap": row.trap, "drain": row.drain, "kind": row.kind, "python": sys.executable, "bad": bad}
        (folder / "batch").touch()
        (folder / "job.sh").write_text(BATCH.format(folder=folder, **words))
        found[name] = Started(slurm_cluster.submit(folder / "job.sh"), folder)
    for name, row in ROWS.items():
        job = found[name]
        until(lambda job=job: all(job.task(node) for node in (0, 1)), f"tasks of {name}")  # type: ignore[misc]
        if row.action == "touch go":
            (job.folder / "go").touch()
        else:
            slurm_cluster.run(*row.action.split(), job.job)
    return found


@pytest.mark.parametrize("name", ROWS)
def test_what_a_signal_does(slurm_cluster: Cluster, started: dict[str, Started], name: str) -> None:
    row, job = ROWS[name], started[name]
    if row.state == "RUNNING":
        until(lambda: (job.folder / "batch").read_text() == "TERM\n", "TERM in the batch shell")
        assert slurm_cluster.state(job.job)[0] == "RUNNING"
        assert job.task(0) == job.task(1) == row.tasks
        slurm_cluster.run("scancel", job.job)
        return
    state, code = slurm_cluster.ended(job.job)
    assert state == row.state
    assert code == row.code or not row.code
    assert re.fullmatch(row.tasks, job.task(0))
    assert (job.folder / "batch").read_text().startswith("TERM") is row.batch
