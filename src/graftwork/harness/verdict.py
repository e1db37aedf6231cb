"""What a variant has to be noticed by, and whether it was."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from graftwork.harness.outcomes import Kind, Outcome
from graftwork.harness.runner import Run
from graftwork.harness.variants import Sort, Variant
from graftwork.patching.states import State

# Which failures of tests count against a variant; the tests run no further than to the first of them.
COUNTS: dict[Sort, frozenset[Kind]] = {
    "in": frozenset(),
    "out": frozenset({"assertion"}),
    "hunk": frozenset({"assertion", "engine"}),
    "earlier": frozenset({"assertion"}),
    "markers": frozenset({"assertion"}),
    "mutant": frozenset({"assertion", "engine"}),
}


@dataclass(frozen=True)
class Verdict:
    """``noticed``: the steps that refused the variant (anchor, compile, marker, test), ``by`` what. ``fault``: what
    is wrong with the patch or its tests ('' if all is as it must be).
    """

    noticed: tuple[str, ...]
    by: str
    fault: str


def judge(variant: Variant, run: Run | None) -> Verdict:
    """Judge one variant by how it was built and by the *run* of the tests on it (None: there was nothing to run)."""
    killers = run.of(*COUNTS[variant.sort]) if run else []
    noticed = []
    if variant.refusal:
        noticed.append("anchor")
    if variant.uncompiled:
        noticed.append("compile")
    if variant.files and variant.marked < variant.markers:
        noticed.append("marker")
    if killers:
        noticed.append("test")
    return Verdict(tuple(noticed), _by(variant, run, killers), _fault(variant, run, killers, noticed))


def _by(variant: Variant, run: Run | None, killers: Sequence[Outcome]) -> str:
    if variant.sort == "in":
        return _instead(run).removeprefix(": ")
    if killers:
        first = killers[0]
        name = first.test.partition("::")[2] or first.test
        return f"{name} ({'engine: ' if first.kind == 'engine' else ''}{first.error})"
    if variant.refusal or variant.uncompiled:
        return variant.refusal or variant.uncompiled
    if variant.files and variant.marked < variant.markers:
        return f"{variant.markers - variant.marked} of {variant.markers} markers are missing"
    return ""


def _fault(variant: Variant, run: Run | None, killers: Sequence[Outcome], noticed: Sequence[str]) -> str:
    if run and run.trouble:
        return run.trouble
    if variant.sort == "in":
        return _fault_of_all_in(variant, run)
    if variant.sort == "hunk":
        if variant.inert and noticed:
            return f"declared inert, but noticed by {', '.join(noticed)}: take 'inert' away"
        return "" if noticed or variant.inert else f"nothing notices that this hunk is missing{_instead(run)}"
    if variant.refusal or variant.uncompiled:
        return f"cannot be built: {variant.refusal or variant.uncompiled}"
    if variant.sort == "markers" and variant.marked < variant.markers:
        return f"cannot be built: only {variant.marked} of {variant.markers} markers are in dead code"
    if variant.sort == "earlier" and not (variant.state is State.OUTDATED and variant.marked < variant.markers):
        state = variant.state.value if variant.state else "unknown"
        return f"no marker refuses it: the tree is {state}, {variant.marked} of {variant.markers} markers are there"
    if killers:
        return ""
    needed = "by its own assertion" if "engine" not in COUNTS[variant.sort] else "of it"
    return f"no test fails {needed}{_instead(run)}"


def _fault_of_all_in(variant: Variant, run: Run | None) -> str:
    if variant.refusal or variant.uncompiled:
        return variant.refusal or variant.uncompiled
    if variant.marked < variant.markers:
        return f"only {variant.marked} of {variant.markers} markers are in the patched tree"
    failed = run.of("assertion", "engine", "broken") if run else []
    if failed:
        return f"{len(failed)} tests fail on the patched tree, first {failed[0].test}: {failed[0].error}"
    if run is None or not run.of("passed"):
        return f"no test passes on the patched tree{_instead(run)}"
    return ""


def _instead(run: Run | None) -> str:
    """What the tests did, where they did not do what they should."""
    if run is None:
        return ""
    parts = []
    if passed := run.of("passed"):
        parts.append(f"{len(passed)} pass")
    if skipped := run.of("skipped"):
        parts.append(f"{len(skipped)} are skipped ({skipped[0].error})")
    for other in run.of("broken", "engine")[:1]:
        words = "breaks" if other.kind == "broken" else "ends in an error of the engine"
        parts.append(f"{other.test} {words} in its {other.phase} ({other.error} at {other.where or 'no known line'})")
    return f": {', '.join(parts)}" if parts else ": no test ran"
