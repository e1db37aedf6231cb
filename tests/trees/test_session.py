from __future__ import annotations

import http.server
import shutil
import ssl
import subprocess
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from graftwork.errors import UnreachableError
from graftwork.trees.pipconf import PipSettings
from graftwork.trees.session import credentials_of, open_session, reaching, split_credentials


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """The URL of a server with a certificate of its own, and that certificate."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    key, cert = (tmp_path_factory.mktemp("tls") / name for name in ("key.pem", "cert.pem"))
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", str(key), "-out", str(cert)]
    command += ["-days", "1", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    subprocess.run(command, check=True, capture_output=True)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"ok")

        def log_message(self, *args: object) -> None:
            return

    class Server(http.server.ThreadingHTTPServer):
        def handle_error(self, request: object, client_address: object) -> None:
            """Refused handshakes are the point."""

    server = Server(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    yield f"https://localhost:{server.server_port}/", cert
    server.shutdown()
    server.server_close()


def get(url: str, settings: PipSettings) -> bytes:
    with reaching(url), warnings.catch_warnings():
        warnings.simplefilter("error")
        return open_session(settings, backoff=0).get(url).content


def test_certificate_of_an_unknown_authority(tls: tuple[str, Path]) -> None:
    with pytest.raises(UnreachableError, match="self-signed") as caught:
        get(tls[0], PipSettings(retries=0))
    assert "'cert'" in caught.value.hint


def test_private_authority(tls: tuple[str, Path]) -> None:
    assert get(tls[0], PipSettings(cert=str(tls[1]), retries=0)) == b"ok"


@pytest.mark.parametrize("with_port", [True, False])
def test_trusted_host_is_not_verified_and_others_are(tls: tuple[str, Path], with_port: bool) -> None:
    host = tls[0].split("/")[2] if with_port else "localhost"
    assert get(tls[0], PipSettings(trusted_hosts=(host,), retries=0)) == b"ok"
    with pytest.raises(UnreachableError):
        get(tls[0], PipSettings(trusted_hosts=("localhost:1",), retries=0))


def test_credentials() -> None:
    assert split_credentials("https://us%40er:p%3Aw@h:8/x?q=1") == ("https://h:8/x?q=1", ("us@er", "p:w"))
    assert split_credentials("https://token@h/x") == ("https://h/x", ("token", ""))
    assert split_credentials("https://h/x") == ("https://h/x", None)
    urls = ["https://a:1@h/x", "https://b:2@H:443/y", "http://c:3@h/z", "/folder"]
    assert credentials_of(urls) == {("https", "h", 443): ("a", "1"), ("http", "h", 80): ("c", "3")}


@pytest.mark.parametrize(("asked", "waits"), [("86400", 60.0), ("5", 5.0)])
def test_a_server_cannot_make_us_wait_for_hours(asked: str, waits: float) -> None:
    """Retry-After is taken up to a minute; asked of the policy, not of the clock."""
    adapter = open_session(PipSettings()).get_adapter("https://index.example/")

    class Answer:
        headers: ClassVar = {"Retry-After": asked}

    assert adapter.max_retries.get_retry_after(Answer()) == waits  # type: ignore[attr-defined]
