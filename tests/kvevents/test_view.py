"""What a rank holds after its events, against a reference that chains the same tokens flat."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graftwork.launch.kvevents.view import RankView, block_key, root_key
from graftwork.launch.kvevents.wire import Cleared, HashId, Removed, Stored

TOKENS = tuple(range(100, 112))


def flat(tokens: tuple[int, ...], size: int = 4, lora: str | None = None) -> list[bytes]:
    """The reference: the keys of the whole blocks of a prompt."""
    keys, key = [], root_key(lora)
    for start in range(0, len(tokens) - size + 1, size):
        key = block_key(key, tokens[start : start + size])
        keys.append(key)
    return keys


def three(view: RankView, names: tuple[HashId, ...] = (1, 2, 3)) -> Stored:
    event = Stored(names, None, TOKENS, 4, "GPU")
    view.apply(event)
    return event


def test_blocks_in_one_event_and_one_by_one_give_the_same_keys() -> None:
    packed, single = RankView(), RankView()
    three(packed)
    for number, name in enumerate((-1, 2**63, b"x" * 32)):
        parent = None if number == 0 else (-1, 2**63)[number - 1]
        single.apply(Stored((name,), parent, TOKENS[number * 4 : number * 4 + 4], 4, "GPU"))
    assert packed.keys() == single.keys() == set(flat(TOKENS))
    assert packed.match(TOKENS) == single.match(TOKENS) == 3


def test_a_prompt_matches_its_leading_whole_blocks() -> None:
    view = RankView()
    assert view.match(TOKENS) == 0
    three(view)
    assert view.match(TOKENS[:11]) == 2
    assert view.match((*TOKENS[:4], 0, *TOKENS[5:])) == 1
    assert view.match(TOKENS[4:]) == 0
    assert view.match(TOKENS, lora="cats") == 0


def test_a_child_of_an_unknown_parent_is_dropped_and_counted() -> None:
    view = RankView()
    view.apply(Stored((9,), 8, TOKENS[:4], 4, "GPU"))
    assert (len(view), view.counters.orphaned, view.counters.applied) == (0, 1, 0)


def test_minus_one_is_not_the_largest_unsigned() -> None:
    view = RankView()
    three(view, (-1, 5, 6))
    view.apply(Stored((9,), 2**64 - 1, TOKENS[:4], 4, "GPU"))
    assert view.counters.orphaned == 1


def test_the_partial_block_at_the_end_is_left_out() -> None:
    view = RankView()
    view.apply(Stored((1, 2), None, TOKENS[:10], 4, "GPU"))
    assert view.keys() == set(flat(TOKENS[:8]))


def test_another_number_of_hashes_is_indexed_but_not_mapped() -> None:
    view = RankView()
    view.apply(Stored((1,), None, TOKENS, 4, "GPU"))
    assert view.match(TOKENS) == 3
    assert view.counters.unmapped == 3
    view.apply(Removed((1,), None))
    assert view.match(TOKENS) == 3 and view.counters.forgotten == 1
    view.apply(Cleared())
    assert view.match(TOKENS) == 0


def test_a_block_stays_until_it_has_left_every_medium() -> None:
    view = RankView()
    event = three(view)
    view.apply(replace(event, medium="CPU_PINNED"))
    view.apply(Removed((1, 2, 3), "GPU"))
    assert view.match(TOKENS) == 3
    view.apply(Removed((3,), "CPU_PINNED"))
    assert view.match(TOKENS) == 2
    view.apply(Removed((1,), None))
    assert view.match(TOKENS) == 0
    assert len(view) == 1


def test_two_names_of_one_block_are_two_holds() -> None:
    view = RankView()
    three(view, (1, 2, 3))
    three(view, (4, 5, 6))
    view.apply(Removed((1, 2, 3), "GPU"))
    assert view.match(TOKENS) == 3
    view.apply(Removed((4, 5, 6), "GPU"))
    assert len(view) == 0


def test_a_name_that_is_used_again_for_other_tokens() -> None:
    view = RankView()
    three(view)
    view.apply(Stored((1,), None, (7, 7, 7, 7), 4, "GPU"))
    assert view.match((7, 7, 7, 7)) == 1
    assert view.match(TOKENS) == 0


@pytest.mark.parametrize("kind", [None, "full_attention", "mla_attention", "sink_full_attention"])
def test_kinds_that_a_prompt_is_matched_with(kind: str | None) -> None:
    view = RankView()
    view.apply(Stored((1,), None, TOKENS[:4], 4, "GPU", kind=kind, group=0))
    assert view.match(TOKENS) == 1


def test_other_kinds_are_ignored_when_they_come_and_when_they_go() -> None:
    view = RankView()
    three(view)
    view.apply(Stored((1,), None, TOKENS[:4], 4, "GPU", kind="sliding_window", group=1))
    view.apply(Removed((1,), "GPU", group=1))
    assert view.match(TOKENS) == 3
    assert view.counters.ignored == 2


def test_what_else_went_into_the_hash_keeps_plain_prompts_away() -> None:
    view = RankView()
    view.apply(Stored((1,), None, TOKENS[:4], 4, "GPU", extra=(("salt",),)))
    assert view.match(TOKENS) == 0
    view.apply(Stored((2,), None, TOKENS[:4], 4, "GPU", lora="cats", extra=(("cats",),)))
    assert view.match(TOKENS, lora="cats") == 1
    assert view.match(TOKENS) == 0


def test_another_block_size_than_the_registered_one_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    view = RankView(block_size=16)
    with caplog.at_level(logging.WARNING):
        three(view)
        three(view)
    assert [record.getMessage() for record in caplog.records if "blocks of 4 tokens" in record.getMessage()] != []
    assert len(caplog.records) == 1


@given(
    st.lists(st.integers(0, 2**32 - 1), min_size=4, max_size=40),
    st.integers(1, 6),
    st.data(),
)
def test_any_split_of_a_prompt_into_events_gives_the_flat_keys(
    tokens: list[int], size: int, data: st.DataObject
) -> None:
    """Engines may send one block an event or several; the keys never depend on it."""
    blocks = [tuple(tokens[at : at + size]) for at in range(0, len(tokens) - size + 1, size)]
    view, at = RankView(), 0
    while at < len(blocks):
        count = data.draw(st.integers(1, len(blocks) - at))
        joined = tuple(token for block in blocks[at : at + count] for token in block)
        view.apply(Stored(tuple(range(at, at + count)), at - 1 if at else None, joined, size, "GPU"))
        at += count
    assert view.keys() == set(flat(tuple(tokens), size))
