"""HiCache write-back made of the engine's own text: controllers, pool group, MLA and indexer host pools.

Replaced are the copy kernels, by torch copies that keep the kernels' checks of where their indices are (the place of an
index tensor is simulated, placed.py), streams and events, and what allocates the buffers.
"""

from __future__ import annotations

import typing
from collections import namedtuple
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

from graftwork.harness.isolate import load_class, load_module, read_engine_file

torch.set_num_threads(1)

placed = load_module(Path(__file__).with_name("placed.py"), "hicache_staged_write_back_placed")
place = placed.place

MEM = "sglang/srt/mem_cache"
POOLS = f"{MEM}/memory_pool_host.py"
LAYERS, DIM, PAGE, PAGES, STRIDE = 3, 8, 4, 6, 16
STAGED, PLAIN, PLAIN_LAYER_FIRST = "staged", "plain", "plain-layer-first"


@dataclass
class PoolTransfer:
    """As the engine's: which pages of which other pool go along."""

    name: str
    host_indices: Any
    device_indices: Any
    keys: Any = None
    hit_policy: Any = None
    indices_from_pool: Any = None


class Cache:
    """Pools of one platform, and what was done with them: ``kernels`` are the kernels that ran, in order."""

    def __init__(self, tree: Path, platform: str, *, layout: str = "page_first") -> None:
        self.tree, self.platform, self.layout = tree, platform, layout
        torch.manual_seed(0)
        self.kernels: list[str] = []
        self.namespace = self._namespace()
        self.mla_class = self._class(
            f"{MEM}/pool_host/mla.py", "MLATokenToKVPoolHost", ["backup_from_device_all_layer"]
        )
        self.indexer_class = self._class(
            POOLS, "DSAIndexerPoolHost", ["backup_from_device_all_layer", "_get_indexer_page_indices"]
        )
        later = ["_backup_uses_cpu_host_indices", "_kernel_index_device", "_normalize_backup_indices"]
        members = ["__init__", "backup_from_device_all_layer"]
        self.group_class = load_class(
            read_engine_file(tree, POOLS), "HostPoolGroup", [*members, *later], self.namespace, optional=later
        )

    def mla(self) -> Any:
        """An MLA host pool with its device pool, whose rows are all different."""
        pool = self.mla_class()
        self._common(pool)
        buffers = [torch.rand(PAGES * PAGE, DIM) for _ in range(LAYERS)]
        pool.device_pool = SimpleNamespace(device="cpu", data_ptrs=buffers, kv_buffer=buffers, layer_num=LAYERS)
        pool.kv_cache_dim, pool.dtype, pool.token_stride_size, pool.layout_dim = DIM, torch.float32, DIM * 4, DIM * 12
        pool.kv_buffer = torch.zeros(PAGES * PAGE, LAYERS, 1, DIM)
        pool.data_ptrs = list(pool.kv_buffer[:, :, 0].unbind(1))
        pool._init_write_back_staging_buffers()
        return pool

    def indexer(self) -> Any:
        """A DSA indexer host pool: it copies whole pages."""
        pool = self.indexer_class()
        self._common(pool)
        buffers = [torch.randint(0, 255, (PAGES, STRIDE), dtype=torch.uint8) for _ in range(LAYERS)]
        pool.device_pool = SimpleNamespace(device="cpu", index_k_with_scale_buffer=buffers)
        pool.indexer_page_stride_size, pool.indexer_dtype, pool.indexer_page_num = STRIDE, torch.uint8, PAGES
        pool.indexer_layout_dim = STRIDE * LAYERS
        pool.index_k_device_ptrs = buffers
        pool.index_k_with_scale_buffer = torch.zeros(PAGES, LAYERS, 1, STRIDE, dtype=torch.uint8)
        pool.index_k_data_ptrs = list(pool.index_k_with_scale_buffer[:, :, 0].unbind(1))
        pool.can_use_write_back_jit = False
        pool._init_write_back_staging_buffers()
        return pool

    def group(self, **pools: Any) -> Any:
        """A pool group; the first one is the anchor."""
        return self.group_class(
            [
                SimpleNamespace(
                    name=name, host_pool=pool, device_pool=pool.device_pool, is_primary_index_anchor=not number
                )
                for number, (name, pool) in enumerate(pools.items())
            ]
        )

    def write(
        self, host: Any, pages: list[tuple[int, int]], *, others: tuple[str, ...] = (), draft: Any = None
    ) -> None:
        """Write *pages* (device page to host page) back through the controller that the engine uses for *host*."""
        op = SimpleNamespace(node_ids=[1], pool_transfers=None)
        op.device_indices = place(tokens(page for page, _ in pages), on_device=True)
        op.host_indices = place(tokens(page for _, page in pages), on_device=False)
        if others:
            op.pool_transfers = [PoolTransfer(name, op.host_indices, op.device_indices) for name in others]
        controller = self._controller(hybrid=isinstance(host, self.group_class))
        controller.mem_pool_host, controller.mem_pool_device = host, getattr(host, "device_pool", None)
        controller.has_draft, controller.mem_pool_host_draft = draft is not None, draft
        controller.mem_pool_device_draft = draft and draft.device_pool
        controller.write_queue = [op]
        controller.start_writing()
        assert controller.write_queue == [] and len(controller.ack_write_queue) == 1

    def _common(self, pool: Any) -> None:
        pool.layout, pool.page_size, pool.page_num, pool.layer_num = self.layout, PAGE, PAGES, LAYERS
        pool.device, pool.size, pool.logical_size, pool.can_use_jit = "cpu", PAGES * PAGE, PAGES * PAGE, False
        pool._is_device_layer_sharded = lambda _: False
        pool.dcp_kernel_indices = lambda indices: indices  # 0.5.17 on: the identity without context parallelism

    def _controller(self, *, hybrid: bool) -> Any:
        plain = read_engine_file(self.tree, "sglang/srt/managers/cache_controller.py")
        base = load_class(plain, "HiCacheController", ["start_writing", "move_indices"], self.namespace)
        if hybrid:
            path = read_engine_file(self.tree, f"{MEM}/hybrid_cache/hybrid_cache_controller.py")
            own = load_class(path, "HybridCacheController", ["start_writing", "move_hybrid_indices"], self.namespace)
            base = type("Controller", (own, base), {})
        controller = base()
        controller.io_backend, controller.device, controller.write_stream = "kernel", "cuda", None
        controller.ack_write_queue = []
        controller._record_transfer_indices_on_stream = lambda *_: None
        return controller

    def _class(self, path: str, name: str, members: list[str]) -> type:
        members = ["_init_write_back_staging_buffers", *members]
        return load_class(read_engine_file(self.tree, path), name, members, self.namespace)

    def _namespace(self) -> dict[str, Any]:
        streams = ModuleType("torch with streams")
        vars(streams).update(vars(torch))
        streams.cuda = SimpleNamespace(current_stream=lambda _: None)
        event = SimpleNamespace(record=lambda: None, wait=lambda _: None)
        return {
            **{name: getattr(typing, name) for name in ("Any", "List", "Optional")},
            **{"torch": streams, "PoolTransfer": PoolTransfer, "_WRITE_BACK_STAGING_PAGE_CHUNK": 4},
            **{"_is_cuda": self.platform == "cuda", "_is_hip": self.platform == "hip"},
            **dict.fromkeys(("_is_npu", "_is_xpu", "_is_mps"), False),
            "can_use_write_back_jit_kernel": lambda *, element_size: element_size % 16 == 0,
            "jit_transfer_hicache_all_layer_mla_staged_lf_pf": self._staged,
            "transfer_kv_all_layer_mla_lf_pf": self._plain,
            "transfer_kv_all_layer_mla": self._plain_layer_first,
            "CacheOperation": SimpleNamespace(merge_ops=lambda queue: queue[0]),
            "HiCacheAck": namedtuple("HiCacheAck", "start finish node_ids"),
            "device_module": SimpleNamespace(Event=lambda: event, stream=lambda _: nullcontext()),
        }

    def _staged(self, *, ptr_src: Any, src_indices: Any, dst_indices: Any, staging: Any, dst: Any, **_: Any) -> None:
        """The JIT kernel: it stages on the device, and takes its destinations from the host."""
        if dst_indices.is_cuda:
            raise RuntimeError(
                "Tensor match failed for Tensor[device=rocm:0]: not in the allowed options: [cpu, rocm_host]"
            )
        assert src_indices.is_cuda and staging is not None
        self._copy(STAGED, ptr_src, src_indices, list(dst[:, :, 0].unbind(1)), dst_indices)

    def _plain(self, *, src_layers: Any, dst: Any, src_indices: Any, dst_indices: Any, **_: Any) -> None:
        self._check(src_indices, dst_indices)
        self._copy(PLAIN, src_layers, src_indices, list(dst[:, :, 0].unbind(1)), dst_indices)

    def _plain_layer_first(
        self, *, src_layers: Any, dst_layers: Any, src_indices: Any, dst_indices: Any, **_: Any
    ) -> None:
        self._check(src_indices, dst_indices)
        self._copy(PLAIN_LAYER_FIRST, src_layers, src_indices, dst_layers, dst_indices)

    @staticmethod
    def _check(src_indices: Any, dst_indices: Any) -> None:
        """The checks of the kernels that are built in (their words are upstream's)."""
        for what, indices in (("Source", src_indices), ("Destination", dst_indices)):
            if not indices.is_cuda:
                raise RuntimeError(f"{what} indices must be a CUDA tensor")

    def _copy(self, kernel: str, source: Any, source_rows: Any, target: Any, target_rows: Any) -> None:
        self.kernels.append(kernel)
        for here, there in zip(source_rows.tolist(), target_rows.tolist(), strict=True):
            for one, other in zip(source, target, strict=True):
                other[there] = one[here]


def tokens(pages: Any) -> Any:
    return torch.tensor([page * PAGE + offset for page in pages for offset in range(PAGE)])


def check_mla(pool: Any, pages: list[tuple[int, int]]) -> None:
    """Each token of each layer is where it belongs, and nothing else was written."""
    want = torch.zeros_like(pool.kv_buffer)
    for page, target in pages:
        for layer, rows in enumerate(pool.device_pool.kv_buffer):
            want[target * PAGE : (target + 1) * PAGE, layer, 0] = rows[page * PAGE : (page + 1) * PAGE]
    assert torch.equal(pool.kv_buffer, want), "MLA pages differ from what the device holds"


def check_indexer(pool: Any, pages: list[tuple[int, int]]) -> None:
    want = torch.zeros_like(pool.index_k_with_scale_buffer)
    for page, target in pages:
        for layer, rows in enumerate(pool.device_pool.index_k_with_scale_buffer):
            want[target, layer, 0] = rows[page]
    assert torch.equal(pool.index_k_with_scale_buffer, want), "index keys differ from what the device holds"
