"""A Slurm of our own: controller and two virtual nodes on this machine, with its own munge; ended by process id.

Needs root, no systemd and no cgroup. Its settings are hostile on purpose: a short KillWait, tasks are killed when
another one fails or has ended. A job must drain all the same.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from services import Unavailable, program

from graftwork.launch.ports import free_block

LOOPBACK = "127.0.0.1"
KILL_WAIT_S = 2
NODES = ("n0", "n1")
GPUS = 8
BOUND_S = 120.0


@dataclass(frozen=True)
class Cluster:
    """A running Slurm; *folder* holds its configuration and logs, *variables* lead its commands to it.

    Jobs have their temporary files in ``folder/tmp``.
    """

    folder: Path
    variables: dict[str, str]

    def run(self, *command: str, check: bool = True) -> str:
        """One of Slurm's commands; what it printed. RuntimeError if it fails and *check* is set."""
        environment = {**os.environ, **self.variables, "TMPDIR": str(self.folder / "tmp")}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if check and done.returncode:
            raise RuntimeError(f"{' '.join(command)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

    def submit(self, script: Path, *options: str) -> str:
        """The number of the job that *script* became."""
        return self.run("sbatch", "--parsable", *options, str(script)).strip()

    def state(self, job: str) -> tuple[str, str]:
        """JobState and ExitCode of *job*, such as COMPLETED and 0:0."""
        shown = self.run("scontrol", "--oneliner", "show", "job", job)
        return re.findall(r"JobState=(\S+)", shown)[0], re.findall(r" ExitCode=(\S+)", shown)[0]

    def ended(self, job: str) -> tuple[str, str]:
        """JobState and ExitCode once *job* has ended on every node."""
        until(lambda: self.state(job)[0] not in ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING"), f"end of {job}")
        return self.state(job)


def until(holds: Callable[[], bool], what: str, bound_s: float = BOUND_S) -> None:
    """Wait until *holds*; AssertionError naming *what* if that takes unreasonably long."""
    deadline = time.monotonic() + bound_s
    while not holds():
        assert time.monotonic() < deadline, f"not seen within {bound_s:.0f} s: {what}"
        time.sleep(0.05)


def processes_of(cluster: Cluster, job: str) -> dict[int, str]:
    """What lives of *job* of *cluster*, by its environment, which every descendant inherits; pid and command."""
    wanted = {f"{name}={value}".encode() for name, value in {**cluster.variables, "SLURM_JOB_ID": job}.items()}
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                if wanted.issubset((entry / "environ").read_bytes().split(b"\0")):
                    found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue  # it ended meanwhile
    return {pid: command for pid, command in found.items() if command}


@contextmanager
def cluster() -> Iterator[Cluster]:
    """Start it, wait until both nodes are idle, and end it with all its jobs. Unavailable where it cannot run."""
    if os.geteuid() != 0:
        raise Unavailable("a Slurm of our own needs root")
    for name, package in (("slurmctld", "slurmctld"), ("slurmd", "slurmd"), ("sbatch", "slurm-client")):
        _program(name, package)
    munged = _program("munged", "munge")
    with ExitStack() as stack:
        # Slurm's sockets lie here: their paths must be short.
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gw-slurm-", ignore_cleanup_errors=True)))
        _configure(folder, block := stack.enter_context(free_block(3)).hand_over())
        (folder / "munge").mkdir(mode=0o755)
        key = folder / "munge" / "key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o400)
        places = [f"--{name}={folder}/munge/{name.split('-')[0]}" for name in ("socket", "log-file", "pid-file")]
        places += [f"--key-file={key}", f"--seed-file={folder}/munge/seed"]
        stack.enter_context(_service(folder, "munged", [munged, "--foreground", "--force", *places]))
        until((folder / "munge" / "socket").exists, "munged's socket", 60)
        conf = folder / "slurm.conf"
        found = Cluster(folder, {"SLURM_CONF": str(conf)})
        daemons = {"slurmctld": ["slurmctld", "-D", "-f", str(conf)]}
        daemons |= {node: ["slurmd", "-D", "-N", node, "-f", str(conf)] for node in NODES}
        for name, command in daemons.items():
            stack.enter_context(_service(folder, name, [_program(command[0], command[0]), *command[1:]]))
        _wait_idle(found, block.start)
        stack.callback(_end_jobs, found)
        yield found


def _program(name: str, package: str) -> str:
    try:
        return program(name, package)
    except Unavailable:
        raise Unavailable(f"{name} is not installed (Debian package {package}); run scripts/install-slurm") from None


def _configure(folder: Path, ports: range) -> None:
    host = socket.gethostname()
    nodes = "\n".join(
        f"NodeName={node} NodeHostname={host} NodeAddr={LOOPBACK} Port={port} CPUs=64 RealMemory=4000 Gres=gpu:{GPUS}"
        for node, port in zip(NODES, ports[1:], strict=True)
    )
    (folder / "slurm.conf").write_text(
        f"""ClusterName=graftwork
SlurmctldHost={host}({LOOPBACK})
SlurmctldPort={ports[0]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
SlurmdParameters=config_overrides
ReturnToService=2
KillWait={KILL_WAIT_S}
KillOnBadExit=1
WaitTime=1
GresTypes=gpu
{nodes}
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
""",
        "utf-8",
    )
    for name in ("state", "tmp"):
        (folder / name).mkdir()
    for index in range(GPUS):
        os.mknod(folder / f"fakegpu{index}", 0o20666, os.makedev(1, 3))
    (folder / "gres.conf").write_text(f"AutoDetect=off\nName=gpu File={folder}/fakegpu[0-{GPUS - 1}]\n", "utf-8")
    version = subprocess.run([_program("slurmd", "slurmd"), "-V"], capture_output=True, text=True, check=True).stdout
    if tuple(map(int, re.findall(r"\d+", version)[:2])) >= (23, 11):
        (folder / "cgroup.conf").write_text("CgroupPlugin=disabled\n", "utf-8")


@contextmanager
def _service(folder: Path, name: str, command: list[str]) -> Iterator[None]:
    with (folder / f"{name}.out").open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    try:
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_idle(found: Cluster, port: int) -> None:
    deadline = time.monotonic() + BOUND_S
    while found.run("sinfo", "--noheader", "--Node", "--format=%T", check=False).split() != ["idle", "idle"]:
        if time.monotonic() > deadline:
            said = {path.name: path.read_text("utf-8", "replace")[-600:] for path in found.folder.glob("*.out")}
            raise Unavailable(f"Slurm's nodes did not come up (controller on port {port}): {said}")
        time.sleep(0.1)


def _end_jobs(found: Cluster) -> None:
    found.run("scancel", "--me", check=False)
    until(lambda: not found.run("squeue", "--noheader", check=False).strip(), "the end of all jobs")


def executable(name: str) -> str | None:
    """The program *name* of this Python's environment, or on PATH."""
    return shutil.which(name, path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))
