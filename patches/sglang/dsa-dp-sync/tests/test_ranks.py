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
        busy = rank == 0
        if busy:
            own.device.submit(forward)
        lengths = [70, 9] if busy else []
        own.metadata(own.batch(kit.Mode[mode] if busy else kit.Mode.IDLE, lengths, mirror=not busy))
        dist.all_reduce(kit.torch.ones(1))
        if not busy:
            own.device.submit(forward)
        own.device.wait(60)
        return "went on"

    assert run_ranks(work, 2) == ["went on", "went on"]
