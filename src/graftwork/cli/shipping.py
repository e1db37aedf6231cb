"""Destinations of a grafted image: ``oci:DIR[:TAG]``, ``docker-archive:FILE``, ``docker:NAME``, or a registry."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graftwork.catalog.targets import Target
from graftwork.errors import UsageError
from graftwork.ui import Screen, size

if TYPE_CHECKING:
    from graftwork.cli.wish import Wish
    from graftwork.images.ship import Attachments, Bundle
    from graftwork.images.sources import Source
    from graftwork.oci.reference import ImageRef
    from graftwork.oci.traffic import Traffic


def ship(
    bundled: Bundle,
    source: Source,
    target: Target,
    wish: Wish,
    traffic: Traffic,
    dist: Path,
    screen: Screen,
    more: Attachments | None = None,
) -> dict[str, Any]:
    """Send the image to every destination; ``dist/TARGET/image`` if none is named. Returns what was written where.

    *more* is attached in each registry, before the tag is written.
    """
    where: list[dict[str, Any]] = []
    for text in destinations(source, target, wish, dist):
        kind, _, rest = text.partition(":")
        if kind == "oci" and rest:
            where.append(_to_layout(bundled, source, rest, target.name, wish.full, screen))
        elif kind == "docker-archive" and rest:
            where.append(_to_archive(bundled, source, Path(rest), target.name, screen))
        elif kind == "docker" and rest:
            where.append(_to_engine(bundled, rest, screen))
        else:
            where.append(_to_registry(bundled, source, text, wish, traffic, screen, more))
    return {"written": where, "base_bytes_copied": sum(item["base_bytes"] for item in where)}


def destinations(source: Source, target: Target, wish: Wish, dist: Path) -> Sequence[str]:
    """Where the image goes; UsageError, before anything is built, for what the source cannot give."""
    for text in wish.to:
        if text.partition(":")[0] not in ("oci", "docker", "docker-archive"):
            _reference(text)
    if source.layers:
        return wish.to or [f"oci:{dist / target.name / 'image'}:{target.name}"]
    for text in wish.to:
        if not text.startswith("docker:"):
            raise UsageError(
                f"--to {text}: {source.name} is in an engine, which gives no layers, so the image stays in the engine",
                hint="say --to docker:NAME, or name the base by its registry, oci: or docker-archive:",
            )
    return wish.to or [f"docker:{target.name}"]


def _one(bundled: Bundle, kind: str) -> Any:
    if len(bundled.images) != 1:
        raise UsageError(f"a {kind} holds one platform, this image has {len(bundled.images)}", hint="say --platform")
    return bundled.images[0]


def _to_layout(bundled: Bundle, source: Source, text: str, name: str, full: bool, screen: Screen) -> dict[str, Any]:
    from graftwork.images.ship import write_layout
    from graftwork.images.sources import split_layout

    folder, tag = split_layout(text)
    copied = write_layout(bundled, folder, tag or name, source.blobs if full else None)
    how = f"full, {size(copied)} of base layers" if full else "sparse: base layers are named, not held"
    screen.step("wrote", f"oci:{folder}:{tag or name} ({how})")
    return {"to": f"oci:{folder}:{tag or name}", "base_bytes": copied}


def _to_archive(bundled: Bundle, source: Source, file: Path, name: str, screen: Screen) -> dict[str, Any]:
    from graftwork.images.docker_archive import save_archive

    image = _one(bundled, "docker-archive")
    grafted = image.grafted
    own = {grafted.config.data["rootfs"]["diff_ids"][-1]: image.tar}
    copied = save_archive(file, f"{name}:latest", grafted.manifest, grafted.config, own, source.blobs)
    screen.step("wrote", f"docker-archive:{file} ({size(copied)} of base layers)")
    return {"to": f"docker-archive:{file}", "base_bytes": copied}


def _to_engine(bundled: Bundle, name: str, screen: Screen) -> dict[str, Any]:
    from graftwork.images.engine import connected, load

    image = _one(bundled, "Docker Engine")
    tagged = name if ":" in name.rpartition("/")[2] else f"{name}:latest"
    with connected() as client:
        identity = load(client, image, tagged)
    screen.step("loaded", f"docker:{tagged} {identity} (only the payload was sent)")
    return {"to": f"docker:{tagged}", "id": identity, "base_bytes": 0}


def _reference(text: str) -> ImageRef:
    from graftwork.oci.reference import ImageRef

    ref = ImageRef.parse(text)
    if ref.tag is None or ref.digest is not None:
        raise UsageError(f"--to {text}: a push needs a tag, not a digest")
    return ref


def _to_registry(
    bundled: Bundle, source: Source, text: str, wish: Wish, traffic: Traffic, screen: Screen, more: Attachments | None
) -> dict[str, Any]:
    from graftwork.images.ship import push
    from graftwork.oci.registry import Registry
    from graftwork.oci.transport import Transport

    ref = _reference(text)
    if source.registry is not None and source.registry.host == ref.registry:
        done = push(bundled, source, source.registry, ref, copy_limit=wish.max_bytes, more=more)
    else:
        with Registry(Transport(ref.registry, traffic=traffic, insecure=wish.insecure)) as registry:
            done = push(bundled, source, registry, ref, copy_limit=wish.max_bytes, more=more)
    layers = f"{done.mounted} base layers mounted, {done.present} there, {done.copied} copied"
    screen.step("pushed", f"{ref} ({layers})")
    return {"to": str(ref), "mounted": done.mounted, "present": done.present, "base_bytes": done.copied_bytes}
