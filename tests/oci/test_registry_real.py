"""Our client against a registry that we did not write, with skopeo as the second opinion."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import json
import shutil
import socket
import subprocess
import tarfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from oci.debian_registry import running

from graftwork.errors import PinError
from graftwork.oci.canonical import canonical_json
from graftwork.oci.credentials import Credential
from graftwork.oci.errors import AccessError, NotFoundError, RegistryError
from graftwork.oci.families import DOCKER, OCI, Document, Family
from graftwork.oci.referrers import attach, referrers
from graftwork.oci.registry import Registry
from graftwork.oci.traffic import Patience
from graftwork.oci.transport import Transport

pytestmark = pytest.mark.registry
REPO = "team/engine"


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running(tmp_path_factory.mktemp("registry")) as host:
        yield host


@pytest.fixture(autouse=True)
def no_credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("REGISTRY_AUTH_FILE", str(tmp_path / "none.json"))


def client(host: str, **more: Any) -> Registry:
    return Registry(Transport(host, patience=Patience(tries=4, backoff=0.01), **more))


def skopeo(*args: str) -> str:
    if shutil.which("skopeo") is None:
        pytest.skip("skopeo is not installed: scripts/install-services")
    done = subprocess.run(["skopeo", *args], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def push_bytes(registry: Registry, repository: str, data: bytes, **more: Any) -> str:
    digest = "sha256:" + hashlib.sha256(data).hexdigest()
    registry.push_blob(repository, digest, len(data), lambda offset: io.BytesIO(data[offset:]), **more)
    return digest


def layer(text: str) -> tuple[bytes, str]:
    """A layer with one file, and its diff_id."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        info = tarfile.TarInfo("etc/engine")
        info.size = len(text.encode())
        tar.addfile(info, io.BytesIO(text.encode()))
    return gzip.compress(buffer.getvalue(), mtime=0), "sha256:" + hashlib.sha256(buffer.getvalue()).hexdigest()


def push_image(registry: Registry, tag: str, family: Family, text: str = "x", repository: str = REPO) -> Document:
    data, diff_id = layer(text)
    config = {"architecture": "amd64", "os": "linux", "rootfs": {"type": "layers", "diff_ids": [diff_id]}, "config": {}}
    raw = canonical_json(config)
    document = {
        "schemaVersion": 2,
        "mediaType": family.manifest,
        "config": {"mediaType": family.config, "digest": push_bytes(registry, repository, raw), "size": len(raw)},
        "layers": [
            {"mediaType": family.layer_gzip, "digest": push_bytes(registry, repository, data), "size": len(data)}
        ],
    }
    found = Document(canonical_json(document), document, family.manifest)
    registry.put_manifest(repository, found, tag)
    return found


@pytest.mark.oci
@pytest.mark.parametrize("family", [OCI, DOCKER])
def test_what_we_push_skopeo_reads(host: str, family: Family, tmp_path: Path) -> None:
    with client(host) as registry:
        pushed = push_image(registry, family.name, family)
    seen = json.loads(skopeo("inspect", "--tls-verify=false", f"docker://{host}/{REPO}:{family.name}"))
    assert seen["Digest"] == pushed.digest
    skopeo("copy", "--src-tls-verify=false", f"docker://{host}/{REPO}:{family.name}", f"dir:{tmp_path / 'out'}")
    assert (tmp_path / "out" / "manifest.json").read_bytes() == pushed.raw


@pytest.mark.oci
def test_what_skopeo_pushes_we_read(host: str, tmp_path: Path) -> None:
    with client(host) as registry:
        pushed = push_image(registry, "first", OCI, "from us")
        source = f"docker://{host}/{REPO}:first"
        skopeo("copy", "--src-tls-verify=false", "--dest-tls-verify=false", source, f"docker://{host}/other:second")
        found = registry.manifest("other", "second")
        assert found.raw == pushed.raw
        top = found.layers[0]
        assert registry.open_blob("other", top.digest, top.size).read() == layer("from us")[0]
        assert registry.blob_range("other", top.digest, top.size, 3, 9) == layer("from us")[0][3:9]
        assert json.loads(registry.read_blob("other", found.config))["os"] == "linux"


@pytest.mark.parametrize("more", [{}, {"small": 0, "chunk": 100_000}])
def test_uploads(host: str, more: dict[str, int]) -> None:
    data = bytes(range(256)) * 1500 + str(more).encode()
    with client(host) as registry:
        digest = push_bytes(registry, REPO, data, **more)
        assert registry.open_blob(REPO, digest, len(data)).read() == data
        assert registry.transport.traffic.bytes_out == len(data)
        with pytest.raises(PinError, match="DIGEST_INVALID"):
            registry.push_blob(REPO, "sha256:" + "1" * 64, 10, lambda offset: io.BytesIO(b"0123456789"), **more)


def test_mount(host: str) -> None:
    data = b"to be mounted" * 1000
    with client(host) as registry:
        digest = push_bytes(registry, "team/base", data)
        sent = registry.transport.traffic.bytes_out
        assert registry.mount("team/new", digest, "team/base").mounted
        assert registry.transport.traffic.bytes_out == sent
        assert registry.open_blob("team/new", digest, len(data)).read() == data
        assert registry.mount("team/new", "sha256:" + "2" * 64, "team/base").status == 202


def test_tags_and_deletes(host: str) -> None:
    with client(host) as registry:
        made = [push_image(registry, f"v{number}", OCI, str(number), "tagged") for number in range(3)]
        assert sorted(registry.tags("tagged")) == ["v0", "v1", "v2"]
        registry.delete_manifest("tagged", made[0].digest)
        assert registry.find_manifest("tagged", "v0") is None
        registry.delete_blob("tagged", made[0].layers[0].digest)
        assert not registry.find_blob("tagged", made[0].layers[0].digest)
        with pytest.raises(NotFoundError):
            list(registry.tags("no/such/repository"))


def test_referrers_by_tag(host: str) -> None:
    with client(host) as registry:
        subject = push_image(registry, "subject", OCI)
        entry = {"mediaType": OCI.manifest, "digest": subject.digest, "size": len(subject.raw)}
        data = {**subject.data, "subject": entry, "artifactType": "application/x.sbom"}
        artifact = Document(canonical_json(data), data, OCI.manifest)
        assert attach(registry, REPO, artifact) is False
        assert [item["digest"] for item in referrers(registry, REPO, subject.digest)] == [artifact.digest]


def test_basic_authorization(tmp_path: Path) -> None:
    bcrypt = _bcrypt("password")
    if bcrypt is None:
        pytest.skip("this system's Python or C library cannot make a bcrypt hash")
    with running(tmp_path / "registry", htpasswd=f"somebody:{bcrypt}\n") as host:
        with pytest.raises(AccessError, match="401"):
            client(host).manifest(REPO, "v1")
        push_image(client(host, credential=Credential("somebody", "password")), "v1", OCI)


def _bcrypt(password: str) -> str | None:
    """The only kind of hash that this registry takes; the C library makes it."""
    program = "import crypt,sys; print(crypt.crypt(sys.argv[1], crypt.mksalt(crypt.METHOD_BLOWFISH, rounds=16)))"
    done = subprocess.run(
        ["/usr/bin/python3", "-W", "ignore", "-c", program, password], capture_output=True, text=True, check=False
    )
    return done.stdout.strip().replace("$2b$", "$2y$", 1) if done.stdout.startswith("$2b$") else None


def test_a_registry_that_may_not_delete_says_so(tmp_path: Path) -> None:
    with running(tmp_path / "registry", delete=False) as host, client(host) as registry:
        made = push_image(registry, "v1", OCI)
        with pytest.raises(RegistryError, match="405"):
            registry.delete_manifest(REPO, made.digest)


@contextmanager
def cutting(host: str, allowed: Callable[[int], int]) -> Iterator[str]:
    """A proxy to *host* whose n-th connection is cut after allowed(n) bytes from the client (0: never)."""
    target = (host.partition(":")[0], int(host.rpartition(":")[2]))
    listener = socket.create_server(("127.0.0.1", 0))
    count = [0]

    def pump(source: socket.socket, sink: socket.socket, limit: int) -> None:
        moved = 0
        with contextlib.suppress(OSError):  # either end may hang up; then both are closed below
            while data := source.recv(16384):
                sink.sendall(data)
                moved += len(data)
                if limit and moved >= limit:
                    break
        for end in (source, sink):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue

    def accept() -> None:
        while True:
            try:
                inner, _ = listener.accept()
            except OSError:
                return
            count[0] += 1
            outer = socket.create_connection(target)
            limit = allowed(count[0])
            threading.Thread(target=pump, args=(inner, outer, limit), daemon=True).start()
            threading.Thread(target=pump, args=(outer, inner, 0), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.close()


@pytest.mark.parametrize("more", [{"small": 1 << 30}, {"small": 0, "chunk": 1 << 20}])
def test_an_upload_through_a_bad_line_arrives(host: str, more: dict[str, int]) -> None:
    data = hashlib.sha256(str(more).encode()).digest() * (1 << 17)
    # Each connection that is cut carries a little more than the one before, at some point enough.
    with cutting(host, lambda number: 0 if number % 4 == 0 else 700_000 + number) as proxy, client(proxy) as registry:
        digest = push_bytes(registry, "line", data, **more)
    with client(host) as registry:
        assert registry.open_blob("line", digest, len(data)).read() == data
