"""Edge cases of a step, one by one, each on all its columns: see `Decoding.step` for what is compared every time."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from decoding import Decoding
from hot_kv.kernels_launch import Tuning, bin_shift, copy, resolve
from hot_kv.oracle import broken
from hot_kv.state import HITS, MISSES, REFUSED, HotShape

K, H = 8, 12


def run(e: Decoding) -> tuple[torch.Tensor, torch.Tensor]:
    """Resolve what lies in the buffers now, without an engine's step around it."""
    return resolve(e.state, 0, e.topk, e.seq_lens, e.slots, e.state.region_rows, e.table, e.host[0].shape[0], e.tuning)


def engine(regions: int = 2, rows: int | None = None, slots: int = H, **more: Any) -> Decoding:
    more = {"tuning": Tuning(copy_programs=2, copy_rows=2, few=3), **more}
    shape = HotShape(1, regions, slots, K, max_len=64, row_bytes=656, rows=rows or regions, page=16)
    return Decoding(shape, blocks=4 * regions + 1, seed=7, **more)


def test_whole_batch_of_padding_writes_every_output() -> None:
    e = engine()
    e.step([])
    assert (e.state.index == -1).all()
    assert (e.state.lengths == 0).all()
    assert e.state.ends.tolist() == [0, 0]


@pytest.mark.parametrize("tokens", [0, 1, K - 2, K - 1, H - 2, H - 1, H, H + 1, 40])
def test_lengths_around_the_sizes_and_all_of_it_again(tokens: int) -> None:
    """As many positions as fit; the second step asks for the same and finds all but the one before it."""
    e = engine()
    request = e.add(tokens)
    for _ in range(2):
        positions = list(range(request.tokens + 1))[-K:]
        e.step([request], [positions + [-1] * (K - len(positions))])
    assert e.counted[HITS] == min(tokens, K - 2)


def test_a_padded_row_that_still_has_a_region_is_padding() -> None:
    """The region map is older than the padding, or the other way round: the slot decides."""
    e = engine()
    request = e.add(20)
    e.step([request], [list(range(K))])
    e.slots.fill_(-1)
    before = [e.state.tags.clone(), e.state.order.clone(), e.state.stats.clone()]
    index, lengths = run(e)
    assert (index == -1).all()
    assert (lengths == 0).all()
    assert all(map(torch.equal, before, (e.state.tags, e.state.order, e.state.stats)))


def test_positions_past_a_narrow_table_are_refused() -> None:
    e = engine()
    request = e.add(50)
    e.step([request], [[-1] * K])
    e.table = e.table[:, :2].contiguous()
    e.topk[0] = torch.tensor([31, 32, 47, 49, 50, -1, -1, -1], dtype=torch.int32)
    index, _ = run(e)
    assert (index[0] >= 0).tolist() == [True, False, False, False, True, False, False, False]
    assert e.state.stats[0, REFUSED] == 3


def test_nothing_is_selected() -> None:
    e = engine()
    request = e.add(20)
    e.step([request], [[-1] * K])
    assert e.counted == [0, 0, 0]
    assert e.state.lengths.tolist() == [0, 0]


def test_all_miss_then_all_hit_then_all_miss_again() -> None:
    e = engine(slots=K)
    request = e.add(40)
    for positions, expected in ((range(K), (0, K)), (range(K), (K, K)), (range(K, 2 * K), (K, 2 * K))):
        e.step([request], [list(positions)])
        assert (e.counted[HITS], e.counted[MISSES]) == expected


def test_the_longest_unused_row_is_given_up_first() -> None:
    e = engine()
    request = e.add(40)
    e.step([request], [list(range(K))])
    e.step([request], [[*range(4), *range(20, 24)]])  # 4..7 have now been out of use longest
    e.step([request], [[*range(30, 34), -1, -1, -1, -1]])
    held = set(e.state.tags[0, e.map.region(request.name), :H].tolist())
    assert held == {*range(4), *range(20, 24), *range(30, 34)}


def test_a_request_no_longer_than_its_region_gives_up_nothing() -> None:
    """Every position has the hot row of its number, in any order of asking; a longer one goes on with those rows."""
    e = engine()
    request = e.add(H - 2)
    e.step([request], [[9, 2, 7, 2, 10, -1, 5, 0]])  # 10 is the newest
    e.step([request], [[0, 10, 9, 8, 1, 3, 4, 6]])
    e.step([request], [[2, 5, 7, 9, 11, 10, 12, 0]])  # 12 is the newest: the last step of it
    assert e.counted == [2 + 6, 5 + 6 + 1, 0]
    region = e.map.region(request.name)
    assert e.state.tags[0, region, :H].tolist() == list(range(H))
    assert e.state.order[0, region, :H].tolist() == list(range(H))
    e.step([request], [[12, 11, 10, 9, 8, 7, 6, 5]])  # the first that takes a row from another
    assert e.counted == [8 + 7, 12 + 1, 0]
    assert e.state.tags[0, region, :H].tolist() == [12, *range(1, H)]


def test_doubles_of_a_hit_a_miss_and_the_newest() -> None:
    e = engine()
    request = e.add(30)
    e.step([request], [[3, 3, 9, -1, 3, 31 - 1, 30, 9]])
    assert e.counted[MISSES] == 2
    e.step([request], [[9, 3, 9, 5, 5, 31, 31, 3]])
    assert e.counted[:2] == [2, 3]
    assert e.state.lengths[0] == K


def test_holes_in_a_long_row_take_no_hot_rows() -> None:
    """What breaks kernels for which padding, an empty entry and a hit are one number: -1 between full columns."""
    e = engine(slots=K)
    request = e.add(50)
    e.step([request], [list(range(K))])
    e.step([request], [[0, -1, 40, -1, -1, 1, -1, 41]])
    held = set(e.state.tags[0, 0, :K].tolist())
    assert held == {0, 1, 40, 41, 4, 5, 6, 7}
    e.step([request], [[4, 5, 6, 7, 0, 1, 40, 41]])
    assert e.counted[HITS] == 2 + K


def test_the_newest_row_comes_from_its_own_place_and_is_read_back_from_the_host_a_step_later() -> None:
    e = engine()
    request = e.add(20)
    e.step([request], [[20, 1, 2, -1, -1, -1, -1, -1]])
    assert e.state.index[0, 0] == H
    e.host[0][e.place(request, 20)] += 1  # the host row is what counts from now on
    request.truth[0, 20] += 1
    e.step([request], [[20, 21, 2, -1, -1, -1, -1, -1]])
    assert e.counted[:2] == [1, 3]


def test_no_position_of_the_step_is_ever_tagged() -> None:
    """So a token that is rejected and computed again cannot be served from an old row."""
    e = engine()
    request = e.add(20)
    e.step([request], [[20, 20, 19, 18, -1, -1, -1, -1]])
    assert e.state.tags.max() == 19


def test_a_region_follows_its_request_through_the_batch() -> None:
    e = engine(regions=3)
    requests = [e.add(20) for _ in range(3)]
    e.step(requests, [list(range(K))] * 3)
    e.step([requests[2], requests[0]], [list(range(K))] * 2)
    e.step([requests[1], requests[2], requests[0]], [list(range(K))] * 3)
    assert e.counted[:2] == [5 * K, 3 * K]


def test_one_name_aborted_and_added_again_within_a_step_is_another_request() -> None:
    e = engine(regions=1)
    e.step([e.add(20, "same")], [list(range(K))])
    e.finish("same")
    e.step([e.add(30, "same")], [list(range(K))])
    assert e.counted[HITS] == 0


def test_replay_of_one_graph_with_batches_that_grow_and_shrink() -> None:
    """The launches and their buffers are the same each time; what is not in the batch stays as it was."""
    e = engine(regions=4, rows=5)
    requests = [e.add(20) for _ in range(4)]
    for batch in (requests, requests[:1], [], requests[2:], [requests[3], requests[0]], requests):
        e.step(batch)


def test_more_rows_miss_than_the_grid_copies_at_once() -> None:
    e = engine(regions=4, tuning=Tuning(copy_programs=1, copy_rows=2))
    e.step([e.add(30) for _ in range(4)], [list(range(K))] * 4)
    assert e.counted[MISSES] == 4 * K


def test_misses_are_copied_in_the_order_of_host_addresses() -> None:
    """In coarse bins, over the whole batch, whatever the order of rows, columns and blocks."""
    e = engine(regions=4, bins=8)
    e.step([e.add(60) for _ in range(4)], [e.chance.sample(range(60), K) for _ in range(4)])
    shift = bin_shift(e.host[0].shape[0], 8)
    bins = [row >> shift for row in e.copies()[0]]
    assert bins == sorted(bins)
    assert len(set(bins)) > 2


def test_the_list_of_copies_serves_another_layer_with_the_same_selection() -> None:
    e = engine()
    request = e.add(30)
    e.step([request], [list(range(K))])
    host, hot = e.rows(len(e.host[0])), e.rows(e.shape.hot_rows)
    copy(e.state, host, hot, e.tuning)
    assert torch.equal(hot[:K], host[[e.place(request, pos) for pos in e.state.tags[0, 0, :K].tolist()]])


def test_entries_that_cannot_be_are_refused_and_counted_and_nothing_is_read_for_them() -> None:
    """Later than the newest, past the table, in a block that the pool does not have."""
    e = engine()
    request = e.add(20)
    e.step([request], [[1, 2, -1, -1, -1, -1, -1, -1]])
    e.table[0, 0], tags = 10_000, e.state.tags.clone()
    e.topk[0] = torch.tensor([0, 17, 18, 21, 2**31 - 1, 63, 64, -1], dtype=torch.int32)
    index, lengths = run(e)
    assert (index[0] >= 0).tolist() == [False, True, True, False, False, False, False, False]
    assert lengths[0] == 3
    assert e.state.stats.tolist() == [[e.counted[HITS], e.counted[MISSES] + 2, 5, 0]]
    assert e.state.stats[0, REFUSED] == 5
    assert set(e.state.tags.flatten().tolist()) == set(tags.flatten().tolist()) | {17, 18}


def test_rows_without_a_region_read_nothing_and_write_to_the_host_alone() -> None:
    """A dummy run, and the tokens of a prefill."""
    e = engine()
    request = e.add(20)
    e.step([request], [list(range(K))])
    e.state.place_rows([])
    before = [e.state.tags.clone(), e.hot[0].clone()]
    index, _ = run(e)
    copy(e.state, e.host[0], e.hot[0], e.tuning)
    assert (index == -1).all()
    assert torch.equal(before[0], e.state.tags)
    assert torch.equal(before[1], e.hot[0])


def test_a_spoiled_hot_row_is_noticed() -> None:
    """The comparison itself can fail: otherwise nothing above says anything."""
    e = engine()
    request = e.add(20)
    e.step([request], [list(range(K))])
    given = (e.topk, e.seq_lens, e.slots, e.state.region_rows, e.table, e.host[0], e.hot[0])
    e.hot[0][3] ^= 1
    assert broken(e.state, 0, *given) == ["row 0, region 0: a hot row differs from its host row"]
    with pytest.raises(AssertionError):
        e.step([request], [list(range(K))])
