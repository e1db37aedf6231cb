"""git as a tool on files of ours: never in the caller's repository, never with the caller's hooks."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from graftwork.errors import UsageError

_QUIET = ["-c", "core.hooksPath=/dev/null", "-c", "commit.gpgSign=false", "-c", "core.autocrlf=false"]
_KEPT = ("GIT_AUTHOR", "GIT_COMMITTER", "GIT_CONFIG")


def run_git(root: Path, *arguments: str, stdin: bytes = b"", environment: Mapping[str, str] | None = None) -> bytes:
    """What git prints in *root*. UsageError with what it said if it fails, or is not installed."""
    done = _run(root, arguments, stdin, environment or {})
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip()
        hint = "tell git who you are: git config --global user.name and user.email" if "ident" in said else ""
        raise UsageError(f"git {arguments[0]} failed: {said}", hint=hint)
    return done.stdout


def merge(ours: bytes, base: bytes, theirs: bytes, labels: tuple[str, str, str]) -> tuple[bytes, int]:
    """The three-way merge of a text and the number of its conflicts, which are marked, with *base* between them."""
    with tempfile.TemporaryDirectory(prefix="graftwork-merge-") as folder:
        for name, data in (("ours", ours), ("base", base), ("theirs", theirs)):
            (Path(folder) / name).write_bytes(data)
        named = [part for label in labels for part in ("-L", label)]
        done = _run(Path(folder), ["merge-file", "-p", "--diff3", *named, "ours", "base", "theirs"], b"", {})
    if done.returncode > 127:  # git: the number of conflicts, at most 127; more is an error
        raise UsageError(f"git merge-file failed: {done.stderr.decode('utf-8', 'replace').strip()}")
    return done.stdout, done.returncode


def _run(
    root: Path, arguments: list[str] | tuple[str, ...], stdin: bytes, more: Mapping[str, str]
) -> subprocess.CompletedProcess[bytes]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("GIT_") or key.startswith(_KEPT)}
    command = ["git", *_QUIET, *arguments]
    try:
        return subprocess.run(command, cwd=root, input=stdin, env={**kept, **more}, capture_output=True)
    except FileNotFoundError:
        raise UsageError("git is not installed", hint="install git: it makes the commit, and merges") from None
