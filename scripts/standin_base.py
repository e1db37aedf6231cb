"""Make a stand-in for a target's base image: Debian's Python, the pinned engine at its real path, and filler layers.

``standin_base.py TARGET --size 3GB --layers 8 --to oci:DIR:NAME`` (or ``HOST:PORT/…standin…:TAG`` for a registry on
this machine). For tests and benches: it is named and labelled as a stand-in. The same arguments, packages and zlib
give the same digest.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import cast, get_args

from standin.debian import CannotMake, add_root, choose_python, download
from standin.engine import add_engine, add_pycache, add_venv, compiled, unpack
from standin.image import Document, Family, Sink, assemble
from standin.layers import Blob, Compression, LayerWriter, make_filler, make_layer
from standin.sinks import Layout, LocalRegistry

from graftwork.catalog.catalog import Catalog
from graftwork.errors import GraftworkError

ROOT = Path(__file__).resolve().parent.parent
_UNITS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9}


@dataclass(frozen=True)
class Made:
    """The finished image: its top document, layers (lowest first) and the interpreter's minor version."""

    top: Document
    layers: list[Blob]
    python: str

    @property
    def size(self) -> int:
        return sum(blob.size for blob in self.layers)


def main() -> int:
    """Make it; print the reference, digest and size (with --json as a document)."""
    options = _options()
    began = time.monotonic()
    try:
        made = make(options, sink_of(options.to))
    except (CannotMake, GraftworkError, OSError) as error:
        sys.stderr.write(f"standin_base: {error}\n")
        return error.exit_code if isinstance(error, GraftworkError) else 2
    found = {
        "standin": options.to,
        "digest": made.top.digest,
        "bytes": made.size,
        "layers": len(made.layers),
        "python": made.python,
        "seconds": round(time.monotonic() - began, 1),
    }
    shown = json.dumps(found) if options.json else "  ".join(f"{key} {value}" for key, value in found.items())
    sys.stdout.write(shown + "\n")
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Make a stand-in base image, for tests and benches only.")
    parser.add_argument("target")
    parser.add_argument("--to", required=True, help="oci:DIR:NAME, or HOST:PORT/...standin...:TAG on loopback")
    parser.add_argument(
        "--size", type=size_of, default=0, help="total of the stored layers, such as 3GB (default: no filler)"
    )
    parser.add_argument("--layers", type=int, default=8, help="how many filler layers make up the size")
    parser.add_argument("--compression", choices=[*get_args(Compression), "mixed"], default="gzip")
    parser.add_argument("--family", choices=get_args(Family), default="oci", help="media types")
    parser.add_argument("--index", action="store_true", help="two platforms; the second is the first one marked arm64")
    parser.add_argument("--editable", choices=["pth", "finder"], default="pth", help="how the engine is installed")
    parser.add_argument(
        "--python-from", default="auto", metavar="auto|debian|PYTHON",
        help="Debian's interpreter or a copy of this host's; auto: the one with the target's minor version",
    )  # fmt: skip
    parser.add_argument("--packages", type=Path, help="folder that keeps the Debian packages between runs")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.layers < 1 or options.size < 0:
        parser.error("--layers must be at least 1")
    return options


def size_of(text: str) -> int:
    """Bytes from such as 500MB, 3G, 1.5GB (decimal units)."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([kMG]?)B?", text)
    if not found:
        raise argparse.ArgumentTypeError(f"not a size: {text}")
    return int(float(found[1]) * _UNITS[found[2]])


def sink_of(text: str) -> Sink:
    """The place that *text* names; CannotMake if a stand-in may not go there."""
    if text.startswith("oci:"):
        folder, _, name = text.removeprefix("oci:").rpartition(":")
        if not folder or not name:
            raise CannotMake(f"name the layout oci:DIR:NAME, not {text}")
        return Layout(Path(folder), name)
    return LocalRegistry(text)


def make(options: argparse.Namespace, sink: Sink) -> Made:
    """Write every layer to disk and hand it to *sink* at once, so that disk space is needed for one at a time."""
    catalog = Catalog.find(ROOT)
    target = catalog.target(options.target)
    epoch = catalog.lock(target).epoch
    python = choose_python(target.base.python, options.python_from)
    place = sink.folder.resolve().parent if isinstance(sink, Layout) else None
    with tempfile.TemporaryDirectory(prefix="standin-", dir=place) as name:
        work = Path(name)
        packages = download(python, options.packages or work / "packages")
        source = work / "wheel"
        unpack(catalog, target, source)
        pycache = compiled(catalog, target, python, packages, source, work)
        compressions = cycle(("gzip", "zstd", "none") if options.compression == "mixed" else (options.compression,))

        def layer(created_by: str, fill: Callable[[LayerWriter], None]) -> Blob:
            blob = make_layer(work / "layer", created_by, cast(Compression, next(compressions)), epoch, fill)
            sink.layer(blob)
            return blob

        bottom = layer("Debian packages", lambda to: add_root(to, python, packages))
        top = [
            layer("RUN python -m venv /opt/venv", lambda to: add_venv(to, target, python, options.editable)),
            layer(f"COPY {target.engine}", lambda to: add_engine(to, target, source)),
            layer("RUN a first start", lambda to: add_pycache(to, target, pycache)),
            layer("RUN rm -r build", _leftovers),
        ]
        left = options.size - sum(blob.size for blob in (bottom, *top))
        filler = []
        for number, size in enumerate(_shares(left, options.layers)):
            compression = cast(Compression, next(compressions))
            filler.append(make_filler(work / "layer", number, size, compression, epoch, options.seed))
            sink.layer(filler[-1])
    layers = [bottom, *filler, *top]
    platforms = ["linux/amd64", "linux/arm64"] if options.index else ["linux/amd64"]
    return Made(assemble(sink, layers, target, python, epoch, options.family, platforms), layers, python.minor)


def _shares(total: int, count: int) -> list[int]:
    """*total* in *count* parts, each half of the one before, as an engine's image has one layer of most bytes."""
    if total <= 0:
        return []
    whole = sum(2.0**-number for number in range(count))
    return [int(total * 2.0**-number / whole) for number in range(count)]


def _leftovers(layer: LayerWriter) -> None:
    """A small last layer: a white-out, an opaque folder and a note."""
    for folder in ("etc", "opt", "opt/standin"):
        layer.folder(folder)
    layer.file("opt/.wh.build", b"")
    layer.file(
        "opt/standin/README", b"This image is a stand-in for tests and benches. It is not an engine's real base.\n"
    )
    layer.folder("var")
    layer.folder("var/cache")
    layer.file("var/cache/.wh..wh..opq", b"")


if __name__ == "__main__":
    sys.exit(main())
