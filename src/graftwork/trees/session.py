"""The HTTP session that every download goes through: pip's certificates, proxy and credentials, and retries."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit, urlunsplit

from graftwork.errors import GraftworkError, UnreachableError, UsageError, redact
from graftwork.trees.pipconf import PipSettings

if TYPE_CHECKING:
    import requests

_TRANSIENT = (429, 500, 502, 503, 504)
_LONGEST_WAIT = 60.0  # seconds; a server may ask for hours
_CONNECT_TIMEOUT = 10.0  # seconds
_HINTS = {
    401: "The index wants credentials: put them into the index URL of pip's configuration, or into ~/.netrc.",
    403: "The index refuses these credentials: check pip's configuration and ~/.netrc.",
    407: "The proxy wants credentials: check 'proxy' in pip's configuration.",
}
_HINT = "Check the network and 'pip config list' (index-url, proxy, cert)."
Credentials = dict[tuple[str, str, int | None], tuple[str, str]]


def open_session(settings: PipSettings, *, backoff: float = 0.25) -> requests.Session:
    """A session as *settings* want it. Retries GET on connection errors, 429 and 5xx; honours Retry-After.

    Credentials come from the index URLs, for their own origin only, else from netrc.
    *backoff* is in seconds and doubles with each try.
    """
    import requests
    from requests.adapters import HTTPAdapter
    from urllib3.exceptions import InsecureRequestWarning
    from urllib3.util import Retry

    class PatientRetry(Retry):
        def get_retry_after(self, response: Any) -> float | None:
            wait = super().get_retry_after(response)
            return None if wait is None else min(wait, _LONGEST_WAIT)

    class TrustingAdapter(HTTPAdapter):
        def cert_verify(self, conn: Any, url: str, verify: Any, cert: Any) -> None:
            super().cert_verify(conn, url, False, cert)  # type: ignore[no-untyped-call]

        def send(self, *args: Any, **more: Any) -> requests.Response:
            with warnings.catch_warnings():
                # The user asked for it in pip's configuration; pip says nothing either.
                warnings.simplefilter("ignore", InsecureRequestWarning)
                return super().send(*args, **more)

    class PipSession(requests.Session):
        def request(self, method: Any, url: Any, *args: Any, **more: Any) -> requests.Response:
            more.setdefault("timeout", (min(settings.timeout, _CONNECT_TIMEOUT) or None, settings.timeout or None))
            return super().request(method, url, *args, **more)

        def merge_environment_settings(self, url: Any, proxies: Any, stream: Any, verify: Any, cert: Any) -> Any:
            # requests lets REQUESTS_CA_BUNDLE and HTTPS_PROXY win over the session; pip's own settings must win.
            merged = super().merge_environment_settings(url, proxies, stream, verify, cert)
            if settings.cert:
                merged["verify"] = settings.cert
            if settings.proxy:
                merged["proxies"] = {"http": settings.proxy, "https": settings.proxy}
            return merged

    retry = PatientRetry(
        total=settings.retries,
        backoff_factor=backoff,
        status_forcelist=_TRANSIENT,
        allowed_methods=("GET", "HEAD"),
        respect_retry_after_header=True,
        raise_on_status=False,
    )
    urls = (settings.index_url or "", *settings.extra_index_urls, *settings.find_links)
    session = PipSession()
    session.headers["User-Agent"] = _user_agent()
    session.cert = settings.client_cert
    session.auth = _origin_auth(credentials_of(urls))
    for scheme in ("https://", "http://"):
        session.mount(scheme, HTTPAdapter(max_retries=retry))
    for host in settings.trusted_hosts:
        session.mount(f"https://{host}/", TrustingAdapter(max_retries=retry))
        if urlsplit(f"//{host}").port is None:
            session.mount(f"https://{host}:", TrustingAdapter(max_retries=retry))
    return session


def split_credentials(url: str) -> tuple[str, tuple[str, str] | None]:
    """*url* without its user info, and the user info decoded. UsageError when it is not a URL."""
    parts = _split(url)
    host = parts.netloc.rpartition("@")[2]
    found = (unquote(parts.username), unquote(parts.password or "")) if parts.username is not None else None
    return urlunsplit(parts._replace(netloc=host)), found


def credentials_of(urls: Iterable[str]) -> Credentials:
    """The credentials in *urls*, by origin; the first of an origin counts, as in pip."""
    found: Credentials = {}
    for url in urls:
        _, credentials = split_credentials(url)
        if credentials:
            found.setdefault(_origin(url), credentials)
    return found


@contextmanager
def reaching(what: str) -> Iterator[None]:
    """Turn every failure of requests in the block into an UnreachableError that names *what*, no secrets."""
    import requests
    import urllib3

    try:
        yield
    except requests.HTTPError as error:
        code = error.response.status_code if error.response is not None else 0
        reason = f"the server answered {code} {error.response.reason if error.response is not None else ''}".strip()
        raise UnreachableError(f"{what}: {reason}", hint=_HINTS.get(code, _HINT)) from error
    except requests.exceptions.SSLError as error:
        hint = "Its certificate is not trusted: set 'cert' in pip's configuration to your CA bundle."
        raise UnreachableError(f"{what}: {cause(error)}", hint=hint) from error
    # requests lets some of urllib3's own errors through (a host name that cannot be one, in a URL or redirect).
    except (requests.RequestException, urllib3.exceptions.HTTPError, UnicodeError, OSError) as error:
        if isinstance(error, GraftworkError):
            raise
        raise UnreachableError(f"{what}: {cause(error)}", hint=_HINT) from error


def _origin_auth(known: Credentials) -> Any:
    from requests.auth import AuthBase, HTTPBasicAuth
    from requests.utils import get_netrc_auth

    class OriginAuth(AuthBase):
        def __call__(self, request: Any) -> Any:
            found = known.get(_origin(request.url)) or get_netrc_auth(request.url)
            return HTTPBasicAuth(*found)(request) if found else request

    return OriginAuth()


def _split(url: str) -> Any:
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        raise UsageError(f"pip's configuration: {redact(url)!r} is not a URL: {error}", hint=_HINT) from error
    return parts


def _origin(url: str) -> tuple[str, str, int | None]:
    parts = _split(url)
    return (
        parts.scheme.lower(),
        (parts.hostname or "").lower(),
        parts.port or {"http": 80, "https": 443}.get(parts.scheme),
    )


def _user_agent() -> str:
    import platform

    from graftwork import __version__

    return f"graftwork/{__version__} ({platform.python_implementation()} {platform.python_version()})"


def cause(error: BaseException) -> str:
    """The innermost reason: what requests and urllib3 wrap around it names URLs with their queries."""
    seen = 0
    while seen < 10:
        inner = getattr(error, "reason", None) or next((a for a in error.args if isinstance(a, BaseException)), None)
        if not isinstance(inner, BaseException):
            break
        error, seen = inner, seen + 1
    text = str(error).rpartition(": ")[2] if "object at 0x" in str(error) else str(error)
    return redact(text) or type(error).__name__
