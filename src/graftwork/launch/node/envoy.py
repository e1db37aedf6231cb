"""Envoy on a host that is shared: a base id of its own, and no shared memory left behind.

An Envoy takes ``/dev/shm/envoy_shared_memory_0`` unless told otherwise and aborts when it is another user's. With
``--use-dynamic-base-id`` it takes a free id, but leaves the file of that id when it ends (seen with Envoy 1.40).
"""

from __future__ import annotations

import os
from pathlib import Path

from graftwork.launch.node.board import say

_CHOSEN = ("--base-id", "--use-dynamic-base-id", "--disable-hot-restart")
_PATH = "--base-id-path"


def is_envoy(argv: list[str]) -> bool:
    """Whether *argv* starts an Envoy."""
    return Path(argv[0]).name == "envoy"


def with_own_id(argv: list[str], path: Path) -> list[str]:
    """*argv* with a base id of its own, written to *path*, unless it says itself which id to use."""
    said = {argument.partition("=")[0] for argument in argv}
    added = [] if said.intersection(_CHOSEN) else ["--use-dynamic-base-id"]
    if "--use-dynamic-base-id" in [*argv, *added] and _PATH not in said:
        added += [_PATH, str(path)]
    return [*argv, *added]


def id_file(argv: list[str]) -> str | None:
    """Where the Envoy that *argv* starts writes its base id, if it does."""
    for at, argument in enumerate(argv):
        name, equals, value = argument.partition("=")
        if name == _PATH:
            return value if equals else argv[at + 1]
    return None


def clean(path: str, shm: Path = Path("/dev/shm")) -> None:
    """Remove the shared memory of the Envoy that wrote *path* (epoch 0) and has ended. Only a file of our own."""
    try:
        number = Path(path).read_text("ascii").strip()
    except OSError:  # it ended before it had an id
        return
    left = shm / f"envoy_shared_memory_{number}0"
    try:
        if number.isdecimal() and left.stat().st_uid == os.geteuid():
            left.unlink()
    except FileNotFoundError:
        return
    except OSError as error:
        say(f"{left}: not removed: {error}")
