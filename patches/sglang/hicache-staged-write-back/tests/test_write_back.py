"""Every page that is written back arrives, whatever the pools of a group make of the staged kernel; it stays in use."""

from __future__ import annotations

import pytest

from graftwork.harness.defect import defect

PAGES = [(4, 1), (0, 3), (5, 0)]


def write(cache, host, **given):
    with defect(RuntimeError, match="Tensor match failed"):
        cache.write(host, PAGES, **given)


@pytest.mark.parametrize("platform", ["hip", "cuda"])
@pytest.mark.parametrize("layout", ["page_first", "layer_first"])
def test_a_dsa_group_writes_both_pools_back(cache, kit, platform, layout):
    made = cache(platform, layout=layout)
    mla, indexer = made.mla(), made.indexer()
    write(made, made.group(kv=mla, indexer=indexer), others=("indexer",))
    kit.check_mla(mla, PAGES)
    kit.check_indexer(indexer, PAGES)


@pytest.mark.parametrize("platform", ["hip", "cuda"])
def test_the_draft_pool_follows_the_group(cache, kit, platform):
    made = cache(platform)
    mla, indexer, draft = made.mla(), made.indexer(), made.mla()
    write(made, made.group(kv=mla, indexer=indexer), others=("indexer",), draft=draft)
    for pool in (mla, draft):
        kit.check_mla(pool, PAGES)
    kit.check_indexer(indexer, PAGES)


@pytest.mark.parametrize("platform", ["hip", "cuda"])
def test_an_mla_pool_alone_keeps_the_staged_kernel(cache, kit, platform):
    made = cache(platform)
    mla = made.mla()
    write(made, mla)
    kit.check_mla(mla, PAGES)
    assert made.kernels == [kit.STAGED]


@pytest.mark.parametrize("platform", ["hip", "cuda"])
def test_a_group_whose_pools_agree_keeps_the_staged_kernel(cache, kit, platform):
    made = cache(platform)
    mla, other = made.mla(), made.mla()
    write(made, made.group(kv=mla, other=other), others=("other",))
    for pool in (mla, other):
        kit.check_mla(pool, PAGES)
    assert made.kernels == [kit.STAGED, kit.STAGED]


def test_cuda_stages_a_dsa_group(cache, kit):
    made = cache("cuda")
    write(made, made.group(kv=made.mla(), indexer=made.indexer()), others=("indexer",))
    assert made.kernels == [kit.STAGED, kit.STAGED]


@pytest.mark.parametrize("platform", ["hip", "cuda"])
def test_layer_first_is_not_staged(cache, kit, platform):
    made = cache(platform, layout="layer_first")
    mla = made.mla()
    write(made, mla)
    kit.check_mla(mla, PAGES)
    assert made.kernels == [kit.PLAIN_LAYER_FIRST]
