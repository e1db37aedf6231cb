"""A registry in this process with real storage, and a switch for each odd thing that real registries do."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

_PATH = re.compile(r"/v2/(?P<name>.+?)/(?P<kind>blobs/uploads|blobs|manifests|tags|referrers)(?:/(?P<rest>.*))?")


@dataclass
class Quirks:
    """What this registry does otherwise than the specification wants. Counters go down with each use."""

    mount: int = 201  # or 202, 400, 401, 405
    mount_needs_source_scope: bool = False
    ranges: str = "yes"  # or 'ignored', 'wrong', 'short'
    chunked: int = 202  # or the status that a numbered chunk is refused with
    streamed: int = 202  # or the status that a PATCH without a range is refused with
    monolithic: int = 201  # or the status that a PUT with a body is refused with
    largest_body: int = 1 << 40  # bytes; 413 above
    upload_range: str = "right"  # or 'zero', 'missing', 'stuck' (in answers to PATCH), 'frozen' (everywhere), 'bytes'
    upload_status: int = 204  # what a GET of an upload is answered with
    min_chunk: int = 0
    forget_uploads: int = 0  # lose the upload at the next n status requests
    auth: str = ""  # or 'basic', 'bearer', 'identity'
    user: tuple[str, str] | None = None
    token_uses: int = 1 << 30  # requests after which a token is expired
    expires_in: int | None = 300
    withheld: set[str] = field(default_factory=set)  # repositories that no token is given for
    token_key: str = "token"
    realm: str = ""
    limited: int = 0  # the next n requests get 429
    retry_after: str = "0"
    failing: int = 0  # the next n requests get 503
    failing_methods: str = "GET HEAD POST PATCH PUT DELETE"
    cut_answers: int = 0  # cut the next n blob answers
    cut_after: int = 1000  # bytes
    cut_uploads: int = 0  # cut the next n bodies
    cut_beyond: int = 1 << 60  # cut what would make an upload larger, and forget the upload
    lose_answers: int = 0  # do the next n PUTs, but hang up instead of answering
    spoil: set[str] = field(default_factory=set)  # digests whose bytes are served changed
    digest_header: str = "right"  # or 'missing', 'wrong'
    redirect_to: str = ""  # base of the URL that blobs are redirected to
    referrers: bool = True
    location: str = "absolute"  # or 'relative', 'query', 'elsewhere'
    head: bool = True
    page: int = 1000
    delete: bool = True
    schema_1: bool = False
    content_type: str = ""  # a manifest's, instead of the right one
    ping: int = 200


@dataclass
class Seen:
    """One request as it came in."""

    method: str
    path: str
    headers: dict[str, str]


class Quirky:
    """The registry's storage, and its server on a free port of this machine."""

    def __init__(self, quirks: Quirks | None = None) -> None:
        self.quirks = quirks or Quirks()
        self.blobs: dict[str, dict[str, bytes]] = {}
        self.manifests: dict[str, dict[str, tuple[str, bytes]]] = {}
        self.tags: dict[str, dict[str, str]] = {}
        self.uploads: dict[str, bytearray] = {}
        self.tokens: dict[str, tuple[set[str], int]] = {}
        self.seen: list[Seen] = []
        self.cancelled = 0
        self.lock = threading.RLock()
        owner = self

        class Handler(_Handler):
            registry = owner

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.host = f"127.0.0.1:{self.server.server_port}"

    @property
    def url(self) -> str:
        return f"http://{self.host}"

    def put(self, repository: str, data: bytes) -> str:
        digest = "sha256:" + hashlib.sha256(data).hexdigest()
        self.blobs.setdefault(repository, {})[digest] = data
        return digest

    def calls(self, method: str = "", part: str = "") -> list[Seen]:
        return [seen for seen in self.seen if method in ("", seen.method) and part in seen.path]


@contextmanager
def serve(**quirks: Any) -> Iterator[Quirky]:
    """A running registry with these quirks."""
    registry = Quirky(Quirks(**quirks))
    thread = threading.Thread(target=registry.server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield registry
    finally:
        registry.server.shutdown()
        registry.server.server_close()
        thread.join()


def basic(user: tuple[str, str]) -> str:
    """The Authorization header of RFC 7617."""
    return "Basic " + base64.b64encode(":".join(user).encode()).decode()


class _Handler(BaseHTTPRequestHandler):
    registry: Quirky
    protocol_version = "HTTP/1.1"
    wbufsize = 1 << 16

    def log_message(self, *args: Any) -> None:
        return

    def __getattr__(self, name: str) -> Any:
        if name.startswith("do_"):
            return self.serve_one
        raise AttributeError(name)

    # Each request: log, limits, authorization, then the handler of its kind.

    def serve_one(self) -> None:
        quirks = self.registry.quirks
        self.path_only = urlsplit(self.path).path
        self.query = parse_qs(urlsplit(self.path).query)
        with self.registry.lock:
            self.registry.seen.append(Seen(self.command, self.path, dict(self.headers)))
        body = self.read_body()
        if body is None:
            return None
        if self.path_only != "/token" and self.used("limited"):
            return self.fail(429, "TOOMANYREQUESTS", {"Retry-After": quirks.retry_after})
        if self.command in quirks.failing_methods.split() and self.used("failing"):
            return self.fail(503, "UNAVAILABLE")
        if len(body) > quirks.largest_body:
            return self.fail(413, "SIZE_INVALID")
        if self.path_only == "/token":
            return self.token(body)
        if self.path_only.startswith("/elsewhere/"):
            return self.elsewhere()
        match = _PATH.fullmatch(self.path_only)
        self.name = match["name"] if match else ""
        if not self.allowed(match):
            return None
        if self.path_only == "/v2/":
            return self.answer(quirks.ping, b"{}")
        if match is None:
            return self.fail(404, "NAME_UNKNOWN")
        handler = getattr(self, "serve_" + match["kind"].replace("/", "_"))
        handler(match["rest"] or "", body)
        return None

    def read_body(self) -> bytes | None:
        length = int(self.headers.get("Content-Length", 0))
        if length > 64 and self.command in ("PATCH", "PUT") and "/blobs/" in self.path and self.used("cut_uploads"):
            part = self.rfile.read(min(self.registry.quirks.cut_after, length - 1))
            upload = self.registry.uploads.get(self.path_only.rpartition("/")[2])
            if upload is not None and self.command == "PATCH":
                upload += part
            return self.hang_up()
        upload = self.registry.uploads.get(self.path_only.rpartition("/")[2])
        if upload is not None and len(upload) + length > self.registry.quirks.cut_beyond:
            del self.registry.uploads[self.path_only.rpartition("/")[2]]
            return self.hang_up()
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            raise AssertionError("the client does not know the length of what it sends")
        return self.rfile.read(length)

    def used(self, counter: str) -> bool:
        with self.registry.lock:
            left: int = getattr(self.registry.quirks, counter)
            setattr(self.registry.quirks, counter, max(left - 1, 0))
            return left > 0

    def hang_up(self) -> None:
        self.close_connection = True
        self.connection.close()

    def answer(self, status: int, body: bytes = b"", headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        self.send_header("Set-Cookie", "session=quirky; Path=/")
        for key, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            if value:
                self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
        self.wfile.flush()

    def fail(self, status: int, code: str, headers: dict[str, str] | None = None) -> None:
        body = json.dumps({"errors": [{"code": code, "message": f"a message for {code}", "detail": {}}]}).encode()
        self.answer(status, body, headers)

    # Authorization.

    def allowed(self, match: re.Match[str] | None) -> bool:
        quirks = self.registry.quirks
        given = self.headers.get("Authorization", "")
        if self.headers.get("Host", "").startswith("localhost"):  # where 'elsewhere' sends uploads to
            if given:
                self.fail(400, "CREDENTIALS_OF_ANOTHER_HOST")
            return not given
        if not quirks.auth:
            return True
        if quirks.auth == "basic":
            assert quirks.user
            if given == basic(quirks.user):
                return True
            self.fail(401, "UNAUTHORIZED", {"WWW-Authenticate": 'Basic realm="here, there"'})
            return False
        action = {"GET": "pull", "HEAD": "pull", "DELETE": "delete"}.get(self.command, "push")
        if match is not None and "uploads" in match["kind"]:
            action = "push"
        wanted = {f"{self.name}:{action}"} if self.name else set()
        with self.registry.lock:
            scopes, uses = self.registry.tokens.get(given.removeprefix("Bearer "), (set(), 0))
            if uses and wanted <= scopes:
                self.registry.tokens[given.removeprefix("Bearer ")] = (scopes, uses - 1)
                self.scopes = scopes
                return True
        challenge = f'Bearer realm="{quirks.realm or self.registry.url + "/token"}",service="quirky"'
        if self.name:
            challenge += f',scope="repository:{self.name}:{action}"'
        self.fail(401, "UNAUTHORIZED", {"WWW-Authenticate": challenge})
        return False

    def token(self, body: bytes) -> None:
        quirks = self.registry.quirks
        form = parse_qs(body.decode()) if body else self.query
        if quirks.auth == "identity":
            if form.get("refresh_token") != ["the identity token"] or form.get("grant_type") != ["refresh_token"]:
                return self.fail(401, "UNAUTHORIZED")
        elif quirks.user and self.headers.get("Authorization") != basic(quirks.user):
            return self.fail(401, "UNAUTHORIZED")
        granted = set()
        for scope in " ".join(form.get("scope", [])).split():
            _, name, actions = scope.split(":")
            granted |= {f"{name}:{action}" for action in actions.split(",") if name not in quirks.withheld}
        text = secrets.token_hex(8)
        self.registry.tokens[text] = (granted, quirks.token_uses)
        answer: dict[str, Any] = {quirks.token_key: text}
        if quirks.expires_in is not None:
            answer["expires_in"] = quirks.expires_in
        return self.answer(200, json.dumps(answer).encode())

    # Manifests, tags, referrers.

    def serve_manifests(self, reference: str, body: bytes) -> None:
        manifests = self.registry.manifests.setdefault(self.name, {})
        tags = self.registry.tags.setdefault(self.name, {})
        if self.command == "PUT":
            return self.put_manifest(reference, body, manifests, tags)
        if self.command == "DELETE":
            if not self.registry.quirks.delete:
                return self.fail(405, "UNSUPPORTED")
            found = manifests.pop(reference, None)
            return self.answer(202) if found else self.fail(404, "MANIFEST_UNKNOWN")
        if self.command == "HEAD" and not self.registry.quirks.head:
            return self.fail(405, "UNSUPPORTED")
        digest = reference if ":" in reference else tags.get(reference, "")
        if digest not in manifests:
            return self.fail(404, "MANIFEST_UNKNOWN")
        media_type, data = manifests[digest]
        if self.registry.quirks.schema_1:
            media_type, data = "application/vnd.docker.distribution.manifest.v1+prettyjws", b'{"schemaVersion": 1}'
            digest = ""
        if digest in self.registry.quirks.spoil:
            data = bytes([data[0]]) + b" " + data[1:]
        kind = self.registry.quirks.content_type or media_type
        return self.answer(200, data, {"Content-Type": kind, **self.digest_header(digest)})

    def put_manifest(
        self, reference: str, body: bytes, manifests: dict[str, tuple[str, bytes]], tags: dict[str, str]
    ) -> None:
        digest = "sha256:" + hashlib.sha256(body).hexdigest()
        data = json.loads(body)
        wanted = [item["digest"] for item in [data.get("config"), *data.get("layers", [])] if item]
        if missing := [item for item in wanted if item not in self.registry.blobs.get(self.name, {})]:
            return self.fail(400, f"MANIFEST_BLOB_UNKNOWN {missing}")
        if missing := [item["digest"] for item in data.get("manifests", []) if item["digest"] not in manifests]:
            return self.fail(400, f"MANIFEST_UNKNOWN {missing}")
        manifests[digest] = (self.headers.get("Content-Type", ""), body)
        if ":" not in reference:
            tags[reference] = digest
        if self.used("lose_answers"):
            return self.hang_up()
        subject = data.get("subject", {}).get("digest", "") if self.registry.quirks.referrers else ""
        return self.answer(201, b"", {"OCI-Subject": subject, **self.digest_header(digest)})

    def digest_header(self, digest: str) -> dict[str, str]:
        kind = self.registry.quirks.digest_header
        return {"Docker-Content-Digest": {"right": digest, "missing": "", "wrong": "sha256:" + "0" * 64}[kind]}

    def serve_tags(self, rest: str, body: bytes) -> None:
        tags = sorted(self.registry.tags.get(self.name, {}))
        last = self.query.get("last", [""])[0]
        rest_of = [tag for tag in tags if tag > last]
        page = rest_of[: self.registry.quirks.page]
        more = f'</v2/{self.name}/tags/list?last={page[-1]}&n=2>; rel="next"' if len(rest_of) > len(page) else ""
        self.answer(200, json.dumps({"name": self.name, "tags": page or None}).encode(), {"Link": more})

    def serve_referrers(self, digest: str, body: bytes) -> None:
        if not self.registry.quirks.referrers:
            return self.fail(404, "NOT_FOUND")
        found = []
        for key, (media_type, data) in self.registry.manifests.get(self.name, {}).items():
            document = json.loads(data)
            if document.get("subject", {}).get("digest") == digest:
                kind = document.get("artifactType") or document["config"]["mediaType"]
                found.append({"mediaType": media_type, "digest": key, "size": len(data), "artifactType": kind})
        index = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": found}
        return self.answer(200, json.dumps(index).encode(), {"Content-Type": index["mediaType"]})

    # Blobs.

    def serve_blobs(self, digest: str, body: bytes) -> None:
        blobs = self.registry.blobs.setdefault(self.name, {})
        if self.command == "DELETE":
            if not self.registry.quirks.delete:
                return self.fail(405, "UNSUPPORTED")
            return self.answer(202) if blobs.pop(digest, None) is not None else self.fail(404, "BLOB_UNKNOWN")
        if self.command == "HEAD" and not self.registry.quirks.head:
            return self.fail(405, "UNSUPPORTED")
        if digest not in blobs:
            return self.fail(404, "BLOB_UNKNOWN")
        if self.registry.quirks.redirect_to and self.command == "GET":
            target = f"{self.registry.quirks.redirect_to}/elsewhere/{digest}?signature=very-secret"
            return self.answer(307, b"", {"Location": target})
        return self.send_blob(blobs[digest], digest)

    def elsewhere(self) -> None:
        """The storage that a registry redirects to: it has every blob, and wants no Authorization."""
        digest = self.path_only.rpartition("/")[2]
        if "Authorization" in self.headers:
            return self.fail(400, "TWO_KINDS_OF_AUTHORIZATION")
        for blobs in self.registry.blobs.values():
            if digest in blobs:
                return self.send_blob(blobs[digest], digest)
        return self.fail(404, "BLOB_UNKNOWN")

    def send_blob(self, data: bytes, digest: str) -> None:
        quirks = self.registry.quirks
        if digest in quirks.spoil:
            data = bytes([data[0] ^ 1]) + data[1:]
        status, headers = 200, self.digest_header(digest)
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if wanted and quirks.ranges != "ignored":
            start, end = int(wanted[1]), min(int(wanted[2] or len(data)), len(data) - 1)
            start += quirks.ranges == "wrong"
            end -= quirks.ranges == "short"
            status, headers["Content-Range"] = 206, f"bytes {start}-{end}/{len(data)}"
            data = data[start : end + 1]
        if self.command == "GET" and len(data) > quirks.cut_after and self.used("cut_answers"):
            self.send_response(status)
            for key, value in {"Content-Length": str(len(data)), **headers}.items():
                self.send_header(key, value)
            self.end_headers()
            self.wfile.write(data[: quirks.cut_after])
            self.wfile.flush()
            return self.hang_up()
        return self.answer(status, data, headers)

    # Uploads.

    def serve_blobs_uploads(self, rest: str, body: bytes) -> None:
        if self.command == "POST":
            return self.start_upload()
        upload = self.registry.uploads.get(rest)
        if self.command == "GET" and self.used("forget_uploads"):
            self.registry.uploads.pop(rest, None)
            upload = None
        if upload is None:
            return self.fail(404, "BLOB_UPLOAD_UNKNOWN")
        if self.registry.quirks.location == "query" and self.query.get("_state") != [rest]:
            return self.fail(400, "BLOB_UPLOAD_INVALID")
        if self.command == "DELETE":
            del self.registry.uploads[rest]
            self.registry.cancelled += 1
            return self.answer(204)
        if self.command == "GET":
            status = self.registry.quirks.upload_status
            return self.answer(status, b"", self.progress(rest, upload)) if status < 400 else self.fail(status, "NO")
        return self.patch(rest, upload, body) if self.command == "PATCH" else self.commit(rest, upload, body)

    def start_upload(self) -> None:
        quirks = self.registry.quirks
        digest, source = self.query.get("mount", [""])[0], self.query.get("from", [""])[0]
        if "origin" in self.query or (digest and not source):
            return self.fail(400, "UNSUPPORTED")
        if digest and quirks.mount >= 400:
            return self.fail(quirks.mount, "NAME_INVALID", {"WWW-Authenticate": "Basic" if quirks.mount == 401 else ""})
        may = not quirks.mount_needs_source_scope or f"{source}:pull" in self.scopes
        data = self.registry.blobs.get(source, {}).get(digest)
        if digest and quirks.mount == 201 and data is not None and may:
            self.registry.blobs.setdefault(self.name, {})[digest] = data
            return self.answer(201, b"", {"Location": f"/v2/{self.name}/blobs/{digest}", **self.digest_header(digest)})
        key = secrets.token_hex(8)
        self.registry.uploads[key] = bytearray()
        least = str(quirks.min_chunk) if quirks.min_chunk else ""
        return self.answer(202, b"", {"OCI-Chunk-Min-Length": least, **self.progress(key, bytearray())})

    def patch(self, key: str, upload: bytearray, body: bytes) -> None:
        quirks = self.registry.quirks
        numbered = re.fullmatch(r"(\d+)-(\d+)", self.headers.get("Content-Range", ""))
        refuse = quirks.chunked if numbered else quirks.streamed
        if refuse >= 400:
            return self.fail(refuse, "UNSUPPORTED")
        if numbered and (int(numbered[1]) != len(upload) or int(numbered[2]) + 1 - int(numbered[1]) != len(body)):
            return self.answer(416, b"", self.progress(key, upload))
        upload += body
        return self.answer(202, b"", self.progress(key, upload))

    def commit(self, key: str, upload: bytearray, body: bytes) -> None:
        quirks = self.registry.quirks
        if body and quirks.monolithic >= 400:
            return self.fail(quirks.monolithic, "UNSUPPORTED")
        whole, digest = bytes(upload) + body, self.query["digest"][0]
        if "sha256:" + hashlib.sha256(whole).hexdigest() != digest:
            return self.fail(400, "DIGEST_INVALID")
        self.registry.blobs.setdefault(self.name, {})[digest] = whole
        del self.registry.uploads[key]
        if self.used("lose_answers"):
            return self.hang_up()
        return self.answer(201, b"", {"Location": f"/v2/{self.name}/blobs/{digest}", **self.digest_header(digest)})

    def progress(self, key: str, upload: bytearray) -> dict[str, str]:
        kind = self.registry.quirks.upload_range
        right = f"0-{max(len(upload) - 1, 0)}"
        in_patch = self.command == "PATCH"
        shown = {"right": right, "zero": "0-0", "missing": "", "bytes": f"bytes={right}"}.get(kind, right)
        if kind == "frozen" or (kind == "stuck" and in_patch):
            shown = "0-9"
        path = f"/v2/{self.name}/blobs/uploads/{key}"
        style = self.registry.quirks.location
        base = {"relative": "", "elsewhere": self.registry.url.replace("127.0.0.1", "localhost")}
        location = base.get(style, self.registry.url) + path
        location += f"?_state={key}" if style == "query" else ""
        return {"Location": location, "Range": shown}
