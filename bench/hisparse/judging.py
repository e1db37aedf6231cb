"""What the parity script calls equal, and what it calls a fault. Plain Python: tested without a GPU."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

FLOOR = 0.02  # of a logprob: less than this is bf16 in any case

Step = tuple[int, dict[str, float]]  # the token that was taken, and logprobs of the best by token
Answers = list[list[Step]]  # request, step


@dataclass(frozen=True)
class Difference:
    """largest: of a logprob that both name, up to where tokens part. margins: for each request that parts, by how much
    the first side preferred its own token. exact: the same tokens and the same bits."""

    largest: float
    margins: tuple[float, ...]
    exact: bool

    def parted(self, allowed: float) -> int:
        """Requests that part although the first side preferred its token by more than *allowed*."""
        return sum(margin > allowed for margin in self.margins)


@dataclass
class Check:
    """One line of the report. numbers: what was seen; faults: why it did not pass; asked: what it was asked as."""

    name: str
    numbers: dict[str, float | int | bool] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    asked: str = ""


def difference(one: Answers, other: Answers) -> Difference:
    """Compare up to where tokens part: behind that the contexts are others. ValueError where answers are missing.

    What is not a number differs infinitely, and so do two steps that name no common token.
    """
    largest, margins, exact = 0.0, [], True
    for a, b in zip(one, other, strict=True):
        for (token, left), (taken, right) in zip(a, b, strict=True):
            shared = left.keys() & right.keys()
            off = [abs(left[each] - right[each]) for each in shared] or [math.inf]
            largest = max(largest, *(value if math.isfinite(value) else math.inf for value in off))
            exact = exact and token == taken and left == right
            if token != taken:
                margins.append(left[str(token)] - left.get(str(taken), -math.inf))
                break
    return Difference(largest, tuple(margins), exact)


def allowed_by(noise: Difference) -> float:
    """Hot may differ from stock by twice what stock differs from itself, or FLOOR."""
    return max(2 * noise.largest, FLOOR)


def equal(name: str, stock: Answers, hot: Answers, noise: Difference) -> Check:
    """Hot against stock. Tokens may part only where stock's own preference is within what is allowed."""
    found, allowed = difference(stock, hot), allowed_by(noise)
    check = Check(name, _numbers(found, noise))
    if not math.isfinite(noise.largest):
        check.faults.append("stock is not even near itself: this comparison proves nothing")
    if not found.largest <= allowed:
        check.faults.append(f"logprobs differ by {found.largest:.4f}, {allowed:.4f} is allowed")
    if parted := found.parted(allowed):
        check.faults.append(f"{parted} requests give other tokens where stock is sure by more than {allowed:.4f}")
    return check


def spoiled(name: str, stock: Answers, wrong: Answers, noise: Difference) -> Check:
    """The negative control: wrong hot rows must show by more than is allowed."""
    found, allowed = difference(stock, wrong), allowed_by(noise)
    check = Check(name, _numbers(found, noise))
    if found.largest <= allowed and not found.parted(allowed):
        check.faults.append("spoiled hot rows do not show: the comparison proves nothing")
    return check


def same(name: str, unpatched: Answers, off: Answers, noise: Difference) -> Check:
    """The patch without its setting against the unpatched engine: the same bits, if stock repeats its own bits."""
    found = difference(unpatched, off)
    check = Check(name, _numbers(found, noise) | {"stock_repeats_itself": noise.exact})
    if found.exact:
        return check
    if noise.exact:
        check.faults.append(f"not the same bits, by {found.largest:.6f}; stock repeats its own")
    elif not found.largest <= 2 * noise.largest:
        check.faults.append(f"differs by {found.largest:.6f}, stock from itself by {noise.largest:.6f}")
    return check


def reused(check: Check, cached: dict[str, int], wanted: int) -> Check:
    """The same, if each side found the *wanted* tokens of the shared prefix."""
    check.numbers |= {f"cached_{side}": tokens for side, tokens in cached.items()}
    for side, tokens in cached.items():
        if tokens < wanted:
            check.faults.append(f"{side} reused {tokens} tokens of a prefix of {wanted}: nothing was reused")
    return check


def squeezed(check: Check, preempted: dict[str, int]) -> Check:
    """The same, if unpatched was not preempted and the others were."""
    check.numbers |= {f"preempted_{side}": times for side, times in preempted.items()}
    if preempted["unpatched"]:
        check.faults.append(f"unpatched was preempted {preempted['unpatched']} times: it must not be")
    for side in preempted.keys() - {"unpatched"}:
        if not preempted[side]:
            check.faults.append(f"{side} was not preempted: nothing was forced")
    return check


def kept_back(check: Check, refused: int, misses: int) -> Check:
    """The same, if hot refused no position and did copy rows at all."""
    check.numbers |= {"refused": refused, "misses": misses}
    if refused:
        check.faults.append(f"hot refused {refused} positions: none can be wrong")
    if not misses:
        check.faults.append("hot copied no row: it did not decode from hot rows")
    return check


def _numbers(found: Difference, noise: Difference) -> dict[str, float | int | bool]:
    return {
        "difference": found.largest,
        "noise": noise.largest,
        "exact": found.exact,
        "parted": len(found.margins),
    }
