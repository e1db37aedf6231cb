"""Host memory that the GPU reads and writes by itself: mapped, touched, registered, and given back in that order."""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from vllm.logger import init_logger

logger = init_logger(__name__)

_SHARE = 0.95  # of the memory that is free: the rest of the machine needs some
_MBIND = {"x86_64": 237, "aarch64": 235}  # Linux system call numbers, arch/*/include of the kernel
_PREFERRED = 1  # MPOL_PREFERRED: another node rather than no memory
_CHUNK = 256 * 2**20


def free_memory(proc: Path = Path("/proc/meminfo"), cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Bytes that can still be taken: what the kernel calls available, or less where a cgroup limits this process."""
    lines = dict(line.split(":", 1) for line in proc.read_text().splitlines() if ":" in line)
    free = int(lines["MemAvailable"].split()[0]) * 1024
    limit, used = cgroup / "memory.max", cgroup / "memory.current"
    if limit.is_file() and used.is_file() and (text := limit.read_text().strip()) != "max":
        free = min(free, int(text) - int(used.read_text()))
    return free


def check_fits(nbytes: int, ranks: int, free: int) -> None:
    """ValueError where *ranks* pools of *nbytes* on this machine would take more than 95 % of *free* bytes."""
    if nbytes * ranks > _SHARE * free:
        gib = 2**30
        raise ValueError(
            f"hisparse_config.host_pool_gib: {ranks} ranks x {nbytes / gib:.1f} GiB of pinned memory do not fit "
            f"{free / gib:.1f} GiB of free host memory ({_SHARE:.0%} of it may be taken)"
        )


class HostPool:
    """*nbytes* of zeroed anonymous memory; ``host`` is it as an int8 CPU tensor, ``device`` the same for the GPU.

    RuntimeError where the driver refuses to register it. Exactly *nbytes* are registered: torch's own pinned
    allocator would round up to a power of two.
    """

    def __init__(self, nbytes: int, device: torch.device) -> None:
        self._map = mmap.mmap(-1, nbytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        _ask_for_huge_pages(self._map)
        self.host = torch.frombuffer(self._map, dtype=torch.int8)
        self.nbytes = nbytes
        if (node := numa_node(device)) is not None:
            _prefer_node(self.host.data_ptr(), nbytes, node)
        touch(self.host)
        _asked(torch.cuda.cudart().cudaHostRegister(self.host.data_ptr(), nbytes, 0), "cudaHostRegister", nbytes)
        self._registered = True
        self.device = torch.ops._C.get_cuda_view_from_cpu_tensor(self.host)

    def close(self) -> None:
        """Unregister; the memory goes with the last tensor on it. Nothing on the GPU may still use it. Twice is once.

        RuntimeError where the driver refuses: then the process must end by itself, and not be killed.
        """
        if self._registered:
            self._registered = False
            pointer = self.host.data_ptr()
            _asked(torch.cuda.cudart().cudaHostUnregister(pointer), "cudaHostUnregister", self.nbytes)


def _ask_for_huge_pages(memory: mmap.mmap) -> None:
    """Fewer pages to make and to register. A kernel without them says so, and the pool is slower to start."""
    try:
        memory.madvise(mmap.MADV_HUGEPAGE)
    except OSError as error:
        logger.warning("HiSparse: no huge pages for the host pool, starting takes longer: %s", error.strerror)


def touch(memory: torch.Tensor, chunk: int = _CHUNK) -> None:
    """Write zeros to all of *memory* (int8, one dimension) from several threads, so that every page exists."""
    parts = range(0, memory.numel(), chunk)
    with ThreadPoolExecutor(max(1, min(16, len(os.sched_getaffinity(0))))) as threads:
        for _ in threads.map(lambda start: memory[start : start + chunk].zero_(), parts):
            pass


def numa_node(device: torch.device, sysfs: Path = Path("/sys/bus/pci/devices")) -> int | None:
    """The NUMA node that a GPU hangs on; None where the machine does not say."""
    facts = torch.cuda.get_device_properties(device)
    parts = [getattr(facts, f"pci_{part}_id", None) for part in ("domain", "bus", "device")]
    if None in parts:
        return None
    file = sysfs / "{:04x}:{:02x}:{:02x}.0".format(*parts) / "numa_node"
    node = int(file.read_text()) if file.is_file() else -1
    return node if node >= 0 else None


def _prefer_node(pointer: int, nbytes: int, node: int) -> None:
    """Have the pages of a mapping come from *node* while it has some. A kernel that refuses is told of, not obeyed."""
    call = _MBIND.get(platform.machine())
    if call is None:
        return
    bits = ctypes.sizeof(ctypes.c_ulong) * 8
    words = node // bits + 1
    mask = (ctypes.c_ulong * words)()
    mask[node // bits] = 1 << node % bits
    libc = ctypes.CDLL(None, use_errno=True)
    arguments = (ctypes.c_void_p(pointer), ctypes.c_ulong(nbytes), _PREFERRED, mask, words * bits + 1, 0)
    if libc.syscall(call, *arguments) != 0:
        reason = os.strerror(ctypes.get_errno())
        logger.warning("HiSparse: the host pool is not bound to NUMA node %d: %s", node, reason)


def _asked(answer: object, call: str, nbytes: int) -> None:
    if int(answer) != 0:  # type: ignore[call-overload]
        raise RuntimeError(f"{call} of {nbytes / 2**30:.2f} GiB failed with CUDA error {int(answer)}")  # type: ignore[call-overload]
