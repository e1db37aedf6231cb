"""Registries with certificates: the authorities that count, certs.d, and client certificates."""

from __future__ import annotations

import hashlib
import io
import shutil
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from oci.quirky import Quirky, serve

from graftwork.errors import UnreachableError, UsageError
from graftwork.oci.registry import Registry
from graftwork.oci.traffic import Patience
from graftwork.oci.transport import Transport

ABSENT = "sha256:" + "0" * 64


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate for this machine, its own authority, and the key."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", str(key), "-out", str(cert)]
    command += ["-days", "2", "-subj", "/CN=quirky", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(command, check=True, capture_output=True)
    return cert, key


@contextmanager
def serve_tls(pair: tuple[Path, Path], *, ask_client: bool = False, **quirks: Any) -> Iterator[Quirky]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*pair)
    if ask_client:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(pair[0])
    with serve(**quirks) as server:
        inner = server.server.get_request

        def get_request() -> Any:
            sock, address = inner()
            sock.settimeout(5)
            return context.wrap_socket(sock, server_side=True), address

        server.server.get_request = get_request  # type: ignore[method-assign]
        server.server.handle_error = lambda *args: None  # type: ignore[method-assign]
        yield server


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("REGISTRY_AUTH_FILE", str(tmp_path / "none.json"))
    for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.delenv(name, raising=False)


def client(server: Quirky, certs: Path) -> Registry:
    patience = Patience(tries=2, backoff=0.0, connect=3, read=5)
    return Registry(Transport(server.host, patience=patience, certs=(certs,), sleep=lambda seconds: None))


def test_an_unknown_authority_is_refused_with_what_to_do(pair: tuple[Path, Path], tmp_path: Path) -> None:
    with serve_tls(pair) as server, client(server, tmp_path) as registry:
        with pytest.raises(UnreachableError, match=r"(?i)certificate verify failed") as caught:
            registry.find_blob("a", ABSENT)
        assert "REQUESTS_CA_BUNDLE" in caught.value.hint
        assert caught.value.exit_code == 6


@pytest.mark.parametrize("name", ["REQUESTS_CA_BUNDLE", "SSL_CERT_FILE"])
def test_an_authority_that_the_environment_names(
    pair: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, str(pair[0]))
    with serve_tls(pair) as server, client(server, tmp_path) as registry:
        assert not registry.find_blob("a", ABSENT)


def test_an_authority_of_certs_d_counts_for_its_own_registry_only(pair: tuple[Path, Path], tmp_path: Path) -> None:
    with serve_tls(pair) as server, serve_tls(pair) as other:
        (tmp_path / server.host).mkdir()
        shutil.copy(pair[0], tmp_path / server.host / "ca.crt")
        with client(server, tmp_path) as registry:
            data = b"some bytes"
            digest = server.put("a", data)
            assert registry.open_blob("a", digest, len(data)).read() == data
            other.put("a", data)
            server.quirks.redirect_to = f"https://{other.host}"
            with pytest.raises(UnreachableError, match=f"{server.host}.*certificate verify failed"):
                registry.open_blob("a", digest, len(data))


def test_an_upload_s_location_of_a_registry_that_does_not_know_of_its_tls(
    pair: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(pair[0]))
    data = b"some bytes"
    digest = "sha256:" + hashlib.sha256(data).hexdigest()
    with serve_tls(pair) as server, client(server, tmp_path) as registry:
        assert server.url.startswith("http:")  # as it is in each Location
        registry.push_blob("a", digest, len(data), lambda offset: io.BytesIO(data[offset:]))
        assert server.blobs["a"][digest] == data


def test_a_client_certificate_of_certs_d(pair: tuple[Path, Path], tmp_path: Path) -> None:
    with serve_tls(pair, ask_client=True) as server:
        folder = tmp_path / server.host
        folder.mkdir()
        shutil.copy(pair[0], folder / "ca.crt")
        with pytest.raises(UnreachableError):
            client(server, tmp_path).find_blob("a", ABSENT)
        shutil.copy(pair[0], folder / "client.cert")
        shutil.copy(pair[1], folder / "client.key")
        assert not client(server, tmp_path).find_blob("a", ABSENT)


def test_a_broken_certificate_is_named(pair: tuple[Path, Path], tmp_path: Path) -> None:
    with serve_tls(pair) as server:
        folder = tmp_path / server.host
        folder.mkdir()
        (folder / "ca.crt").write_text("nothing")
        with pytest.raises(UsageError, match=f"{folder}/ca.crt"):
            client(server, tmp_path).find_blob("a", ABSENT)
