"""Another Python minor version on this host, asked to make or to judge bytecode; it runs our check.py, nothing else."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from graftwork.errors import ProofError, UsageError
from graftwork.patching import check

_TIMEOUT = 120  # seconds; a pyenv shim may wait for nothing
_ASK = "import sys; print(sys.executable); print('%d.%d' % sys.version_info[:2], sys.implementation.cache_tag)"


@dataclass(frozen=True)
class Interpreter:
    """A Python that ran and said so: its minor version ("3.10"), bytecode tag and program."""

    minor: str
    tag: str
    program: Path

    def checked_pyc(self, source: bytes, path: str) -> bytes:
        """A hash-checked .pyc (PEP 552) of *source*; *path* is the file name in its tracebacks.

        The bytes depend on the source, the path and the interpreter's compiler, and on nothing else of the host.
        UsageError if that version cannot compile it.
        """
        return self._run("--pyc", path, source)

    def judge(self, tag: str, name: str, data: bytes, source: bytes, mtime: int) -> tuple[str, str] | None:
        """check.judge_pyc by this interpreter; None if the bytecode is another version's."""
        if tag != self.tag:
            return None
        asked = {"name": name, "pyc": data.hex(), "source": source.hex(), "mtime": mtime}
        verdict, message = json.loads(self._run("--judge", "source.py", json.dumps(asked).encode()))
        return str(verdict), str(message)

    def _run(self, action: str, path: str, data: bytes) -> bytes:
        """Not -I, which would also ignore the hash seed: 3.10 writes sets in its order. The rest of -I is here."""
        with tempfile.TemporaryDirectory(prefix="graftwork-") as folder:
            script = Path(folder) / "check.py"
            script.write_bytes(self_check())
            command = [str(self.program), "-S", "-s", "-B", str(script), action, path]
            clean = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
            done = _call(command, data, folder, {**clean, "PYTHONHASHSEED": "0", "PYTHONUTF8": "1"})
        if done is None or done.returncode:
            reason = "it did not finish" if done is None else done.stderr.decode(errors="replace").strip()
            raise UsageError(f"Python {self.minor} ({self.program}) could not compile {path}: {reason[-500:]}")
        return done.stdout


def self_check() -> bytes:
    """The source of check.py, as shipped into images."""
    return Path(check.__file__).read_bytes()


def find_interpreter(minor: str) -> Interpreter | None:
    """A Python *minor* ("3.10") of this host: this one, else a ``python3.10`` on PATH that runs and agrees."""
    return _find(minor, os.environ.get("PATH", ""))


def need_interpreter(minor: str) -> Interpreter:
    """The same; ProofError naming the version if the host has none."""
    found = find_interpreter(minor)
    if found is None:
        hint = f"Install Python {minor}, or set the target's bytecode policy to 'whiteout'."
        raise ProofError(f"Python {minor} is needed to make and prove bytecode, and this host has none", hint=hint)
    return found


def foreign_judge(minor: str) -> check.Foreign | None:
    """A judge of bytecode of *minor* for check.check_record; None if that is this Python.

    The interpreter is looked for when there is bytecode to judge; a host without one gives no judgement.
    """

    def judge(tag: str, name: str, data: bytes, source: bytes, mtime: int) -> tuple[str, str] | None:
        found = find_interpreter(minor)
        return found.judge(tag, name, data, source, mtime) if found else None

    return None if minor == _own() else judge


@functools.lru_cache
def _find(minor: str, path: str) -> Interpreter | None:
    if minor == _own() and sys.executable:
        return Interpreter(minor, check.TAG, Path(sys.executable))
    for program in _candidates(f"python{minor}", path):
        done = _call([str(program), "-I", "-S", "-c", _ASK], b"", "/", None)
        lines = done.stdout.decode(errors="replace").splitlines() if done and not done.returncode else []
        said = lines[1].split() if len(lines) == 2 else []
        if len(said) == 2 and said[0] == minor and Path(lines[0]).is_file():
            return Interpreter(minor, said[1], Path(lines[0]))
    return None


def _candidates(name: str, path: str) -> Iterator[Path]:
    """Programs *name* on *path*; behind a pyenv shim, which runs only a selected version, every installed one."""
    for folder in map(Path, filter(None, path.split(os.pathsep))):
        if (folder / name).is_file():
            yield folder / name
            if folder.name == "shims":
                yield from sorted((folder.parent / "versions").glob(f"*/bin/{name}"))


def _own() -> str:
    return f"{sys.version_info[0]}.{sys.version_info[1]}"


def _call(
    command: list[str], data: bytes, folder: str, environment: dict[str, str] | None
) -> subprocess.CompletedProcess[bytes] | None:
    """The finished process; None for a program that cannot start or hangs, as a broken shim does."""
    try:
        return subprocess.run(
            command, input=data, capture_output=True, cwd=folder, env=environment, timeout=_TIMEOUT, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
