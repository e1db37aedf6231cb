"""The setting, and what is refused with which reason."""

from __future__ import annotations

import dataclasses
import os
from types import SimpleNamespace

import pytest
from hisparse_engine import TOPK, config

from graftwork.harness.defect import defect
from graftwork.harness.isolate import load_class, load_module, stub, stubbed

GOOD = {"host_pool_gib": 2.5, "device_buffer_size": 16}


@pytest.fixture
def attention_config(engine_tree):
    """The real AttentionConfig: a dataclass, as pydantic would make it, without pydantic."""
    parts = [
        stub("pydantic", field_validator=lambda *a, **k: lambda f: f),
        stub(
            "vllm.config.utils",
            config=dataclasses.dataclass,
            get_hash_factors=lambda one, ignored: dataclasses.asdict(one),
            hash_factors=str,
        ),
        stub("vllm.v1.attention.backends.mla.prefill.registry", MLAPrefillBackendEnum=object),
        stub("vllm.v1.attention.backends.registry", AttentionBackendEnum=object),
    ]
    with stubbed(*parts):
        yield load_module(engine_tree / "vllm/config/attention.py", "vllm.config.attention").AttentionConfig


def test_the_engine_takes_the_setting(attention_config):
    with defect(TypeError, match="hisparse_config"):
        given = attention_config(hisparse_config=GOOD)
    assert given.hisparse_config == GOOD
    assert attention_config().hisparse_config is None
    assert given.compute_hash() != attention_config().compute_hash()


def test_what_the_keys_say(vllm):
    parse = vllm.hot("config").parse
    assert parse(GOOD, TOPK) == vllm.hot("config").HotKVConfig(int(2.5 * 2**30), 16)
    assert parse({"host_pool_gib": 1}, 2048).slots == 4096


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({**GOOD, "top_k": 8}, "unknown top_k; it has host_pool_gib and device_buffer_size"),
        ({"device_buffer_size": 16}, "host_pool_gib must be GiB"),
        ({**GOOD, "host_pool_gib": 0}, "host_pool_gib must be GiB"),
        ({**GOOD, "host_pool_gib": float("inf")}, "host_pool_gib must be GiB"),
        ({**GOOD, "host_pool_gib": True}, "host_pool_gib must be GiB"),
        ({**GOOD, "device_buffer_size": TOPK - 1}, f"must be index_topk, {TOPK}, to 32767, not {TOPK - 1}"),
        ({**GOOD, "device_buffer_size": 32_768}, "not 32768"),
        ({**GOOD, "device_buffer_size": 16.5}, "device_buffer_size must be"),
    ],
)
def test_wrong_keys(vllm, given, says):
    with pytest.raises(ValueError, match=says):
        vllm.hot("config").parse(given, TOPK)


@pytest.fixture
def validate(vllm, engine_tree, monkeypatch):
    """The engine's own validator, called with a configuration for self."""
    monkeypatch.delenv("VLLM_WORKER_SHUTDOWN_TIMEOUT_SECONDS", raising=False)
    made = load_class(engine_tree / "vllm/config/vllm.py", "VllmConfig", ["validate_hot_kv"], {})

    def call(given, **more):
        return made.validate_hot_kv(config(given, **more))

    yield call
    os.environ.pop("VLLM_WORKER_SHUTDOWN_TIMEOUT_SECONDS", None)  # set by the code, so monkeypatch does not know it


def mode(name):
    return SimpleNamespace(name=name)


def test_supported(validate):
    settled = validate(GOOD, compilation_config__cudagraph_mode=mode("FULL_AND_PIECEWISE"))
    assert settled.shutdown_timeout == 600
    assert os.environ["VLLM_WORKER_SHUTDOWN_TIMEOUT_SECONDS"] == "600"


def test_time_to_stop_that_was_given_stays(validate, monkeypatch):
    monkeypatch.setenv("VLLM_WORKER_SHUTDOWN_TIMEOUT_SECONDS", "900")
    assert validate(GOOD, shutdown_timeout=30).shutdown_timeout == 30
    assert os.environ["VLLM_WORKER_SHUTDOWN_TIMEOUT_SECONDS"] == "900"


def test_off_is_left_alone(validate):
    settled = validate(None, parallel_config__pipeline_parallel_size=2)
    assert settled.shutdown_timeout == 0 and "VLLM_WORKER_SHUTDOWN_TIMEOUT_SECONDS" not in os.environ
    assert validate(GOOD, model_config=None).model_config is None


@pytest.mark.parametrize(
    ("place", "value", "says"),
    [
        ("model_config__hf_config", SimpleNamespace(model_type="llama"), "no index_topk"),
        ("attention_config__hisparse_config", {}, "host_pool_gib"),
        ("model_config__hf_config", SimpleNamespace(model_type="deepseek_v4", index_topk=8), "DeepSeek-V4"),
        ("parallel_config__pipeline_parallel_size", 2, "pipeline parallelism"),
        ("parallel_config__decode_context_parallel_size", 2, "decode context parallelism"),
        ("parallel_config__prefill_context_parallel_size", 2, "prefill context parallelism"),
        ("parallel_config__use_ubatching", True, "microbatches"),
        ("speculative_config", object(), "speculative decoding"),
        ("kv_transfer_config", object(), "KV connectors"),
        ("use_v2_model_runner", True, "VLLM_USE_V2_MODEL_RUNNER=0"),
        ("model_config__enable_sleep_mode", True, "sleep mode"),
        ("attention_config__backend", mode("FLASHINFER_MLA_SPARSE"), "use FLASHMLA_SPARSE"),
        ("cache_config__cache_dtype", "fp8_e5m2", "kv_cache_dtype fp8_e5m2"),
        ("scheduler_config__scheduler_reserve_full_isl", False, "scheduler_reserve_full_isl"),
        ("compilation_config__cudagraph_mode", mode("FULL"), "cudagraph_mode FULL: use one of NONE"),
    ],
)
def test_not_supported(validate, place, value, says):
    with pytest.raises(ValueError, match=says):
        validate(GOOD, **{place: value})


def test_another_platform(validate, vllm):
    vllm.platform.is_cuda = lambda: False
    with pytest.raises(ValueError, match="for the CUDA platform"):
        validate(GOOD)


def test_all_reasons_are_told_at_once(validate):
    with pytest.raises(ValueError, match=r"pipeline.*; speculative"):
        validate(GOOD, parallel_config__pipeline_parallel_size=2, speculative_config=object())
