"""What the parity script runs and in which order, and that a side which is wrong in any way fails. No engine here."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

Lines = dict[tuple[str, str, str], dict[str, Any]]


@pytest.fixture
def planned(bench: Any) -> Any:
    return bench("parity").plan([1000, 4200], [1, 4], 3)


def good(parity: Any, planned: Any) -> Lines:
    """Lines of three sides that behave."""
    lines: Lines = {}
    for side in parity.SIDES:
        for which, batch in parity.rounds(side, planned):
            value = -0.5 if which == "spoiled" else -0.1
            squeeze = batch.kind == "squeeze" and side != "unpatched"
            lines[side, which, batch.name] = {
                "round": which,
                "batch": batch.name,
                "answers": [[(7, {"7": value, "8": -2.0})] * 3 for _ in batch.contexts],
                "cached": [0 if batch.fresh else batch.prefix for _ in batch.contexts],
                "preempted": 2 if squeeze else 0,
                "misses": 5,
                "refused": 0,
            }
    return lines


def judged(parity: Any, planned: Any, lines: Lines) -> dict[str, list[str]]:
    made = parity.Bench("case", planned)
    checks = [check for (side, _, _), line in lines.items() for check in made.take(side, line)]
    return {check.name: check.faults for check in checks + made.rest()}


def failing(found: dict[str, list[str]]) -> dict[str, list[str]]:
    return {name: faults for name, faults in found.items() if faults}


def test_sides_that_behave_pass_with_a_check_for_each_batch(bench: Any, planned: Any) -> None:
    found = judged(bench("parity"), planned, good(bench("parity"), planned))
    assert not failing(found)
    names = [batch.name for batch in planned.batches]
    assert sorted(found) == sorted(
        [f"hot = stock, {name}" for name in names]
        + [f"off = unpatched, {name}" for name in names if "squeeze" not in name]
        + ["spoiled rows show, 4 x 1000+4200"]
    )


def test_the_order_in_which_sides_answer_does_not_matter(bench: Any, planned: Any) -> None:
    lines = good(bench("parity"), planned)
    backwards = dict(reversed(lines.items()))
    assert judged(bench("parity"), planned, lines).keys() == judged(bench("parity"), planned, backwards).keys()


@pytest.mark.parametrize(
    ("side", "which", "key", "value", "fault"),
    [
        ("hot", "first", "answers", [[(7, {"7": -0.2, "8": -2.0})] * 3] * 4, "logprobs differ by 0.1000"),
        ("hot", "first", "answers", [[(8, {"7": -0.1, "8": -2.0})] * 3] * 4, "4 requests give other tokens"),
        ("hot", "first", "refused", 1, "hot refused 1 positions"),
        ("hot", "first", "misses", 0, "hot copied no row"),
        ("off", "first", "answers", [[(7, {"7": -0.1000001, "8": -2.0})] * 3] * 4, "not the same bits"),
        ("hot", "spoiled", "answers", [[(7, {"7": -0.1, "8": -2.0})] * 3] * 4, "spoiled hot rows do not show"),
    ],
)
def test_what_a_wrong_side_does_is_a_fault(
    bench: Any, planned: Any, side: str, which: str, key: str, value: Any, fault: str
) -> None:
    parity = bench("parity")
    lines = good(parity, planned)
    lines[side, which, "4 x 1000+4200"][key] = value
    if side == "off":  # which repeats its own bits
        lines["off", "again", "4 x 1000+4200"][key] = value
    found = failing(judged(parity, planned, lines))
    assert len(found) == 1
    assert fault in next(iter(found.values()))[0]


def test_what_stock_does_with_other_graphs_counts_as_its_noise_and_what_off_alone_does_not(
    bench: Any, planned: Any
) -> None:
    """Ties in the top-k: a run of stock differs from others now and then, in one case or the other."""
    parity, name = bench("parity"), "4 x 1000+4200"
    other: list[list[Any]] = [[(7, {"7": -0.2, "8": -2.0})] * 3] * 4
    eager, full = good(parity, planned), good(parity, planned)
    eager["hot", "first", name]["answers"] = other
    siblings: list[Any] = []
    first, second = (parity.Bench(case, planned, siblings) for case in ("eager", "full"))
    for (side, _, _), line in eager.items():
        first.take(side, line)
    assert [check.name for check in first.rest()] == [f"hot = stock, {name}"]
    full["unpatched", "first", name]["answers"] = other
    for (side, _, _), line in full.items():
        second.take(side, line)
    assert not first.rest()[0].faults
    assert not any(check.faults for check in second.rest())


@pytest.mark.parametrize("side", ["off", "hot"])
def test_without_a_preemption_nothing_is_proved(bench: Any, planned: Any, side: str) -> None:
    parity = bench("parity")
    lines, squeeze = good(parity, planned), planned.batches[-1].name
    lines[side, "first", squeeze]["preempted"] = 0
    assert failing(judged(parity, planned, lines)) == {
        f"hot = stock, {squeeze}": [f"{side} was not preempted: nothing was forced"]
    }


def test_stock_must_not_be_preempted(bench: Any, planned: Any) -> None:
    parity = bench("parity")
    lines, squeeze = good(parity, planned), planned.batches[-1].name
    lines["unpatched", "first", squeeze]["preempted"] = 3
    assert "it must not be" in failing(judged(parity, planned, lines))[f"hot = stock, {squeeze}"][0]


def test_a_prefix_that_is_not_reused_is_a_fault(bench: Any, planned: Any) -> None:
    parity = bench("parity")
    lines, second = good(parity, planned), planned.batches[-2].name
    lines["hot", "first", second]["cached"] = [64]
    assert failing(judged(parity, planned, lines)) == {
        f"hot = stock, {second}": ["hot reused 64 tokens of a prefix of 4160: nothing was reused"]
    }


def test_a_side_that_ends_early_leaves_failed_checks(bench: Any, planned: Any) -> None:
    parity = bench("parity")
    lines = {key: line for key, line in good(parity, planned).items() if key[0] != "hot"}
    found = failing(judged(parity, planned, lines))
    assert len(found) == len(planned.batches) + 1
    assert all(faults == ["no answer of a side: not checked"] for faults in found.values())


def test_plain_batches_fit_the_pool_and_the_squeeze_does_not(bench: Any) -> None:
    parity, models = bench("parity"), bench("models")
    for contexts, batches in (([1000, 4000, 4200, 20000], [1, 8, 32]), ([300], [1]), ([1000], [1, 3])):
        planned = parity.plan(contexts, batches, 24)
        *plain, squeeze = planned.batches
        room = planned.blocks - 1  # one is the null block
        assert all(batch.blocks() <= room for batch in plain)
        admitted = sum(models.blocks_of(context) + 1 for context in squeeze.contexts)
        grown = sum(models.blocks_of(context + squeeze.tokens) for context in squeeze.contexts)
        assert admitted <= room < grown
        steps = sum(squeeze.contexts) / 8192 + 1
        assert steps < models.BLOCK  # while all are admitted, nobody grows by more than the block to spare
        assert max(squeeze.contexts) + squeeze.tokens <= planned.longest
        assert models.blocks_of(planned.longest) <= room
        assert planned.seats == max(len(batch.contexts) for batch in planned.batches)


def test_the_pool_has_exactly_the_planned_blocks(bench: Any) -> None:
    models = bench("models")
    for name in models.MODELS:
        model = models.shaped(name)
        for dtype in models.ROW_BYTES:
            for blocks in (17, 3681, 99_999):
                given = int(models.pool_gib(blocks, model, dtype) * 2**30)
                assert given // (models.BLOCK * models.mla_bytes(model, dtype)) == blocks


def test_prompts_are_the_same_for_each_side_and_share_what_they_should(bench: Any, planned: Any) -> None:
    parity = bench("parity")
    by_name = {batch.name: batch for batch in planned.batches}
    wide = parity.prompts(by_name["4 x 1000+4200"])
    assert parity.prompts(by_name["4 x 1000+4200"]) == wide
    assert [len(one) for one in wide] == [1000, 4200, 1000, 4200]
    assert wide[0][:500] == wide[1][:500] and wide[0] != wide[2]
    (first,), (second,) = (parity.prompts(batch) for batch in planned.batches if batch.kind == "prefix")
    assert first[:4200] == second[:4200] and first[4200:4400] != second[4200:4400]
    squeeze = parity.prompts(planned.batches[-1])
    assert len({tuple(one[:64]) for one in squeeze}) == len(squeeze)


def test_a_side_runs_its_rounds_and_reports_each(bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parity, calls = bench("parity"), []

    class Engine:
        llm = SimpleNamespace(generate=lambda given, sampling, use_tqdm: [output(sampling.max_tokens) for _ in given])

        def __getattr__(self, name: str) -> Any:
            values = {"counts": [1, 2, 0, 9], "preempted": 0}
            return lambda: calls.append(name) or values.get(name)

    def output(tokens: int) -> Any:
        step = {7: SimpleNamespace(logprob=-0.1), 8: SimpleNamespace(logprob=-2.0)}
        one = SimpleNamespace(token_ids=[7] * tokens, logprobs=[step] * tokens)
        return SimpleNamespace(outputs=[one], num_cached_tokens=None)

    inside = SimpleNamespace(
        sort_selections=lambda: calls.append("sort"),
        start=lambda asked: calls.append("start") or Engine(),
        spoil_each_step=lambda engine: calls.append("spoil"),
    )
    monkeypatch.setitem(sys.modules, "inside", inside)
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(SamplingParams=lambda **given: SimpleNamespace(**given)))
    options = parity.parsed(["--model", "glm", "--logs", str(tmp_path)])
    planned = parity.plan([100], [1, 2], 3)
    for side in parity.case_sides("glm-fp8-full", planned, options, tmp_path):
        asked = json.loads(json.dumps(side.asked)) | {"side": side.name, "answer": str(tmp_path / side.name)}
        parity.run_side(asked)
        lines = [json.loads(line) for line in (tmp_path / side.name).read_text().splitlines()]
        assert [(line["round"], line["batch"]) for line in lines] == [
            (which, batch.name) for which, batch in parity.rounds(side.name, planned)
        ]
        assert lines[0]["answers"][0][0] == [7, {"7": -0.1, "8": -2.0}]
    assert calls[:2] == ["sort", "start"]
    assert calls.count("spoil") == 1 and calls.count("stop") == 3
