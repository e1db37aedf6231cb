"""Make the tables of arguments in src/graftwork/launch/tables from the wheels of the programs, or compare them.

launch_flags.py                                  make every table again from the wheel that it names
launch_flags.py --check                          compare only
launch_flags.py PROGRAM VERSION WHEEL            add one, from the file of a wheel that you have and trust
"""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path

from graftwork.launch.definitions import Flag, parser_flags, sglang_flags, vllm_flags
from graftwork.launch.flags import TableFile, WheelOf, render_table, stored, table
from graftwork.names import sha256_hex
from graftwork.trees.cache import Cache, sha256_of
from graftwork.trees.folder import FolderTree
from graftwork.trees.index import PackageIndex
from graftwork.trees.remote import WheelPin, open_wheel
from graftwork.trees.tree import Tree
from graftwork.trees.wheel import WheelTree

FOLDER = Path(__file__).resolve().parent.parent / "src/graftwork/launch/tables"


PARSERS = {
    "sglang-router": ("sglang_router/router_args.py", "RouterArgs.add_cli_args"),
    "vllm-router": ("vllm_router/router_args.py", "RouterArgs.add_cli_args"),
    "infera-server": ("infera/server/args.py", "parse_server_args"),
    "infera-sglang": ("infera/engine/sglang/args.py", "parse_sglang_args"),
    "infera-kvd": ("infera/kvd/server.py", "main"),
}


def read_flags(program: str, tree: Tree) -> list[Flag]:
    """The arguments that *program* defines in *tree*."""
    if program == "sglang":
        return sglang_flags(tree)
    return vllm_flags(tree) if program == "vllm" else parser_flags(tree, *PARSERS[program])


def pin_of(name: str) -> WheelPin | None:
    """The wheel that the table *name* was made of; None where it was a source folder."""
    program, _, version = name.rpartition("-")
    wheel = table(program, version).wheel
    if wheel is None:
        return None
    return WheelPin(program, wheel.file, sha256_hex(wheel.sha256), sha256_hex(wheel.record_sha256))


def again(name: str, tree: Tree) -> bytes:
    """What the table *name* has to hold, read from its wheel's *tree*."""
    program, _, version = name.rpartition("-")
    wheel = table(program, version).wheel
    return render_table(TableFile(program=program, version=version, wheel=wheel, flags=read_flags(program, tree)))


def add(program: str, version: str, path: Path, source: str) -> bytes:
    """A new table from a wheel on disk, or from a folder of which *source* says where it is from."""
    if path.is_dir():
        flags = read_flags(program, FolderTree(path))
        return render_table(TableFile(program=program, version=version, source=source, flags=flags))
    with closing(WheelTree(path)) as tree:
        wheel = WheelOf(path.name, sha256_of(path), tree.record_sha256())
        return render_table(TableFile(program=program, version=version, wheel=wheel, flags=read_flags(program, tree)))


def main(words: list[str]) -> int:
    """Write or compare; 1 when a table is not what its wheel says."""
    if len(words) >= 3:
        program, version, path, *source = words
        FOLDER.joinpath(f"{program}-{version}.json").write_bytes(add(program, version, Path(path), " ".join(source)))
        return 0
    stale = []
    for name in stored():
        pin = pin_of(name)
        if pin is None:
            sys.stderr.write(f"{name}: not from a wheel, not compared\n")
            continue
        with open_wheel(pin, Cache(), PackageIndex()) as tree:
            text = again(name, tree)
        if words != ["--check"]:
            FOLDER.joinpath(f"{name}.json").write_bytes(text)
        elif FOLDER.joinpath(f"{name}.json").read_bytes() != text:
            stale.append(name)
    if stale:
        sys.stderr.write(f"not what the wheels say: {', '.join(stale)}; run: scripts/launch_flags.py\n")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
