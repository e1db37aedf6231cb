"""A built payload as mounts: its files one by one, and an empty folder over the bytecode of the base beside them."""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from graftwork.errors import UsageError

FOLDER = "usr/share/graftwork"


@dataclass(frozen=True)
class PayloadFiles:
    """*files* are absolute paths in the image, ``record`` and ``check.py`` left out; *layer* is the layer's tar."""

    files: tuple[str, ...]
    layer: bytes

    @classmethod
    def read(cls, layout: Path, target: str) -> PayloadFiles:
        """The payload in an OCI *layout* that ``graftwork image`` wrote. UsageError if there is none."""
        import msgspec

        from graftwork.errors import GraftworkError
        from graftwork.images.record import Record
        from graftwork.oci.layout import read_layout

        try:
            image = read_layout(layout, target)
            (layer,) = image.manifest.layers
            packed = image.blob(layer)
            record = msgspec.json.decode((layout.parent / "record.json").read_bytes(), type=Record)
        except (GraftworkError, OSError, ValueError) as error:
            raise UsageError(
                f"{layout}: no payload of {target}: {error}", hint=f"run: graftwork image {target}"
            ) from None
        root = PurePosixPath(record.engine.root)
        return cls(tuple(str(root / file.path) for file in record.files), gzip.decompress(packed))

    @property
    def bytecode_folders(self) -> list[str]:
        """The folders whose bytecode must not be the base's."""
        return sorted({f"{PurePosixPath(file).parent}/__pycache__" for file in self.files if file.endswith(".py")})

    def compressed(self) -> bytes:
        """The layer, small, for a config map."""
        return gzip.compress(self.layer, 9, mtime=0)
