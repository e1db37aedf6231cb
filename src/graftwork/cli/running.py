"""Where ``launch`` writes: a folder, a Slurm job in it, Kubernetes manifests in it; and the options for each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from graftwork.errors import UsageError

if TYPE_CHECKING:
    from graftwork.launch.render import Rendered

WAYS = ["grafted", "volume", "init"]


@dataclass(frozen=True)
class Where:
    """What the options of ``launch`` say about running; *dist* holds built payloads."""

    out: Path | None
    slurm: bool
    kubernetes: bool
    sbatch: tuple[str, ...]
    srun: tuple[str, ...]
    container: str
    image: str
    way: Literal["grafted", "volume", "init"]
    payload_image: str
    namespace: str
    rdma: str
    mount: tuple[str, ...]
    dist: Path | None


def options(function: Callable[..., int]) -> Callable[..., int]:
    """The options of `Where`."""
    every = (
        click.option("--out", type=click.Path(path_type=Path), metavar="DIR", help="Write deployment.json there."),
        click.option("--slurm", is_flag=True, help="Write a Slurm job into --out: sbatch DIR/job.sbatch."),
        click.option("--sbatch", multiple=True, metavar="OPTION", help="For sbatch, such as --sbatch=--partition=x."),
        click.option("--srun", multiple=True, metavar="OPTION", help="For srun on the nodes; repeatable."),
        click.option("--container", default="", metavar="IMAGE", help="What pyxis runs: a squashfs file, a reference."),
        click.option("--kubernetes", is_flag=True, help="Write Kubernetes manifests into --out."),
        click.option("--image", default="", metavar="REF", help="The pods' image, in place of the recipe's."),
        click.option("--way", type=click.Choice(WAYS), default="grafted", help="How the patches get into the pods."),
        click.option("--payload-image", default="", metavar="REF", help="The pushed payload, for --way volume."),
        click.option("--namespace", default="", metavar="NAME", help="The namespace of the manifests."),
        click.option("--rdma", default="", metavar="RESOURCE", help="The device plugin's resource of the network."),
        click.option("--mount", multiple=True, metavar="SPEC", help="/path=host:/path or /path=claim:NAME in pods."),
        click.option("--dist", type=click.Path(path_type=Path), metavar="DIR", help="Where payloads were built."),
    )
    for option in reversed(every):
        function = option(function)
    return function


def write(rendered: Rendered, where: Where, root: Path | None) -> dict[str, Any]:
    """Write what was asked for; the paths by what they are. *root* is that of the checkout, where there is one."""
    from graftwork.launch import show

    if where.out is None:
        if where.slurm or where.kubernetes:
            raise UsageError("--slurm and --kubernetes write files", hint="say where: --out DIR")
        return {}
    written: dict[str, Any] = {}
    if where.slurm:
        from graftwork.launch import slurm

        job = slurm.Job(sbatch=where.sbatch, srun=where.srun, container=where.container)
        written["slurm"] = str(slurm.write(rendered.deployment, where.out, job)[0])
    else:
        written["deployment"] = str(show.write(rendered, where.out))
    if where.kubernetes:
        from graftwork.launch.kubernetes import manifests

        written["kubernetes"] = str(manifests.write(rendered.deployment, where.out, _cluster(rendered, where, root)))
    return written


def _cluster(rendered: Rendered, where: Where, root: Path | None) -> Any:
    from graftwork.launch.kubernetes.cluster import GPUS, Cluster, Mount
    from graftwork.launch.kubernetes.payload import PayloadFiles

    target = rendered.deployment.image.target
    payload = None
    if where.way != "grafted":
        if not target:
            raise UsageError(f"--way {where.way} needs the target whose payload it is", hint="--target T")
        payload = PayloadFiles.read((where.dist or (root or Path()) / "dist") / target / "oci", target)
    return Cluster(
        image=where.image or rendered.deployment.image.reference,
        gpu=GPUS[rendered.platform],
        way=where.way,
        payload=payload,
        payload_image=where.payload_image,
        namespace=where.namespace,
        rdma=where.rdma,
        mounts=[Mount.parse(text) for text in where.mount],
        env=rendered.image_env,
    )
