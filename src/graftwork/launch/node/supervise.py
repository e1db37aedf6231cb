"""A node of a job: gives out ports, starts its components in order, watches them, and ends them when it is told to."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import time
from pathlib import Path

from graftwork.launch import ports
from graftwork.launch.node import envoy, processes
from graftwork.launch.node.board import Board, say, write_whole
from graftwork.launch.node.child import Child, start
from graftwork.launch.node.drain import drain
from graftwork.launch.node.plan import Part, Plan
from graftwork.launch.node.values import Values, own_address

PEERS_S = 900.0
SETTLE_S = 1.0
_TICK_S = 0.25
STOP_SIGNALS = (signal.SIGURG, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Asked(Exception):
    """The job is told to end."""


class Crash(Exception):
    """Something died, or cannot be started."""

    def __init__(self, component: str, reason: str, rc: int | None = None) -> None:
        super().__init__(reason)
        self.component, self.reason, self.rc = component, reason, rc


class Signals:
    """Remembers that one of STOP_SIGNALS came; `wait` is woken by them, and by a child that ends."""

    def __init__(self) -> None:
        self.asked = False
        self._woken, wake = os.pipe()
        for end in (self._woken, wake):
            os.set_blocking(end, False)
        for number in STOP_SIGNALS:
            signal.signal(number, self._ask)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)

    def wait(self, seconds: float) -> None:
        """Sleep, at most *seconds*. Asked when a signal has come, now or before."""
        if not self.asked and select.select([self._woken], [], [], seconds)[0]:
            with contextlib.suppress(BlockingIOError):
                os.read(self._woken, 4096)
        if self.asked:
            raise Asked

    def _ask(self, *_: object) -> None:
        self.asked = True


class Node:
    """One node's share of a plan. *keeper* is the process that outlives this one."""

    def __init__(self, plan: Plan, node: int, board: Board, scratch: Path, keeper: int) -> None:
        self.plan, self.node, self.board, self.scratch, self.keeper = plan, node, board, scratch, keeper
        self.signals = Signals()
        self.children: dict[str, Child] = {}
        self._blocks: dict[str, ports.Block] = {}
        self._ready: set[str] = set()

    def run(self) -> int:
        """Run until told to end or until something dies, then drain. 0, or 3 if a crash could not be written down."""
        written = True
        try:
            self._serve()
        except Asked:
            # The kernel tells this process when the keeper ends, as if it were told to end.
            written = self._kept() or self._crash(Crash("keeper", "was killed"))
            say("told to end")
        except Crash as crash:
            written = self._crash(crash)
        except Exception as error:  # a fault of this program: written down too, and what runs is drained
            written = self._crash(Crash("supervisor", f"{type(error).__name__}: {error}"))
        killed = drain(self.plan, self.node, self.board, list(self.children.values()))
        say(f"drained{': killed ' + ', '.join(killed) if killed else ''}")
        return 0 if written else 3

    def _crash(self, crash: Crash) -> bool:
        written = self.board.crash(self.node, crash.component, crash.reason, crash.rc)
        escalate(self.board.job)
        return written

    def _kept(self) -> bool:
        return os.getppid() == self.keeper

    def _serve(self) -> None:
        self_check(self.plan.interpreter)
        values = self._values()
        waiting = self.plan.on(self.node)
        while True:
            self._watch()
            for part in [part for part in waiting if self._may_start(part)]:
                self._start(part, values)
                waiting.remove(part)
            self._note_ready(values)
            self.signals.wait(_TICK_S)

    def _values(self) -> Values:
        """Take ports, publish them, and wait for those of the other nodes."""
        wanted = [(part, name) for part in self.plan.on(self.node) for name in part.ports]
        for part, name in sorted(wanted, key=lambda each: each[1] not in each[0].fixed):  # chosen ones first
            first, count = part.fixed.get(name), part.ports[name]
            block = ports.free_block(count) if first is None else ports.chosen_block(first, count)
            self._blocks[f"{part.name}/{name}"] = block
        mine = {name: block.base for name, block in self._blocks.items()}
        self.board.publish(f"node-{self.node}", {"host": own_address(), "ports": mine})
        deadline = time.monotonic() + PEERS_S
        all_ports: dict[str, int] = {}
        hosts: dict[int, str] = {}
        for node in range(self.plan.nodes):
            found = self.board.read(f"node-{node}")
            while found is None:
                if time.monotonic() > deadline:
                    raise Crash("supervisor", f"node {node} has published no ports within {PEERS_S:.0f} s")
                self.signals.wait(_TICK_S)
                found = self.board.read(f"node-{node}")
            all_ports.update(found["ports"])
            hosts[node] = found["host"]
        return Values(self.board.run, self.scratch, all_ports, hosts)

    def _watch(self) -> None:
        """Crash if a component has ended, or the keeper."""
        processes.reap({child.pid for child in self.children.values()})
        ended = [child for child in self.children.values() if child.ended()]
        if ended:
            # A signal for the whole job may reach a component before it reaches this process.
            until = time.monotonic() + SETTLE_S
            while time.monotonic() < until:
                self.signals.wait(max(until - time.monotonic(), 0))
            how = "was killed" if (ended[0].rc or 0) < 0 else "ended by itself"
            raise Crash(ended[0].name, f"{how}; see {self._log(ended[0].name)}", ended[0].rc)
        if not self._kept():
            raise Crash("keeper", "was killed")

    def _may_start(self, part: Part) -> bool:
        return all(name in self._ready or self._is_ready_elsewhere(name) for name in self.plan.needs(part))

    def _is_ready_elsewhere(self, name: str) -> bool:
        if name not in self.children and self.board.has(f"ready-{name}"):
            self._ready.add(name)
        return name in self._ready

    def _start(self, part: Part, values: Values) -> None:
        try:
            for path, text in part.files.items():
                write_whole(self.board.run / path, values.fill(part, text))
            environment = values.environment(part, os.environ)
            argv = [values.fill(part, argument) for argument in part.argv]
            if envoy.is_envoy(argv):
                argv = envoy.with_own_id(argv, values.tmp(part) / "base-id")
            program = shutil.which(argv[0], path=environment.get("PATH"))
            if program is None:
                raise Crash(part.name, f"{argv[0]}: no such program on this node")
            for name in part.ports:
                self._blocks[f"{part.name}/{name}"].hand_over()
            child = start(
                part, [program, *argv[1:]], environment, self._log(part.name), self.scratch / f"{part.name}.told"
            )
        except (OSError, KeyError, IndexError) as error:
            raise Crash(part.name, f"cannot be started: {type(error).__name__}: {error}") from error
        self.children[part.name] = child
        write_whole(self.scratch / "children", "\n".join(json.dumps(child.facts()) for child in self.children.values()))
        say(f"{part.name}: started as {child.pid}")

    def _note_ready(self, values: Values) -> None:
        for part in self.plan.on(self.node):
            child = self.children.get(part.name)
            if child is None or part.name in self._ready:
                continue
            port = values.port(part, part.ready["port"]) if part.ready["port"] else 0
            if child.is_ready(part.ready, port, values.fill(part, part.ready["path"])):
                self._ready.add(part.name)
                self.board.publish(f"ready-{part.name}", {"port": port})
                say(f"{part.name}: ready after {child.age_s():.0f} s")
            elif child.age_s() > part.ready["bound_s"]:
                raise Crash(part.name, f"not ready within {part.ready['bound_s']} s; see {self._log(part.name)}")

    def _log(self, name: str) -> Path:
        return self.board.logs / f"{name}.log"


def self_check(interpreter: str, check: Path = Path("/usr/share/graftwork/check.py")) -> None:
    """In an image of ours, prove its patches before anything is started. Crash if they are not proved."""
    if not check.exists():
        return
    done = subprocess.run([interpreter, str(check)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    say(done.stdout.decode("utf-8", "replace").strip())
    if done.returncode:
        raise Crash("self-check", "the image does not hold its patches", done.returncode)


def escalate(job: str) -> None:
    """Tell every node of the job to end. Where Slurm's commands are not at hand, the batch script sees the marker."""
    scancel = shutil.which("scancel")
    if scancel is None or "SLURM_JOB_ID" not in os.environ:
        return
    try:
        subprocess.run([scancel, "--signal=URG", job], stdin=subprocess.DEVNULL, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        say(f"the other nodes were not told, the batch script will: {error}")
