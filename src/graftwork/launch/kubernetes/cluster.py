"""What a cluster has, and how the patches come into its pods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from graftwork.errors import UsageError
from graftwork.launch.kubernetes.payload import PayloadFiles

Way = Literal["grafted", "volume", "init"]
GPUS = {"rocm": "amd.com/gpu", "cuda": "nvidia.com/gpu"}


@dataclass(frozen=True)
class Mount:
    """A folder of the cluster in every pod: ``host:/path`` of the node, or ``claim:NAME``, at *path*."""

    path: str
    source: str

    @classmethod
    def parse(cls, text: str) -> Mount:
        """``/path=host:/path`` or ``/path=claim:NAME``; UsageError for anything else."""
        path, _, source = text.partition("=")
        kind, _, value = source.partition(":")
        if not path.startswith("/") or kind not in ("host", "claim") or not value:
            raise UsageError(f"mount {text!r}: not /path=host:/path or /path=claim:NAME")
        return cls(path, source)

    def volume(self, name: str) -> dict[str, object]:
        """The pod's volume called *name*."""
        kind, _, value = self.source.partition(":")
        if kind == "host":
            return {"name": name, "hostPath": {"path": value}}
        return {"name": name, "persistentVolumeClaim": {"claimName": value}}


@dataclass(frozen=True)
class Cluster:
    """*image* is what the pods run: the grafted image, or with *way* ``volume`` and ``init`` the unmodified base.

    *payload* is then the built payload; ``volume`` mounts it as the image *payload_image* (Kubernetes 1.33 and later),
    ``init`` carries it in the config map. *gpu* and *rdma* are resource names of device plugins; *env* is the target's.
    UsageError where these do not fit together.
    """

    image: str
    gpu: str
    way: Way = "grafted"
    payload: PayloadFiles | None = None
    payload_image: str = ""
    namespace: str = ""
    rdma: str = ""
    mounts: Sequence[Mount] = ()
    env: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.image:
            raise UsageError("the pods have no image", hint="name it: --image REF")
        if self.way != "grafted" and self.payload is None:
            raise UsageError(f"{self.way}: there is no built payload", hint="run: graftwork image TARGET")
        if self.way == "volume" and not self.payload_image:
            raise UsageError("volume: the payload has no reference", hint="push it and name it: --payload-image REF")
