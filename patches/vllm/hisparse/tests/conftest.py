"""The patched text runs, not a copy of it: the package as vllm.v1.hot_kv, the attention backend as a whole module."""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from graftwork.harness.isolate import load_function, load_module, stub, stubbed

torch = pytest.importorskip("torch", reason="the engine's text runs on torch (a CPU build is enough)")
pytest.importorskip("numpy", reason="the attention backend uses numpy")
torch.set_num_threads(1)  # many small operations: more threads only wait for each other

sys.path.append(str(Path(__file__).parent))
import hisparse_engine as engine  # noqa: E402

BACKEND = "vllm/v1/attention/backends/mla/flashmla_sparse.py"
_SPLITTERS = ("split_decodes_and_prefills", "split_prefill_chunks")


@pytest.fixture
def vllm(engine_tree: Path) -> Iterator[SimpleNamespace]:
    """Packages that are stand-ins, except vllm.v1.hot_kv, which is the tree's; ``hot('planning')`` loads a module."""
    package = stub("vllm.v1")
    package.__path__ = [str(engine_tree / "vllm/v1")]
    platform = SimpleNamespace(is_cuda=lambda: True, is_device_capability_family=lambda family: False)
    parts = [
        package,
        stub("vllm.logger", init_logger=logging.getLogger),
        stub("vllm.platforms", current_platform=platform),
    ]
    sys.dont_write_bytecode, before = True, sys.dont_write_bytecode
    with stubbed(*parts):
        importlib.invalidate_caches()
        yield SimpleNamespace(hot=lambda name: importlib.import_module(f"vllm.v1.hot_kv.{name}"), platform=platform)
    sys.dont_write_bytecode = before


@pytest.fixture
def backend(vllm: SimpleNamespace, engine_tree: Path) -> Iterator[ModuleType]:
    """The whole attention backend, on stand-ins."""
    anything = {
        "AttentionBackend": engine.Generic,
        "AttentionMetadata": engine.Generic,
        "AttentionMetadataBuilder": engine.Generic,
    }
    anything |= {"AttentionLayer": engine.Generic, "CommonAttentionMetadata": engine.Generic, "MultipleOf": int}
    graphs = SimpleNamespace(UNIFORM_BATCH=1)
    helpers = engine_tree / "vllm/v1/attention/backends/utils.py"
    split = {name: load_function(helpers, name, {"torch": torch}) for name in _SPLITTERS}
    ops = stub(
        "vllm._custom_ops", concat_and_cache_mla=engine.concat_and_cache_mla, cp_gather_cache=engine.cp_gather_cache
    )
    ops.cp_gather_and_upconvert_fp8_kv_cache = engine.cp_gather_and_upconvert
    mla = "vllm.v1.attention.backends.mla"
    parts = [
        ops,
        stub("vllm.config", VllmConfig=object, get_current_vllm_config=lambda: None),
        stub("vllm.config.cache", CacheDType=str),
        stub("vllm.model_executor.layers.attention.mla_attention", get_mla_dims=None),
        stub("vllm.platforms.interface", DeviceCapability=object),
        stub("vllm.utils.platform_utils", num_compute_units=lambda index: 4),
        stub("vllm.utils.torch_utils", is_quantized_kv_cache=lambda kind: False, np_to_pinned_tensor=torch.from_numpy),
        stub(
            "vllm.v1.attention.backend", AttentionCGSupport=graphs, SparseMLAAttentionImpl=engine.StockImpl, **anything
        ),
        stub(f"{mla}.sparse_utils", triton_convert_req_index_to_global_index=engine.convert),
        stub(
            "vllm.v1.attention.backends.utils",
            reshape_attn_output_for_spec_decode=lambda out: out.view(-1, *out.shape[2:]),
            reshape_query_for_spec_decode=lambda q, count: q.view(count, -1, *q.shape[1:]),
            **split,
        ),
        stub(
            "vllm.v1.attention.ops.flashmla",
            FlashMLASchedMeta=object,
            flash_mla_sparse_fwd=engine.flash_mla_sparse_fwd,
            flash_mla_with_kvcache=engine.flash_mla_with_kvcache,
            get_mla_metadata=lambda *a, **k: (None, None),
        ),
        stub("vllm.v1.kv_cache_interface", AttentionSpec=object),
        stub("vllm.v1.worker.workspace", current_workspace_manager=None),
    ]
    for part in parts:
        sys.modules[part.__name__] = part
        parent, _, leaf = part.__name__.rpartition(".")
        names = parent.split(".")
        for count in range(1, len(names) + 1):
            if ".".join(names[:count]) not in sys.modules:
                sys.modules[".".join(names[:count])] = stub(".".join(names[:count]))
        setattr(sys.modules[parent], leaf, part)
    module = load_module(engine_tree / BACKEND, f"{mla}.flashmla_sparse")
    module.torch = engine.Unpinned()
    return module
