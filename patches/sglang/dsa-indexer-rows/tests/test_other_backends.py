"""Backends that slice and restore by themselves (DeepGEMM, CuTe) behave as they always did: no new name, no new row.

A stock tree passes these too. They are here for repairs that bind a name only on the aiter branch, or slice twice.
"""

from __future__ import annotations

import pytest

CASES = {
    "equal": (4, (2, 2), "draft-extend"),
    "padded-5-of-8": (8, (3, 2), "draft-extend"),
    "padded-verify": (6, (1, 1, 1), "target-verify"),
    "padded-decode": (4, (1, 1, 1), "decode"),
    "padded-idle": (2, (), "idle"),
}
LAYOUT = [pytest.param(*case, id=name) for name, case in CASES.items()]


@pytest.mark.parametrize("backend", ["deepgemm", "cutedsl"])
@pytest.mark.parametrize(("padded", "extend", "mode"), LAYOUT)
def test_other_backend_keeps_its_own_rows(bench, kit, backend, padded, extend, mode):
    batch = kit.Batch(padded, extend, mode, 64)
    result = bench.on(backend).run(batch)
    kit.check(batch, result)
    assert result.kernel_calls or not batch.real
    assert all((call.q, call.weights) == (batch.real, batch.real) for call in result.kernel_calls)
    assert result.identity_kept


@pytest.mark.parametrize("backend", ["deepgemm", "cutedsl"])
def test_other_backend_is_not_judged_by_the_new_row_check(bench, kit, backend):
    batch = kit.Batch(4, (2, 2), "draft-extend", 64)
    out = bench.on(backend).run(batch, faulty_topk=-1).out
    assert out.shape[0] == batch.padded - 1
