"""Sizes that are refused, what a reset does, and tensors that keep their addresses."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the state is made of torch tensors (a CPU build is enough)")

from hot_kv.state import HotShape, HotState, as_words  # noqa: E402


def shape(**more: Any) -> HotShape:
    sizes = {"layers": 2, "regions": 3, "slots": 12, "topk": 8, "max_len": 256, "row_bytes": 656, "rows": 4}
    return HotShape(**(sizes | more))


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"slots": 7}, "less than index_topk"),
        ({"regions": 0}, "regions is 0"),
        ({"rows": 0}, "rows is 0"),
        ({"slots": 32768}, "at most 32767"),
        ({"row_bytes": 660}, "no multiple of 16"),
        ({"regions": 2**26}, "32-bit row numbers"),
        ({"rows": 2**27}, "32-bit list"),
    ],
)
def test_sizes_that_cannot_work_are_refused(more: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        shape(**more)


@pytest.mark.parametrize(
    ("slots", "page", "stride"), [(12, 64, 64), (63, 64, 64), (64, 64, 128), (4096, 64, 4160), (60, 48, 192)]
)
def test_a_region_is_whole_pages_with_room_for_the_newest_token(slots: int, page: int, stride: int) -> None:
    assert shape(slots=slots, page=page).stride == stride


def test_memory_of_a_seat() -> None:
    """GLM-5.2 in fp8 with 4,096 hot rows: 78 layers of 4,160 rows of 656 bytes."""
    glm = shape(layers=78, slots=4096, topk=2048, regions=96)
    assert glm.hot_bytes * glm.layers // glm.regions == 78 * 4160 * 656


def test_a_new_state_holds_nothing() -> None:
    state = HotState(shape(), "cpu")
    assert (state.tags == -1).all()
    assert (state.order == torch.arange(state.shape.stride)).all()
    assert (state.region_rows == state.shape.inert).all()


def test_reset_empties_one_region_in_all_layers_in_place() -> None:
    state = HotState(shape(), "cpu")
    state.tags.fill_(5)
    state.order.fill_(6)
    places = state.tags.data_ptr(), state.order.data_ptr()
    state.reset([])
    state.reset([2, 0])
    assert (state.tags[:, [0, 2]] == -1).all()
    assert (state.tags[:, 1] == 5).all()
    assert (state.order[:, [0, 2]] == torch.arange(state.shape.stride)).all()
    assert (state.order[:, 1] == 6).all()
    assert (state.tags.data_ptr(), state.order.data_ptr()) == places


def test_rows_of_a_batch_are_placed_in_the_buffer_that_a_graph_knows() -> None:
    state = HotState(shape(), "cpu")
    place = state.region_rows.data_ptr()
    assert state.place_rows([2, 0, 3, 1]).tolist() == [2, 0, 3, 1]
    assert state.place_rows([1]).tolist() == [1, 3, 3, 3]
    assert state.place_rows([3, 3]).tolist() == [3, 3, 3, 3]
    assert state.region_rows.data_ptr() == place


@pytest.mark.parametrize(("regions", "message"), [([0] * 5, "more than"), ([4], "no such"), ([1, 1], "share")])
def test_a_batch_that_cannot_be_placed_is_refused(regions: list[int], message: str) -> None:
    """Among them a dummy batch that is wider than what was planned."""
    state = HotState(shape(), "cpu")
    with pytest.raises(ValueError, match=message):
        state.place_rows(regions)


@pytest.mark.parametrize("region", [-1, 3])
def test_reset_of_no_region_is_refused(region: int) -> None:
    with pytest.raises(ValueError, match="no such region"):
        HotState(shape(), "cpu").reset([region])


def test_bins_must_be_a_power_of_two() -> None:
    with pytest.raises(ValueError, match="power of two"):
        HotState(shape(), "cpu", bins=12)


def test_rows_as_words_share_memory_and_are_judged() -> None:
    pool = torch.zeros(4, 64, 576, dtype=torch.bfloat16)
    words = as_words(pool, 1152)
    assert (tuple(words.shape), words.data_ptr()) == ((256, 288), pool.data_ptr())
    for rows, row_bytes, message in (
        (pool[:, :, :288], 576, "contiguous"),
        (pool, 656, "divide"),
        (torch.zeros(657, dtype=torch.uint8)[1:], 656, "multiple of 16"),
    ):
        with pytest.raises(ValueError, match=message):
            as_words(rows, row_bytes)


def test_every_byte_of_the_state_is_counted() -> None:
    """For the engine's memory profiling: twice the layers, twice tags, order and counters, the same scratch."""
    one, two = (HotState(shape(layers=layers), "cpu") for layers in (1, 2))
    assert two.nbytes() - one.nbytes() == one.tags.nbytes + one.order.nbytes + one.stats.nbytes
