"""deploy/recipes/*.toml: what to run, on nodes of which shape, and how; docs/launch.md describes every key."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from graftwork.catalog.patches import Strict, Text
from graftwork.errors import UsageError

GIB = 1 << 30
Count = Annotated[int, msgspec.Meta(ge=1)]
Gib = Annotated[float, msgspec.Meta(gt=0)]
Share = Annotated[float, msgspec.Meta(gt=0, lt=1)]
LegRole = Literal["prefill", "decode"]
LegNames = Annotated[list[Literal["prefill", "decode", "mixed"]], msgspec.Meta(min_length=1)]
Slug = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")]


class Model(Strict, frozen=True, kw_only=True):
    """The model; *layers*, *sparse* and *kv_dtype* are what budgets are worked out from."""

    path: Text
    served_name: Text
    context: Count | None = None
    kv_dtype: str = "auto"
    layers: Count | None = None
    sparse: bool = False
    recurrent: bool = False
    reasoning_parser: str = ""
    tool_call_parser: str = ""
    trust_remote_code: bool = False


class NodeShape(Strict, frozen=True, kw_only=True):
    """One node; memory in GiB. *reserved_gib* is for the system and whatever else runs there."""

    gpus: Count
    memory_gib: Gib
    gpu_memory_gib: Gib
    reserved_gib: Gib = 64
    arch: Literal["x86_64", "aarch64"] = "x86_64"
    platform: Literal["cuda", "rocm"] | None = None


class Leg(Strict, frozen=True, kw_only=True):
    """One kind of engine. *nodes* of a replica have this role; one engine spans *span* of them.

    *tp* and *dp* are the engine's own numbers: for SGLang *tp* counts all GPUs of the engine and *dp* divides it, for
    vLLM each of *dp* ranks has *tp* GPUs. *ranks* apart: a process for each rank (vLLM), behind its own port.
    *args*, *drop* and *env* are the user's word: they win over everything that is derived.
    """

    nodes: Count = 1
    span: Count = 1
    tp: Count = 1
    dp: Count = 1
    ep: bool = False
    dp_attention: bool = False
    ranks: Literal["together", "apart"] = "together"
    seats: Count | None = None
    batch_tokens: Count | None = None
    gpu_share: Share | None = None
    all_to_all: str = ""
    graph_batch: Count | None = None
    hicache_gb: Count | None = None
    args: list[str] = []
    drop: list[str] = []
    env: dict[str, str] = {}


class Mtp(Strict, frozen=True, kw_only=True):
    """Multi-token prediction, on both legs with the same values unless *legs* says one."""

    algorithm: str = "EAGLE"
    steps: Count = 1
    topk: Count = 1
    draft_tokens: Count | None = None
    draft_model: str = ""
    legs: LegNames = msgspec.field(default_factory=lambda: ["prefill", "decode", "mixed"])


class Transfer(Strict, frozen=True, kw_only=True):
    """How prefill hands the KV cache to decode; *backend* empty: mooncake for SGLang, NIXL for vLLM."""

    backend: str = ""
    devices: str = ""


class KvEvents(Strict, frozen=True, kw_only=True):
    """Publish KV events, so that a router can send requests to where their prefix is."""

    legs: LegNames = msgspec.field(default_factory=lambda: ["prefill", "mixed"])
    topic: str = ""
    replay: bool = False
    block_size: Count | None = None


class Kvd(Strict, frozen=True, kw_only=True):
    """A KV store daemon beside each engine that prefills: memory, then disk; SGLang's storage backend *module*."""

    memory_gib: Gib
    disk_gib: Gib
    disk_path: Text
    io_mode: Literal["auto", "direct", "buffered"] = "auto"
    command: Annotated[list[Text], msgspec.Meta(min_length=1)]
    version: str = "5890f7f"
    backend: Text = "infera-kvd"
    module: Text = "infera.engine.sglang.kvd_adapter"
    name: Text = "InferaKvdBackend"
    prefetch_threshold: Count = 64
    args: list[str] = []


class KvCacheOffload(Strict, frozen=True, kw_only=True):
    """A Mooncake store on the nodes of *roles*; each gives it *cpu_gib* of memory, and *disk_gib* at *disk_path*."""

    cpu_gib: Annotated[float, msgspec.Meta(ge=0)] = 0
    disk_gib: Annotated[float, msgspec.Meta(ge=0)] = 0
    disk_path: str = ""
    roles: list[LegRole] | None = None
    protocol: Literal["rdma", "tcp"] = "rdma"
    device: str = ""
    local_buffer_gib: Gib = 4
    lease_s: Count = 3600
    master_args: list[str] = []
    client_args: list[str] = []


class HiSparse(Strict, frozen=True, kw_only=True):
    """Sparse KV in pinned host memory on the decode leg; *host_pool_gib* is of each rank."""

    host_pool_gib: Gib
    device_buffer_size: Count | None = None
    host_to_device_ratio: Count | None = None
    eager_host_mirror: bool | None = None
    seat_budget_gib: Gib | None = None


class Router(Strict, frozen=True, kw_only=True):
    """What stands before the engines. *command* replaces the program that *kind* stands for."""

    kind: Literal["sglang-router", "vllm-router", "infera", "llm-d", "command"]
    version: str = ""
    policy: str = ""
    command: list[Text] = []
    args: list[str] = []
    env: dict[str, str] = {}
    etcd: str = ""
    epp_config: str = ""
    overlap_weight: dict[LegRole, float] = {}


class BoundsOf(Strict, frozen=True, kw_only=True):
    """Seconds that stopping may take; each stage is bounded, and all of them together by *drain_s*."""

    router_s: Count = 60
    engine_s: Count = 600
    store_s: Count = 120
    drain_s: Count = 900
    lead_s: Count = 1200
    ready_s: Count = 3600


class Slurm(Strict, frozen=True, kw_only=True):
    """Options for sbatch, passed on as they are."""

    options: list[str] = []


class Recipe(Strict, frozen=True, kw_only=True):
    """A recipe as written. *version* may differ by the node's architecture, as a wheel does."""

    name: Slug
    summary: Text
    engine: Literal["sglang", "vllm"]
    version: Text | dict[Literal["x86_64", "aarch64"], Text]
    model: Model
    node: NodeShape
    target: str = ""
    image: str = ""
    replicas: Count = 1
    prefill: Leg | None = None
    decode: Leg | None = None
    mixed: Leg | None = None
    mtp: Mtp | None = None
    transfer: Transfer = Transfer()
    kv_events: KvEvents | None = None
    router: Router | None = None
    kvd: Kvd | None = None
    kv_cache_offload: KvCacheOffload | None = None
    hisparse: HiSparse | None = None
    bounds: BoundsOf = BoundsOf()
    slurm: Slurm = Slurm()

    @property
    def engine_version(self) -> str:
        """The version for the node's architecture; UsageError when it is not pinned."""
        if isinstance(self.version, str):
            return self.version
        if self.node.arch not in self.version:
            have = ", ".join(sorted(self.version)) or "none"
            raise UsageError(
                f"recipe {self.name}: {self.engine} has no version for {self.node.arch}, only for {have}",
                hint=f"pin one under [version] {self.node.arch}, or run on another architecture",
            )
        return self.version[self.node.arch]
