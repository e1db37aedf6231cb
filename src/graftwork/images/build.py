"""One build: facts of the base, plan on its files, payload, graft; the same steps for every source and destination."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from graftwork.catalog.catalog import Patch
from graftwork.catalog.targets import Lock, Target
from graftwork.errors import UsageError
from graftwork.images import base_facts
from graftwork.images.base_facts import Facts
from graftwork.images.from_plan import payload_spec, source_date_epoch
from graftwork.images.graft import Addition, graft
from graftwork.images.payload import Payload, build_payload
from graftwork.images.prove import prove_layer
from graftwork.images.ship import Bundle, Image, bundle
from graftwork.images.sources import Source
from graftwork.oci.model import Platform
from graftwork.patching.assess import Engine
from graftwork.patching.plan import Plan, plan

if TYPE_CHECKING:
    from graftwork.trees.merged import MergedView
    from graftwork.trees.tree import Tree


@dataclass(frozen=True)
class Request:
    """What is to be built, and with what."""

    target: Target
    patches: Sequence[Patch]
    lock: Lock
    engine: Engine
    wheel: Tree
    dist: Path
    kept: Sequence[Path]
    cache: Path
    created: str | None = None


@dataclass(frozen=True)
class Part:
    """One platform's build."""

    facts: Facts
    plan: Plan
    payload: Payload
    image: Image
    own_files: Sequence[str]


def platforms_of(source: Source, target: Target, asked: Sequence[str]) -> tuple[list[Platform], list[str]]:
    """(platforms to graft, platforms of the index that are left out). None asked: the target's own."""
    own = f"linux/{target.base.arch}"
    if not source.top.is_index:
        if asked and list(asked) not in ([own], ["all"]):
            raise UsageError(f"{source.name} is an image of one platform; asked for {', '.join(asked)}")
        return [Platform.parse(own)], []
    known = list(source.platforms())
    chosen = known if list(asked) == ["all"] else list(asked) or [_match(own, known, source.name)]
    for name in chosen:
        if name not in known:
            raise UsageError(f"{source.name} has no {name}; it has: {', '.join(known)}")
    return [Platform.parse(name) for name in chosen], [name for name in known if name not in chosen]


def _match(own: str, known: Sequence[str], name: str) -> str:
    """``linux/arm64`` is also what an index calls ``linux/arm64/v8``."""
    found = [item for item in known if item == own or item.startswith(f"{own}/")]
    if len(found) != 1:
        raise UsageError(f"{name} has {', '.join(known)}; which of them is the target's {own}? Say --platform")
    return found[0]


def build(
    request: Request,
    source: Source,
    platforms: Sequence[Platform],
    show: Callable[[Plan], None],
    report: Callable[[Part], None],
    view: MergedView | None = None,
) -> Bundle:
    """Build and graft every platform. Raises what the plan refuses, after *show*; nothing was shipped then."""
    parts = []
    for platform in platforms:
        part = _build_one(request, source, platform, show, view)
        report(part)
        parts.append(part)
    index = source.top if source.top.is_index else None
    return bundle([part.image for part in parts], index)


def _build_one(
    request: Request, source: Source, platform: Platform, show: Callable[[Plan], None], view: MergedView | None
) -> Part:
    base = source.base(platform)
    bare = base_facts.bare(base)
    target = request.target
    wanted = base_facts.wanted_files(request.patches, request.engine)
    kept = [*request.kept, base_facts.cache_place(request.cache, bare, target, wanted)]
    if view is not None and len(bare.manifest.layers) != len(base.manifest.layers):
        raise UsageError(f"{base.name} carries a payload, which an engine cannot take out", hint="graft onto its base")
    facts = base_facts.facts_of(bare, source, target, wanted, kept=kept, view=view)
    tree = base_facts.BaseTree(facts, request.wheel, source, view)
    planned = plan(tree, request.patches, request.engine, target.optional)
    show(planned)
    refusal = planned.refusal()
    if refusal is not None:
        raise refusal
    spec = payload_spec(target, planned, request.lock, facts, str(base.platform))
    own = (base.platform.os, base.platform.architecture) == ("linux", target.base.arch)
    place = request.dist if own else request.dist / "platforms" / str(base.platform).replace("/", "-")
    payload = build_payload(spec, place)
    prove_layer(payload.layout, target.name, payload.record).demand()
    done = graft(base, addition_of(payload, request.created))
    image = Image(base.platform, done, payload.layer.blob, gzip.decompress(payload.layer.blob))
    return Part(facts, planned, payload, image, list(tree.own))


def addition_of(payload: Payload, created: str | None) -> Addition:
    """What the payload's own configuration says, as an addition to another image's."""
    run = payload.config.config
    return Addition(
        digest=payload.layer.digest,
        diff_id=payload.layer.diff_id,
        size=payload.layer.size,
        env=dict(line.partition("=")[::2] for line in run.env),
        labels=run.labels,
        history=[msgspec.to_builtins(item) for item in payload.config.history],
        created=created,
    )


def created_time() -> str | None:
    """SOURCE_DATE_EPOCH as an image's time; None (the base's time stays) if it is not set."""
    epoch = source_date_epoch()
    return None if epoch is None else datetime.fromtimestamp(epoch, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
