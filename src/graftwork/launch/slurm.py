"""A deployment as a Slurm job: a folder with the batch script, the node script, and what runs on the nodes."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from graftwork.errors import UsageError
from graftwork.launch.cancel import COMMENT
from graftwork.launch.deployment import Deployment, render_json
from graftwork.launch.enroot import import_script, squashfs_of
from graftwork.launch.node.board import write_whole
from graftwork.launch.node.drain import MARGIN_S
from graftwork.oci.reference import ImageRef

# What runs on a node: the packages that the shipped modules need, and the modules.
SHIPPED = ("__init__.py", "launch/__init__.py", "launch/placeholders.py", "launch/ports.py", "launch/ucx.py")
_SIGNAL = re.compile(r"B:(?:SIG)?(?:TERM|15)@(\d+)", re.IGNORECASE)
# Options that would change what the deployment is, by their long and short names.
_TASKS = {"--nodes": "-N", "--ntasks": "-n", "--ntasks-per-node": ""}
_FIXED = {**_TASKS, "--array": "-a", "--wrap": ""}
# And of srun those by which a task that ends, a clock or a terminal would end tasks that still drain.
_STEP = {"--kill-on-bad-exit": "-K", "--wait": "-W", "--time": "-t", "--signal": "", "--pty": "", "--multi-prog": ""}


@dataclass(frozen=True)
class Job:
    """What a user adds to a deployment's job.

    *sbatch* and *srun* are options, one each, ``--name=value``. *container* is what pyxis runs the nodes in: a squashfs
    file (an absolute path), or an image reference, which ``import.sh`` makes into one. *python* runs the supervisor of
    a node; default: the image's interpreter in a container, else ``python3``.
    """

    sbatch: Sequence[str] = ()
    srun: Sequence[str] = ()
    container: str = ""
    python: str = ""


def write(deployment: Deployment, folder: Path, job: Job | None = None) -> list[Path]:
    """Write the job of *deployment* into *folder*, which all nodes must see; ``sbatch FOLDER/job.sbatch`` runs it.

    Returns the files, the batch script first. UsageError when an option would break the drain, or the folder cannot be
    written. Files that are there are replaced, each in one step; ``jobs/``, where runs keep their logs, is left alone.
    """
    job = job or Job()
    folder = Path(os.path.abspath(folder))  # noqa: PTH100  (links stay: nodes may mount the folder elsewhere)
    texts = {
        "job.sbatch": batch_script(deployment, folder, job),
        "node.sh": _node_script(deployment, job),
        "deployment.json": render_json(deployment).decode("utf-8"),
        **shipped(),
    }
    if image := _reference(job):
        texts["import.sh"] = import_script(image, folder)
    try:
        (folder / "jobs").mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            write_whole(folder / name, text)
            if name in ("job.sbatch", "node.sh", "import.sh"):
                (folder / name).chmod(0o755)
    except OSError as error:
        raise UsageError(f"{error.filename or folder}: {error.strerror}", hint="choose another --out folder") from None
    return [folder / name for name in texts]


def shipped() -> dict[str, str]:
    """The modules that run on a node, by their path in the job's folder."""
    root = resources.files("graftwork")
    node = root / "launch" / "node"
    found = {f"lib/graftwork/{name}": (root / name).read_text("utf-8") for name in SHIPPED}
    names = sorted(entry.name for entry in node.iterdir() if entry.name.endswith(".py") and entry.name != "start.py")
    found |= {f"lib/graftwork/launch/node/{name}": (node / name).read_text("utf-8") for name in names}
    found["lib/start.py"] = (node / "start.py").read_text("utf-8")
    return found


def batch_script(deployment: Deployment, folder: Path, job: Job) -> str:
    """The text of ``job.sbatch``: options first, ours and then the user's, which win; then node/job.sh."""
    _check_bounds(deployment)
    asked = [*deployment.sbatch, *job.sbatch]
    for option in asked:
        _check_option("sbatch", option, _FIXED)
        _check_signal(option, deployment)
    for option in job.srun:
        _check_option("srun", option, {**_TASKS, **_STEP})
    log = str(folder / "jobs" / "%j.log")
    options = [
        f"--job-name={deployment.name}",
        f"--nodes={deployment.nodes}",
        "--ntasks-per-node=1",
        f"--signal=B:TERM@{deployment.bounds.lead_s}",
        f"--output={str(folder).replace('%', '%%')}{log[len(str(folder)) :]}",
        "--open-mode=append",
        "--no-requeue",
        f"--comment={COMMENT}{deployment.bounds.drain_s}",
    ]
    if deployment.node.gpus:
        options += ["--exclusive", "--mem=0", f"--gres=gpu:{deployment.node.gpus}"]
    lines = ["#!/bin/bash", *(f"#SBATCH {_quoted(option)}" for option in [*options, *asked]), ""]
    lines += [f"folder={shlex.quote(str(folder))}", f"nodes={deployment.nodes}", f"drain_s={deployment.bounds.drain_s}"]
    srun = [*_container_options(folder, job), *job.srun]
    lines += [f"srun_options=({' '.join(map(shlex.quote, srun))})"]
    return "\n".join(lines) + "\n" + _script("job.sh")


def _node_script(deployment: Deployment, job: Job) -> str:
    python = job.python or (deployment.image.interpreter if job.container else "python3")
    return f"#!/bin/bash\npython={shlex.quote(python)}\n{_script('node.sh')}"


def _container_options(folder: Path, job: Job) -> list[str]:
    if not job.container:
        return []
    image = _reference(job)
    file = squashfs_of(image, folder) if image else job.container
    return [f"--container-image={file}", f"--container-mounts={folder}:{folder}", "--no-container-entrypoint"]


def _reference(job: Job) -> ImageRef | None:
    """The image that has to be imported; None for a file, or without a container."""
    return ImageRef.parse(job.container) if job.container and not job.container.startswith("/") else None


def _script(name: str) -> str:
    return (resources.files("graftwork") / "launch" / "node" / name).read_text("utf-8")


def _quoted(option: str) -> str:
    """*option* for an ``#SBATCH`` line, whose quotes are the shell's."""
    return option if re.fullmatch(r"[\w./:=@,%+\[\]-]+", option) else shlex.quote(option)


def _check_bounds(deployment: Deployment) -> None:
    """Each order has its own time, one after the other; together they must fit into the drain of a node."""
    slowest: dict[int, int] = {}
    for part in deployment.components:
        slowest[part.order] = max(slowest.get(part.order, 0), part.drain_s)
    bounds = deployment.bounds
    if sum(slowest.values()) > bounds.drain_s:
        orders = " + ".join(f"{slowest[order]} s (order {order})" for order in sorted(slowest))
        raise UsageError(
            f"deployment {deployment.name}: its components may take {orders} to end, a node has {bounds.drain_s} s",
            hint="raise bounds.drain_s, or lower drain_s of a component",
        )
    if bounds.lead_s < bounds.drain_s + MARGIN_S:
        raise UsageError(
            f"deployment {deployment.name}: lead_s {bounds.lead_s} is not {MARGIN_S} s above drain_s {bounds.drain_s}",
            hint="raise lead_s: a node takes some seconds more than its drain where it has to kill",
        )


def _check_option(command: str, option: str, fixed: dict[str, str]) -> None:
    if not option.startswith("-") or "\n" in option:
        raise UsageError(f"not an option of {command}: {option!r}", hint="write each as --name=value")
    for long, short in fixed.items():
        if _abbreviates(_name(option), long) or (short and option.startswith(short) and not option.startswith("--")):
            what = "would end nodes that still drain" if long in _STEP else f"the deployment says what {long} is"
            raise UsageError(f"{option}: {what}", hint="leave it out, or change the recipe")


def _check_signal(option: str, deployment: Deployment) -> None:
    if not _abbreviates(_name(option), "--signal"):
        return
    found = _SIGNAL.fullmatch(option[len(_name(option)) + 1 :])
    least = deployment.bounds.drain_s + MARGIN_S
    if not found or int(found[1]) < least:
        raise UsageError(
            f"{option}: before its time limit the batch script must get TERM, early enough for the drain",
            hint=f"--signal=B:TERM@SECONDS with at least {least}",
        )


def _name(option: str) -> str:
    return re.split(r"[= ]", option, maxsplit=1)[0]


def _abbreviates(name: str, option: str) -> bool:
    """Whether sbatch may take *name* for *option*: it accepts any beginning."""
    return len(name) > len("--") and option.startswith(name)
