"""Two DP ranks with real collectives: one waits for its device, and the group stops."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize("mode", ["TARGET_VERIFY", "DRAFT_EXTEND_V2"])
def test_the_group_goes_on(kit, bench, mode):
    """The busy rank has work on its device that needs the peer; the peer is one step ahead and needs the busy rank.

    That is a circle only if the busy rank waits for its device before it comes to the host's collective.
    """
    from torch import distributed as dist

    from graftwork.harness.ranks import run_ranks

    def work(rank: int) -> str:
        on_device = dist.new_group(backend="gloo")
        own = kit.Bench(bench.tree, bench.version)
        forward = lambda: dist.all_reduce(kit.torch.ones(1), group=on_device)  # noqa: E731
        if rank == 0:  # busy: it has launched its forward, and prepares the next one
            own.device.submit(forward)
            own.metadata(own.batch(kit.Mode[mode], [70, 9], mirror=False))
        dist.all_reduce(kit.torch.ones(1))  # the hosts agree on the next step
        if rank == 1:  # idle: no metadata to prepare, so it came there first
            own.device.submit(forward)
        own.device.wait(60)
        return "went on"

    assert run_ranks(work, 2) == ["went on", "went on"]
