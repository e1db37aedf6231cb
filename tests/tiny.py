"""A toy engine, its wheel, catalog and base image of a few kilobytes: grafting in full, in well under a second.

Images are put into any registry over HTTP, so that the in-process one and Debian's get the same bytes.
"""

from __future__ import annotations

import base64
import copy
import gzip
import hashlib
import io
import json
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import requests
from toys import TOY_SOURCE, Toy

GRAFTWORK = [sys.executable, "-c", "from graftwork.cli.main import run; run()"]
POOL = "opt/toy/toy/pool.py"
PYC = "opt/toy/toy/__pycache__/pool.cpython-310.pyc"
RECORD = "usr/share/graftwork/t.json"
_OCI, _DOCKER = "application/vnd.oci.image", "application/vnd.docker"
TYPES = {
    "oci": {
        "manifest": f"{_OCI}.manifest.v1+json",
        "index": f"{_OCI}.index.v1+json",
        "config": f"{_OCI}.config.v1+json",
        "gzip": f"{_OCI}.layer.v1.tar+gzip",
        "zstd": f"{_OCI}.layer.v1.tar+zstd",
        "none": f"{_OCI}.layer.v1.tar",
    },
    "docker": {
        "manifest": f"{_DOCKER}.distribution.manifest.v2+json",
        "index": f"{_DOCKER}.distribution.manifest.list.v2+json",
        "config": f"{_DOCKER}.container.image.v1+json",
        "gzip": f"{_DOCKER}.image.rootfs.diff.tar.gzip",
        "zstd": f"{_DOCKER}.image.rootfs.diff.tar.zstd",
        "none": f"{_DOCKER}.image.rootfs.diff.tar",
    },
}
ACCEPT = ", ".join(TYPES[family][kind] for family in TYPES for kind in ("manifest", "index"))


@dataclass(frozen=True)
class Entry:
    """A member of a layer: *data* None is a folder, *link* a symbolic link."""

    path: str
    data: bytes | None = None
    link: str = ""
    mode: int = 0o644
    owner: int = 0
    mtime: int = 1_600_000_000


def tar_of(entries: Sequence[Entry]) -> bytes:
    """A layer's tar."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for entry in entries:
            info = tarfile.TarInfo(entry.path)
            info.mode, info.uid, info.gid, info.mtime = entry.mode, entry.owner, entry.owner, entry.mtime
            info.type = tarfile.SYMTYPE if entry.link else tarfile.DIRTYPE if entry.data is None else tarfile.REGTYPE
            info.linkname, info.size = entry.link, len(entry.data or b"")
            tar.addfile(info, io.BytesIO(entry.data or b""))
    return out.getvalue()


def white_out(path: str) -> Entry:
    """What removes *path* of a lower layer."""
    folder, _, name = path.rpartition("/")
    return Entry(f"{folder}/.wh.{name}", b"")


def sha(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def packed(tar: bytes, compression: str) -> bytes:
    if compression == "zstd":
        from backports import zstd

        return zstd.compress(tar)
    return gzip.compress(tar, mtime=0) if compression == "gzip" else tar


class Store:
    """One registry, spoken to as plainly as can be. A *repository* is ``host/name``."""

    def __init__(self, host: str) -> None:
        self.host = host
        self.session = requests.Session()
        self.session.trust_env = False

    def blob(self, name: str, data: bytes) -> dict[str, Any]:
        answer = self._ok("POST", f"{name}/blobs/uploads/")
        place = answer.headers["Location"]
        place = place if place.startswith("http") else f"http://{self.host}{place}"
        self._check(self.session.put(place, params={"digest": sha(data)}, data=data, timeout=30))
        return {"digest": sha(data), "size": len(data)}

    def read_blob(self, name: str, digest: str) -> bytes:
        return self._ok("GET", f"{name}/blobs/{digest}").content

    def manifest(self, name: str, reference: str) -> tuple[bytes, dict[str, Any]]:
        answer = self._ok("GET", f"{name}/manifests/{reference}", headers={"Accept": ACCEPT})
        return answer.content, json.loads(answer.content)

    def config(self, name: str, reference: str) -> dict[str, Any]:
        _, data = self.manifest(name, reference)
        found: dict[str, Any] = json.loads(self.read_blob(name, data["config"]["digest"]))
        return found

    def put(self, name: str, reference: str, document: dict[str, Any]) -> str:
        data = json.dumps(document).encode()
        headers = {"Content-Type": document["mediaType"]}
        self._ok("PUT", f"{name}/manifests/{reference}", data=data, headers=headers)
        return sha(data)

    def complete(self, name: str, reference: str) -> list[str]:
        """Every digest that *reference* needs and the registry lacks; [] for a whole image, an error for none."""
        raw, data = self.manifest(name, reference)
        wanted = [data.get("config"), *data.get("layers", [])]
        lacks = [item["digest"] for item in wanted if item and not self._has(f"{name}/blobs/{item['digest']}")]
        for item in data.get("manifests", []):
            lacks += self.complete(name, item["digest"])
        assert not reference.startswith("sha256:") or sha(raw) == reference
        return lacks

    def _has(self, path: str) -> bool:
        return self.session.head(f"http://{self.host}/v2/{path}", timeout=30).status_code == 200

    def _ok(self, method: str, path: str, **options: Any) -> requests.Response:
        return self._check(self.session.request(method, f"http://{self.host}/v2/{path}", timeout=30, **options))

    def _check(self, answer: requests.Response) -> requests.Response:
        assert answer.ok, f"{answer.request.method} {answer.url}: {answer.status_code} {answer.text}"
        return answer


def base_layers(source: bytes = TOY_SOURCE.encode(), *more: Sequence[Entry]) -> list[Sequence[Entry]]:
    """The toy base: a Python 3.10 by name only, and an editable checkout with odd owners and modes."""
    lib = "usr/lib/python3.10"
    folders = [Entry(path, mode=0o755) for path in ("usr", "usr/bin", "usr/lib", lib, f"{lib}/lib-dynload")]
    root = [Entry("usr/bin/python3.10", b"\x7fELF", mode=0o755), Entry("usr/bin/python3", link="python3.10")]
    site = "usr/local/lib/python3.10/dist-packages"
    return [
        [*folders, *root, Entry(f"{lib}/os.py", b"# os\n"), Entry("usr/lib/python3/dist-packages", mode=0o755)],
        [Entry(site, mode=0o755), Entry(f"{site}/__editable__.toy-1.0.pth", b"/opt/toy\n")],
        [
            Entry("opt", mode=0o755),
            Entry("opt/toy", mode=0o775, owner=1000),
            Entry("opt/toy/toy", mode=0o2775, owner=1000),
            Entry("opt/toy/toy/__init__.py", b"", mode=0o664, owner=1000),
            Entry(POOL, source, mode=0o640, owner=1000),
            Entry("opt/toy/toy/__pycache__", mode=0o755),
            Entry(PYC, b"old bytecode"),
        ],
        *more,
    ]


def config_of(tars: Sequence[bytes], platform: str = "linux/amd64") -> dict[str, Any]:
    system, _, machine = platform.partition("/")
    return {
        "architecture": machine,
        "os": system,
        "created": "2026-01-01T00:00:00Z",
        "config": {"Env": ["PATH=/usr/bin:/bin", "KEPT=1"], "Entrypoint": ["/usr/bin/python3"], "User": "1000"},
        "rootfs": {"type": "layers", "diff_ids": [sha(tar) for tar in tars]},
        "history": [{"created_by": f"step {number}"} for number in range(len(tars))],
    }


def put_image(
    store: Store,
    name: str,
    reference: str,
    layers: Sequence[Sequence[Entry]],
    *,
    family: str = "oci",
    compressions: Sequence[str] = ("gzip",),
    platform: str = "linux/amd64",
) -> str:
    """Push an image; its digest. *reference* '' pushes it by digest only."""
    tars = [tar_of(entries) for entries in layers]
    described = []
    for number, tar in enumerate(tars):
        kind = compressions[number % len(compressions)]
        described.append({"mediaType": TYPES[family][kind], **store.blob(name, packed(tar, kind))})
    config = store.blob(name, json.dumps(config_of(tars, platform)).encode())
    document = {
        "schemaVersion": 2,
        "mediaType": TYPES[family]["manifest"],
        "config": {"mediaType": TYPES[family]["config"], **config},
        "layers": described,
    }
    return store.put(name, reference or sha(json.dumps(document).encode()), document)


def put_index(store: Store, name: str, reference: str, platforms: Sequence[str], family: str = "oci") -> str:
    """An index of the toy base for each of *platforms*, with an attestation beside them as BuildKit makes one."""
    rows = []
    for platform in platforms:
        digest = put_image(store, name, "", base_layers(), family=family, platform=platform)
        raw, _ = store.manifest(name, digest)
        system, _, machine = platform.partition("/")
        where = {"os": system, "architecture": machine.partition("/")[0]}
        rows.append({"mediaType": TYPES[family]["manifest"], "digest": digest, "size": len(raw), "platform": where})
    return store.put(name, reference, {"schemaVersion": 2, "mediaType": TYPES[family]["index"], "manifests": rows})


def on_top(
    store: Store, name: str, reference: str, new: str, *layers: Sequence[Entry], config: Mapping[str, Any] | None = None
) -> str:
    """As ``FROM name:reference`` in a Dockerfile: the image *new* with *layers* above and *config*'s settings."""
    _, manifest = store.manifest(name, reference)
    settings = store.config(name, reference)
    manifest = copy.deepcopy(manifest)
    family = "oci" if "oci" in manifest["mediaType"] else "docker"
    for entries in layers:
        tar = tar_of(entries)
        manifest["layers"].append({"mediaType": TYPES[family]["gzip"], **store.blob(name, packed(tar, "gzip"))})
        settings["rootfs"]["diff_ids"].append(sha(tar))
        settings["history"].append({"created_by": "RUN something"})
    settings["config"] |= dict(config or {})
    manifest["config"] |= store.blob(name, json.dumps(settings).encode())
    return store.put(name, new, manifest)


@dataclass(frozen=True)
class Done:
    """A finished command: *document* is what it printed with --json."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.out)
        assert found.get("error", {"exit_code": 0})["exit_code"] == self.code
        return found


def run_here(environment: Mapping[str, str], *arguments: str) -> Done:
    """``graftwork ARGUMENTS`` in this process, not waiting between tries. A fault of graftwork's own fails the test."""
    from graftwork.cli import main
    from graftwork.oci.transport import Transport

    out, err = io.StringIO(), io.StringIO()
    with (
        patch.dict(os.environ, environment),
        patch.object(sys, "argv", ["graftwork", *arguments]),
        patch.dict(Transport.__init__.__kwdefaults__, {"sleep": lambda seconds: None}),
        redirect_stdout(out),
        redirect_stderr(err),
        pytest.raises(SystemExit) as end,
    ):
        main.run()
    done = Done(int(str(end.value.code or 0)), out.getvalue(), err.getvalue())
    assert done.code != 70, done.err
    return done


class Workshop:
    """A catalog, a cache of its own, and the command: in this process (``run``) or in one of its own (``spawn``)."""

    def __init__(self, root: Path, target: str, environment: Mapping[str, str]) -> None:
        self.root, self.target, self.environment = root, target, dict(environment)

    def arguments(self, verb: str, *arguments: object) -> list[str]:
        return [verb, self.target, "--catalog", str(self.root), *map(str, arguments)]

    def run(self, verb: str, *arguments: object) -> Done:
        """``graftwork VERB TARGET``."""
        return run_here(self.environment, *self.arguments(verb, *arguments))

    def spawn(self, verb: str, *arguments: object) -> subprocess.Popen[str]:
        """The same in a process of its own."""
        pipe = subprocess.PIPE
        command = [*GRAFTWORK, *self.arguments(verb, *arguments)]
        return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=self.full)

    @property
    def full(self) -> dict[str, str]:
        """The environment of a process."""
        return {**os.environ, **self.environment}

    def ok(self, verb: str, *arguments: object) -> dict[str, Any]:
        """Run with --json and expect exit code 0: the document, and stderr as 'said'."""
        done = self.run(verb, *arguments, "--json")
        assert done.code == 0, done.err
        return {**done.document, "said": done.err}

    def refused(self, code: int, verb: str, *arguments: object) -> str:
        """Run and expect exit code *code*: what was said."""
        done = self.run(verb, *arguments)
        assert done.code == code, (done.code, done.out, done.err)
        return done.err


def tiny_workshop(folder: Path, **base: str) -> Workshop:
    """The toy's catalog with its wheel pinned and locked; *base* changes keys of the target's [base]."""
    toy = Toy(folder / "catalog")
    wheels = folder / "wheels"
    wheels.mkdir(exist_ok=True)
    wheel = _wheel(wheels / "toy-1.0-py3-none-any.whl")

    def change(text: str) -> str:
        head, mark, tail = text.partition("[[wheel]]")
        for key, value in base.items():
            head = re.sub(rf'(?m)^{key} = "[^"]*"$', f'{key} = "{value}"', head)
        tail = tail.replace("0" * 64, hashlib.sha256(wheel).hexdigest()).replace("size = 1", f"size = {len(wheel)}")
        return head + mark + tail

    toy.target(change)
    environment = {"GRAFTWORK_CACHE": str(folder / "cache"), "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels)}
    environment |= {"PIP_CONFIG_FILE": os.devnull}
    workshop = Workshop(toy.root, "t", environment)
    _lock(workshop, wheel)
    return workshop


def _lock(workshop: Workshop, wheel: bytes) -> None:
    """The lock, by the library: with the command, each test would ask the real base's registry for its name."""
    from graftwork.catalog.catalog import Catalog
    from graftwork.trees import locking
    from graftwork.trees.wheel import WheelTree

    catalog = Catalog(workshop.root)
    target = catalog.target("t")
    path = workshop.root.parent / "wheels/toy-1.0-py3-none-any.whl"
    lock = locking.resolve(target, lambda pin: WheelTree(path))
    file = catalog.lock_file("t")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(locking.dumped(lock))


def _wheel(path: Path) -> bytes:
    info = "toy-1.0.dist-info"
    files = {
        "toy/__init__.py": b"",
        "toy/pool.py": TOY_SOURCE.encode(),
        f"{info}/METADATA": b"Metadata-Version: 2.1\nName: toy\nVersion: 1.0\n",
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    rows = [
        f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b'=').decode()},{len(data)}"
        for name, data in files.items()
    ]
    files[f"{info}/RECORD"] = ("\n".join([*rows, f"{info}/RECORD,,"]) + "\n").encode()
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files.items():
            archive.writestr(zipfile.ZipInfo(name, (2026, 1, 2, 0, 0, 0)), data)
    return path.read_bytes()
