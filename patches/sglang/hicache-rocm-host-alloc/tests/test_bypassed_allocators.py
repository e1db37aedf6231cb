"""A storage backend may bring its own allocator. Where the pinned path takes its place, the log must say so, once."""

from __future__ import annotations

import logging

import pytest


def warnings_of(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_each_bypassed_type_is_named_once(host, caplog):
    rocm = host("hip")
    for _ in range(2):
        for name in ("MooncakeHostTensorAllocator", "UMBPHostTensorAllocator"):
            for key in ("cuda", rocm.torch.device("cuda:0")):
                rocm.request(key, allocator=rocm.storage_allocator_of(name))
    said = warnings_of(caplog)
    assert [sum(name in text for text in said) for name in ("MooncakeHost", "UMBPHost")] == [1, 1]
    assert len(said) == 2


def test_an_allocator_of_the_engine_itself_is_named_too(host, caplog):
    rocm = host("hip")
    if "ShmHostTensorAllocator" not in rocm.names:
        pytest.skip("this release has no shared-memory allocator (it comes with 0.5.17)")
    rocm.request("cuda", allocator=rocm.names["ShmHostTensorAllocator"]())
    assert ["ShmHostTensorAllocator" in text for text in warnings_of(caplog)] == [True]


@pytest.mark.parametrize("allocator", ["default", None], ids=["default", "none"])
def test_the_default_allocator_is_not_worth_a_warning(host, caplog, allocator):
    rocm = host("hip")
    rocm.request("cuda" if allocator else "npu", allocator=allocator)
    assert (rocm.events, warnings_of(caplog)) == (["pinned"], [])


@pytest.mark.parametrize("platform", ["cuda", "xpu"])
def test_elsewhere_the_storage_allocator_is_used_in_silence(host, caplog, platform):
    other = host(platform)
    other.request("cuda", allocator=other.storage_allocator_of("MooncakeHostTensorAllocator"))
    assert (other.events, warnings_of(caplog)) == (["MooncakeHostTensorAllocator", "registered"], [])


@pytest.mark.parametrize(("platform", "key"), [("npu", "npu"), ("cuda", "musa")])
def test_where_it_was_always_pinned_nothing_new_is_said(host, caplog, platform, key):
    other = host(platform)
    other.request(key, allocator=other.storage_allocator_of("MooncakeHostTensorAllocator"))
    assert (other.events, warnings_of(caplog)) == (["pinned"], [])
