"""Ending a node's components in order: router and sidecars, engines, the store last; bounded, and nothing is left."""

from __future__ import annotations

import time
from functools import partial
from typing import Callable, Sequence

from graftwork.launch.node import processes
from graftwork.launch.node.board import Board, say
from graftwork.launch.node.child import Child
from graftwork.launch.node.plan import Plan

_TICK_S = 0.2
KILL_S = 5.0
MARGIN_S = 30  # three orders, strays, a last tick


def drain(plan: Plan, node: int, board: Board, children: Sequence[Child]) -> list[str]:
    """End *children*, and tell the other nodes. Returns the names of those that had to be killed.

    An order begins when the one before it has ended on every node: an engine may still hold memory of a store that runs
    elsewhere. Each has the time of its slowest part, all together the plan's ``drain_s``, and some seconds more where
    something has to be killed (MARGIN_S at most).
    """
    hard = time.monotonic() + plan.drain_s
    killed: list[str] = []
    for order in plan.orders:
        reserved = sum(plan.level_s(later) for later in plan.orders if later > order)
        deadline = min(hard - reserved, time.monotonic() + plan.level_s(order))
        killed += _end([child for child in children if child.order == order], deadline)
        here = [part.name for part in plan.on(node) if part.order == order]
        elsewhere = [part.name for part in plan.parts if part.order == order and part.node != node]
        for name in here:
            _publish(board, f"stopped-{name}")
        if not _until(partial(_all_stopped, board, elsewhere), min(hard - reserved, deadline + KILL_S)):
            say(f"order {order} has not ended on every node in its time; going on")
    left = processes.kill_descendants(KILL_S)
    if left:
        say(f"not even SIGKILL ended {sorted(left)}: they wait in the kernel")
    for child in children:
        child.clean()
    return killed


def _end(children: list[Child], deadline: float) -> list[str]:
    """Tell each once, wait, and kill what is left after its own time or at *deadline*; the names of those."""
    for child in children:
        child.tell()
    killed: list[str] = []
    begin = time.monotonic()
    for child in sorted(children, key=lambda child: child.drain_s):
        if not _until(partial(_gone, [child], children), min(deadline, begin + child.drain_s)):
            say(f"{child.name}: not ended in its time, killed")
            child.kill()
            killed.append(child.name)
    _until(partial(_gone, children, children), time.monotonic() + KILL_S)
    return killed


def _gone(wanted: list[Child], children: list[Child]) -> bool:
    """Whether *wanted* have gone; all *children* are looked at, as a store's leftovers have to be told."""
    now = processes.table()
    gone = [child for child in children if child.gone(now)]
    return all(child in gone for child in wanted)


def _all_stopped(board: Board, names: list[str]) -> bool:
    return all(board.has(f"stopped-{name}") for name in names)


def _until(holds: Callable[[], bool], deadline: float) -> bool:
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(_TICK_S)
    return True


def _publish(board: Board, name: str) -> None:
    """Put up a notice, or say why not: a shared folder that fails must not stop the drain of this node."""
    try:
        board.publish(name, {})
    except OSError as error:
        say(f"notice {name}: {error}")
