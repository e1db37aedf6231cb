"""What an image holds, as a CycloneDX 1.6 document: above all the patches, in ``pedigree.patches`` of the engine.

Source: CycloneDX 1.6 JSON schema (ECMA-424), ``patch.type``, ``issue``, ``compositions``; purl-spec types oci and pypi.
"""

from __future__ import annotations

import functools
import hashlib
import json
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from graftwork.catalog.patches import PatchFile, Upstream
from graftwork.catalog.seen import Seen
from graftwork.errors import GraftworkError
from graftwork.images.provenance import NAMESPACE, base_uri, engine_uri, image_uri, utc, wheel_uri
from graftwork.images.record import Base, Patch, Record, render_record
from graftwork.oci.canonical import readable_json
from graftwork.oci.model import Descriptor
from graftwork.patching.memo import digest_of, recalled
from graftwork.patching.plan import Plan
from graftwork.patching.report import file_diff

if TYPE_CHECKING:
    from cyclonedx.model.bom import Bom
    from cyclonedx.model.component import Component
    from cyclonedx.model.component import Patch as BomPatch

MEDIA_TYPE = "application/vnd.cyclonedx+json"
DIFF = "text/x-diff"
PREFIX = "graftwork:"

# What a reader of `resolves` wants: precedents, collisions and background say nothing about this defect.
_ABOUT = ("own", "same-fix", "same-class", "superseding")


def sbom(
    record: Record,
    image: Descriptor,
    patches: Sequence[PatchFile],
    diffs: Mapping[str, str],
    *,
    base: Base | None,
    name: str = "",
    seen: Mapping[str, Seen] | None = None,
) -> bytes:
    """The SBOM of *image*, a manifest of one platform, as JSON in one form; a function of its arguments alone.

    *patches* are the catalog's, *diffs* the unified diff that each patch in the image is, by its id (``patch_diffs``).
    *base* is what was grafted on (None: a bare payload), *name* the reference that the image is pushed as, *seen* what
    was seen of upstream's issues and pull requests, by reference.
    """
    from cyclonedx.output import make_outputter
    from cyclonedx.schema import OutputFormat, SchemaVersion

    bom = _bom(record, image, patches, diffs, base, name, seen or {})
    text = make_outputter(bom, OutputFormat.JSON, SchemaVersion.V1_6).output_as_string()
    document: dict[str, Any] = json.loads(text)
    # The library has no compositions yet. This one says that what the base holds is not listed.
    listed = ["base", "engine", "image"] if base else ["engine", "image"]
    _in_order(document, [row.id for row in record.patches])
    document["compositions"] = [{"aggregate": "incomplete", "assemblies": listed}]
    return readable_json(document)


def remembered(record: Record, image: Descriptor, plan: Plan, *, base: Base | None, name: str) -> bytes:
    """The same for what *plan* made, from the cache where it was made before; under another *name* it is still that.

    The library takes most of the time of a push that has nothing else to do.
    """
    specs = [item.patch.spec for item in plan.patches]
    seen = {row.ref: row for item in plan.patches for row in item.patch.upstream.refs}
    texts: list[bytes | None] = []
    for item in plan.pending:
        assert item.after is not None, "a pending patch has its result"
        for path, new in sorted(item.after.changed.items()):
            texts += [item.patch.id.encode(), path.encode(), item.after.original(path), new]
    found = recalled(
        (record, image, specs, base, sorted(seen.items())),
        texts,
        bytes,
        lambda: sbom(record, image, specs, patch_diffs(plan), base=base, seen=seen),
        among="sboms",
        code=_code,
    )
    return named(found, record, image, name) if name else found


def named(document: bytes, record: Record, image: Descriptor, name: str) -> bytes:
    """*document*, made of an image without a name, as it is for one that is pushed as *name*."""
    found = json.loads(document)
    uri = image_uri(name, image.digest, record.platform, fallback=record.target)
    title = uri.partition("@")[0].rpartition("/")[2]
    found["metadata"]["component"] |= {"name": unquote(title), "purl": uri}
    return readable_json(found)


@functools.cache
def _code() -> bytes:
    """What an SBOM follows from besides its questions: these modules, and the libraries that write it."""
    here = Path(__file__).parent
    folders = [here, here.parent / "patching", here.parent / "oci", here.parent / "catalog"]
    return digest_of(folders, "cyclonedx-python-lib", "py-serializable", "packageurl-python")


def patch_diffs(plan: Plan) -> dict[str, str]:
    """Patch id -> its own unified diff, on top of the patches before it; of each patch that *plan* applies.

    Made for a plan on pristine files, as every image's is: a patch that is in the tree already has no diff here.
    """
    found: dict[str, str] = {}
    now: dict[str, bytes | None] = {}
    for item in plan.pending:
        assert item.after is not None, "a pending patch has its result"
        parts = []
        for path, new in sorted(item.after.changed.items()):
            old = now[path] if path in now else item.after.original(path)
            if old != new:
                parts.append(file_diff(path, old, new))
        found[item.patch.id] = "".join(parts)
        now |= item.after.changed
    return found


def patch_type(spec: PatchFile, seen: Mapping[str, Seen]) -> str:
    """CycloneDX's word for the patch: ``backport`` if our own change was merged upstream, else ``unofficial``.

    Never ``monkey``: files are changed, not a running program. Never ``cherry-pick``: no upstream commit is taken over.
    """
    own = [seen.get(row.ref) for row in spec.upstream if row.relation == "own" and row.kind == "pull"]
    return "backport" if any(row and row.state == "merged" for row in own) else "unofficial"


def upstream_url(row: Upstream) -> str:
    """The page of an upstream issue or pull request."""
    repository, _, number = row.ref.partition("#")
    return f"https://github.com/{repository}/{'pull' if row.kind == 'pull' else 'issues'}/{number}"


def _bom(
    record: Record,
    image: Descriptor,
    patches: Sequence[PatchFile],
    diffs: Mapping[str, str],
    base: Base | None,
    name: str,
    seen: Mapping[str, Seen],
) -> Bom:
    from cyclonedx.model.bom import Bom, BomMetaData
    from cyclonedx.model.component import Component, ComponentType
    from cyclonedx.model.tool import ToolRepository

    maker = Component(name="graftwork", version=record.graftwork, type=ComponentType.APPLICATION, bom_ref="tool")
    whole = _image(record, image, base, name)
    engine = _engine(record, patches, diffs, seen)
    parts = [engine]
    if base:
        below = _container("base", base_uri(base, record.platform), base.digest)
        parts.append(below)
    bom = Bom(
        serial_number=uuid.uuid5(NAMESPACE, f"sbom {image.digest}"),
        metadata=BomMetaData(component=whole, timestamp=utc(record.epoch), tools=ToolRepository(components=[maker])),
        components=parts,
    )
    bom.register_dependency(whole, parts)
    return bom


def _in_order(document: dict[str, Any], ids: Sequence[str]) -> None:
    """Put the patches in the order in which they were applied, so that their diffs apply one after the other."""
    engine = next(item for item in document["components"] if item["bom-ref"] == "engine")
    patches = engine["pedigree"].get("patches", [])
    patches.sort(key=lambda patch: next(ids.index(issue["id"]) for issue in patch["resolves"] if issue["id"] in ids))


def _image(record: Record, image: Descriptor, base: Base | None, name: str) -> Component:
    """The image itself, with the state of every patch of the target: also of those that are not in it."""
    uri = image_uri(name, image.digest, record.platform, fallback=record.target)
    facts = {
        "target": record.target,
        "platform": record.platform,
        "payload": "grafted" if base else "bare",
        "record.path": f"/{record.path}",
        "record.sha256": hashlib.sha256(render_record(record)).hexdigest(),
    }
    rows = [(f"patch:{row.id}:{key}", value) for row in record.patches for key, value in _state(row)]
    return _container("image", uri, image.digest, [*facts.items(), *rows])


def _state(row: Patch) -> Iterator[tuple[str, str]]:
    yield from (("state", row.state), ("revision", row.revision), ("title", row.title))


def _container(ref: str, uri: str, digest: str, properties: Iterable[tuple[str, str]] = ()) -> Component:
    from cyclonedx.model.component import Component, ComponentType
    from packageurl import PackageURL

    purl = PackageURL.from_string(uri)
    return Component(
        name=purl.name,
        version=digest,
        type=ComponentType.CONTAINER,
        bom_ref=ref,
        purl=purl,
        hashes=_sha256(digest.partition(":")[2]),
        properties=_properties(properties),
    )


def _engine(
    record: Record, patches: Sequence[PatchFile], diffs: Mapping[str, str], seen: Mapping[str, Seen]
) -> Component:
    """The engine as it is in the image: the wheel is its ancestor, so the wheel's hash is there and not here."""
    from cyclonedx.model.component import Component, ComponentType, Pedigree
    from packageurl import PackageURL

    wheel = Component(
        name=record.engine.name,
        version=record.engine.version,
        bom_ref="wheel",
        purl=PackageURL.from_string(wheel_uri(record)),
        hashes=_sha256(record.wheel.sha256),
        properties=_properties([("record.sha256", record.wheel.record_sha256)] if record.wheel.record_sha256 else []),
    )
    specs = {spec.id: spec for spec in patches}
    made = [_patch(row, specs, diffs, seen) for row in record.patches if row.files]
    rows = [(f"patch:{spec.id}:upstream", _seen(row, seen)) for spec in patches for row in spec.upstream]
    notes = "Files that differ from the wheel are listed; all others are as the base image has them."
    return Component(
        name=record.engine.name,
        version=record.engine.version,
        type=ComponentType.FRAMEWORK,
        bom_ref="engine",
        purl=PackageURL.from_string(engine_uri(record)),
        pedigree=Pedigree(ancestors=[wheel], patches=made, notes=notes),
        components=list(_files(record)),
        properties=_properties([("root", record.engine.root), *rows]),
    )


def _patch(row: Patch, specs: Mapping[str, PatchFile], diffs: Mapping[str, str], seen: Mapping[str, Seen]) -> BomPatch:
    from cyclonedx.model import AttachedText, XsUri
    from cyclonedx.model.component import Diff, PatchClassification
    from cyclonedx.model.component import Patch as BomPatch
    from cyclonedx.model.issue import IssueClassification, IssueType, IssueTypeSource

    if row.id not in specs or not diffs.get(row.id):
        missing = "diff" if row.id in specs else "catalog entry"
        raise GraftworkError(f"{row.id} is in the image, but its {missing} is not given")
    spec = specs[row.id]
    links = [link for link in spec.upstream if link.relation in _ABOUT]
    ours = IssueType(
        type=IssueClassification.DEFECT,
        id=spec.id,
        name=spec.title,
        description=spec.symptom,
        source=IssueTypeSource(name="graftwork patch catalog"),
        references=[XsUri(upstream_url(link)) for link in links],
    )
    theirs = [
        IssueType(
            type=IssueClassification.DEFECT,
            id=link.ref,
            source=IssueTypeSource(name=link.ref.partition("#")[0], url=XsUri(upstream_url(link))),
        )
        for link in links
        if link.kind == "issue" and link.relation in ("own", "same-fix")
    ]
    text = AttachedText(content=diffs[row.id], content_type=DIFF)
    return BomPatch(type=PatchClassification(patch_type(spec, seen)), diff=Diff(text=text), resolves=[ours, *theirs])


def _files(record: Record) -> Iterator[Component]:
    """Every file of the layer that belongs to the engine; a patched one has its pristine form as ancestor."""
    from cyclonedx.model.component import Pedigree

    root = record.engine.root.rstrip("/")
    for file in record.files:
        old = [] if file.pristine is None else [_file(f"pristine:{file.path}", file.path, file.pristine)]
        properties = [("patch", patch) for patch in file.patches]
        kind = "patched" if old else "new"
        made = _file(f"file:{file.path}", f"{root}/{file.path}", file.sha256, [("file", kind), *properties])
        made.pedigree = Pedigree(ancestors=old) if old else None
        yield made
    for pyc in record.bytecode_files:
        yield _file(f"file:{pyc.path}", f"{root}/{pyc.path}", pyc.sha256, [("file", "bytecode")])


def _file(ref: str, path: str, sha256: str, properties: Iterable[tuple[str, str]] = ()) -> Component:
    from cyclonedx.model.component import Component, ComponentType

    return Component(
        name=path, type=ComponentType.FILE, bom_ref=ref, hashes=_sha256(sha256), properties=_properties(properties)
    )


def _sha256(value: str) -> list[Any]:
    from cyclonedx.model import HashAlgorithm, HashType

    return [HashType(alg=HashAlgorithm.SHA_256, content=value)]


def _properties(pairs: Iterable[tuple[str, str]]) -> list[Any]:
    from cyclonedx.model import Property

    return [Property(name=PREFIX + name, value=value) for name, value in pairs]


def _seen(link: Upstream, seen: Mapping[str, Seen]) -> str:
    row = seen.get(link.ref)
    state = f"{row.state} as of {row.as_of}" if row else "not looked at"
    return f"{link.relation} {link.kind} {link.ref} {state}"
