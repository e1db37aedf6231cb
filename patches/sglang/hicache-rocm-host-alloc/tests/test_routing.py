"""Which memory a HiCache host pool gets, by platform and by the key that the pool looks up.

On ROCm it must be pinned for every key: a registered mapping may have another address on the device.
"""

from __future__ import annotations

import pytest
from packaging.version import Version

REGISTERED, PINNED = ["mmap", "registered"], ["pinned"]
DEVICE_KEYS = ["cuda", "cuda:0", "device(cuda)", "device(cuda:0)", "xpu", "cpu"]
PINNED_EVERYWHERE = ["npu", "musa"]


def key_of(text, torch):
    return torch.device(text[7:-1]) if text.startswith("device(") else text


@pytest.mark.parametrize("key", DEVICE_KEYS + PINNED_EVERYWHERE)
def test_rocm_pins_every_key(host, key):
    rocm = host("hip")
    rocm.request(key_of(key, rocm.torch))
    assert rocm.events == PINNED


@pytest.mark.parametrize("platform", ["cuda", "npu", "xpu"])
@pytest.mark.parametrize("key", DEVICE_KEYS + PINNED_EVERYWHERE)
def test_other_platforms_are_as_they_were(host, platform, key):
    other = host(platform)
    other.request(key_of(key, other.torch))
    assert other.events == (PINNED if key in PINNED_EVERYWHERE else REGISTERED)


@pytest.mark.parametrize("platform", ["hip", "cuda"])
@pytest.mark.parametrize("dims", [(3, 5), (2, 0, 4), (7,)], ids=str)
def test_the_pool_gets_the_tensor_it_asked_for(host, platform, dims):
    here = host(platform)
    buffer = here.request("cuda", dims)
    assert (tuple(buffer.shape), buffer.dtype, buffer.device.type) == (dims, here.torch.float16, "cpu")


@pytest.mark.parametrize("platform", ["hip", "cuda"])
def test_a_registration_granularity_is_accepted(host, engine_version, platform):
    if engine_version < Version("0.5.19"):
        pytest.skip("pools pass a registration granularity from 0.5.19 on")
    here = host(platform)
    here.request(here.torch.device("cuda"), registration_granularity_bytes=2)
    assert here.events == (PINNED if platform == "hip" else REGISTERED)
