"""Where the bytes of blobs come from: a registry, a layout, an archive, an engine; all look like this."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Protocol

from graftwork import names
from graftwork.errors import MissingFile, PinError, TreeError, UsageError


class ByteStream(Protocol):
    """Bytes from first to last; a context manager, as it may hold a file or a connection."""

    def read(self, size: int = -1, /) -> bytes:
        """At most *size* bytes; empty at the end only."""

    def close(self) -> None:
        """Give up what is behind it; it may be unread."""

    def __enter__(self) -> ByteStream:
        """Itself."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        """Close."""


class Blobs(Protocol):
    """Blobs by digest. A source does not vouch for the bytes: whoever reads them checks size and sha256."""

    @property
    def origin(self) -> str:
        """Where the blobs come from, for messages; redacted."""

    def open(self, digest: str, size: int) -> ByteStream:
        """The whole blob from its start. Raises MissingFile, TreeError, UnreachableError."""

    def range(self, digest: str, start: int, end: int) -> bytes:
        """Bytes *start* to *end* (exclusive) of the blob; fewer only where the blob ends."""


class LayoutBlobs:
    """The blobs of an OCI image layout on disk, which may be sparse: an absent blob is a MissingFile."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.origin = str(folder)

    def open(self, digest: str, size: int) -> ByteStream:
        """See ``Blobs.open``. PinError at once if the file has another size than *size* bytes."""
        path = self._path(digest)
        try:
            file = path.open("rb")
        except FileNotFoundError as error:
            raise self._missing(digest) from error
        except OSError as error:
            raise TreeError(f"cannot read {path}: {error.strerror}") from error
        found = path.stat().st_size
        if found != size:
            file.close()
            raise PinError(f"blob {digest} of {self.origin} has {found} bytes, its descriptor says {size}")
        return file

    def range(self, digest: str, start: int, end: int) -> bytes:
        """See ``Blobs.range``."""
        path = self._path(digest)
        try:
            with path.open("rb") as file:
                file.seek(start)
                return file.read(max(end - start, 0))
        except FileNotFoundError as error:
            raise self._missing(digest) from error
        except OSError as error:
            raise TreeError(f"cannot read {path}: {error.strerror}") from error

    def _path(self, digest: str) -> Path:
        try:
            checked = names.digest(digest)
        except ValueError as error:
            raise UsageError(f"{self.origin}: {error}") from error
        return self.folder / "blobs" / "sha256" / checked.partition(":")[2]

    def _missing(self, digest: str) -> MissingFile:
        return MissingFile(
            f"{self.origin} lacks the blob {digest}",
            hint="The layout is sparse. Name the registry that holds the image, or make a full layout.",
        )
