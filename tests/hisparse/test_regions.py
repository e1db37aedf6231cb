"""Which request has which region, and when a region is emptied. Plain Python."""

from __future__ import annotations

import random

import pytest
from hot_kv.regions import RegionMap


def test_a_region_stays_with_its_request_whatever_its_row() -> None:
    regions = RegionMap(3)
    first = regions.step([("a", 10), ("b", 20)])
    assert sorted(first.resets) == sorted(first.regions)
    later = regions.step([("b", 21), ("c", 5), ("a", 11)])
    assert [later.regions[2], later.regions[0]] == first.regions
    assert later.resets == [later.regions[1]]


def test_a_request_that_sits_out_keeps_its_region() -> None:
    regions = RegionMap(2)
    (mine,) = regions.step([("a", 10)]).regions
    regions.step([("b", 1)])
    again = regions.step([("a", 11)])
    assert (again.regions, again.resets) == ([mine], [])


def test_computed_tokens_that_fall_empty_the_region() -> None:
    regions = RegionMap(1)
    regions.step([("a", 10)])
    assert regions.step([("a", 10)]).resets == []
    assert regions.step([("a", 9)]).resets == [0]
    assert regions.step([("a", 10)]).resets == []


@pytest.mark.parametrize("computed", [0, 10, 99])
def test_preempted_and_resumed_or_aborted_and_added_again(computed: int) -> None:
    regions = RegionMap(2)
    regions.step([("a", 10)])
    regions.forget("a")
    placed = regions.step([("a", computed)])
    assert placed.resets == placed.regions


def test_forgetting_one_that_never_had_a_region_is_nothing() -> None:
    regions = RegionMap(1)
    regions.forget("never scheduled")
    assert len(regions) == 0


def test_without_a_free_region_the_longest_absent_request_loses_its_own() -> None:
    regions = RegionMap(2)
    regions.step([("a", 1)])
    regions.step([("b", 1)])
    regions.step([("a", 2)])
    placed = regions.step([("c", 1)])
    assert regions.region("b") is None
    assert placed.resets == placed.regions
    again = regions.step([("a", 3), ("b", 2)])
    assert again.resets == [again.regions[1]] == placed.regions


@pytest.mark.parametrize("rows", [[("a", 1), ("a", 1)], [("a", 1), ("b", 1), ("c", 1)]])
def test_a_batch_that_cannot_be_changes_nothing(rows: list[tuple[str, int]]) -> None:
    regions = RegionMap(2)
    regions.step([("b", 5)])
    with pytest.raises(ValueError, match="batch"):
        regions.step(rows)
    assert (len(regions), regions.region("b")) == (1, 0)


def test_no_regions_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        RegionMap(0)


def test_random_lives_share_no_region_and_see_no_other_owner_without_a_reset() -> None:
    chance, regions, owner = random.Random(1), RegionMap(5), {}
    alive: dict[str, int] = {}
    for number in range(2_000):
        if len(alive) < 5 or chance.random() < 0.2:
            alive[f"r{number}"] = 0
        if chance.random() < 0.3:
            gone = chance.choice(list(alive))
            regions.forget(gone)
            if chance.random() < 0.7:
                del alive[gone]
        batch = chance.sample(list(alive), min(len(alive), chance.randint(0, 5)))
        placed = regions.step([(name, alive[name]) for name in batch])
        assert len(set(placed.regions)) == len(batch)
        for name, region in zip(batch, placed.regions, strict=True):
            assert owner.get(region) == name or region in placed.resets
            owner[region] = name
            alive[name] += 1
