"""What the parity script calls a pass, and that it demands its own negative control. The engine runs on a GPU only."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "bench/hisparse/parity.py"


@pytest.fixture(scope="module")
def parity() -> dict[str, Any]:
    return runpy.run_path(str(SCRIPT))


def answers(*requests: list[float]) -> list[list[dict[str, float]]]:
    """For each request the logprob of token 7 in each step; token 8 is worth -1."""
    return [[{"7": value, "8": -1.0} for value in request] for request in requests]


STOCK = answers([-0.1, -0.2], [-0.3, -0.1])


def judged(parity: dict[str, Any], hot: Any, spoiled: Any, again: Any = STOCK) -> tuple[str, ...]:
    return parity["judge"]({"stock": STOCK, "stock-again": again, "hot": hot, "spoiled": spoiled}).faults


def test_the_same_passes_where_spoiling_shows(parity: dict[str, Any]) -> None:
    assert judged(parity, STOCK, answers([-0.6, -0.2], [-0.3, -0.1])) == ()
    assert judged(parity, answers([-0.11, -0.2], [-0.3, -0.1]), answers([-3.0, -0.2], [-0.3, -0.1])) == ()


def test_without_a_control_nothing_is_proved(parity: dict[str, Any]) -> None:
    (fault,) = judged(parity, STOCK, STOCK)
    assert "spoiled hot rows do not show" in fault


def test_other_logprobs_and_other_tokens_fail(parity: dict[str, Any]) -> None:
    spoiled = answers([-3.0, -0.2], [-0.3, -0.1])
    (fault,) = judged(parity, answers([-0.1, -0.25], [-0.3, -0.1]), spoiled)
    assert "logprobs differ by 0.0500, 0.0200 is allowed" in fault
    faults = judged(parity, answers([-0.1, -2.0], [-0.3, -0.1]), spoiled)
    assert "1 requests give other tokens" in faults[1]


def test_noise_of_stock_is_allowed_twice(parity: dict[str, Any]) -> None:
    again, spoiled = answers([-0.15, -0.2], [-0.3, -0.1]), answers([-3.0, -0.2], [-0.3, -0.1])
    assert judged(parity, answers([-0.19, -0.2], [-0.3, -0.1]), spoiled, again) == ()
    assert judged(parity, answers([-0.21, -0.2], [-0.3, -0.1]), spoiled, again)


def test_behind_a_parting_nothing_is_compared(parity: dict[str, Any]) -> None:
    largest, parted = parity["difference"](STOCK, answers([-2.0, -9.0], [-0.3, -0.1]))
    assert (round(largest, 6), parted) == (1.9, 1)


def test_missing_answers_are_an_error(parity: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="zip"):
        parity["difference"](STOCK, STOCK[:1])


def test_prompts_share_a_prefix_and_are_the_same_for_each_side(parity: dict[str, Any]) -> None:
    first, second, third = parity["prompts"]([10, 20], 3, 1)
    assert (len(first), len(second), len(third)) == (10, 20, 10)
    assert first[:5] == second[:5] and first != third
    assert parity["prompts"]([10, 20], 3, 1) == [first, second, third]
