"""Where ``launch`` writes: a folder, a Slurm job in it, Kubernetes manifests in it; and the options for each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from graftwork.errors import UsageError
from graftwork.ui import Screen

if TYPE_CHECKING:
    from graftwork.launch.kubernetes.cluster import Cluster
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


def write(rendered: Rendered, where: Where, root: Path | None, screen: Screen) -> dict[str, Any]:
    """Write what was asked for; the paths by what they are. *root* is that of the checkout, where there is one."""
    from graftwork.launch import show

    _check(where)
    if where.out is None:
        return {}
    cluster = _cluster(rendered, where, root) if where.kubernetes else None
    written: dict[str, Any] = {}
    if where.slurm:
        from graftwork.launch import slurm

        if where.container:
            spec = ",".join(option.partition("=")[2] for option in where.srun if "container-mounts" in option)
            inside = [(mount.split(":") * 2)[1] for mount in spec.split(",") if mount]
            _warn_unseen(rendered, inside, "--srun=--container-mounts={0}:{0}", screen)
        job = slurm.Job(sbatch=where.sbatch, srun=where.srun, container=where.container)
        written["slurm"] = str(slurm.write(rendered.deployment, where.out, job)[0])
    else:
        written["deployment"] = str(show.write(rendered, where.out))
    if cluster is not None:
        from graftwork.launch.kubernetes import manifests

        _warn_unseen(rendered, [mount.path for mount in cluster.mounts], "--mount {0}=host:{0}", screen)
        written["kubernetes"] = str(manifests.write(rendered.deployment, where.out, cluster))
    return written


def _check(where: Where) -> None:
    """UsageError for an option that would have no effect: it was meant to have one."""
    if where.out is None and (where.slurm or where.kubernetes):
        raise UsageError("--slurm and --kubernetes write files", hint="say where: --out DIR")
    slurm: dict[str, object] = {"--sbatch": where.sbatch, "--srun": where.srun, "--container": where.container}
    pods: dict[str, object] = {"--image": where.image, "--namespace": where.namespace, "--rdma": where.rdma}
    pods |= {"--mount": where.mount, "--payload-image": where.payload_image, "--dist": where.dist}
    pods["--way"] = where.way != "grafted"
    for needed, there, given in (("--slurm", where.slurm, slurm), ("--kubernetes", where.kubernetes, pods)):
        idle = [name for name, value in given.items() if value and not there]
        if idle:
            raise UsageError(f"{', '.join(idle)} without {needed} has no effect", hint=f"add {needed}")
    if where.payload_image and where.way != "volume":
        raise UsageError(f"--payload-image is for --way volume, not {where.way}")
    if where.dist is not None and where.way == "grafted":
        raise UsageError("--dist has a payload to mount: with a grafted image there is none", hint="--way init|volume")


def _warn_unseen(rendered: Rendered, mounts: list[str], remedy: str, screen: Screen) -> None:
    """Folders of the recipe that containers would not see; that an image has them itself is rare."""
    for folder in rendered.folders:
        if not any(Path(folder).is_relative_to(mount) for mount in mounts):
            top = "/".join(["", *Path(folder).parts[1:2]])
            screen.warn(f"{folder} is in no mount: unless the image has it, add {remedy.format(top)}")


def _cluster(rendered: Rendered, where: Where, root: Path | None) -> Cluster:
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
