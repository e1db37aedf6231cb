"""Two budgets, one number of blocks, in the engine's own planning functions."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import cast

import pytest
from hisparse_engine import LIMIT, config

from graftwork.harness.isolate import load_class, load_function

FILE = "vllm/v1/core/kv_cache_utils.py"
MLA, INDEXER = 64 * 656, 64 * 132
BLOCK = 2 * MLA + INDEXER
FUNCTIONS = (
    "may_override_num_blocks",
    "_pool_bytes_per_block",
    "get_kv_cache_config_from_groups",
    "_max_memory_usage_bytes_from_groups",
    "_estimate_max_model_len_from_groups",
    "_auto_fit_max_model_len",
    "_check_enough_kv_cache_memory",
    "_project_kv_cache_groups_to_worker",
    "get_max_concurrency_for_kv_cache_config",
    "max_memory_usage_bytes",
    "get_kv_cache_capacity",
    "get_kv_cache_configs",
)


@dataclass(frozen=True)
class Spec:
    page_size_bytes: int
    block_size: int = 64

    def max_memory_usage_bytes(self, vllm_config):
        return -(-vllm_config.model_config.max_model_len // self.block_size) * self.page_size_bytes


@dataclass
class Uniform:
    """UniformTypeKVCacheSpecs, as far as planning goes."""

    block_size: int
    kv_cache_specs: dict

    @property
    def page_size_bytes(self):
        return sum(spec.page_size_bytes for spec in self.kv_cache_specs.values())

    def max_memory_usage_bytes(self, vllm_config):
        return sum(spec.max_memory_usage_bytes(vllm_config) for spec in self.kv_cache_specs.values())


@dataclass
class Group:
    layer_names: list
    kv_cache_spec: object
    is_eagle_group: bool = False


@dataclass
class Plan:
    num_blocks: int
    kv_cache_tensors: list
    kv_cache_groups: list = field(default_factory=list)


SPECS = {"0.attn": Spec(MLA), "0.indexer.k_cache": Spec(INDEXER), "1.attn": Spec(MLA)}


@pytest.fixture
def engine(vllm, engine_tree):
    """The functions of kv_cache_utils, and KVCacheTensor, from the tree."""
    tensors = engine_tree / "vllm/v1/kv_cache_interface.py"
    logger = logging.getLogger("engine")
    logger.info_once = logger.info
    text = tensors.read_text("utf-8")
    start = text.index("@dataclass\nclass KVCacheTensor")
    scope = {"dataclass": dataclass}
    exec(text[start : text.index("@dataclass", start + 1)], scope)
    names = vars(vllm.hot("planning")) | {
        "KVCacheTensor": scope["KVCacheTensor"],
        "KVCacheConfig": Plan,
        "KVCacheGroupSpec": Group,
        "UniformTypeKVCacheSpecs": Uniform,
        "KVCacheSpecRegistry": SimpleNamespace(check_kv_cache_spec_registry=lambda specs: None),
        "get_kv_cache_groups": lambda settings, specs: [Group(list(specs), Uniform(64, specs))],
        "format_gib": lambda size: f"{size / 2**30:.2f}",
        "cdiv": lambda a, b: -(-a // b),
        "logger": logger,
        "partial": partial,
        "cast": cast,
        "math": math,
    }
    for name in FUNCTIONS:
        load_function(engine_tree / FILE, name, names)
    return SimpleNamespace(**names)


def hot(blocks, **more):
    """A configuration whose host pool holds so many blocks."""
    return config({"host_pool_gib": blocks * 2 * MLA / 2**30}, **more)


def planned(engine, settings, memory, specs=SPECS):
    return engine.get_kv_cache_configs(settings, [specs], [memory])[0]


def test_without_hot_kv_the_gpu_holds_all(engine):
    made = planned(engine, config(None), 20 * BLOCK + 5)
    assert made.num_blocks == 20
    assert [(t.size, t.host_resident) for t in made.kv_cache_tensors] == [
        (20 * spec.page_size_bytes, False) for spec in SPECS.values()
    ]


def test_the_host_pool_binds(engine, caplog):
    caplog.set_level(logging.INFO)
    made = planned(engine, hot(30), 50 * INDEXER)
    assert made.num_blocks == 30
    assert {t.shared_by[0]: t.host_resident for t in made.kv_cache_tensors} == {
        "0.attn": True,
        "0.indexer.k_cache": False,
        "1.attn": True,
    }
    assert [t.size for t in made.kv_cache_tensors] == [30 * MLA, 30 * INDEXER, 30 * MLA]
    assert "3,200 tokens fit the GPU (indexer KV), 1,920 fit the host pool (MLA KV); host_pool_gib binds" in caplog.text


def test_the_gpu_binds(engine, caplog):
    caplog.set_level(logging.INFO)
    assert planned(engine, hot(300), 50 * INDEXER).num_blocks == 50
    assert "the GPU's memory binds" in caplog.text


def test_the_host_pool_sets_what_is_admitted(engine):
    """The scheduler admits by blocks: a smaller pool, fewer requests, whatever the GPU has."""
    few, many = (engine.get_kv_cache_capacity(hot(n), planned(engine, hot(n), 10**9))[1] for n in (10, 80))
    assert (few, many) == (2.0, 16.0)


def test_an_override_counts_the_gpu_share_and_is_capped(engine):
    settings = hot(30, cache_config__num_gpu_blocks_override=12)
    assert planned(engine, settings, 1).num_blocks == 12
    assert engine._pool_bytes_per_block(settings, [Group(list(SPECS), Uniform(64, SPECS))]) == INDEXER
    assert planned(engine, hot(30, cache_config__num_gpu_blocks_override=99), 1).num_blocks == 30
    assert planned(engine, config(None, cache_config__num_gpu_blocks_override=99), 1).num_blocks == 99


def test_profiling_needs_little_of_the_pool(engine):
    settings = hot(3000, cache_config__num_gpu_blocks_override=4)
    groups = [Group(list(SPECS), Uniform(64, SPECS))]
    made = engine.get_kv_cache_config_from_groups(settings, groups, available_memory=0)
    assert sum(t.size for t in made.kv_cache_tensors if t.host_resident) == 4 * 2 * MLA


def test_mla_bytes_are_not_held_against_the_gpu(engine):
    blocks = LIMIT // 64
    assert planned(engine, hot(30), blocks * INDEXER).num_blocks == blocks
    with pytest.raises(ValueError, match="KV cache is needed"):
        planned(engine, hot(30), blocks * INDEXER - 1)
    with pytest.raises(ValueError, match="KV cache is needed"):
        planned(engine, config(None), blocks * INDEXER)


def test_a_pool_that_cannot_hold_one_request(engine):
    with pytest.raises(ValueError, match=r"max_model_len 320 tokens.*host_pool_gib is"):
        planned(engine, hot(LIMIT // 64), 10**9)  # one block is the null block's
    assert planned(engine, hot(LIMIT // 64 + 1), 10**9).num_blocks == LIMIT // 64 + 1


@pytest.mark.parametrize(("pool", "memory", "length"), [(4, 10**9, 192), (300, 3 * INDEXER, 192), (300, 10**9, LIMIT)])
def test_an_automatic_length_fits_both(engine, pool, memory, length):
    settings = hot(pool, model_config__original_max_model_len=-1)
    planned(engine, settings, memory)
    assert settings.model_config.max_model_len == length


def test_the_smallest_worker_decides(engine):
    made = engine.get_kv_cache_configs(hot(30), [SPECS, SPECS], [20 * INDEXER, 25 * INDEXER])
    assert [one.num_blocks for one in made] == [20, 20]
    assert [t.size for t in made[1].kv_cache_tensors] == [20 * MLA, 20 * INDEXER, 20 * MLA]


def test_a_model_without_an_indexer(engine):
    with pytest.raises(ValueError, match=r"layers named \.indexer"):
        planned(engine, hot(30), 10**9, {"0.attn": Spec(MLA)})


def test_layers_that_share_a_selection_have_no_indexer_to_hold(engine):
    specs = SPECS | {"2.attn": Spec(MLA), "3.attn": Spec(MLA)}
    settings = config({"host_pool_gib": 30 * 4 * MLA / 2**30})
    made = planned(engine, settings, 50 * INDEXER, specs)
    assert made.num_blocks == 30 and sum(t.host_resident for t in made.kv_cache_tensors) == 4
    assert planned(engine, settings, 20 * INDEXER, specs).num_blocks == 20


def test_the_tensor_says_where_it_lives(engine_tree):
    fields = load_class(engine_tree / "vllm/v1/kv_cache_interface.py", "KVCacheTensor", [], {})
    assert fields.__name__ == "KVCacheTensor"
