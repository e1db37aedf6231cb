"""The model runner's own functions: who gets host memory, when regions are placed, when memory is given back."""

from __future__ import annotations

import contextlib
import gc
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
import torch
from hisparse_engine import SEATS, SLOTS, TOKENS, config
from hisparse_worker import OracleKernels, Worker

from graftwork.harness.isolate import load_function

RUNNER = "vllm/v1/worker/gpu_model_runner.py"


def function(engine_tree, name, **names):
    return load_function(engine_tree / RUNNER, f"GPUModelRunner.{name}", {"torch": torch, **names})


def test_the_package_is_one(engine_tree):
    """Without this file tools that collect packages leave the folder out."""
    assert (engine_tree / "vllm/v1/hot_kv/__init__.py").is_file()


def test_mla_layers_get_host_memory(engine_tree):
    def tensor(name, resident):
        return SimpleNamespace(size=64, shared_by=[name], block_stride=0, host_resident=resident)

    made: list[int] = []
    runner = SimpleNamespace(device="cpu", runner_only_attn_layers=set(), hot_kv=MagicMock())
    runner.hot_kv.host_tensor = lambda size: made.append(size) or torch.full((size,), 7, dtype=torch.int8)
    plan = SimpleNamespace(
        kv_cache_tensors=[tensor("0.attn", True), tensor("0.indexer", False), tensor("1.attn", True)],
        kv_cache_groups=[SimpleNamespace(layer_names=["0.attn", "0.indexer", "1.attn"])],
    )
    found = function(engine_tree, "_allocate_kv_cache_tensors")(runner, plan)
    assert made == [64, 64] and int(found["0.attn"][0]) == 7 and int(found["0.indexer"][0]) == 0
    assert found["0.attn"].data_ptr() != found["1.attn"].data_ptr()


def test_regions_are_placed_in_the_order_of_the_batch(engine_tree):
    happened = []
    runner = MagicMock()
    runner.speculative_config, runner.hot_kv = None, MagicMock()
    runner.input_batch.req_id_to_index = {}
    runner._may_reorder_batch = lambda output: happened.append("ordered")
    runner.hot_kv.begin_step = lambda output, batch: happened.append((output, batch))
    output = MagicMock()
    output.finished_req_ids, output.scheduled_new_reqs, output.num_scheduled_tokens = set(), [], {}
    output.free_encoder_mm_hashes, output.new_block_ids_to_zero = [], None
    output.scheduled_cached_reqs.resumed_req_ids, output.scheduled_cached_reqs.req_ids = set(), []
    update = function(engine_tree, "_update_states", get_pp_group=MagicMock())
    update(runner, output)
    assert happened == ["ordered", (output, runner.input_batch)]
    runner.hot_kv = None
    update(runner, output)
    assert happened[2:] == ["ordered"]


@pytest.mark.parametrize(("hot", "eager"), [(None, False), (False, False), (True, True)])
def test_a_step_that_must_not_copy_ahead_runs_without_graphs(engine_tree, hot, eager):
    runner, modes = MagicMock(), SimpleNamespace(NONE="none", FULL="full")
    runner.hot_kv = None if hot is None else SimpleNamespace(forces_eager=hot)
    runner.vllm_config.parallel_config.data_parallel_size = 1
    runner.vllm_config.observability_config.cudagraph_metrics = False
    runner.compilation_config.pass_config.enable_sp = False
    runner.cudagraph_dispatcher.dispatch.return_value = "none", SimpleNamespace(num_tokens=2)
    decide = function(engine_tree, "_determine_batch_execution_and_padding", CUDAGraphMode=modes)
    decide(runner, 2, 2, None, 1, False)
    asked = runner.cudagraph_dispatcher.dispatch.call_args.kwargs
    assert asked["valid_modes"] == ({"none"} if eager else None)


def test_memory_is_given_back_when_nothing_uses_it(engine_tree):
    order = []
    layer = SimpleNamespace(kv_cache=torch.ones(1))
    runner = SimpleNamespace(
        kv_caches=[torch.ones(1)],
        cache_config=SimpleNamespace(),
        compilation_config=SimpleNamespace(static_forward_context={"0.attn": layer}),
        hot_kv=SimpleNamespace(
            release=lambda: order.append(("release", list(runner.kv_caches), layer.kv_cache.numel()))
        ),
    )
    waits = SimpleNamespace(synchronize=lambda: order.append("synchronize"), empty_cache=lambda: None)
    fake = SimpleNamespace(accelerator=waits, tensor=torch.tensor, Tensor=torch.Tensor)
    clean = function(engine_tree, "_cleanup_profiling_kv_cache", torch=fake, gc=gc, logger=MagicMock())
    clean(runner)
    assert order == ["synchronize", ("release", [], 0)]
    runner.hot_kv = None
    clean(runner)


def test_hot_buffers_exist_before_memory_is_measured(engine_tree):
    class Enough(Exception):
        pass

    class Measured:
        consumed_memory = 0

        def __enter__(self):
            return self

        def __exit__(self, kind, *rest):
            seen.append("measured")

    seen: list[object] = []

    def create(settings, device):
        seen.append((settings, device))
        return "hot"

    runner = MagicMock()
    runner.parallel_config.enable_eplb, runner.lora_config = False, None
    runner.model_config.multimodal_config = MagicMock()
    runner.get_model = MagicMock(side_effect=Enough)
    del runner.drafter
    names = {
        "DeviceMemoryProfiler": Measured,
        "create_hot_kv": create,
        "is_mixture_of_experts": lambda model: False,
        "SupportsMultiModal": type("Never", (), {}),
        "prepare_communication_buffer_for_model": lambda model: None,
        "supports_multimodal_pruning": lambda model: False,
    }
    for name in ("logger", "time", "get_model_loader", "format_gib"):
        names[name] = MagicMock()
    with contextlib.suppress(Enough):
        function(engine_tree, "load_model", **names)(runner)
    assert seen == [(runner.vllm_config, runner.device), "measured"]
    assert runner.hot_kv == "hot"


@pytest.fixture
def hot(vllm, backend):
    return Worker(vllm, backend, fp8=False).hot


def test_sizes(hot):
    shape = hot.state.shape
    assert (shape.regions, shape.slots, shape.rows, shape.row_bytes, shape.stride) == (SEATS, SLOTS, SEATS, 1152, 64)
    (layer,) = hot.layers
    assert layer.hot.shape == (SEATS, 64, 576) and hot.hot_bytes == hot.state.nbytes() + layer.hot.nbytes
    assert hot.staging.shape == (TOKENS // 64, 64, 576) and len(hot.token_regions) == TOKENS


def test_another_backend_is_refused(vllm):
    settings = config({"host_pool_gib": 1})
    impl = SimpleNamespace(kv_cache_dtype="auto", forward_mqa=None)
    settings.compilation_config.static_forward_context["0.attn"] = SimpleNamespace(impl=impl)
    with pytest.raises(ValueError, match="FLASHMLA_SPARSE"):
        vllm.hot("manager").create(settings, torch.device("cpu"), OracleKernels(vllm.hot("oracle")))


def test_pools_that_do_not_fit_are_refused_before_anything_is_allocated(vllm, monkeypatch):
    manager = vllm.hot("manager")
    monkeypatch.setattr(manager, "free_memory", lambda: 40 * 2**30)
    settings = config({"host_pool_gib": 10}, parallel_config__local_world_size=2)
    settings.parallel_config.data_parallel_size_local = 2
    with pytest.raises(ValueError, match=r"4 ranks x 10\.0 GiB of pinned memory do not fit 40\.0 GiB"):
        manager.create(settings, torch.device("cpu"))
    assert manager.create(config(None), torch.device("cpu")) is None


def test_every_layer_has_its_own_share(vllm, backend):
    worker = Worker(vllm, backend, fp8=True)
    settings = worker.settings["hot"]
    other = worker._impl("other", "fp8_ds_mla")
    settings.compilation_config.static_forward_context |= {
        "1.attn": SimpleNamespace(impl=other, indexer=object()),
        "1.indexer": SimpleNamespace(impl=object()),
        "moe": SimpleNamespace(),
    }
    hot = vllm.hot("manager").create(settings, torch.device("cpu"), OracleKernels(vllm.hot("oracle")))
    assert [layer.number for layer in hot.layers] == [0, 1] and other.hot_kv is hot.layers[1]
    assert hot.layers[0].hot.data_ptr() != hot.layers[1].hot.data_ptr()
    assert hot.state.shape.row_bytes == 656


def test_debug_judges_each_step(vllm, backend, monkeypatch):
    monkeypatch.setenv("HISPARSE_DEBUG", "1")
    worker = Worker(vllm, backend, fp8=False)
    worker.admit("a", 4)
    worker.step({"a": 4})
    worker.hot.judge = MagicMock()
    worker.step({"a": 1})
    (layer, given, host, hot), _ = worker.hot.judge.call_args
    assert layer is worker.hot.layers[0] and len(given) == 5 and host.shape[1] == hot.shape[1] == 288


def test_debug_tells_what_is_broken(hot, monkeypatch, vllm):
    monkeypatch.setattr(vllm.hot("oracle"), "broken", lambda *given: ["I1: row 3", "I2: row 4"])
    with pytest.raises(RuntimeError, match=r"HiSparse, 0\.attn: I1: row 3; I2: row 4"):
        hot.judge(hot.layers[0], (), None, None)


def test_debug_is_refused_where_it_would_not_run(vllm, backend, monkeypatch):
    monkeypatch.setenv("HISPARSE_DEBUG", "1")
    settings = Worker(vllm, backend, fp8=False).settings["hot"]
    settings.compilation_config.cudagraph_mode = SimpleNamespace(name="FULL_DECODE_ONLY")
    with pytest.raises(ValueError, match="--enforce-eager"):
        vllm.hot("manager").create(settings, torch.device("cpu"), OracleKernels(vllm.hot("oracle")))


def test_the_report_is_of_what_happened_since_the_last(vllm, backend):
    worker = Worker(vllm, backend, fp8=False)
    hot = worker.hot
    hot.pools = [SimpleNamespace(nbytes=1000)]

    def report():
        for _ in range(3):
            if (stats := hot.take_stats()) is not None:
                return stats
        return None

    assert report() is None
    hot.state.stats[0] = torch.tensor([10, 4, 0, 0])
    hot._steps = 50
    first = report()
    assert (first.hits, first.misses, first.copied_bytes, first.pool_bytes, first.refused) == (10, 4, 4 * 1152, 1000, 0)
    hot.state.stats[0] = torch.tensor([11, 9, 2, 0])
    hot._steps = 50
    second = report()
    assert (second.hits, second.misses, second.refused, second.hot_bytes) == (1, 5, 2, hot.hot_bytes)


def test_release_twice(hot):
    closed = []
    hot.pools = [SimpleNamespace(close=lambda: closed.append(1))] * 2
    hot.release()
    hot.release()
    assert closed == [1, 1]


@pytest.mark.parametrize("how", ["resumed", "streamed anew", "finished and added again", "unchanged"])
def test_whose_hot_rows_are_forgotten(hot, how):
    """Also where its computed tokens did not fall: the tokens themselves may be others."""

    def begin(new=(), resumed=(), finished=()):
        cached = SimpleNamespace(resumed_req_ids=set(resumed))
        fresh = [SimpleNamespace(req_id=name) for name in new]
        output = SimpleNamespace(
            finished_req_ids=finished,
            scheduled_new_reqs=fresh,
            scheduled_cached_reqs=cached,
            total_num_scheduled_tokens=1,
        )
        hot.begin_step(output, SimpleNamespace(num_computed_tokens_cpu=[9], req_ids=["a"], num_reqs=1))

    begin(new=["a"])
    hot.state.tags[:] = 3
    begin(
        new=["a"] if how in ("streamed anew", "finished and added again") else (),
        resumed=["a"] if how == "resumed" else (),
        finished=["a"] if how == "finished and added again" else (),
    )
    tags = hot.state.tags[0, hot.regions.region("a")]
    assert bool((tags == (3 if how == "unchanged" else -1)).all())
    assert int(hot.state.region_rows[0]) == hot.regions.region("a")
