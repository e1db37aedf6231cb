"""What `Indexer._get_topk_paged` owes its caller when the query's rows and the real rows differ, on the aiter path.

The cases are behaviour, not names: any repair of the defect may be judged by them. See conftest.py for the bench.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

EQUAL = {
    "equal-page1": (4, (2, 2), "draft-extend", 1),
    "equal-preshuffle": (4, (2, 2), "draft-extend", 64),
    "equal-decode": (3, (1, 1, 1), "decode", 1),
    "equal-verify": (6, (3, 3), "target-verify", 64),
}
TRIM = {
    "trim-5-of-8": (8, (3, 2), "draft-extend", 1),
    "trim-5-of-8-preshuffle": (8, (3, 2), "draft-extend", 64),
    "trim-verify": (8, (2, 2), "target-verify", 64),
    "trim-to-nothing-idle": (2, (), "idle", 1),
    "trim-to-nothing-idle-preshuffle": (2, (), "idle", 64),
    "trim-to-nothing-draft-extend": (3, (0, 0), "draft-extend", 1),
}
CLIP = {
    "clip-2-to-1-idle": (1, (2,), "idle", 1),
    "clip-2-requests-to-1-idle-preshuffle": (1, (1, 1), "idle", 64),
    "clip-4-to-3": (3, (4,), "draft-extend", 1),
    "clip-4-to-3-preshuffle": (3, (2, 2), "draft-extend", 64),
    "clip-verify": (3, (2, 2), "target-verify", 1),
}


WITH_ROWS = {name: case for name, case in (TRIM | CLIP).items() if sum(case[1])}


def cases(table):
    return [pytest.param(*case, id=name) for name, case in table.items()]


@pytest.mark.parametrize(("padded", "extend", "mode", "page"), cases(EQUAL | TRIM | CLIP))
def test_values_and_rows(bench, kit, padded, extend, mode, page):
    batch = kit.Batch(padded, extend, mode, page)
    kit.check(batch, bench.run(batch))


@pytest.mark.parametrize(("padded", "extend", "mode", "page"), cases(EQUAL | TRIM | CLIP))
def test_kernel_sees_q_and_weights_of_the_same_rows(bench, kit, padded, extend, mode, page):
    batch = kit.Batch(padded, extend, mode, page)
    (call,) = bench.run(batch).kernel_calls
    assert call.q == call.weights == batch.rows
    assert call.preshuffle == (page != 1)


@pytest.mark.parametrize(("padded", "extend", "mode", "page"), cases(EQUAL | TRIM | CLIP))
def test_shared_metadata_stays_as_it_was(bench, kit, padded, extend, mode, page):
    result = bench.run(kit.Batch(padded, extend, mode, page))
    assert result.identity_kept, "no field is replaced: the metadata may be captured in a graph"
    for name, before in result.before.items():
        after = result.after[name]
        same = kit.torch.equal(before, after) if isinstance(before, kit.torch.Tensor) else before == after
        assert same, f"{name} changed in place"


MASKED = {
    "init": (2, 0),
    "local": (0, 2),
    "init-and-local": (1, 2),
}


@pytest.mark.parametrize(("init_tokens", "local_tokens"), cases(MASKED))
@pytest.mark.parametrize(("padded", "extend", "mode", "page"), cases(EQUAL | TRIM | CLIP))
def test_forced_tokens(bench, kit, padded, extend, mode, page, init_tokens, local_tokens):
    if not bench.has_mask:
        pytest.skip("this release has no init and local tokens (they come with 0.5.16)")
    batch = kit.Batch(padded, extend, mode, page, init_tokens=init_tokens, local_tokens=local_tokens)
    kit.check(batch, bench.run(batch))


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    padded=st.integers(0, 7),
    extend=st.lists(st.integers(0, 3), max_size=3).map(tuple),
    mode=st.sampled_from(["draft-extend", "target-verify", "idle"]),
    page=st.sampled_from([1, 64]),
    init_tokens=st.integers(0, 2),
    local_tokens=st.integers(0, 2),
    seed=st.integers(0, 999),
)
def test_any_row_counts(bench, kit, padded, extend, mode, page, init_tokens, local_tokens, seed):
    forced = (init_tokens, local_tokens) if bench.has_mask else (0, 0)
    batch = kit.Batch(padded, extend, mode, page, *forced, seed=seed)
    result = bench.run(batch)
    kit.check(batch, result)
    assert result.identity_kept


@pytest.mark.parametrize("error", [-1, 1], ids=["one-row-short", "one-row-over"])
@pytest.mark.parametrize(("padded", "extend", "mode", "page"), cases(WITH_ROWS))
def test_wrong_rows_from_topk_are_refused(bench, optimized_bench, kit, padded, extend, mode, page, error):
    batch = kit.Batch(padded, extend, mode, page)
    for each in (bench, optimized_bench):
        with pytest.raises((RuntimeError, ValueError, AssertionError)):
            each.run(batch, faulty_topk=error)
        assert each.rows_of_topk == batch.rows, "the refusal is about the result, not an earlier mismatch"


@pytest.mark.parametrize(
    ("padded", "extend", "mode", "page"), cases({k: v for k, v in (EQUAL | TRIM).items() if v[3] == 1})
)
def test_fused_topk_maps_the_same_rows(bench, kit, padded, extend, mode, page):
    batch = kit.Batch(padded, extend, mode, page)
    result = bench.fusing().run(batch)
    for row in range(batch.rows):
        slots = result.inputs.table[row].tolist()
        chosen = [slots.index(slot) if slot != -1 else -1 for slot in result.out[row].tolist()]
        result.out[row] = kit.torch.tensor(chosen, dtype=kit.torch.int32)
    kit.check(batch, result)
