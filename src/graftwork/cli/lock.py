"""``graftwork lock TARGET``: resolve the pins once: whole wheels, hash-checked, and the files of the base."""

from __future__ import annotations

from typing import Any

import click

from graftwork.catalog.catalog import Catalog
from graftwork.catalog.targets import Lock, Target
from graftwork.cli import options, writing
from graftwork.errors import PinError, UnreachableError, UsageError
from graftwork.ui import Screen, size


@click.command("lock")
@options.common
@click.option(
    "--check", is_flag=True, help="Only tell whether lock, target file, tag and digest agree (exit 5 if not)."
)
@click.option("--base", metavar="REF", help="Where the pinned base can be read, if not under its own name.")
@click.option("--insecure", is_flag=True, help="Plain HTTP to a registry that is not on this machine.")
def command(screen: Screen, found: Catalog, wanted: Target, check: bool, base: str | None, insecure: bool) -> int:
    """Write deploy/docker/locks/TARGET.json, and TARGET.base.json where the base can be read; or check them."""
    import msgspec

    lock = found.lock(wanted) if check else _resolve(found, wanted, screen)
    for wheel in lock.wheels:
        screen.step("pinned", f"{wheel.file}: RECORD {wheel.record_sha256[:12]}")
    said = _check_base(found, wanted, base, insecure) if check else _index_base(found, wanted, base, insecure, screen)
    screen.step("base", said)
    if screen.as_json:
        screen.document({"target": wanted.name, "base": said, **msgspec.to_builtins(lock)})
    screen.result(f"lock {'matches' if check else 'written'}: {found.lock_file(wanted.name)}")
    return 0


def _resolve(found: Catalog, target: Target, screen: Screen) -> Lock:
    from graftwork.catalog.targets import WheelPin
    from graftwork.trees import locking
    from graftwork.trees.wheel import WheelTree

    def fetch(pin: WheelPin) -> WheelTree:
        tree = options.open_pin(target, pin, None, screen)
        assert isinstance(tree, WheelTree)
        return tree

    lock = locking.resolve(target, fetch)
    file = found.lock_file(target.name)
    writing.write(file, locking.dumped(lock), folders=True)
    return lock


def _index_base(found: Catalog, target: Target, base: str | None, insecure: bool, screen: Screen) -> str:
    """Index the pinned base, whichever name it is read under; PinError if it is another image."""
    from graftwork.images import base_facts
    from graftwork.images.sources import open_source
    from graftwork.oci.model import Platform
    from graftwork.oci.traffic import Traffic

    if not target.base.pinned:
        return _nothing_pinned(target, base)
    name = base or target.base.pinned
    try:
        with open_source(name, Traffic(), insecure=insecure, impatient=base is None) as source:
            if source.top.digest != target.base.digest:
                raise PinError(
                    f"{name} is {source.top.digest}, target {target.name} pins {target.base.digest}",
                    hint="pin the digest that you mean in the target, with where it comes from",
                )
            image = base_facts.bare(source.base(Platform.parse(f"linux/{target.base.arch}")))
            total = sum(layer.size for layer in image.manifest.layers)
            screen.line(f"reading layers of {source.name} from the top, at most {size(total)}")
            wanted = base_facts.wanted_files(found.patches(target), options.engine_of(target, None, None))
            facts = base_facts.facts_of(image, source, target, wanted, kept=[found.base_index_file(target.name)])
    except UnreachableError as error:
        if base is not None:
            raise
        return f"{target.base.image} is not reachable, its files were not indexed: {error.message}"
    for note in facts.index.notes:
        screen.line(f"  {note}")
    files = sum(item.kind == "file" for item in facts.index.paths)
    return f"{files} files of {facts.index.image} ({facts.how}, {size(facts.moved)} read), Python {facts.index.python}"


def _nothing_pinned(target: Target, base: str | None) -> str:
    if base is not None:
        hint = "pin it in the target (image, digest, digest_source), or name it where it is used: image --base REF"
        raise UsageError(f"target {target.name} pins no base that {base} could be compared with", hint=hint)
    return "the target pins none"


def _check_base(found: Catalog, target: Target, base: str | None, insecure: bool) -> str:
    """Whether tag and digest still agree in the registry, and the kept index is of that digest."""
    from graftwork.catalog.base_index import decode_index
    from graftwork.images.sources import open_source
    from graftwork.oci.traffic import Traffic

    if not target.base.pinned:
        return _nothing_pinned(target, base)
    file = found.base_index_file(target.name)
    if file.is_file():
        index: Any = decode_index(file.read_bytes(), str(file))
        if target.base.digest not in (index.digest, index.manifest_digest):
            raise PinError(
                f"{file}: made for {index.digest}, the target pins {target.base.digest}",
                hint=f"run: graftwork lock {target.name}",
            )
    name = base or target.base.image
    try:
        with open_source(name, Traffic(), insecure=insecure, impatient=base is None) as source:
            if source.top.digest != target.base.digest:
                raise PinError(
                    f"{name} is now {source.top.digest}, the target pins {target.base.digest}",
                    hint="the tag moved: keep the pin, or pin the new digest and run graftwork lock",
                )
    except UnreachableError as error:
        if base is not None:
            raise
        return f"{name} is not reachable, tag and digest were not compared: {error.message}"
    return f"{name} is still {target.base.digest}"
