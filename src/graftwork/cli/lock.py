"""``graftwork lock TARGET``: resolve the pins once, from the whole hash-checked wheels."""

from __future__ import annotations

from pathlib import Path

import click

from graftwork.cli import options
from graftwork.ui import Screen


@click.command("lock")
@options.common
@click.option("--check", is_flag=True, help="Only tell whether the lock is that of the target file (exit 5 if not).")
def command(target: str, catalog: Path | None, as_json: bool, quiet: bool, check: bool) -> int:
    """Write deploy/docker/locks/TARGET.json, or check it."""
    import msgspec

    from graftwork.catalog.targets import WheelPin
    from graftwork.trees import locking
    from graftwork.trees.wheel import WheelTree

    screen = Screen(as_json=as_json, quiet=quiet)
    found, wanted = options.setup(catalog, target)
    file = found.lock_file(target)
    if check:
        lock = found.lock(wanted)
        verb = "matches"
    else:

        def fetch(pin: WheelPin) -> WheelTree:
            tree = options.open_pin(wanted, pin, None, screen)
            assert isinstance(tree, WheelTree)
            return tree

        lock = locking.resolve(wanted, fetch)
        file.parent.mkdir(parents=True, exist_ok=True)
        new = locking.dumped(lock)
        verb = "unchanged" if file.is_file() and file.read_bytes() == new else "written"
        temporary = file.with_name(f".{file.name}.new")
        temporary.write_bytes(new)
        temporary.replace(file)
    for wheel in lock.wheels:
        screen.step("pinned", f"{wheel.file}: RECORD {wheel.record_sha256[:12]}")
    if as_json:
        screen.document({"target": target, "lock": str(file), "state": verb, **msgspec.to_builtins(lock)})
    screen.result(f"lock {verb}: {file}")
    return 0
