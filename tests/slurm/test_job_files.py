"""The job's folder as files: options, quoting, what is refused, containers. And cancel where there is no Slurm."""

from __future__ import annotations

import os
import re
import stat
import subprocess
from pathlib import Path

import pytest
from msgspec.structs import replace
from slurm.deployed import component, deployment, pair

from graftwork.errors import UsageError
from graftwork.launch import enroot, slurm
from graftwork.launch.cancel import cancel
from graftwork.launch.deployment import Bounds
from graftwork.oci.reference import ImageRef


def options(script: Path) -> list[str]:
    """The options of a batch script."""
    return re.findall(r"^#SBATCH (.+)$", script.read_text(), re.M)


def test_the_folder_holds_files_and_no_quoted_scripts(tmp_path: Path) -> None:
    folder = tmp_path / 'it\'s 100% "mine"'
    files = slurm.write(pair(), folder)
    assert [path.relative_to(folder).as_posix() for path in files[:3]] == ["job.sbatch", "node.sh", "deployment.json"]
    for script in files[:2]:
        assert script.stat().st_mode & stat.S_IXUSR
        assert subprocess.run(["bash", "-n", script]).returncode == 0
    assert "bash -c" not in files[0].read_text()
    show = 'eval "$(grep -m1 ^folder= "$1")"; printf %s "$folder"'
    said = subprocess.run(["bash", "-c", show, "bash", files[0]], capture_output=True, text=True)
    assert said.stdout == str(folder)
    assert any("100%%" in option for option in options(files[0]))


def test_writing_again_gives_the_same_bytes_and_keeps_the_runs(tmp_path: Path) -> None:
    first = {path: path.read_bytes() for path in slurm.write(pair(), tmp_path)}
    (tmp_path / "jobs/7.log").write_text("old")
    second = {path: path.read_bytes() for path in slurm.write(pair(), tmp_path)}
    assert first == second
    assert (tmp_path / "jobs/7.log").read_text() == "old"
    assert not [path for path in tmp_path.rglob(".*") if path.is_file()], "no draft is left"


def test_the_batch_shell_is_told_before_the_time_is_up(tmp_path: Path) -> None:
    found = options(slurm.write(pair(), tmp_path)[0])
    assert "--signal=B:TERM@130" in found and "--comment=graftwork:drain_s=100" in found
    assert not [option for option in found if option.startswith(("--gres", "--exclusive"))]


def test_gpus_are_asked_for_and_the_user_comes_last(tmp_path: Path) -> None:
    plan = replace(deployment(component("a", 0, "mixed"), gpus=8, nodes=1), sbatch=["--partition=x"])
    found = options(slurm.write(plan, tmp_path, slurm.Job(sbatch=["--gres=gpu:h200:8", "--signal=B:TERM@500"]))[0])
    assert found[-6:-3] == ["--exclusive", "--mem=0", "--gres=gpu:8"]
    assert found[-3:] == ["--partition=x", "--gres=gpu:h200:8", "--signal=B:TERM@500"]


@pytest.mark.parametrize(
    ("option", "why"),
    [
        ("--nodes=3", "--nodes"),
        ("-N3", "--nodes"),
        ("--ntasks-per-node=8", "--ntasks-per-node"),
        ("--array=0-3", "--array"),
        ("--signal=TERM@500", "batch script must get TERM"),
        ("--signal=B:TERM@129", "early enough"),
        ("--sig B:TERM@5", "early enough"),
        ("--nodes 3", "--nodes"),
        ("--arr=1", "--array"),
        ("--signal=B:USR1@500", "batch script must get TERM"),
        ("partition=x", "not an option"),
        ("--partition=x\nrm -rf /", "not an option"),
    ],
)
def test_options_that_would_break_the_drain_are_refused(tmp_path: Path, option: str, why: str) -> None:
    with pytest.raises(UsageError, match=re.escape(why)):
        slurm.write(pair(), tmp_path / "job", slurm.Job(sbatch=[option]))
    assert not (tmp_path / "job").exists()


@pytest.mark.parametrize(
    ("option", "why"),
    [
        ("--kill-on-bad-exit=1", "still drain"),
        ("--kill", "still drain"),
        ("-K1", "still drain"),
        ("--wait=5", "still drain"),
        ("-W 5", "still drain"),
        ("--time=10", "still drain"),
        ("--signal=KILL@60", "still drain"),
        ("--pty", "still drain"),
        ("-n4", "--ntasks"),
        ("--nodes=1", "--nodes"),
        ("mpi=pmix", "not an option of srun"),
    ],
)
def test_options_of_srun_that_would_break_the_drain_are_refused(tmp_path: Path, option: str, why: str) -> None:
    with pytest.raises(UsageError, match=re.escape(why)):
        slurm.write(pair(), tmp_path / "job", slurm.Job(srun=[option]))
    assert not (tmp_path / "job").exists()


def test_other_options_of_srun_are_passed_on(tmp_path: Path) -> None:
    said = ["--mpi=none", "--container-mounts=/models:/models", "--cpu-bind=cores", "--nodelist=a"]
    text = slurm.write(pair(), tmp_path, slurm.Job(srun=said))[0].read_text()
    assert f"srun_options=({' '.join(said)})" in text


def test_bounds_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    long = deployment(
        component("a", 0, "mixed", drain_s=80), component("store", 0, "store-master", drain_s=30), nodes=1
    )
    with pytest.raises(UsageError, match=r"80 s \(order 1\) \+ 30 s \(order 2\)"):
        slurm.write(long, tmp_path)
    late = replace(pair(), bounds=Bounds(engine_s=60, drain_s=100, lead_s=120))
    with pytest.raises(UsageError, match="lead_s 120 is not 30 s above"):
        slurm.write(late, tmp_path)


def test_a_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "job").touch()
    with pytest.raises(UsageError, match="job"):
        slurm.write(pair(), tmp_path / "job")


def test_a_reference_is_imported_once_and_run_by_pyxis(tmp_path: Path) -> None:
    job = slurm.Job(container="registry.example:5000/team/sglang:v1", srun=["--container-writable"])
    files = slurm.write(pair(), tmp_path, job)
    text = files[0].read_text()
    (file,) = re.findall(f"--container-image=({tmp_path}/image-[0-9a-f]{{12}}.sqsh)", text)
    assert f"--container-mounts={tmp_path}:{tmp_path}" in text and "--container-writable" in text
    script = (tmp_path / "import.sh").read_text()
    assert f"enroot import --output {file}.part 'docker://registry.example:5000#team/sglang:v1'" in script
    assert "\npython=python3\n" in files[1].read_text()


def test_importing_leaves_a_whole_file_or_none_and_another_image_is_another_file(tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    enroot = tools / "enroot"
    enroot.write_text('#!/bin/sh\n[ ! -e "$3" ] || exit 9\necho part > "$3"\n[ ! -e "$0.broken" ] || exit 1\n')
    enroot.chmod(0o755)
    slurm.write(pair(), tmp_path / "job", slurm.Job(container="registry.example/a:v1"))

    def imported() -> int:
        environment = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"}
        return subprocess.run([tmp_path / "job/import.sh"], env=environment, check=False).returncode

    (tools / "enroot.broken").touch()
    assert imported() == 1 and not list((tmp_path / "job").glob("*.sqsh"))
    (tools / "enroot.broken").unlink()
    assert imported() == imported() == 0
    slurm.write(pair(), tmp_path / "job", slurm.Job(container="registry.example/a:v2"))
    assert imported() == 0
    assert len(list((tmp_path / "job").glob("*.sqsh"))) == 2 and not list((tmp_path / "job").glob("*.part"))


def test_a_squashfs_file_is_run_as_it_is(tmp_path: Path) -> None:
    files = slurm.write(pair(), tmp_path, slurm.Job(container="/images/a.sqsh"))
    assert "--container-image=/images/a.sqsh" in files[0].read_text()
    assert not (tmp_path / "import.sh").exists()


@pytest.mark.parametrize(
    ("reference", "uri"),
    [
        ("lmsysorg/sglang:v1", "docker://lmsysorg/sglang:v1"),
        ("ubuntu", "docker://library/ubuntu:latest"),
        ("registry.example/a/b:v1@sha256:" + "0" * 64, "docker://registry.example#a/b:v1"),
        ("registry.example/a/b@sha256:" + "0" * 64, "docker://registry.example#a/b@sha256:" + "0" * 64),
    ],
)
def test_enroot_uris(reference: str, uri: str) -> None:
    assert enroot.uri(ImageRef.parse(reference)) == uri


def fake(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)


@pytest.mark.parametrize("job", ["", "x", "12;rm", "-1", "12_", "0"])
def test_what_is_no_job_is_refused(job: str) -> None:
    with pytest.raises(UsageError, match="not the number"):
        cancel(job)


def test_without_slurm_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="squeue is not on PATH"):
        cancel("12")


@pytest.mark.parametrize(
    ("squeue", "why"),
    [
        ("echo 'SUSPENDED|graftwork:drain_s=5'", "suspended"),
        ("echo 'RUNNING|x'; echo 'RUNNING|x'", "12 is 2 jobs"),
        ("echo 'RUNNING|mine'", "does not say how long"),
        ("echo 'squeue: error: Access denied' >&2; exit 1", "Access denied"),
    ],
)
def test_nothing_is_sent_to_a_job_that_cannot_drain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, squeue: str, why: str
) -> None:
    fake(tmp_path, "squeue", squeue)
    fake(tmp_path, "scancel", f"touch {tmp_path}/sent")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(UsageError, match=why):
        cancel("12")
    assert not (tmp_path / "sent").exists()


@pytest.mark.parametrize(
    ("srun", "code"),
    [
        ("exit 0", 0),
        ("exit 5", 5),
        ("for run; do :; done; echo '{}' >\"$run/CRASH_1\"", 1),
    ],
)
def test_the_job_fails_with_a_marker_of_its_own_only(tmp_path: Path, srun: str, code: int) -> None:
    """The batch script beside pretended commands: an old run with the same number left a marker."""
    script = slurm.write(pair(), tmp_path / "job")[0]
    old = tmp_path / "job/jobs/7.0"
    old.mkdir()
    (old / "CRASH_0").write_text("{}")
    commands = tmp_path / "bin"
    commands.mkdir()
    for name, text in {"srun": srun, "scancel": "exit 0", "scontrol": "exit 1"}.items():
        fake(commands, name, text)
    done = subprocess.run(
        [script], env={"PATH": f"{commands}:/usr/bin:/bin", "SLURM_JOB_ID": "7"}, capture_output=True, text=True
    )
    assert done.returncode == code, done.stderr
    assert not (old / "CRASH_0").exists()
    assert list(old.parent.glob("7.0.*/CRASH_0"))
