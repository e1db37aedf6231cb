"""Every step of three ranks with real gloo collectives: all draft as a graph, or none does."""

from __future__ import annotations

import itertools

import pytest

RANKS = 3
EVERY = list(itertools.product(("seeded", "seedless", "idle", "prebuilt"), repeat=RANKS))
DRAFTING = [ranks for ranks in EVERY if {"seeded", "seedless"} & set(ranks)]


def ways(outcome) -> list[object]:
    return [getattr(ran, "how", ran) for ran in outcome]


@pytest.mark.parametrize("overlap", [True, False], ids=["overlap", "in-turn"])
@pytest.mark.parametrize("ranks", DRAFTING, ids="-".join)
def test_all_ranks_draft_the_same_way(kit, outcome, ranks, overlap):
    """The graph wherever no rank lacks a seed, and only there; a refusal that is not needed costs speed."""
    expected = "eager" if "seedless" in ranks else "graph"
    assert ways(outcome(kit.Step(ranks, overlap=overlap))) == [expected] * RANKS


@pytest.mark.parametrize("ranks", DRAFTING, ids="-".join)
def test_the_ranks_meet_in_every_collective_of_the_draft(kit, outcome, ranks):
    for ran in outcome(kit.Step(ranks)):
        assert getattr(ran, "met", ran) in ([("replay",) * 3], [("step 0",) * 3, ("step 1",) * 3])


@pytest.mark.parametrize("ranks", [ranks for ranks in EVERY if ranks not in DRAFTING], ids="-".join)
def test_where_no_rank_has_a_request_none_drafts(kit, outcome, ranks):
    assert ways(outcome(kit.Step(ranks))) == [None] * RANKS


@pytest.mark.parametrize("ranks", DRAFTING, ids="-".join)
def test_a_model_without_seeds_keeps_its_graph(kit, outcome, ranks):
    """IndexShare off, or another model: no rank ever has a seed, and none needs one."""
    assert ways(outcome(kit.Step(ranks, worker_seeds=False))) == ["graph"] * RANKS


@pytest.mark.parametrize("ranks", [ranks for ranks in DRAFTING if "seedless" not in ranks], ids="-".join)
def test_the_vote_cannot_force_a_graph(kit, outcome, ranks):
    assert ways(outcome(kit.Step(ranks, graphs_off=True))) == ["eager"] * RANKS


def test_a_lost_rank_does_not_refuse_the_graph(kit, outcome):
    first = ways(outcome(kit.Step(("seeded", "seedless", "seedless"), inactive=(1, 2))))[0]
    whole = ways(outcome(kit.Step(("seeded",) * 3, inactive=(2,))))
    assert (first, whole) == ("graph", ["graph"] * RANKS)


@pytest.mark.parametrize("ranks", DRAFTING, ids="-".join)
def test_the_rest_of_the_sync_is_as_it_was(kit, outcome, ranks):
    """The counts of tokens, and the columns that two-batch overlap takes: tbo, mode."""
    busy = [state in ("seeded", "seedless") for state in ranks]
    modes = {"idle": kit.Mode.IDLE, "prebuilt": kit.Mode.PREBUILT}
    columns = [[0, modes.get(state, kit.Mode.DECODE).value] for state in ranks]
    for ran in outcome(kit.Step(ranks)):
        assert getattr(ran, "tokens", ran) == [int(one) for one in busy]
        assert ran.tbo_columns == columns


@pytest.mark.parametrize(("seeds", "expected"), [(True, "graph"), (False, "eager")], ids=["seeded", "seedless"])
def test_without_dp_attention_a_rank_decides_alone(kit, bench, seeds, expected):
    """No vote is taken then, and the batch has only what its class gives it."""
    info = kit.SimpleNamespace(dsa_topk_indices=kit.torch.ones(1, 4) if seeds else None, bonus_tokens=None)
    batch = bench.batch(kit.Mode.DECODE, info)
    vars(batch).update(can_run_dp_cuda_graph=True, can_run_decode_cuda_graph=True)
    assert bench.draft(batch, []) == expected
