"""What is called equal: bits, logprobs within noise, tokens where stock is sure."""

from __future__ import annotations

import math
from typing import Any

import pytest


def answers(*requests: list[float]) -> list[Any]:
    """For each request the logprob of token 7, which is taken, in each step; token 8 is worth -1."""
    return [[(7, {"7": value, "8": -1.0}) for value in request] for request in requests]


STOCK = answers([-0.1, -0.2], [-0.3, -0.1])


@pytest.fixture
def exact(bench: Any) -> Any:
    return bench("judging").difference(STOCK, STOCK)


def test_the_same_bits_are_exact(exact: Any) -> None:
    assert (exact.largest, exact.margins, exact.exact) == (0.0, (), True)


def test_logprobs_within_the_floor_or_twice_the_noise(bench: Any, exact: Any) -> None:
    judging = bench("judging")
    assert judging.equal("", STOCK, answers([-0.11, -0.2], [-0.3, -0.1]), exact).faults == []
    (fault,) = judging.equal("", STOCK, answers([-0.1, -0.25], [-0.3, -0.1]), exact).faults
    assert "logprobs differ by 0.0500, 0.0200 is allowed" in fault
    noise = judging.difference(STOCK, answers([-0.15, -0.2], [-0.3, -0.1]))
    assert judging.equal("", STOCK, answers([-0.19, -0.2], [-0.3, -0.1]), noise).faults == []
    assert judging.equal("", STOCK, answers([-0.21, -0.2], [-0.3, -0.1]), noise).faults


def test_other_tokens_only_where_stock_is_not_sure(bench: Any, exact: Any) -> None:
    judging = bench("judging")
    tie = [[(7, {"7": -0.50, "8": -0.51})]]
    other = [[(8, {"7": -0.51, "8": -0.50})]]
    assert judging.equal("", tie, other, exact).faults == []
    sure = [[(7, {"7": -0.50, "8": -0.53})]]
    (fault,) = judging.equal("", sure, [[(8, {"7": -0.515, "8": -0.514})]], exact).faults
    assert "1 requests give other tokens" in fault


def test_a_token_that_stock_does_not_name_is_never_excused(bench: Any) -> None:
    found = bench("judging").difference([[(7, {"7": -0.1})]], [[(9, {"9": -0.1, "7": -0.1})]])
    assert found.margins == (math.inf,)


def test_behind_a_parting_nothing_is_compared(bench: Any) -> None:
    parting = [[(8, {"7": -1.1, "8": -1.0}), (7, {"7": -9.0})], STOCK[1]]
    found = bench("judging").difference(STOCK, parting)
    assert (round(found.largest, 6), len(found.margins), found.exact) == (1.0, 1, False)


@pytest.mark.parametrize("value", [math.nan, -math.inf])
def test_what_is_no_number_is_a_fault_and_shows(bench: Any, exact: Any, value: float) -> None:
    judging, wrong = bench("judging"), answers([-0.1, value], [-0.3, -0.1])
    assert judging.equal("", STOCK, wrong, exact).faults
    assert judging.spoiled("", STOCK, wrong, exact).faults == []
    noise = judging.difference(STOCK, wrong)
    assert "stock is not even near itself" in judging.equal("", STOCK, STOCK, noise).faults[0]


def test_steps_without_a_common_token_differ_infinitely(bench: Any) -> None:
    assert bench("judging").difference([[(7, {"7": -0.1})]], [[(7, {"8": -0.1})]]).largest == math.inf


@pytest.mark.parametrize("other", [STOCK[:1], [STOCK[0], STOCK[1][:1]]])
def test_missing_answers_are_an_error(bench: Any, other: Any) -> None:
    with pytest.raises(ValueError, match="zip"):
        bench("judging").difference(STOCK, other)


def test_off_must_be_the_same_bits_if_stock_repeats_its_own(bench: Any, exact: Any) -> None:
    judging, near = bench("judging"), answers([-0.1000001, -0.2], [-0.3, -0.1])
    assert judging.same("", STOCK, STOCK, exact).faults == []
    assert "not the same bits" in judging.same("", STOCK, near, exact).faults[0]
    noise = judging.difference(STOCK, answers([-0.101, -0.2], [-0.3, -0.1]))
    check = judging.same("", STOCK, near, noise)
    assert check.faults == [] and check.numbers["stock_repeats_itself"] is False and check.numbers["exact"] is False
    assert judging.same("", STOCK, answers([-0.11, -0.2], [-0.3, -0.1]), noise).faults
