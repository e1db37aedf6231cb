"""A target and its plan as a payload, or as the record of a patched folder."""

from __future__ import annotations

import hashlib
import os

import msgspec

from graftwork.catalog.catalog import wheel_for
from graftwork.catalog.patches import Launch
from graftwork.catalog.targets import Lock, Target
from graftwork.errors import UsageError
from graftwork.images import record as records
from graftwork.images.base_facts import Facts
from graftwork.images.payload import PayloadFile, PayloadSpec, record_for
from graftwork.names import RelPath, target_name
from graftwork.patching.plan import FileChange, Plan
from graftwork.patching.states import State


def payload_spec(
    target: Target, plan: Plan, lock: Lock | None, facts: Facts | None = None, platform: str = ""
) -> PayloadSpec:
    """Everything that the payload of *target* is made of. With *facts*, modes and owners are the base's.

    *platform* is ``os/architecture[/variant]``, the target's base's if not given.
    """
    pin = wheel_for(target)
    vouched = {wheel.sha256: wheel.record_sha256 for wheel in lock.wheels} if lock else {}
    files = {RelPath(change.path): _file(change, facts) for change in plan.patched if change.new is not None}
    root = facts.index.root if facts else target.base.root
    launches = [*target.launch, *(launch for item in plan.patches for launch in item.patch.spec.launch)]
    return PayloadSpec(
        target=target_name(target.name),
        engine=records.Engine(target.engine, str(plan.engine.version), root),
        python=target.base.python,
        platform=platform or f"linux/{target.base.arch}",
        base=records.Base(target.base.image, target.base.digest),
        wheel=records.Wheel(pin.file, pin.sha256, vouched.get(pin.sha256, "")),
        files=files,
        patches=_patches(plan),
        markers=_markers(plan),
        epoch=_epoch(lock),
        launch=_launch(launches),
        env=target.env,
        labels=target.labels,
        bytecode=target.bytecode,
        folders=facts.folders(files) if facts else (),
    )


def _file(change: FileChange, facts: Facts | None) -> PayloadFile:
    """A patched file as the base has it; a new one is root's, 0644."""
    fact = facts.of(change.path) if facts else None
    return PayloadFile(
        change.new or b"",
        mode=fact.mode & 0o777 if fact else 0o644,
        pristine=_sha(change.pristine),
        patches=change.patches,
        uid=fact.uid if fact else 0,
        gid=fact.gid if fact else 0,
    )


def tree_record(target: Target, plan: Plan, lock: Lock | None, python: str | None = None) -> records.Record:
    """The record of a folder of Python *python* ("3.10"): no white-outs, since stale bytecode is removed there."""
    record = record_for(payload_spec(target, plan, lock), {})
    return msgspec.structs.replace(record, whiteouts=[], python=python or record.python)


def _patches(plan: Plan) -> tuple[records.Patch, ...]:
    return tuple(
        records.Patch(
            item.patch.id,
            item.patch.spec.revision,
            item.patch.spec.title,
            item.state.value if item.state in (State.OBSOLETE, State.NOT_NEEDED) else State.APPLIED.value,
            [upstream.ref for upstream in item.patch.spec.upstream],
            [change.path for change in plan.patched if item.patch.id in change.patches],
        )
        for item in plan.patches
    )


def _markers(plan: Plan) -> tuple[records.Marker, ...]:
    return tuple(
        records.Marker(item.patch.id, marker.file, marker.function, marker.kind, marker.value)
        for item in plan.patches
        if item.state in (State.PENDING, State.APPLIED)
        for marker, _ in item.markers
    )


def _launch(launches: list[Launch]) -> records.Launch:
    args: list[str] = []
    env: dict[str, str] = {}
    for launch in launches:
        args += [] if _holds(args, launch.args) else launch.args
        env |= launch.env
    return records.Launch(args, env)


def _holds(args: list[str], wanted: list[str]) -> bool:
    return any(args[i : i + len(wanted)] == wanted for i in range(len(args)))


def source_date_epoch() -> int | None:
    """SOURCE_DATE_EPOCH (reproducible-builds.org) in seconds, None if it is not set."""
    text = os.environ.get("SOURCE_DATE_EPOCH")
    if not text:
        return None
    if not text.isdecimal():
        raise UsageError(f"SOURCE_DATE_EPOCH is not a number of seconds: {text!r}")
    return int(text)


def _epoch(lock: Lock | None) -> int:
    found = source_date_epoch()
    return found if found is not None else lock.epoch if lock else 0


def _sha(data: bytes | None) -> str | None:
    return None if data is None else hashlib.sha256(data).hexdigest()
