"""The host pool against a driver that is a list of calls, on real memory."""

from __future__ import annotations

import errno
from types import SimpleNamespace

import pytest
import torch


class Driver:
    def __init__(self, answer: int = 0) -> None:
        self.calls: list[tuple[str, int, int]] = []
        self.answer = answer

    def cudaHostRegister(self, pointer: int, size: int, flags: int) -> int:
        self.calls.append(("register", pointer, size))
        return self.answer

    def cudaHostUnregister(self, pointer: int) -> int:
        self.calls.append(("unregister", pointer, 0))
        return self.answer


@pytest.fixture
def pool(vllm, monkeypatch):
    module = vllm.hot("pool")
    driver = Driver()
    ops = SimpleNamespace(_C=SimpleNamespace(get_cuda_view_from_cpu_tensor=lambda host: host.view(torch.int8)))
    cuda = SimpleNamespace(cudart=lambda: driver, get_device_properties=lambda device: SimpleNamespace())
    names = {name: getattr(torch, name) for name in ("frombuffer", "int8", "Tensor", "device")}
    monkeypatch.setattr(module, "torch", SimpleNamespace(cuda=cuda, ops=ops, **names))
    return module, driver


SIZE = 3 * 2**20 + 4096  # no power of two


def test_exactly_what_was_asked_for_is_registered_and_given_back_once(pool):
    module, driver = pool
    made = module.HostPool(SIZE, torch.device("cpu"))
    address = made.host.data_ptr()
    assert made.device.data_ptr() == address and made.device.numel() == made.nbytes == SIZE
    assert not made.host.any()
    made.close()
    made.close()
    assert driver.calls == [("register", address, SIZE), ("unregister", address, 0)]


def test_a_driver_that_refuses(pool):
    module, driver = pool
    driver.answer = 2
    with pytest.raises(RuntimeError, match=r"cudaHostRegister of 0\.00 GiB failed with CUDA error 2"):
        module.HostPool(SIZE, torch.device("cpu"))
    driver.answer = 0
    made = module.HostPool(SIZE, torch.device("cpu"))
    driver.answer = 4
    with pytest.raises(RuntimeError, match="cudaHostUnregister"):
        made.close()


def test_every_page_is_touched(vllm):
    memory = torch.ones(1000, dtype=torch.int8)
    vllm.hot("pool").touch(memory, chunk=64)
    assert not memory.any()


@pytest.mark.parametrize(
    ("limit", "used", "free"), [(None, None, 4096 * 1024), ("max", "5", 4096 * 1024), ("2000000", "500000", 1500000)]
)
def test_free_memory_is_the_least_of_what_limits(vllm, tmp_path, limit, used, free):
    info = tmp_path / "meminfo"
    info.write_text("MemTotal:  9999 kB\nMemAvailable:   4096 kB\n")
    if limit is not None:
        (tmp_path / "memory.max").write_text(f"{limit}\n")
        (tmp_path / "memory.current").write_text(f"{used}\n")
    assert vllm.hot("pool").free_memory(info, tmp_path) == free


def test_what_fits(vllm):
    check = vllm.hot("pool").check_fits
    check(95, 1, 100)
    with pytest.raises(ValueError, match="host_pool_gib"):
        check(96, 1, 100)
    with pytest.raises(ValueError, match="2 ranks"):
        check(48, 2, 100)


@pytest.mark.parametrize(("text", "node"), [("1\n", 1), ("-1\n", None), (None, None)])
def test_the_node_of_a_gpu(pool, tmp_path, text, node):
    module, _ = pool
    facts = SimpleNamespace(pci_domain_id=0, pci_bus_id=0x1B, pci_device_id=0)
    module.torch.cuda.get_device_properties = lambda device: facts
    if text is not None:
        (tmp_path / "0000:1b:00.0").mkdir()
        (tmp_path / "0000:1b:00.0/numa_node").write_text(text)
    assert module.numa_node(torch.device("cpu"), tmp_path) == node
    module.torch.cuda.get_device_properties = lambda device: SimpleNamespace()
    assert module.numa_node(torch.device("cpu"), tmp_path) is None


def test_binding_names_the_node_to_the_kernel(pool, monkeypatch, caplog):
    module, _ = pool
    seen = []

    def syscall(number, pointer, size, policy, mask, bits, flags):
        seen.append((number, pointer.value, size.value, policy, list(mask), bits, flags))
        return -1

    monkeypatch.setattr(module.ctypes, "CDLL", lambda name, use_errno: SimpleNamespace(syscall=syscall))
    monkeypatch.setattr(module.ctypes, "get_errno", lambda: errno.EPERM)
    monkeypatch.setattr(module.platform, "machine", lambda: "x86_64")
    module._prefer_node(4096, SIZE, 65)
    assert seen == [(237, 4096, SIZE, 1, [0, 2], 129, 0)]
    assert "not bound to NUMA node 65: Operation not permitted" in caplog.text


def test_a_kernel_without_huge_pages_is_told_of(pool, caplog):
    module, _ = pool

    class Plain:
        def madvise(self, advice):
            assert advice == module.mmap.MADV_HUGEPAGE
            raise OSError(errno.EINVAL, "Invalid argument")

    module._ask_for_huge_pages(Plain())
    assert "no huge pages for the host pool, starting takes longer: Invalid argument" in caplog.text
