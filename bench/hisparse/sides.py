"""Engines in processes of their own: each reports lines of JSON, which are read as they come."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_USE_V2_MODEL_RUNNER": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
TAIL = 60  # lines of a log that are shown where a side fails
LIMIT = 300  # seconds that a side may take


@dataclass
class Side:
    """One process: *script* run with --side and what is *asked*; *path* goes in front of PYTHONPATH."""

    name: str
    script: str
    asked: dict[str, Any]
    folder: Path
    path: str | None = None
    process: subprocess.Popen[bytes] | None = None
    began: float = 0.0
    _log: IO[bytes] | None = field(default=None, repr=False)
    _read: int = 0

    def start(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "answer").unlink(missing_ok=True)
        before = os.environ.get("PYTHONPATH")
        found = os.pathsep.join(part for part in (self.path, before) if part)
        environment = os.environ | ENVIRONMENT | ({"PYTHONPATH": found} if found else {})
        asked = json.dumps(self.asked | {"side": self.name, "answer": str(self.folder / "answer")})
        self._log = (self.folder / "log").open("wb")
        self.began = time.monotonic()
        self.process = subprocess.Popen(
            [sys.executable, self.script, "--side", asked],
            env=environment,
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )

    def lines(self) -> list[dict[str, Any]]:
        """What it reported since the last call; a line that is not yet whole waits."""
        answer = self.folder / "answer"
        if not answer.exists():
            return []
        with answer.open("rb") as file:
            file.seek(self._read)
            whole, _, _ = file.read().rpartition(b"\n")
        self._read += len(whole) + bool(whole)
        return [json.loads(line) for line in whole.splitlines()]

    def ended(self) -> int | None:
        """Its exit status once it ended; it is killed if it takes too long."""
        code = self.process.poll() if self.process is not None else None
        if code is None and self.process is not None and time.monotonic() - self.began > LIMIT:
            self.process.kill()
        if code is not None and self._log is not None:
            self._log.close()
        return code

    def tail(self) -> str:
        return "\n".join((self.folder / "log").read_text(errors="replace").splitlines()[-TAIL:])


def run(sides: Iterable[Side], jobs: int, on_line: Callable[[Side, dict[str, Any]], None]) -> dict[str, int]:
    """Run all, *jobs* at a time; the exit status by folder name. Shows the end of the log of those that fail."""
    waiting, running = list(sides), list[Side]()
    codes: dict[str, int] = {}
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                running.append(waiting.pop(0))
                running[-1].start()
            time.sleep(0.2)
            for side in list(running):
                code = side.ended()
                for line in side.lines():
                    on_line(side, line)
                if code is not None:
                    running.remove(side)
                    codes[side.folder.name] = code
                    seconds = time.monotonic() - side.began
                    print(f"# {side.folder.name}: ended with {code} after {seconds:.0f} s", flush=True)
                    if code:
                        print(side.tail(), flush=True)
    finally:
        for side in running:
            if side.process is not None:
                side.process.kill()
    return codes


def report(answer: str, line: dict[str, Any]) -> None:
    """Called in a side: one line for the process that reads."""
    with Path(answer).open("a") as file:
        file.write(json.dumps(line) + "\n")
