"""The task of a node: starts the supervisor, outlives it, and drains the node in its place if it is killed."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import tempfile
from pathlib import Path

from graftwork.launch.node import processes
from graftwork.launch.node.board import Board, say
from graftwork.launch.node.child import Child
from graftwork.launch.node.drain import KILL_S, drain
from graftwork.launch.node.plan import Plan, read
from graftwork.launch.node.supervise import STOP_SIGNALS, Node, escalate


def main() -> int:
    """Run one node of ``deployment.json``. 0 when it was drained, 3 if a crash could not be written down."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("deployment", type=Path, help="deployment.json")
    parser.add_argument("run", type=Path, help="the job's folder, shared by all nodes")
    parser.add_argument("--node", type=int, default=int(os.environ.get("SLURM_NODEID", 0)), help="index of this node")
    parser.add_argument("--job", default=os.environ.get("SLURM_JOB_ID", "0"), help="name of the job in crash markers")
    given = parser.parse_args()
    board = Board(given.run, given.job)
    scratch = Path(tempfile.mkdtemp(prefix=f"gw-{given.job}-{given.node}-"))
    try:
        return keep(read(given.deployment), given.node, board, scratch)
    finally:
        # Nothing is left by now, unless this program has failed too.
        processes.kill_descendants(KILL_S)
        shutil.rmtree(str(scratch), ignore_errors=True)


def keep(plan: Plan, node: int, board: Board, scratch: Path) -> int:
    """Run the node's share of *plan* in a child process; the exit code of the node."""
    board.make()
    processes.adopt_orphans()
    keeper = os.getpid()
    # Until the child has its own handlers a signal would end it unnoticed; blocked ones wait.
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    supervisor = os.fork()
    if supervisor == 0:
        os._exit(_supervise(plan, node, board, scratch, keeper))
    for number in STOP_SIGNALS:
        signal.signal(number, lambda *_: processes.send(supervisor, signal.SIGURG))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
    _, status = os.waitpid(supervisor, 0)
    if os.WIFEXITED(status) and os.WEXITSTATUS(status) in (0, 3):
        return os.WEXITSTATUS(status)
    return _take_over(plan, node, board, scratch, status)


def _supervise(plan: Plan, node: int, board: Board, scratch: Path, keeper: int) -> int:
    try:
        processes.end_with_parent(signal.SIGTERM)
        processes.adopt_orphans()
        share = Node(plan, node, board, scratch, keeper)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
        code = share.run()
        if os.getppid() != keeper:  # which would have done it
            shutil.rmtree(str(scratch), ignore_errors=True)
        return code
    except BaseException as error:
        say(f"supervisor: {type(error).__name__}: {error}")
        return 70


def _take_over(plan: Plan, node: int, board: Board, scratch: Path, status: int) -> int:
    """The supervisor was killed, or failed: its children are ours now."""
    for number in STOP_SIGNALS:
        signal.signal(number, lambda *_: None)
    rc = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
    written = board.crash(node, "supervisor", "was killed" if rc < 0 else "failed", rc)
    escalate(board.job)
    drain(plan, node, board, adopted(scratch))
    say("drained in place of the supervisor")
    return 0 if written else 3


def adopted(scratch: Path) -> list[Child]:
    """The children that the supervisor had started; they became ours when it ended."""
    try:
        lines = (scratch / "children").read_text("utf-8").splitlines()
    except FileNotFoundError:
        return []
    return [Child(**json.loads(line)) for line in lines]
