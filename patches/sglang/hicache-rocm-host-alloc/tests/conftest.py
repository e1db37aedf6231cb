"""A bench for the real host-pool allocation code: common.py, or the head of memory_pool_host.py before 0.5.14.

torch is real except for two calls: pinning (there is no device, so `torch.empty` drops it and notes it) and
registering memory with the driver (noted).
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from graftwork.harness.isolate import load_module, load_until, stub, stubbed

MEM = "sglang/srt/mem_cache"
PLATFORMS = ("cuda", "hip", "npu", "xpu", "mps")


class Host:
    """One load of the code on one platform: ``names`` are its globals, ``events`` is what it asked of torch."""

    def __init__(self, tree: Path, platform: str) -> None:
        self.platform = platform
        self.events: list[str] = []
        self.storage_classes: dict[str, type] = {}
        self.torch = pytest.importorskip("torch", reason="allocation needs torch (a CPU build is enough)")
        with self._stubs():
            self.names = self._load(tree)

    def request(self, key: Any, dims: tuple[int, ...] = (3, 5), *, allocator: Any = "default", **more: Any) -> Any:
        """Look *key* up and allocate float16 of *dims*, as the pools do; ``default`` is the code's own allocator."""
        if allocator == "default":
            allocator = self.names["HostTensorAllocator"]()
        allocate = self.names["ALLOC_MEMORY_FUNCS"][key]
        with self._stubs():
            return allocate(dims, dtype=self.torch.float16, device="cpu", pin_memory=True, allocator=allocator, **more)

    def storage_allocator_of(self, name: str) -> Any:
        """An allocator as a storage backend brings it: of a subclass of the code's own, one class for each *name*."""
        if name in self.storage_classes:
            return self.storage_classes[name]()

        def allocate(this: Any, dims: tuple[int, ...], dtype: Any, device: str) -> Any:
            self.events.append(name)
            return self.torch.zeros(dims, dtype=dtype, device=device)

        own = type(name, (self.names["HostTensorAllocator"],), {"allocate": allocate})
        return self.storage_classes.setdefault(name, own)()

    def _load(self, tree: Path) -> Mapping[str, Any]:
        common = tree / MEM / "pool_host" / "common.py"
        if common.is_file():
            return vars(load_module(common, "sglang.srt.mem_cache.pool_host.common"))
        names: dict[str, Any] = {"torch": self.torch, "logging": logging, "defaultdict": defaultdict}
        names |= {"alloc_mmap": self._mmap, "__name__": "sglang.srt.mem_cache.memory_pool_host", **self._checks()}
        return load_until(tree / MEM / "memory_pool_host.py", "ALLOC_MEMORY_FUNCS", names)

    def _checks(self) -> dict[str, Any]:
        return {f"is_{name}": lambda name=name: name == self.platform for name in PLATFORMS}

    def _mmap(self, dims: tuple[int, ...], dtype: Any) -> Any:
        self.events.append("mmap")
        return self.torch.zeros(dims, dtype=dtype)

    def _shm(self, dims: tuple[int, ...], dtype: Any) -> tuple[Any, None, None]:
        return self._mmap(dims, dtype), None, None

    @contextmanager
    def _stubs(self) -> Iterator[None]:
        """The platform, the engine modules that the file imports, and the two calls that need a device."""
        torch, real_empty = self.torch, self.torch.empty

        def empty(*args: Any, pin_memory: bool = False, **kwargs: Any) -> Any:
            self.events.append("pinned" if pin_memory else "pageable")
            return real_empty(*args, **kwargs)

        def register(pointer: int, size: int, flags: int) -> int:
            self.events.append("registered")
            return 0

        setting = SimpleNamespace(get=lambda: 64)
        memory = SimpleNamespace(hicache_storage_backend=None, hicache_storage_backend_extra_config=None)
        patch = pytest.MonkeyPatch()
        patch.setattr(torch, "empty", empty)
        patch.setattr(torch.cuda, "cudart", lambda: SimpleNamespace(cudaHostRegister=register))
        try:
            with stubbed(
                stub("sglang.srt.mem_cache.mmap_allocator", alloc_mmap=self._mmap),
                stub("sglang.srt.mem_cache.storage.mmap", alloc_mmap=self._mmap, alloc_shm=self._shm),
                stub("sglang.srt.utils", **self._checks()),
                stub("sglang.srt.environ", envs=SimpleNamespace(SGLANG_HICACHE_HOST_REGISTER_CHUNK_GB=setting)),
                stub("sglang.srt.runtime_context", get_memory=lambda: memory),
            ):
                yield
        finally:
            patch.undo()


@pytest.fixture
def host(engine_tree: Path) -> Any:
    """Loads the code anew for a platform: what it has warned about before does not carry over."""
    return lambda platform: Host(engine_tree, platform)
