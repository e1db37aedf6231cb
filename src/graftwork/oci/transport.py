"""Requests to one registry: authorization, redirects, waiting and trying again, and typed errors."""

from __future__ import annotations

import email.utils
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urljoin, urlsplit, urlunsplit

from graftwork.errors import UnreachableError, UsageError, redact
from graftwork.oci.auth import Authenticator
from graftwork.oci.challenge import Scope, Scopes, merged
from graftwork.oci.credentials import Credential, find_credential
from graftwork.oci.errors import RegistryError, printable, refusal
from graftwork.oci.families import DOCUMENT_LIMIT
from graftwork.oci.reference import api_host, is_loopback, normal_registry, registry_problem
from graftwork.oci.traffic import Patience, Traffic
from graftwork.oci.wire import CERTS, Body, CutError, Reply, Wire

_TRANSIENT = (500, 502, 503, 504)
_REDIRECTS = (301, 302, 303, 307, 308)
_MOST_REDIRECTS = 5
_ERROR_LIMIT = 64 << 10  # bytes of a refusal's body
_TOKEN_OK = (200, 400, 401, 403, 404, 405)  # what Authenticator turns into its own errors
_HINT = "Check the name, the network and the proxy settings (HTTPS_PROXY, NO_PROXY)."
_HINT_TLS = "Put its authority into REQUESTS_CA_BUNDLE or certs.d; plain HTTP to another machine must be asked for."


@dataclass(frozen=True)
class _Request:
    """One request as it goes out. ``ok``: the statuses that are an answer and no refusal."""

    method: str
    url: str
    headers: Mapping[str, str]
    body: bytes | Body
    ok: tuple[int, ...]
    what: str
    retry: bool = True
    stream: bool = False
    timeout: float | None = None


class Transport:
    """Everything that is the same for each request to the registry *registry* (host and port, as in references)."""

    def __init__(
        self,
        registry: str,
        *,
        traffic: Traffic | None = None,
        patience: Patience | None = None,
        insecure: bool = False,
        credential: Credential | None = None,
        certs: tuple[Path, ...] = CERTS,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        if problem := registry_problem(registry):
            raise UsageError(problem, hint="Give a host with an optional port, such as registry.example:5000.")
        self.registry = normal_registry(registry)
        self.traffic = traffic if traffic is not None else Traffic()
        self.patience = patience or Patience()
        self._insecure, self.sleep = insecure, sleep
        self._wire = Wire(self.registry, self.traffic, certs)
        self._auth = Authenticator(
            self.registry,
            lambda repository: credential or find_credential(self.registry, repository),
            lambda method, url, headers, body: self._patient(
                _Request(method, url, headers, body, _TOKEN_OK, "a token")
            ),
            insecure=insecure,
        )
        self._base = ""
        self._lock = threading.Lock()

    def close(self) -> None:
        """Close every connection."""
        self._wire.close()

    def connect(self) -> None:
        """Find the scheme and how the registry wants to be authenticated to; does nothing the second time."""
        with self._lock:
            if not self._base:
                self._base = self._find_base()

    def send(
        self,
        method: str,
        target: str,
        *,
        what: str,
        scopes: Iterable[Scope] = (),
        headers: Mapping[str, str] | None = None,
        body: bytes | Body = b"",
        ok: tuple[int, ...] = (200,),
        retry: bool = True,
        stream: bool = False,
        timeout: float | None = None,
    ) -> Reply:
        """The answer to one request, if its status is in *ok*; else the typed error of ``errors``.

        *target* is a path with query or a URL that the registry gave. *retry* allows repeating after a cut connection
        or a 5xx; without it a cut raises CutError. *timeout*: seconds to wait for the answer. *what*: for messages.
        """
        self.connect()
        request = _Request(method, self.absolute(target), headers or {}, body, ok, what, retry, stream, timeout)
        wanted = merged(scopes)
        for refreshed in (False, True):
            allowed = self._authorization(request.url, wanted)
            sent = {**request.headers, **({"Authorization": allowed} if allowed else {})}
            reply = self._patient(replace(request, headers=sent, ok=ok if refreshed else (*ok, 401)))
            if reply.status != 401 or 401 in ok:
                return reply
            again = self._auth.rejected(reply.headers.get("WWW-Authenticate", ""), wanted, allowed)
            if again is None:
                raise self._refused(reply, what)
            wanted = again
        raise AssertionError("the second answer is returned or raised")

    def absolute(self, target: str, base: str = "") -> str:
        """*target* as a URL, by the one it came from. RegistryError for one that must not be followed."""
        url = urljoin(base or self._base + "/", target)
        parts, home = urlsplit(url), urlsplit(self._base)
        if parts.scheme == "http" and home.scheme == "https" and parts.netloc == home.netloc:
            # A registry behind a proxy that ends TLS often does not know that it is reached by HTTPS.
            return urlunsplit(parts._replace(scheme="https"))
        plain = parts.scheme == "http" and (self._insecure or is_loopback(parts.netloc.rpartition("@")[2]))
        if parts.scheme != "https" and not plain:
            hint = "Only HTTPS is followed; plain HTTP to another machine must be asked for."
            raise RegistryError(f"{self.registry} sends us to {url}", url=url, hint=hint)
        return url

    def _find_base(self) -> str:
        host = api_host(self.registry)
        schemes = ("http", "https") if is_loopback(host) else ("https", "http") if self._insecure else ("https",)
        chosen, reply = schemes[0], None
        for scheme in schemes if len(schemes) > 1 else ():
            try:
                reply = self._follow(self._ping(scheme, host))
            except CutError as error:
                chosen = scheme if error.untrusted else chosen
                continue
            if reply.status != 400:
                chosen = scheme
                break
            chosen, reply = "https", None  # 400 is what Go's TLS servers say to plain HTTP
        reply = self._patient(self._ping(chosen, host), reply)
        self._auth.learn(reply.headers.get("WWW-Authenticate", ""))
        return f"{chosen}://{host}"

    def _ping(self, scheme: str, host: str) -> _Request:
        return _Request("GET", f"{scheme}://{host}/v2/", {}, b"", (200, 401, 403), f"the registry {self.registry}")

    def _authorization(self, url: str, scopes: Scopes) -> str | None:
        """Credentials are for the registry's own origin: an upload's Location may be elsewhere."""
        return self._auth.authorization(scopes) if _origin(url) == _origin(self._base) else None

    def _patient(self, request: _Request, first: Reply | None = None) -> Reply:
        """One request, repeated where that is safe. 429 always is: the registry did nothing.

        *first* is an answer that is there already.
        """
        for number in range(self.patience.tries):
            last = number + 1 == self.patience.tries
            if isinstance(request.body, Body):
                request.body.rewind()
            try:
                reply = first if first is not None and not number else self._follow(request)
            except CutError as error:
                if not request.retry:
                    raise
                if last or error.tls or (error.before and number):
                    raise self._unreachable(request.url, error) from error
                self.sleep(self.patience.backoff * 2**number)
                continue
            if reply.status in request.ok:
                return reply
            wait = self._pause(reply, number)
            temporary = reply.status == 429 or (request.retry and reply.status in _TRANSIENT)
            if last or not temporary or wait > self.patience.longest_wait:
                raise self._refused(reply, request.what)
            self.sleep(wait)
        raise AssertionError("the last try returns or raises")

    def _follow(self, request: _Request) -> Reply:
        """One request and, for reading, its redirects; credentials stay with the origin that they are for."""
        url, origin = request.url, _origin(request.url)
        timeout = (self.patience.connect, request.timeout or self.patience.read)
        for _ in range(_MOST_REDIRECTS + 1):
            headers = {k: v for k, v in request.headers.items() if k != "Authorization" or _origin(url) == origin}
            reply = self._wire.exchange(request.method, url, headers, request.body, timeout)
            target = reply.headers.get("Location", "")
            if reply.status not in _REDIRECTS or request.method not in ("GET", "HEAD") or not target:
                if not (request.stream and reply.status < 400):
                    self._drain(reply, DOCUMENT_LIMIT if reply.status < 400 else _ERROR_LIMIT)
                return reply
            reply.close()
            url = self.absolute(target, url)
        raise RegistryError(f"{self.registry} redirects {request.url} more than {_MOST_REDIRECTS} times", url=url)

    def _drain(self, reply: Reply, limit: int) -> None:
        """Read a small body whole, so that the connection can be used again."""
        pieces, left = [], limit + 1
        while reply.method != "HEAD" and left and (piece := reply.read(left)):
            pieces.append(piece)
            left -= len(piece)
        reply.close()
        reply.data = b"".join(pieces)
        if not left and reply.status < 400:
            raise RegistryError(
                f"{redact(reply.url)}: the answer is over the limit of {limit} bytes", status=reply.status
            )

    def _pause(self, reply: Reply, number: int) -> float:
        """Seconds to wait, by Retry-After (RFC 9110, 10.2.3: seconds or a date) or our own backoff."""
        asked = reply.headers.get("Retry-After", "").strip()
        own: float = self.patience.backoff * 2**number
        if asked.isascii() and asked.isdecimal():
            return max(own, float(asked))
        try:
            return max(own, email.utils.parsedate_to_datetime(asked).timestamp() - time.time())
        except (ValueError, TypeError, OverflowError):
            return own  # no header, or one that says nothing

    def _refused(self, reply: Reply, what: str) -> RegistryError:
        return refusal(
            reply.status,
            reply.headers,
            reply.data,
            method=reply.method,
            url=reply.url,
            what=what,
            host=urlsplit(reply.url).netloc.rpartition("@")[2],
        )

    def _unreachable(self, url: str, error: CutError) -> UnreachableError:
        hint = _HINT_TLS if error.tls else _HINT
        return UnreachableError(f"cannot reach {redact(url)}: {printable(str(error))}", hint=hint)


def _origin(url: str) -> tuple[str, str, int | None]:
    parts = urlsplit(url)
    port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    return parts.scheme.lower(), (parts.hostname or "").lower(), port
