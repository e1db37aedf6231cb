"""Ending a node's components in order: router and sidecars, engines, the store last; bounded, and nothing is left."""

from __future__ import annotations

import time
from functools import partial
from typing import Callable, Sequence

from graftwork.launch.node import processes
from graftwork.launch.node.board import Board, say
from graftwork.launch.node.child import Child
from graftwork.launch.node.plan import Plan

_TICK_S = 0.1
_KILL_S = 10.0


def drain(plan: Plan, node: int, board: Board, children: Sequence[Child]) -> list[str]:
    """End *children*, and tell the other nodes. Returns the names of those that had to be killed.

    An order begins when the one before it has ended on every node: an engine may still hold memory of a store that runs
    elsewhere. Each has at most the time of its slowest part, all together the plan's ``drain_s``.
    """
    hard = time.monotonic() + plan.drain_s
    killed: list[str] = []
    for order in plan.orders:
        deadline = min(hard, time.monotonic() + plan.level_s(order))
        killed += _end([child for child in children if child.order == order], deadline)
        here = [part.name for part in plan.on(node) if part.order == order]
        elsewhere = [part.name for part in plan.parts if part.order == order and part.node != node]
        for name in here:
            _publish(board, f"stopped-{name}")
        if not _until(partial(_all_stopped, board, elsewhere), deadline):
            say(f"order {order} has not ended on every node in its time; going on")
    left = processes.kill_descendants(_KILL_S)
    if left:
        say(f"not even SIGKILL ended {sorted(left)}: they wait in the kernel")
    for child in children:
        child.clean()
    return killed


def _end(children: list[Child], deadline: float) -> list[str]:
    """Tell each once, wait, and kill what is left at *deadline*; the names of those."""
    for child in children:
        child.tell()
    if _until(lambda: _all_gone(children), deadline):
        return []
    now = processes.table()
    late = [child for child in children if not child.gone(now)]
    for child in late:
        say(f"{child.name}: not ended in its time, killed")
        child.kill()
    _until(lambda: _all_gone(late), time.monotonic() + _KILL_S)
    return [child.name for child in late]


def _all_gone(children: list[Child]) -> bool:
    now = processes.table()
    left = [child for child in children if not child.gone(now)]
    return not left


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
