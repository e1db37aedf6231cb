"""Docker Engines that keep their images in containerd: what they tell, and loading an image into one.

Such an engine unpacks layers from its own content store, where those of a base that it pulled are as they came. It
takes an archive in the form of an OCI layout without them, and no docker-archive without them.
"""

from __future__ import annotations

import io
import tarfile
from typing import IO, TYPE_CHECKING, Any

from graftwork.errors import UsageError
from graftwork.oci.canonical import canonical_json
from graftwork.oci.families import OCI
from graftwork.oci.model import REF_NAME, sha256_digest
from graftwork.oci.reference import ImageRef

if TYPE_CHECKING:
    import docker

    from graftwork.images.ship import Image

_NAME = "io.containerd.image.name"


def keeps(client: docker.DockerClient) -> bool:
    """Whether the engine keeps its images in containerd."""
    status: list[Any] = client.api.info().get("DriverStatus") or []
    return ["driver-type", "io.containerd.snapshotter.v1"] in status


def refuse_base(client: docker.DockerClient, name: str) -> None:
    """UsageError for an image that such an engine holds: a layer goes on its manifest, and no API gives that."""
    if not keeps(client):
        return
    known = client.api.inspect_image(name).get("RepoDigests") or []
    elsewhere = f"--base {known[0]}, its name in the registry, or " if known else ""
    raise UsageError(
        f"docker:{name}: this engine keeps its images in containerd and does not tell their manifests",
        hint=f"say {elsewhere}docker save it and say --base docker-archive:FILE; --to docker:NAME stays possible",
    )


def write_archive(out: IO[bytes], name: str, image: Image) -> None:
    """The image as a tar of an OCI layout under *name*, with the payload's layer and no other."""
    grafted = image.grafted
    ref = ImageRef.parse(name)
    notes = {_NAME: str(ref), REF_NAME: ref.tag or ""}
    row: dict[str, Any] = {"mediaType": grafted.manifest.media_type, "digest": grafted.manifest.digest}
    row |= {"size": len(grafted.manifest.raw), "annotations": notes}
    index = {"schemaVersion": 2, "mediaType": OCI.index, "manifests": [row]}
    with tarfile.open(fileobj=out, mode="w|", format=tarfile.PAX_FORMAT) as tar:
        for data in (image.blob, grafted.config.raw, grafted.manifest.raw):
            _add(tar, f"blobs/sha256/{sha256_digest(data).partition(':')[2]}", data)
        _add(tar, "index.json", canonical_json(index))
        _add(tar, "oci-layout", canonical_json({"imageLayoutVersion": "1.0.0"}))


def _add(tar: tarfile.TarFile, path: str, data: bytes) -> None:
    info = tarfile.TarInfo(path)
    info.size = len(data)
    tar.addfile(info, io.BytesIO(data))
