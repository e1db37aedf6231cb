"""Cancel, crash, time limit and double signals on a real Slurm with two virtual nodes."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result
from slurm.cluster import KILL_WAIT_S, Cluster, processes_of, until
from slurm.deployed import Deployed, component, deployment, pair, submit

from graftwork.cli.main import cli
from graftwork.errors import PolicyError, UnreachableError
from graftwork.launch.deployment import Ready

pytestmark = [pytest.mark.slurm, pytest.mark.xdist_group("slurm")]

CANCEL = ("--batch", "--signal=TERM")
DRAINED = ["TERM", "unpinned after 1"]


@pytest.fixture(scope="module", autouse=True)
def at_time_limit(slurm_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Deployed:
    """Submitted first and looked at last: Slurm's time limit counts in minutes."""
    plan = pair(drain=KILL_WAIT_S + 1.5)
    folder = tmp_path_factory.mktemp("limit") / "job"
    # Slurm looks every 30 s, and sends what would be due by its next look: here 40 to 70 s after the start.
    return submit(slurm_cluster, plan, folder, "--time=4", "--signal=B:TERM@170")


@pytest.fixture
def slurm_on_path(slurm_cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    for name, value in slurm_cluster.variables.items():
        monkeypatch.setenv(name, value)
    yield slurm_cluster


def graftwork(*arguments: str) -> Result:
    return CliRunner().invoke(cli, list(arguments), catch_exceptions=True)


def test_cancel_tells_each_component_once_and_the_store_last(slurm_on_path: Cluster, tmp_path: Path) -> None:
    plan = deployment(
        component("store", 0, "store-master", "--drain", "0.2"),
        component("prefill", 0, "prefill", "--drain", "0.2", "--worker"),
        component("decode", 1, "decode", "--drain", str(KILL_WAIT_S + 1)),
        component("router", 0, "router", "--drain", "0.5"),
        component("sidecar", 1, "sidecar", port=False),
    )
    job = submit(slurm_on_path, plan, tmp_path / 'it\'s "a" job').ready()
    assert min(job.at(name, "up") for name in ("prefill", "decode")) > job.at("store", "up")
    assert job.at("router", "up") > max(job.at(name, "up") for name in ("prefill", "decode"))

    assert len(job.scratch()) == 2
    told = graftwork("cancel", job.job)

    assert told.exit_code == 0, told.output
    assert not job.scratch()
    assert "drained" in told.output and "COMPLETED" in told.output
    assert job.ended() == ("COMPLETED", "0:0")
    assert not job.markers()
    for name in job.names:
        assert [text for text in job.texts(name) if "worker" not in text][-2:] == DRAINED, name
    assert job.texts("prefill").count("TERM") == 2, "one for the engine, one from the engine to its worker"
    engines = ("prefill", "decode")
    assert min(job.at(name, "TERM") for name in engines) > job.at("router", "unpinned after 1")
    assert job.at("store", "TERM") > max(job.at(name, "unpinned after 1") for name in engines)


def test_a_second_cancel_changes_nothing(slurm_cluster: Cluster, tmp_path: Path) -> None:
    job = submit(slurm_cluster, pair(drain=KILL_WAIT_S), tmp_path / "job").ready()
    slurm_cluster.run("scancel", *CANCEL, job.job)
    until(lambda: "TERM" in job.texts("decode"), "the first signal")
    slurm_cluster.run("scancel", *CANCEL, job.job)
    slurm_cluster.run("scancel", "--signal=URG", job.job)
    assert job.ended() == ("COMPLETED", "0:0")
    assert [job.texts(name)[1:] for name in job.names] == [DRAINED] * 4


def test_a_cancel_before_anything_runs_is_not_lost(slurm_cluster: Cluster, tmp_path: Path) -> None:
    """The signal comes as early as Slurm lets it: the tasks may not have had their traps yet."""
    job = submit(slurm_cluster, pair(), tmp_path / "job")
    until(lambda: slurm_cluster.state(job.job)[0] == "RUNNING" and job.run.exists(), "the batch script runs")
    slurm_cluster.run("scancel", *CANCEL, job.job)
    assert job.ended() == ("COMPLETED", "0:0")
    for log in (job.run / "logs").glob("*.log"):
        assert job.texts(log.stem).count("TERM") <= 1


def test_a_signal_for_the_whole_step_reaches_an_engine_twice(slurm_cluster: Cluster, tmp_path: Path) -> None:
    """Why the batch script sends URG: TERM goes to every process of the step, and then comes ours."""
    job = submit(slurm_cluster, pair(drain=2), tmp_path / "job").ready()
    slurm_cluster.run("scancel", "--signal=TERM", job.job)
    assert job.ended() == ("COMPLETED", "0:0")
    assert job.texts("decode")[1:] == ["TERM", "TERM", "unpinned after 2"]


def test_a_crash_with_exit_code_0_fails_the_job_and_drains_the_others(slurm_cluster: Cluster, tmp_path: Path) -> None:
    die = tmp_path / "die"
    plan = pair("--until", str(die), "--rc", "0", drain=KILL_WAIT_S + 0.5)
    job = submit(slurm_cluster, plan, tmp_path / "job").ready()
    die.touch()
    assert job.ended() == ("FAILED", "1:0")
    ((name, marker),) = job.markers().items()
    assert name == "CRASH_1"
    assert (marker["job"], marker["node"], marker["component"], marker["rc"]) == (job.job, 1, "decode", 0)
    assert marker["time"].endswith("Z") and marker["host"]
    assert '"component": "decode"' in job.log()
    assert [job.texts(name)[1:] for name in ("prefill", "router", "store")] == [DRAINED] * 3
    assert job.texts("decode")[1:] == ["ends by itself"]


def test_what_never_serves_is_a_crash(slurm_cluster: Cluster, tmp_path: Path) -> None:
    never = Ready(kind="http", port="http", path="/health", bound_s=2)
    plan = deployment(component("prefill", 0, "prefill"), component("decode", 1, "decode", ready=never))
    job = submit(slurm_cluster, plan, tmp_path / "job")
    assert job.ended() == ("FAILED", "1:0")
    assert "not ready within 2 s" in job.markers()["CRASH_1"]["reason"]
    assert job.texts("prefill")[1:] == DRAINED


@pytest.mark.parametrize("who", ["supervisor", "keeper"])
def test_a_killed_supervisor_leaves_nothing(slurm_cluster: Cluster, tmp_path: Path, who: str) -> None:
    job = submit(slurm_cluster, pair("--orphan"), tmp_path / "job").ready()
    task = [pid for pid, command in processes_of(slurm_cluster, job.job).items() if "start.py" in command]
    on_node_1 = [pid for pid in task if b"SLURM_NODEID=1\0" in Path(f"/proc/{pid}/environ").read_bytes()]
    keeper, supervisor = sorted(on_node_1, key=lambda pid: _parent(pid) in on_node_1)
    os.kill(supervisor if who == "supervisor" else keeper, signal.SIGKILL)
    assert job.ended()[0] == "FAILED"
    assert {name: marker["component"] for name, marker in job.markers().items()} == {"CRASH_1": who}
    assert [job.texts(name)[-2:] for name in job.names] == [DRAINED] * 4
    assert not job.scratch()


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_the_deaf_and_the_lost_are_killed_at_the_bound(slurm_cluster: Cluster, tmp_path: Path) -> None:
    plan = deployment(
        component("prefill", 0, "prefill", "--orphan"),
        component("decode", 1, "decode", "--deaf", drain_s=1),
    )
    job = submit(slurm_cluster, plan, tmp_path / "job").ready()
    slurm_cluster.run("scancel", *CANCEL, job.job)
    assert job.ended() == ("COMPLETED", "0:0")
    assert "killed decode" in job.log()
    assert job.texts("prefill")[-2:] == DRAINED


def test_a_pending_job_is_removed_at_once(slurm_on_path: Cluster, tmp_path: Path) -> None:
    job = submit(slurm_on_path, pair(), tmp_path / "job", "--begin=now+1hour")
    told = graftwork("cancel", job.job, "--json")
    assert told.exit_code == 0, told.output
    assert '"how": "pending"' in told.stdout and '"state": "CANCELLED"' in told.stdout
    again = graftwork("cancel", job.job)
    assert isinstance(again.exception, Exception) and "ended already: CANCELLED" in str(again.exception)


def test_what_does_not_drain_in_the_bound_is_cancelled(slurm_on_path: Cluster, tmp_path: Path) -> None:
    plan = deployment(component("decode", 0, "decode", "--deaf", drain_s=90), nodes=1)
    job = submit(slurm_on_path, plan, tmp_path / "job").ready()
    told = graftwork("cancel", job.job, "--bound", "1")
    assert isinstance(told.exception, PolicyError), told.output
    assert job.ended()[0] == "CANCELLED"


def test_a_foreign_job_is_not_told(slurm_on_path: Cluster, tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    script.write_text(f"#!/bin/sh\n#SBATCH --output={tmp_path}/log\nexec sleep 600\n")
    job = slurm_on_path.submit(script)
    until(lambda: slurm_on_path.state(job)[0] == "RUNNING", "the job runs")
    told = graftwork("cancel", job)
    assert "does not say how long it drains" in str(told.exception)
    assert slurm_on_path.state(job)[0] == "RUNNING"
    slurm_on_path.run("scancel", job)


def test_an_unknown_job_and_a_dead_controller(slurm_on_path: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "knows no job 999999" in str(graftwork("cancel", "999999").exception)
    conf = slurm_on_path.folder / "slurm.conf"
    dead = slurm_on_path.folder / "dead.conf"
    text = "\n".join(line for line in conf.read_text().splitlines() if not line.startswith("SlurmctldPort"))
    dead.write_text(f"{text}\nSlurmctldPort=1\nMessageTimeout=2\n")
    monkeypatch.setenv("SLURM_CONF", str(dead))
    assert isinstance(graftwork("cancel", "1").exception, UnreachableError)


def test_the_time_limit_takes_the_same_path(slurm_cluster: Cluster, at_time_limit: Deployed) -> None:
    assert at_time_limit.ended() == ("COMPLETED", "0:0")
    assert [at_time_limit.texts(name)[1:] for name in at_time_limit.names] == [DRAINED] * 4
    assert "telling every node to drain" in at_time_limit.log()


def test_gpus_of_the_job_are_shared_out(slurm_cluster: Cluster, at_time_limit: Deployed, tmp_path: Path) -> None:
    """The whole node with its (pretended) GPUs, each component shown its own."""
    at_time_limit.ended()
    show = ["sh", "-c", "echo devices $CUDA_VISIBLE_DEVICES; exec sleep 600"]
    parts = [
        component(name, 0, "prefill", port=False, gpus=gpus) for name, gpus in (("a", [0, 1]), ("b", [6]), ("c", []))
    ]
    plan = deployment(*(msgspec.structs.replace(part, argv=show) for part in parts), nodes=1, gpus=8)
    job = submit(slurm_cluster, plan, tmp_path / "job").ready()
    logs = job.run / "logs"
    until(lambda: all("devices" in (logs / f"{name}.log").read_text() for name in "abc"), "the devices")
    seen = [(logs / f"{name}.log").read_text() for name in "abc"]
    slurm_cluster.run("scancel", *CANCEL, job.job)
    assert seen == ["devices 0,1\n", "devices 6\n", "devices 0,1,2,3,4,5,6,7\n"]
    assert job.ended() == ("COMPLETED", "0:0")
