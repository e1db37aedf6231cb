"""What the scripts do to a model and to steps, on a model of a few numbers."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the scripts work on torch models (a CPU build is enough)")

RANK, HEADS, KEYS, VALUES = 8, 4, 6, 10


class Attention(torch.nn.Module):
    """As MLAAttention after loading: W_UV and W_UK_T are views of kv_b_proj, or copies."""

    def __init__(self, copied: bool) -> None:
        super().__init__()
        self.kv_lora_rank, self.num_heads, self.qk_nope_head_dim, self.v_head_dim = RANK, HEADS, KEYS, VALUES
        self.kv_b_proj = torch.nn.Linear(RANK, HEADS * (KEYS + VALUES), bias=False)
        self.W_UK_T, self.W_UV = self.absorbed()
        if copied:
            self.W_UK_T, self.W_UV = self.W_UK_T.clone(), self.W_UV.clone()

    def absorbed(self) -> tuple[Any, Any]:
        weight = self.kv_b_proj.weight.data.T.view(RANK, HEADS, KEYS + VALUES)
        keys, values = weight.split([KEYS, VALUES], dim=-1)
        return keys.permute(1, 2, 0), values.transpose(0, 1)


def model(copied: bool = False) -> Any:
    made = torch.nn.Module()
    made.embed_tokens = torch.nn.Embedding(512, 256)
    made.layers = torch.nn.ModuleList(torch.nn.Module() for _ in range(2))
    for layer in made.layers:
        layer.attn = Attention(copied)
        layer.q_b_proj = torch.nn.Linear(256, 256, bias=False)
        layer.indexer = torch.nn.Module()
        layer.indexer.wq_b = torch.nn.Linear(256, 2 * 128, bias=False)
        layer.norm = torch.nn.LayerNorm(256)
    return made


@pytest.mark.parametrize("copied", [False, True])
def test_absorbed_weights_follow_their_projection(bench: Any, copied: bool) -> None:
    made = model(copied)
    bench("inside").randomise(made)
    for layer in made.layers:
        keys, values = layer.attn.absorbed()
        assert torch.equal(layer.attn.W_UK_T, keys) and torch.equal(layer.attn.W_UV, values)


def test_weights_are_scaled_once_and_differ_by_layer(bench: Any) -> None:
    made = model()
    bench("inside").randomise(made)
    first, second = made.layers
    assert not torch.equal(first.q_b_proj.weight, second.q_b_proj.weight)
    assert first.q_b_proj.weight.std().item() == pytest.approx(2 / 16, rel=0.05)
    assert first.attn.kv_b_proj.weight.std().item() == pytest.approx(RANK**-0.5, rel=0.2)
    assert made.embed_tokens.weight.std().item() == pytest.approx(1, rel=0.05)
    assert first.norm.weight.mean().item() == pytest.approx(1, rel=0.05)
    assert abs(first.norm.bias.mean().item()) < 0.05


def test_weights_are_the_same_in_each_process(bench: Any) -> None:
    one, other = model(), model()
    for each in (one, other):
        bench("inside").randomise(each)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def test_a_prefix_cache_that_stays_full_is_an_error(bench: Any) -> None:
    steps: list[int] = []
    llm = SimpleNamespace(
        reset_prefix_cache=lambda: len(steps) > 2, llm_engine=SimpleNamespace(step=lambda: steps.append(1))
    )
    inside = bench("inside").Inside(llm, None, None)
    inside.forget_prefixes()
    assert len(steps) == 3
    llm.reset_prefix_cache = lambda: False
    with pytest.raises(RuntimeError, match="cannot be emptied"):
        inside.forget_prefixes()


def test_counts_and_preemptions(bench: Any) -> None:
    metrics = [SimpleNamespace(name="vllm:num_preemptions", value=3), SimpleNamespace(name="vllm:other", value=9)]
    shape = SimpleNamespace(row_bytes=656)
    hot = SimpleNamespace(
        users=torch.tensor([1, 4]),
        state=SimpleNamespace(shape=shape, stats=torch.tensor([[5, 2, 0, 0], [1, 1, 0, 0]])),
    )
    made = bench("inside").Inside(SimpleNamespace(get_metrics=lambda: metrics), SimpleNamespace(hot_kv=hot), None)
    assert made.preempted() == 3
    assert made.counts() == [6, 3, 0, 6 * 656]
    made.runner = SimpleNamespace()
    assert made.counts() == [0, 0, 0, 0]


class Live:
    """An engine of which *waiting* requests start one a step, and decode."""

    def __init__(self, waiting: int) -> None:
        self.ran: list[Any] = []
        self.scheduler = SimpleNamespace(running=[], waiting=list(range(waiting)))
        self.runner = SimpleNamespace(
            _model_forward=lambda **given: self.ran.append(given),
            vllm_config=SimpleNamespace(scheduler_config=SimpleNamespace(max_num_batched_tokens=16)),
            get_model=model_once(),
        )
        self.llm = SimpleNamespace(llm_engine=SimpleNamespace(step=self.step))

    def step(self) -> None:
        for each in self.scheduler.running:
            each.num_output_tokens += 1
        if self.scheduler.waiting:
            self.scheduler.running.append(SimpleNamespace(num_output_tokens=0, request_id=self.scheduler.waiting.pop()))


def model_once() -> Any:
    made = model()
    return lambda: made


def test_steady_is_when_all_decode_and_nobody_joins(bench: Any) -> None:
    live = Live(5)
    steady = bench("steady").Steady(live)
    assert steady.settle(2) == 5
    assert all(each.num_output_tokens >= 4 for each in live.scheduler.running)
    with pytest.raises(RuntimeError, match="5 run, 0 wait"):
        steady.settle(6, limit=20)


def test_the_forward_is_skipped_only_while_it_is_asked_for(bench: Any) -> None:
    live = Live(0)
    steady = bench("steady").Steady(live)
    steady.skipping = True
    made = live.runner._model_forward(input_ids=None, positions=torch.zeros(700))
    assert made.shape == (700, 256) and live.ran == []
    steady.skipping = False
    live.runner._model_forward(input_ids=None, positions=torch.zeros(7))
    assert len(live.ran) == 1


def test_locality_mixes_tokens_and_turns_queries_less(bench: Any) -> None:
    live = Live(0)
    inner = live.runner.get_model()
    bench("inside").randomise(inner)
    tokens, query = inner.embed_tokens.weight.clone(), inner.layers[0].indexer.wq_b.weight.clone()
    steady = bench("steady").Steady(live)
    steady.locality(0.0, 0.5)
    assert torch.equal(inner.embed_tokens.weight, tokens[:1].expand_as(tokens))
    changed = inner.layers[0].indexer.wq_b.weight.view(2, 128, 256) / query.view(2, 128, 256)
    assert torch.allclose(changed[:, :64], torch.tensor(0.5)) and torch.allclose(changed[:, 64:], torch.tensor(1.0))
    steady.locality(1.0, 1.0)
    assert torch.equal(inner.embed_tokens.weight, tokens)
    assert torch.equal(inner.layers[0].indexer.wq_b.weight, query)


def test_the_counts_are_where_the_patch_keeps_them(bench: Any) -> None:
    """The scripts read the worker's own tensors, so that no metric's interval is in the way."""
    manager = (Path(__file__).parents[2] / "patches/vllm/hisparse/files/hot_kv/manager.py").read_text()
    assert "self.users = " in manager
    state = (Path(__file__).parents[2] / "patches/vllm/hisparse/files/hot_kv/state.py").read_text()
    assert "HITS, MISSES, REFUSED = 0, 1, 2" in state and "self.stats = self._new((shape.layers, 4)" in state
