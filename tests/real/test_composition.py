"""Every allowed order of a set of patches gives the same bytes, on the real wheels."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from packaging.version import Version
from real.wheels import wheel
from toys import ROOT

from graftwork.catalog.catalog import Catalog, Patch
from graftwork.patching.assess import Engine
from graftwork.patching.orders import problems
from graftwork.patching.plan import plan
from graftwork.trees.remote import RemoteWheelTree

pytestmark = pytest.mark.real
CATALOG = Catalog(ROOT)

# The release on which all seven apply, and the set of each target that has more than one patch.
WHOLE = (
    "0.5.16",
    [
        "sglang/draft-graph-dp-vote",
        "sglang/dsa-dp-sync",
        "sglang/dsa-indexer-rows",
        "sglang/dsa-page-table-rows",
        "sglang/hicache-rocm-host-alloc",
        "sglang/hicache-staged-write-back",
        "sglang/mooncake-early-send-wait",
    ],
)
SETS = {"all-seven": WHOLE}
SETS |= {
    target.name: (target.version, target.patches)
    for target in map(CATALOG.target, CATALOG.target_names)
    if len(target.patches) > 1
}


@pytest.fixture(scope="module", params=SETS)
def tree(request: pytest.FixtureRequest) -> Iterator[tuple[RemoteWheelTree, list[Patch], Engine]]:
    version, ids = SETS[request.param]
    with wheel(version) as found:
        yield found, [CATALOG.patch(name) for name in ids], Engine(Version(version), "rocm")


def test_every_allowed_order_gives_the_same_bytes(tree: tuple[RemoteWheelTree, list[Patch], Engine]) -> None:
    assert problems(*tree) == []


def test_the_other_way_round(tree: tuple[RemoteWheelTree, list[Patch], Engine]) -> None:
    """The same of whole plans, for two orders: what a build would write."""
    files, patches, engine = tree
    if any(patch.spec.after for patch in patches):
        pytest.skip("an order is declared, so the other way round is not allowed")
    forth, back = plan(files, patches, engine), plan(files, patches[::-1], engine)
    assert forth.refusal() is None and len(forth.pending) == len(back.pending) == len(patches)
    assert {change.path: change.new for change in forth.changes} == {change.path: change.new for change in back.changes}
