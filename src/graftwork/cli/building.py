"""What ``image`` and ``push`` share: plan, payload, and where a base is at hand, the graft and its destinations."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graftwork.catalog.catalog import Catalog
from graftwork.catalog.targets import Target
from graftwork.cli import attesting, options
from graftwork.cli.wish import Wish
from graftwork.errors import GraftworkError, UnreachableError, UsageError
from graftwork.ui import Screen, size

if TYPE_CHECKING:
    from graftwork.images.build import Part, Request
    from graftwork.images.payload import Payload
    from graftwork.images.ship import Bundle
    from graftwork.images.signature import PrivateKey
    from graftwork.images.sources import Source
    from graftwork.oci.traffic import Traffic
    from graftwork.trees.merged import MergedView


def run(catalog: Catalog, target: Target, wish: Wish, screen: Screen) -> dict[str, Any]:
    """Build the payload; graft and ship it where there is a base. Returns the JSON document."""
    from graftwork.oci.traffic import Traffic

    began = time.monotonic()
    key = attesting.load_key(wish)  # a bad key is told before anything is built
    screen.step("target", f"{target.name}: {target.engine} {target.version} on {target.platform} {target.accelerator}")
    dist = wish.dist or catalog.root / "dist"
    before = _digest(dist / target.name / "oci", target.name)
    traffic = Traffic(max_bytes=wish.max_bytes)
    with options.pinned_wheel(target, catalog.lock(target), screen) as wheel:
        request = _request(catalog, target, wheel, dist)
        with contextlib.ExitStack() as stack:
            opened = _open_base(stack, target, wish, traffic, request, screen)
            if isinstance(opened, str):
                return _payload_only(catalog, request, wish, key, before, opened, began, screen)
            source, view = opened
            return _graft(catalog, request, source, view, wish, key, traffic, began, screen)


def _request(catalog: Catalog, target: Target, wheel: Any, dist: Path) -> Request:
    from graftwork.images.build import Request, created_time
    from graftwork.trees.cache import cache_folder

    return Request(
        target=target,
        patches=catalog.patches(target),
        lock=catalog.lock(target),
        engine=options.engine_of(target, None, None),
        wheel=wheel,
        dist=dist,
        kept=[catalog.base_index_file(target.name)],
        cache=cache_folder(),
        created=created_time(),
    )


def _open_base(
    stack: contextlib.ExitStack, target: Target, wish: Wish, traffic: Traffic, request: Request, screen: Screen
) -> tuple[Source, MergedView | None] | str:
    """The base, or why there is none: then only the payload is built, unless the wish needs a base."""
    from graftwork.images.sources import open_source

    named = wish.base is not None
    text = wish.base or target.base.pinned
    if not text:
        if wish.require_base:
            raise UsageError(f"target {target.name} pins no base", hint=f"name one of {_kind(target)}: --base REF")
        return f"the target pins none: {target.base.digest_source}"
    if text.startswith("docker:"):
        from graftwork.images.containerd import refuse_base
        from graftwork.images.engine import EngineView, connected, engine_source

        client = stack.enter_context(connected())
        name = text.removeprefix("docker:")
        refuse_base(client, name)
        return engine_source(client, name), stack.enter_context(EngineView(client, name))  # type: ignore[return-value]
    needed = named or wish.require_base
    try:
        source = stack.enter_context(open_source(text, traffic, insecure=wish.insecure, impatient=not named))
        unknown = 0 if needed else _unknown(request, source, target)
    except UnreachableError as error:
        if needed:
            raise
        return f"{target.base.image} is not reachable: {error.message}"
    if unknown:
        once = f"reads up to {size(unknown)} once"
        return f"{target.base.image} was never indexed; graftwork lock {target.name} does it and {once}"
    return source, None


def _unknown(request: Request, source: Source, target: Target) -> int:
    """How many bytes of layers a scan of the base may read; 0 if its files are known."""
    from graftwork.images import base_facts
    from graftwork.oci.model import Platform

    base = base_facts.bare(source.base(Platform.parse(f"linux/{target.base.arch}")))
    wanted = base_facts.wanted_files(request.patches, request.engine)
    kept = [*request.kept, base_facts.cache_place(request.cache, base, target, wanted)]
    known = base_facts.is_kept(base, target, wanted, kept)
    return 0 if known else sum(layer.size for layer in base.manifest.layers)


def _payload_only(
    catalog: Catalog,
    request: Request,
    wish: Wish,
    key: PrivateKey | None,
    before: str | None,
    why: str,
    began: float,
    screen: Screen,
) -> dict[str, Any]:
    from graftwork.images import base_facts
    from graftwork.images.from_plan import payload_spec
    from graftwork.images.payload import build_payload
    from graftwork.images.prove import prove_layer
    from graftwork.patching import report
    from graftwork.patching.plan import plan

    target = request.target
    wanted = base_facts.wanted_files(request.patches, request.engine)
    facts = base_facts.locked(catalog.base_index_file(target.name), target, wanted)
    tree = base_facts.BaseTree(facts, request.wheel, None, None) if facts else request.wheel
    planned = plan(tree, request.patches, request.engine, target.optional)
    options.say_wheel(request.wheel, screen)
    report.show(planned, screen)
    refusal = planned.refusal()
    if refusal is not None:
        raise refusal
    payload = build_payload(payload_spec(target, planned, request.lock, facts), request.dist)
    prove_layer(payload.layout, target.name, payload.record).demand()
    same = _say_payload(payload, before, screen)
    said = attesting.payload_documents(catalog, payload, planned, wish, key, screen)
    pinned = target.base.pinned
    name = f"{pinned[:60]}... or a copy of it" if pinned else f"an image of {_kind(target)}"
    screen.step("base", f"none was grafted: {why}")
    screen.step("next", f"graftwork image {target.name} --base REF, where REF is {name}")
    screen.result(f"{payload.digest}  {target.name}  {time.monotonic() - began:.1f} s")
    return {**_document(payload), "unchanged": same, "base": None, "why": why, "documents": said}


def _kind(target: Target) -> str:
    """What a base must be, where none is pinned."""
    base = target.base
    return f"{target.engine} {target.version} for {target.accelerator}, linux/{base.arch} with Python {base.python}"


def _say_payload(payload: Payload, before: str | None, screen: Screen) -> bool:
    record = payload.record
    screen.step("layer", f"{len(record.files)} files, {size(payload.layer.size)}, {payload.layer.digest}")
    screen.step("proved", f"{len(record.files)} files, {len(record.markers)} markers, bytecode, record")
    if words := record.launch.words():
        screen.step("launch", f"must be run with {words}")
    same = before == payload.digest
    screen.step(
        "payload", f"{payload.layout} ({'unchanged' if same else 'new' if before is None else f'was {before}'})"
    )
    return same


def _document(payload: Payload) -> dict[str, Any]:
    from graftwork.images.record import plain

    return {
        "target": payload.record.target,
        "digest": payload.digest,
        "layer": payload.layer.digest,
        "layout": str(payload.layout),
        "record": plain(payload.record),
    }


def _graft(
    catalog: Catalog,
    request: Request,
    source: Source,
    view: MergedView | None,
    wish: Wish,
    key: PrivateKey | None,
    traffic: Traffic,
    began: float,
    screen: Screen,
) -> dict[str, Any]:
    from graftwork.cli.shipping import destinations, ship
    from graftwork.images.build import build, platforms_of
    from graftwork.patching import report

    target = request.target
    destinations(source, target, wish, request.dist)
    before = _digest(request.dist / target.name / "oci", target.name)
    platforms, left = platforms_of(source, target, wish.platforms)
    screen.step("base", f"{source.name}: {', '.join(map(str, platforms))}")
    if left:
        screen.warn(f"{source.name} also has {', '.join(left)}; not grafted (say --platform all)")
    done: list[Part] = []

    def say(part: Part) -> None:
        done.append(part)
        _say_part(part, before, screen)

    bundled = build(request, source, platforms, lambda plan: report.show(plan, screen), say, view)
    options.say_wheel(request.wheel, screen)
    attestor = attesting.Attestor(catalog, done, bundled, wish, key, screen)
    more = attestor if attestor.wanted else None
    shipped = ship(bundled, source, target, wish, traffic, request.dist, screen, more)
    said = attestor.write()
    screen.step(
        "moved",
        f"{size(traffic.bytes_in)} in, {size(traffic.bytes_out)} out, {traffic.requests} requests; "
        f"{shipped['base_bytes_copied']} base bytes copied",
    )
    screen.result(f"{bundled.top.digest}  {target.name}  {time.monotonic() - began:.1f} s")
    return {
        **_document(done[-1].payload),
        **shipped,
        "grafted": bundled.top.digest,
        "documents": said,
        **_graft_document(bundled, done, traffic),
    }


def _say_part(part: Part, before: str | None, screen: Screen) -> None:
    _say_payload(part.payload, before, screen)
    facts = part.facts
    scanned = f"{size(facts.moved)} of layers were read" if facts.how == "scanned" else f"facts from the {facts.how}"
    own = f"read from the base: {', '.join(part.own_files)}" if part.own_files else "every file equals the wheel's"
    screen.step("files", f"{scanned}; {own}")
    grafted = part.image.grafted
    old = "an older payload was replaced" if grafted.replaced else f"{len(part.image.base_layers)} base layers kept"
    screen.step("graft", f"{part.image.platform}: {old}, {grafted.manifest.family.name} {grafted.manifest.digest}")


def _graft_document(bundled: Bundle, done: Sequence[Part], traffic: Traffic) -> dict[str, Any]:
    return {
        "platforms": {str(part.image.platform): part.image.grafted.manifest.digest for part in done},
        "base": done[0].image.grafted.input_name,
        "base_digest": done[0].image.grafted.input_digest,
        "facts": [part.facts.how for part in done],
        "bytes_in": traffic.bytes_in,
        "bytes_out": traffic.bytes_out,
        "requests": traffic.requests,
    }


def _digest(layout: Path, name: str) -> str | None:
    """The digest of the payload that is there; one that cannot be read is as good as none, it will be replaced."""
    from graftwork.oci.layout import read_layout

    try:
        return read_layout(layout, name).descriptor.digest
    except GraftworkError:
        return None
