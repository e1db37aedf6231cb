"""The peers' ways to put a small layer on a large base in a registry, measured as whole processes.

``python bench/graft_peers.py [--sizes 1 3 10] [--peers skopeo-umoci buildah docker-pull docker-held] [--out FILE]``.
Needs root and the programs of scripts/install-services. Bases are stand-ins (scripts/standin_base.py) in a registry
of this machine; each way reaches it through a door that counts bytes. Peers are given the payload's files only: they
are spared the removal of stale bytecode, except umoci, which takes the layer as it is; and they are spared to make
them, but for one way of docker's, where that is known (`Payload.make`).
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "bench")]

from counting import Counter, counting  # noqa: E402
from meter import Result, Steps, Way, measure  # noqa: E402
from services import Engine, Registry, Unavailable, engine, program, registry, unmount_below  # noqa: E402

from graftwork.oci.layout import read_layout  # noqa: E402

REPOSITORY = "standin/sglang"


@dataclass(frozen=True)
class Payload:
    """A payload image: its layer as an uncompressed tar, and that tar without white-outs; what makes it, if known."""

    layer: Path
    files: Path
    make: Callable[[Steps], None] | None = None

    @classmethod
    def of(cls, layout: Path, name: str, folder: Path) -> Payload:
        """From the image *name* of an OCI layout with one gzip layer, into *folder*."""
        image = read_layout(layout, name)
        found = cls(folder / "layer.tar", folder / "files.tar")
        found.layer.write_bytes(gzip.decompress(image.blob(image.manifest.layers[0])))
        with tarfile.open(found.layer) as whole, tarfile.open(found.files, "w") as files:
            for member in whole:
                if "/.wh." not in member.name:
                    files.addfile(member, whole.extractfile(member) if member.isreg() else None)
        return found


@dataclass(frozen=True)
class Bench:
    """A registry that holds a base of *size* bytes under *base*, which clients see through *door*."""

    registry: Registry
    door: Counter
    folder: Path
    digest: str
    size: int
    timeout: float

    @property
    def base(self) -> str:
        return f"{self.door.host}/{REPOSITORY}:base"

    def result(self, tag: str) -> str:
        """The reference to push a result to."""
        return f"{self.door.host}/{REPOSITORY}:{tag}"

    def measure(self, name: str, way: Way, *, daemons: Sequence[int] = (), folder: Path | None = None) -> Result:
        """What *way* costs, with a folder, home and temporary folder of its own that are removed afterwards."""
        with self._place(folder) as place:
            home = place / "home"
            home.mkdir(exist_ok=True)
            own = {"HOME": str(home), "TMPDIR": str(home), "REGISTRY_AUTH_FILE": str(home / "auth.json")}
            (home / "auth.json").write_text("{}", "utf-8")
            return measure(
                name, way, registry=self.registry, door=self.door, folder=place, daemons=daemons,
                timeout=self.timeout, environment=own,
            )  # fmt: skip

    @contextmanager
    def _place(self, folder: Path | None) -> Iterator[Path]:
        place = folder or Path(tempfile.mkdtemp(prefix="way-", dir=self.folder))
        try:
            yield place
        finally:
            if folder is None:
                unmount_below(place)
                shutil.rmtree(place)


@contextmanager
def bench(
    folder: Path, target: str, size: int, *, layers: int = 8, timeout: float = 900, packages: Path
) -> Iterator[Bench]:
    """A registry in *folder* with a stand-in base of *size* bytes for *target*; all removed at the end."""
    folder.mkdir(parents=True)
    try:
        with registry(folder / "registry") as found, counting(found.host) as door:
            command = [sys.executable, ROOT / "scripts/standin_base.py", target, "--json", "--size", str(size)]
            command += ["--layers", str(layers), "--packages", packages, "--to", f"{found.host}/{REPOSITORY}:base"]
            made = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, text=True, check=True)
            document = json.loads(made.stdout)
            yield Bench(found, door, folder, document["digest"], document["bytes"], timeout)
    finally:
        unmount_below(folder)
        shutil.rmtree(folder)


def skopeo_umoci(place: Bench, payload: Payload, tag: str) -> Result:
    """skopeo copies the base to a layout, umoci appends the layer, skopeo pushes the result."""
    skopeo, umoci = program("skopeo", "skopeo"), program("umoci", "umoci")

    def way(steps: Steps) -> None:
        layout = steps.folder / "layout"
        copy: list[str | Path] = [skopeo, "--insecure-policy", "copy", "-q"]
        steps.run("copy", [*copy, "--src-tls-verify=false", f"docker://{place.base}", f"oci:{layout}:base"])
        steps.run("add", [umoci, "raw", "add-layer", "--image", f"{layout}:base", "--tag", tag, payload.layer])
        steps.run("push", [*copy, "--dest-tls-verify=false", f"oci:{layout}:{tag}", f"docker://{place.result(tag)}"])

    return place.measure("skopeo + umoci + push", way)


def buildah(place: Bench, payload: Payload, tag: str, driver: str = "overlay") -> Result:
    """buildah from, add, commit, push, with a fresh storage of its own."""
    command = program("buildah", "buildah")

    def way(steps: Steps) -> None:
        storage = steps.folder / "storage"
        policy = steps.folder / "policy.json"
        policy.write_text('{"default": [{"type": "insecureAcceptAnything"}]}', "utf-8")
        own: list[str | Path] = [
            command,
            "--root",
            storage,
            "--runroot",
            steps.folder / "run",
            "--storage-driver",
            driver,
        ]
        trust: list[str | Path] = ["--tls-verify=false", "--signature-policy", policy]
        work = steps.run("from", [*own, "from", "--isolation=chroot", *trust, "-q", place.base]).strip()
        steps.run("add", [*own, "add", "-q", work, payload.files, "/"])
        steps.run("commit", [*own, "commit", "-q", "--signature-policy", policy, work, f"localhost/{tag}"])
        steps.run("push", [*own, "push", "-q", *trust, f"localhost/{tag}", f"docker://{place.result(tag)}"])

    return place.measure(f"buildah ({driver})", way)


def _build(
    place: Bench, payload: Payload, tag: str, found: Engine, make: Callable[[Steps], None] | None = None
) -> Callable[[Steps], None]:
    """Docker's classic builder: FROM the base, ADD the files; then push. *make* comes first, where it is given."""
    docker = program("docker", "docker.io")

    def way(steps: Steps) -> None:
        if make is not None:
            make(steps)
        context = steps.folder / f"context-{tag}"
        context.mkdir()
        shutil.copy(payload.files, context / "files.tar")
        (context / "Dockerfile").write_text(f"FROM {place.base}\nADD files.tar /\n", "utf-8")
        own = dict(found.environment)
        steps.run("build", [docker, "build", "-q", "--no-cache", "-t", place.result(tag), context], **own)
        steps.run("push", [docker, "push", "-q", place.result(tag)], **own)

    return way


def middle(results: Sequence[Result]) -> Result:
    """The run of median time, or the first that failed."""
    broken = [item for item in results if item.failed]
    return broken[0] if broken else sorted(results, key=lambda item: item.seconds)[len(results) // 2]


def docker(place: Bench, payload: Payload, tags: Sequence[str], *, held: int, pull: bool) -> list[Result]:
    """docker build + push on a fresh engine, which must *pull* the base, and on the same one when it has it.

    The second is the run of median time of *held* runs: it takes too little for one to tell. So is the third, in which
    the files are made first, where that is known.
    """
    folder = Path(tempfile.mkdtemp(prefix="engine-", dir=place.folder))
    found: list[Result] = []
    try:
        with engine(folder, registries=[place.door.host]) as running:
            if pull:
                way = _build(place, payload, tags[0], running)
                name = f"docker build + push, base pulled ({running.driver})"
                found.append(place.measure(name, way, daemons=[running.pid], folder=folder))
            if held and not (found and found[0].failed):
                running.docker("pull", "-q", place.base)

                def repeated(tag: str, kind: str, make: Callable[[Steps], None] | None) -> Result:
                    name = f"docker build + push, base held{kind} ({running.driver})"
                    ways = [_build(place, payload, f"{tag}{n}", running, make) for n in range(held)]
                    return middle([place.measure(name, way, daemons=[running.pid], folder=folder) for way in ways])

                found.append(repeated(tags[1], "", None))
                if payload.make is not None:
                    found.append(repeated(f"{tags[1]}-made", ", files made first", payload.make))
    finally:
        unmount_below(folder)
        shutil.rmtree(folder)
    return found


def peers(place: Bench, payload: Payload, names: Sequence[str], rounds: int = 5) -> Iterator[Result]:
    """The named peers in turn; one that cannot run here is a result that says so."""
    ways: list[Callable[[], list[Result]]] = []
    if "skopeo-umoci" in names:
        ways.append(lambda: [skopeo_umoci(place, payload, "by-umoci")])
    if "buildah" in names:
        ways.append(lambda: [buildah(place, payload, "by-buildah")])
    pull, held = "docker-pull" in names, rounds if "docker-held" in names else 0
    if pull or held:
        ways.append(lambda: docker(place, payload, ("by-docker", "by-docker-held"), held=held, pull=pull))
    for way in ways:
        try:
            yield from way()
        except Unavailable as error:
            yield Result("unavailable", 0, 0, 0, 0, 0, 0, {}, str(error))


PEERS = ("skopeo-umoci", "buildah", "docker-pull", "docker-held")


def table(results: Sequence[Result]) -> str:
    """The results for people; MB are millions of bytes."""
    head = f"{'way':<44}{'seconds':>9}{'MB in':>10}{'MB out':>9}{'requests':>10}{'MB memory':>11}{'MB disk':>9}"
    lines = [head]
    for item in results:
        numbers = f"{item.seconds:>9.2f}{item.received / 1e6:>10.2f}{item.sent / 1e6:>9.3f}{item.requests:>10}"
        lines.append(f"{item.name:<44}{numbers}{item.memory / 1e6:>11.0f}{item.disk / 1e6:>9.0f}")
        steps = ", ".join(f"{name} {seconds:.2f}" for name, seconds in item.steps.items())
        lines.append(f"    {item.failed or steps}")
    return "\n".join(lines)


def main() -> int:
    """Measure the peers on each size; show and write the numbers. 1 if one failed."""
    parser = argparse.ArgumentParser(description="Measure the peers' ways to graft a layer.")
    parser.add_argument("--target", default="rocm-gfx950")
    parser.add_argument("--payload", type=Path, help="OCI layout of the payload (default: dist/TARGET/oci)")
    parser.add_argument("--sizes", type=float, nargs="+", default=[1, 3, 10], help="of the bases, in GB")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=list(PEERS))
    parser.add_argument("--timeout", type=float, default=900, help="seconds for one way")
    parser.add_argument("--work", type=Path, help="folder for bases and storages (about 3.5 times the largest size)")
    parser.add_argument("--out", type=Path, default=ROOT / "bench/graft_peers.json")
    options = parser.parse_args()
    if os.geteuid() != 0:
        parser.error("buildah and a Docker Engine of our own need root")
    document: dict[str, object] = {"target": options.target, "layers": options.layers, "sizes": {}}
    found: dict[str, object] = {}
    failed = False
    with tempfile.TemporaryDirectory(prefix="gwb-", dir=options.work) as name:
        work = Path(name).resolve()
        payload = Payload.of(options.payload or ROOT / "dist" / options.target / "oci", options.target, work)
        for size in options.sizes:
            with bench(
                work / "b", options.target, int(size * 1e9), layers=options.layers, timeout=options.timeout,
                packages=work / "packages",
            ) as place:  # fmt: skip
                results = list(peers(place, payload, options.peers))
            print(f"\nbase of {place.size / 1e9:.2f} GB\n{table(results)}", flush=True)
            failed = failed or any(item.failed for item in results)
            found[f"{size:g}"] = {"bytes": place.size, "ways": [item.as_dict() for item in results]}
    options.out.write_text(json.dumps({**document, "sizes": found}, indent=2) + "\n", "utf-8")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
