"""Layers without an indexer attend by the selection of the last one that has one: they copy, and resolve nothing."""

from __future__ import annotations

from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
import torch
from hisparse_engine import SLOTS, config
from hisparse_worker import OracleKernels, Worker

from graftwork.harness.isolate import load_class

MODEL = "vllm/model_executor/models/deepseek_v2.py"
WRAPPER = "vllm/model_executor/layers/mla.py"
LAYER = "vllm/model_executor/layers/attention/mla_attention.py"
SELECTS = (True, True, False, False, True, False)  # so selections 0, 1, 1, 1, 2, 2


@pytest.fixture(params=[False, True], ids=["bf16", "fp8"])
def worker(request, vllm, backend):
    return Worker(vllm, backend, request.param, selects=SELECTS)


def same(found):
    return torch.equal(found["stock"], found["hot"])


def test_one_set_of_tags_for_a_selection(worker):
    hot = worker.hot
    assert [(layer.number, layer.leads) for layer in hot.layers] == [
        (0, True), (1, True), (1, False), (1, False), (2, True), (2, False),
    ]  # fmt: skip
    assert hot.state.shape.layers == len(hot.state.tags) == 3
    assert len({layer.hot.data_ptr() for layer in hot.layers}) == len(SELECTS)
    assert hot.hot_bytes == hot.state.nbytes() + sum(layer.hot.nbytes for layer in hot.layers)


def test_decode_beside_prompts_in_parts_and_padding(worker):
    worker.admit("a", 70)
    assert same(worker.step({"a": 70}))
    worker.admit("long", 150)
    for part in (70, 70, 10):
        assert same(worker.step({"a": 1, "long": part}))
    for pad in (0, 2, 1):
        assert same(worker.step({"a": 1, "long": 1}, pad=pad))


def test_a_prefix_that_another_request_computed(worker):
    first = worker.admit("a", 100)
    worker.step({"a": 100})
    second = worker.admit("b", 80)
    second.blocks[0], second.computed = first.blocks[0], 64
    assert same(worker.step({"a": 1, "b": 16}))
    for _ in range(4):
        assert same(worker.step({"a": 1, "b": 1}))


@pytest.mark.parametrize("filled", [100, 1], ids=["a prompt", "a decode"])
def test_a_block_that_another_request_fills_in_the_same_step(worker, filled):
    """The scheduler takes it for cached from then on; layers behind the leader have not written it yet."""
    first = worker.admit("a", 64 if filled == 1 else 100)
    if filled == 1:
        worker.step({"a": 63})
    second = worker.admit("b", 65)
    second.blocks[0], second.computed = first.blocks[0], 64
    assert same(worker.step({"a": filled, "b": 1}))
    assert worker.hot.forces_eager == (filled == 1)
    assert same(worker.step({"a": 1, "b": 1}))
    assert worker.hot.settled and not worker.hot.forces_eager


def test_copies_ahead_of_the_layers_that_share(worker):
    """In a settled step they come right behind the leader's, before any sharing layer wrote its newest row."""
    order, kernels = [], worker.hot.kernels
    copy, write = kernels.copy, kernels.write_newest
    kernels.copy = lambda *given: (order.append("copy"), copy(*given))
    kernels.write_newest = lambda *given: (order.append("write"), write(*given))
    worker.admit("a", 60)
    worker.step({"a": 60})
    del order[:]
    worker.step({"a": 1})
    w, c = "write", "copy"
    assert order == [w, c, w, c, c, c, w, w, w, c, c, w]
    worker.admit("b", 1)
    del order[:]
    worker.step({"a": 1, "b": 1})
    assert order == [w, c] * 6


def test_preempted_resumed_and_computed_again(worker):
    request = worker.admit("a", 60)
    worker.step({"a": 60})
    for _ in range(3):
        assert same(worker.step({"a": 1}))
    worker.leave(request, finished=False)
    again = worker.admit("a", 50, resumed=True)
    assert same(worker.step({"a": 50}))
    for _ in range(3):
        assert same(worker.step({"a": 1}))
    again.computed = 51
    for _ in range(4):
        assert same(worker.step({"a": 1}))


def test_random_days(worker):
    assert all(same(found) for found in worker.live(15))


def test_every_layer_holds_its_own_bytes(worker):
    """Those of its own pool, for all that the tags of its selection name."""
    request = worker.admit("a", 60)
    worker.step({"a": 60})
    for _ in range(6):
        worker.step({"a": 1})
    kernels, region = worker.hot.kernels, worker.hot.regions.region("a")
    seen = []
    for layer, stack in zip(worker.hot.layers, worker.stacks["hot"], strict=True):
        tags = kernels._oracle[layer.number].tags[region]
        held = {slot: tag for slot, tag in enumerate(tags) if tag >= 0}
        assert len(held) >= SLOTS // 2
        rows, pool = layer.hot.flatten(0, 1), stack.kv_cache.flatten(0, 1)
        for slot, tag in held.items():
            row = rows[region * worker.hot.state.shape.stride + slot]
            assert torch.equal(row, pool[request.blocks[tag // 64] * 64 + tag % 64])
            seen.append(bytes(row.view(torch.uint8).tolist()))
    assert len(set(seen)) == len(seen)


def test_a_spoiled_row_of_a_follower_shows_and_is_judged(vllm, backend, monkeypatch):
    monkeypatch.setenv("HISPARSE_DEBUG", "1")
    worker = Worker(vllm, backend, fp8=False, selects=SELECTS)
    kernels, judged = worker.hot.kernels, []

    def mirror(state, number, *rest):
        """The state of the oracle, which stands in for the kernels, is what the judge has to look at."""
        made = OracleKernels.resolve(kernels, state, number, *rest)
        one = kernels._oracle[number]
        for region in range(state.shape.regions):
            state.tags[number, region, :SLOTS] = torch.tensor(one.tags[region])
            state.order[number, region, :SLOTS] = torch.tensor(one.order[region])
        state.index[: len(made[0])] = made[0]
        return made

    kernels.resolve = mirror
    judge = worker.hot.judge
    monkeypatch.setattr(worker.hot, "judge", lambda layer, *rest: (judged.append(layer.name), judge(layer, *rest)))
    worker.admit("a", 40)
    worker.step({"a": 40})
    for _ in range(3):
        assert same(worker.step({"a": 1}))
    assert judged == [f"{number}.attn" for number in range(len(SELECTS))] * 3
    spoiled = worker.hot.layers[3].hot
    spoiled.copy_(spoiled + 1)
    with pytest.raises(RuntimeError, match=r"HiSparse, 3\.attn: row 0, region \d: a hot row differs from its host row"):
        worker.step({"a": 1})


def test_a_spoiled_follower_differs_from_stock(worker):
    worker.admit("a", 6)
    worker.step({"a": 6})
    assert same(worker.step({"a": 1}))
    worker.hot.layers[3].hot.view(torch.uint8).bitwise_xor_(21)
    found = worker.step({"a": 1})
    assert [torch.equal(*rows) for rows in zip(found["stock"], found["hot"], strict=True)] == [
        True, True, True, False, True, True,
    ]  # fmt: skip


def test_what_is_counted(worker):
    """Hits and misses once for a selection, bytes for each layer that copies."""
    hot, copied, copy = worker.hot, [], worker.hot.kernels.copy

    def counting(*given):
        copied.append(len(hot.kernels._copies))
        copy(*given)

    hot.kernels.copy = counting
    worker.admit("a", 60)
    worker.step({"a": 60})
    total = 0
    for _ in range(2):  # the second report is of what came since the first
        del copied[:]
        for _ in range(5):
            worker.step({"a": 1})
        hot._steps = 50
        report = [hot.take_stats(), hot.take_stats()][1]
        assert report.copied_bytes == sum(copied) * hot.state.shape.row_bytes > 0
        assert report.misses == sum(copied[0::6] + copied[1::6] + copied[4::6]) and report.refused == 0
        total += report.misses
    assert total == int(hot.state.stats[:, 1].sum())
    assert all(row.data_ptr() % 16 == 0 for row in hot.state.stats)  # or Triton compiles again


def test_a_selection_that_was_not_the_last_is_refused(worker):
    worker.admit("a", 20)
    worker.step({"a": 20})
    worker.step({"a": 1})  # its last selection is 2

    def resolve(number):
        region = worker.hot.state.region_rows[:1]
        slot, table = torch.tensor([64]), torch.ones((1, 5), dtype=torch.int32)
        lengths, cache = torch.ones_like(region), worker.stacks["hot"][number].kv_cache
        return worker.hot.layers[number].resolve(worker.topk[:1], lengths, slot, table, cache)

    with pytest.raises(RuntimeError, match=r"HiSparse: 2\.attn shares a selection that was not the last one made"):
        resolve(2)
    index, _ = resolve(4)
    assert resolve(5)[0] is index
    worker.hot.mark_decodes(1)  # the next step begins
    with pytest.raises(RuntimeError, match=r"HiSparse: 5\.attn shares a selection that was not the last one made"):
        resolve(5)


def test_layers_before_any_indexer(vllm):
    plan = vllm.hot("manager").selections
    layers = [SimpleNamespace(indexer=object() if one else None) for one in (False, False, True, False)]
    assert plan(layers) == [(0, True), (0, False), (1, True), (1, False)]
    assert plan(layers[2:3] * 3) == [(0, True), (1, True), (2, True)]


@pytest.mark.parametrize(
    ("keys", "leading"),
    [
        ({}, list(range(12))),
        ({"index_topk_freq": 4}, [0, 1, 5, 9]),
        ({"index_topk_freq": 4, "index_skip_topk_offset": 3}, [0, 1, 2, 6, 10]),
        ({"index_topk_pattern": "FFSSFSSSFSFF"}, [0, 1, 4, 8, 10, 11]),
    ],
)
def test_who_selects_is_what_the_model_says(vllm, engine_tree, keys, leading):
    """By the model's own constructors, from the keys of its configuration to what the worker finds."""
    settings = config({"host_pool_gib": 1, "device_buffer_size": SLOTS})
    settings.parallel_config.dcp_comm_backend = "ag_rs"
    build = constructors(engine_tree, settings)
    hf = SimpleNamespace(
        index_topk=8, num_hidden_layers=12, rms_norm_eps=1e-6, rope_parameters={"rope_type": "default"}, **keys
    )
    cache = SimpleNamespace(cache_dtype="auto", calculate_kv_scales=False, enable_prefix_caching=False)
    shared = torch.zeros(1, 8)
    for number in range(12):
        build(
            settings, hf, 64, 4, 192, 64, 256, 32, 512,
            cache_config=cache, prefix=f"model.layers.{number}.self_attn", topk_indices_buffer=shared,
        )  # fmt: skip
    hot = vllm.hot("manager").create(settings, torch.device("cpu"), OracleKernels(vllm.hot("oracle")))
    assert [layer.name for layer in hot.layers] == [f"model.layers.{n}.self_attn.attn" for n in range(12)]
    assert [place for place, layer in enumerate(hot.layers) if layer.leads] == leading
    assert hot.state.shape.layers == len(leading)


def constructors(tree, settings):
    """DeepseekV2MLAAttention, its wrapper and MLAAttention as they are; what they build of others is nothing."""

    class Impl:
        hot_kv = forward_mqa = None

        def __init__(self, **given):
            self.kv_cache_dtype = given["kv_cache_dtype"]

    backend = SimpleNamespace(get_name=lambda: "FLASHMLA_SPARSE", get_impl_cls=lambda: Impl)
    names = {name: MagicMock() for name in (
        "_init_kv_cache_quant", "current_platform", "get_mla_prefill_backend", "rocm_aiter_ops", "QuantFP8",
        "_DecodeConcatQuantFP8", "GroupShape", "get_rope", "ReplicatedLinear", "RowParallelLinear", "RMSNorm",
        "ColumnParallelLinear", "DeepSeekV2FusedQkvAProjLinear",
    )}  # fmt: skip
    names |= {
        "torch": torch,
        "envs": SimpleNamespace(Q_SCALE_CONSTANT=1, K_SCALE_CONSTANT=1, V_SCALE_CONSTANT=1, VLLM_BATCH_INVARIANT=False),
        "cast": lambda kind, value: value,
        "AttentionType": SimpleNamespace(DECODER="decoder"),
        "get_attn_backend": lambda *given, **more: backend,
        "_canonicalize_sparse_mla_kv_cache_dtype": lambda backend, kind: kind,
        "is_quantized_kv_cache": lambda kind: False,
        "get_current_vllm_config": lambda: settings,
        "get_current_vllm_config_or_none": lambda: settings,
        "get_tensor_model_parallel_world_size": lambda: 1,
        "extract_layer_index": lambda prefix: int(prefix.split(".")[2]),
        "Indexer": lambda *given, **more: SimpleNamespace(topk_tokens=8),
        "MLAModules": SimpleNamespace,
        "MLAAttentionImpl": object,
    }
    for file, name in ((LAYER, "MLAAttention"), (WRAPPER, "MultiHeadLatentAttentionWrapper")):
        load_class(tree / file, name, ["__init__"], names)
    return load_class(tree / MODEL, "DeepseekV2MLAAttention", ["__init__"], names)
