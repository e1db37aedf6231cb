"""The oracle on cases that are worked out by hand, and a check of the invariants that does find each one broken."""

from __future__ import annotations

from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch", reason="the oracle is PyTorch (a CPU build is enough)")

from hot_kv.oracle import Oracle, broken  # noqa: E402
from hot_kv.state import HotShape, HotState  # noqa: E402

SHAPE = HotShape(layers=1, regions=2, slots=4, topk=4, max_len=64, row_bytes=16, rows=2, page=16)
NONE = [-1] * 4


def batch(picked: list[int], tokens: int) -> tuple[torch.Tensor, ...]:
    """Row 0 is the request, in region 1, on blocks 3 and 1; row 1 is padding."""
    return (
        torch.tensor([picked, NONE], dtype=torch.int32),
        torch.tensor([tokens, 0], dtype=torch.int32),
        torch.tensor([3 * 16 + tokens - 1, -1], dtype=torch.int64),
        torch.tensor([1, 2], dtype=torch.int32),
        torch.tensor([[3, 1, 0, 0], [0, 0, 0, 0]], dtype=torch.int32),
    )


def test_three_steps_by_hand() -> None:
    oracle, first = Oracle(SHAPE), SHAPE.stride
    made = oracle.step(*batch([5, 0, -1, 5], 8), host_rows=64)
    assert made.index.tolist() == [[first + 1, first, -1, first + 1], NONE]  # 0 speaks in column 1, 5 in column 3
    assert made.copies == [(48, first), (53, first + 1)]
    assert made.lengths.tolist() == [4, 0]
    assert oracle.order[1] == [2, 3, 0, 1]
    made = oracle.step(*batch([8, 7, 5, 1], 9), host_rows=64)
    assert made.index[0].tolist() == [first + 4, first + 2, first + 1, first + 3]
    assert (made.hits, made.misses) == (1, 2)
    assert oracle.order[1] == [0, 2, 3, 1]
    made = oracle.step(*batch([2, 17, 16, -1], 18), host_rows=64)
    assert made.copies == [(50, first), (16, first + 2)]
    assert oracle.tags == [NONE, [2, 5, 16, 1]]
    oracle.reset([1])
    assert oracle.tags == [NONE, NONE]


def test_what_cannot_be_is_refused() -> None:
    made = Oracle(SHAPE).step(*batch([9, 8, 40, 1], 9), host_rows=48)  # block 3 is past the pool
    assert (made.refused, made.index[0].tolist()) == (3, [-1, SHAPE.stride + 4, -1, -1])


def sound() -> tuple[HotState, tuple[torch.Tensor, ...]]:
    """A state after one step of the oracle, with bytes that agree."""
    state, oracle = HotState(SHAPE, "cpu"), Oracle(SHAPE)
    host = torch.arange(64 * 4, dtype=torch.int32).view(64, 4)
    hot = torch.zeros(SHAPE.hot_rows, 4, dtype=torch.int32)
    given = batch([5, 0, -1, 7], 8)
    made = oracle.step(*given, host_rows=64)
    for source, target in made.copies:
        hot[target] = host[source]
    state.index[:] = made.index
    state.tags[0, :, :4] = torch.tensor(oracle.tags)
    state.order[0, :, :4] = torch.tensor(oracle.order)
    return state, (*given, host, hot)


def test_a_sound_state_is_not_complained_of() -> None:
    state, given = sound()
    assert broken(state, 0, *given) == []


def twice(state: HotState, given: tuple[torch.Tensor, ...]) -> None:
    state.tags[0, 1, 2] = 5


def no_order(state: HotState, given: tuple[torch.Tensor, ...]) -> None:
    state.order[0, 1, 0] = 3


def other_bytes(state: HotState, given: tuple[torch.Tensor, ...]) -> None:
    given[-1][SHAPE.stride] += 1


def missing_output(state: HotState, given: tuple[torch.Tensor, ...]) -> None:
    state.index[0, 1] = -1


def padded_output(state: HotState, given: tuple[torch.Tensor, ...]) -> None:
    state.index[1, 0] = 0


def other_region(state: HotState, given: tuple[torch.Tensor, ...]) -> None:
    state.index[0, 1] = 0


def other_row(state: HotState, given: tuple[torch.Tensor, ...]) -> None:
    state.index[0, 1] += 1


def tagged_newest(state: HotState, given: tuple[torch.Tensor, ...]) -> None:
    state.tags[0, 1, 2] = 7


def later_than_newest(state: HotState, given: tuple[torch.Tensor, ...]) -> None:
    given[0][0, 1] = 8


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (twice, "hot twice"),
        (no_order, "no permutation"),
        (other_bytes, "differs from its host row"),
        (missing_output, "is not where none was"),
        (padded_output, "is -1 where a position was given, or"),
        (other_region, "out of the region"),
        (other_row, "holds another position"),
        (tagged_newest, "not older than the newest"),
        (later_than_newest, "later than the newest"),
    ],
)
def test_each_broken_invariant_is_named(
    spoil: Callable[[HotState, tuple[torch.Tensor, ...]], None], message: str
) -> None:
    state, given = sound()
    spoil(state, given)
    assert any(message in line for line in broken(state, 0, *given))
