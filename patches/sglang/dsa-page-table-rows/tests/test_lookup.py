"""What decode owes its requests when DP attention pads the query behind the plan: each its own slots, padding none."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from graftwork.harness.defect import defect

EQUAL = {"equal-1": (1, 1), "equal-3": (3, 3)}
PADDED = {"1-to-4": (1, 4), "2-to-4": (2, 4), "3-to-4": (3, 4), "3-to-8": (3, 8), "2-to-6": (2, 6)}


def cases(table):
    return [pytest.param(*case, id=name) for name, case in table.items()]


def judged(bench, kit, batch):
    with defect(AssertionError, match="^$"):  # the engine's: page_table.shape[0] == topk_indices.shape[0], no words
        result = bench.run(batch)
    kit.check(result)
    return result


@pytest.mark.parametrize("impl", ["tilelang", "aiter"])
@pytest.mark.parametrize("seeded", [True, False], ids=["seeded", "from-indexer"])
@pytest.mark.parametrize(("requests", "padded"), cases(EQUAL | PADDED))
def test_each_request_gets_its_own_slots(bench, kit, requests, padded, seeded, impl):
    judged(bench, kit, kit.Batch(requests, padded, seeded, impl))


@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    requests=st.integers(1, 5),
    padding=st.integers(0, 6),
    seeded=st.booleans(),
    seed=st.integers(0, 999),
)
def test_any_padding(bench, kit, requests, padding, seeded, seed):
    judged(bench, kit, kit.Batch(requests, requests + padding, seeded, seed=seed))


@pytest.mark.parametrize(("requests", "padded"), cases(EQUAL | PADDED))
def test_the_plan_stays_as_it_was(bench, kit, requests, padded):
    batch = kit.Batch(requests, padded)
    result = judged(bench, kit, batch)
    fresh = kit.make_inputs(batch)
    assert kit.torch.equal(result.inputs.table, fresh.table), "the table may belong to a captured graph"
    assert kit.torch.equal(result.inputs.topk, fresh.topk), "IndexShare uses top-k again in the next step"


def test_more_requests_than_rows_are_refused(bench, kit):
    inputs = kit.make_inputs(kit.Batch(4, 4))
    inputs.q, inputs.topk = inputs.q[:2], inputs.topk[:2]
    with pytest.raises(AssertionError):
        bench.call(inputs)
