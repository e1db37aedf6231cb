"""deploy/recipes/*.toml: what to run, on nodes of which shape, and how; docs/launch.md describes every key."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from graftwork.catalog.patches import Strict, Text
from graftwork.catalog.toml import line_of, load
from graftwork.errors import CatalogError, UsageError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

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


def load_recipe(file: Path, changes: list[str]) -> Recipe:
    """Read a recipe with *changes* (``key.path=value``) made to it; CatalogError or UsageError for a bad one."""
    recipe = load(file, Recipe)
    if changes:
        data = tomllib.loads(file.read_text("utf-8"))
        for change in changes:
            _set(data, change)
        try:
            recipe = msgspec.convert(data, Recipe)
        except msgspec.ValidationError as error:
            raise UsageError(f"--set: {error}", hint="docs/launch.md describes every key") from None
    _check(recipe, file)
    return recipe


def _set(data: dict[str, Any], change: str) -> None:
    """Put one value in: TOML where it is TOML, else the text itself."""
    path, equals, text = change.partition("=")
    if not equals or not all(path.split(".")):
        raise UsageError(f"--set {change}: not key=value", hint="such as --set decode.seats=128")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text
    *tables, key = path.split(".")
    for table in tables:
        data = data.setdefault(table, {})
        if not isinstance(data, dict):
            raise UsageError(f"--set {change}: {table} is not a table")
    data[key] = value


# Keys that SGLang alone knows, and those that only some kinds of router do.
_SGLANG_ONLY = [(leg, key) for leg in ("prefill", "decode", "mixed") for key in ("dp_attention", "hicache_gb")]
_SGLANG_ONLY += [("mtp", key) for key in ("algorithm", "topk", "draft_tokens")]
_POLICED = ("sglang-router", "vllm-router", "infera")
_ROUTERS = {"policy": _POLICED, "version": _POLICED, "etcd": ("infera",), "overlap_weight": ("infera",)}
_ROUTERS["epp_config"] = ("llm-d",)


def _idle(recipe: Recipe) -> Iterator[tuple[tuple[str, str], str]]:
    """The keys that are given and would have no effect, and why."""

    def given(table: str, key: str) -> bool:
        part = getattr(recipe, table)
        defaults = {each.name: each.default for each in msgspec.structs.fields(part)} if part is not None else {}
        return part is not None and getattr(part, key) not in (defaults[key], {})

    for table, key in _SGLANG_ONLY if recipe.engine == "vllm" else []:
        if given(table, key):
            yield (table, key), "vLLM has no such setting"
    for key, kinds in _ROUTERS.items():
        if recipe.router is not None and recipe.router.kind not in kinds and given("router", key):
            yield ("router", key), f"a router of kind {recipe.router.kind} has no such setting"


def _check(recipe: Recipe, file: Path) -> None:
    """Rules that types cannot say, each with the line."""

    def wrong(key: tuple[str, ...], message: str, hint: str) -> CatalogError:
        return CatalogError(file, message, line=line_of(file.read_text("utf-8"), key), hint=hint)

    if (recipe.prefill is None) != (recipe.decode is None) or (recipe.mixed is None) == (recipe.prefill is None):
        raise wrong(("name",), "a recipe has [prefill] and [decode], or [mixed]", "name the legs that it has")
    for name in ("prefill", "decode", "mixed"):
        leg: Leg | None = getattr(recipe, name)
        if leg is not None and leg.nodes % leg.span:
            raise wrong((name, "span"), f"{leg.nodes} nodes do not divide into engines of {leg.span}", "change one")
        if leg is not None and leg.ranks == "apart" and recipe.engine != "vllm":
            raise wrong((name, "ranks"), "SGLang runs its ranks together", "leave it out")
    for key, why in _idle(recipe):
        raise wrong(key, f"{'.'.join(key)} would have no effect: {why}", "leave it out")
    store = recipe.kv_cache_offload
    if store is not None and store.roles == []:
        raise wrong(("kv_cache_offload", "roles"), "no role is in scope", "leave roles out for all of them")
    if store is not None and store.cpu_gib == 0:
        raise wrong(("kv_cache_offload",), "a store needs memory: disk alone is no tier", "give cpu_gib")
    if store is not None and bool(store.disk_gib) != bool(store.disk_path):
        raise wrong(("kv_cache_offload",), "disk_gib and disk_path belong together", "give both, or none")
    if recipe.router is not None and recipe.router.kind == "command" and not recipe.router.command:
        raise wrong(("router",), "a router of kind command needs a command", "give its words")
    if recipe.hisparse is not None and recipe.decode is None and recipe.mixed is None:
        raise wrong(("hisparse",), "HiSparse is for a leg that decodes", "leave it out")
