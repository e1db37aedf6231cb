"""The GitHub API on requests: ETags, pages, both rate limits, redirects, retries. Assumptions: docs/upstream.md."""

from __future__ import annotations

import datetime
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin, urlsplit

from graftwork.errors import GraftworkError, UnreachableError, UsageError, redact
from graftwork.oci.errors import printable
from graftwork.oci.traffic import Patience
from graftwork.upstream.answers import Answer, Answers
from graftwork.upstream.limits import UNTOLD, RateLimitError, asked_to_wait

if TYPE_CHECKING:
    import requests

API = "https://api.github.com"
_GONE = (404, 410, 451)
_REDIRECTS = (301, 302, 307, 308)
_FAULTS = (500, 502, 503, 504)
_MOST_REDIRECTS = 5
_MOST_PAGES = 400
_LIMIT = 64 << 20  # bytes of one answer
_HINT = "Check the network, the proxy (HTTPS_PROXY, NO_PROXY, REQUESTS_CA_BUNDLE) and GRAFTWORK_GITHUB_API."


def utc_now() -> datetime.datetime:
    """The time, in UTC."""
    return datetime.datetime.now(datetime.timezone.utc)


@dataclass
class GitHub:
    """One API root. *token* goes to its origin only. With *offline* nothing is asked: the cache or an error.

    404, 410 and 451 are answers; every other refusal is an UnreachableError. Source: GitHub's REST documentation.
    """

    answers: Answers
    root: str = API
    token: str = ""
    offline: bool = False
    patience: Patience = field(default_factory=lambda: Patience(backoff=1.0, longest_wait=120.0))
    clock: Callable[[], datetime.datetime] = utc_now
    sleep: Callable[[float], None] = time.sleep
    asked: int = 0

    def __post_init__(self) -> None:
        parts = urlsplit(self.root)
        if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc or parts.query:
            hint = "Give the root of an API, such as https://api.github.com; tokens belong into GITHUB_TOKEN."
            raise UsageError(f"GRAFTWORK_GITHUB_API: {self.root!r} is not the root of an API", hint=hint)
        self.root = self.root.rstrip("/")
        self._session: requests.Session | None = None
        self._limited_until = 0.0

    @classmethod
    def from_environment(cls, answers: Answers, offline: bool, env: Mapping[str, str] = os.environ) -> GitHub:
        """As GRAFTWORK_GITHUB_API, and GITHUB_TOKEN or GH_TOKEN, say."""
        token = env.get("GITHUB_TOKEN") or env.get("GH_TOKEN") or ""
        return cls(answers, env.get("GRAFTWORK_GITHUB_API") or API, token.strip(), offline)

    def get(self, path: str) -> Answer:
        """The answer to GET *path* (below the root, or a URL of it), redirects followed."""
        url = path if "://" in path else f"{self.root}/{path}"
        kept = self.answers.get(url)
        if self.offline:
            return self._from_cache(kept, url)
        answer = self._followed(url, kept)
        if answer.status == 304 and kept is not None:
            answer = _changed(kept, day=self._today)
        elif answer.status not in (200, *_GONE):
            raise UnreachableError(f"{redact(url)}: the server answered {answer.status}", hint=_HINT)
        self.answers.put(url, answer)
        return answer

    def pages(self, path: str) -> Iterator[Answer]:
        """Every page, by the Link header."""
        url = path
        for _ in range(_MOST_PAGES):
            answer = self.get(url)
            yield answer
            if answer.status != 200 or not answer.next:
                return
            url = answer.next
        raise UnreachableError(f"{path}: more than {_MOST_PAGES} pages", hint="Ask for fewer.")

    def graphql(self, query: str, variables: Mapping[str, Any]) -> tuple[dict[str, Any], Answer]:
        """``data`` and ``errors`` of one query, as the server gave them."""
        body = json.dumps({"query": query, "variables": variables}, sort_keys=True)
        key = f"POST {self.root} {body}"
        if self.offline:
            answer = self._from_cache(self.answers.get(key), f"{self.root}: this query")
            return self.document(answer), answer
        url = self.root.removesuffix("/v3") + "/graphql"
        for number in range(self.patience.tries):
            answer = self._patient("POST", url, {}, body)
            if answer.status != 200:
                raise UnreachableError(f"{redact(url)}: the server answered {answer.status} to a query", hint=_HINT)
            document = self.document(answer)
            kinds = {str(item.get("type")) for item in document.get("errors") or [] if isinstance(item, dict)}
            if "RATE_LIMITED" not in kinds:
                self.answers.put(key, answer)
                return document, answer
            self._wait(UNTOLD, number, url)
        raise AssertionError("the last wait raises")

    def document(self, answer: Answer) -> dict[str, Any]:
        """The JSON object of *answer*."""
        found = self._json(answer)
        if not isinstance(found, dict):
            raise UnreachableError(f"{redact(answer.url)}: the answer is not a JSON object", hint=_HINT)
        return found

    def rows(self, answer: Answer) -> list[dict[str, Any]]:
        """The JSON objects of a listing."""
        found = self._json(answer)
        if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
            raise UnreachableError(f"{redact(answer.url)}: the answer is not a JSON list of objects", hint=_HINT)
        return found

    @property
    def method(self) -> str:
        """How things are seen, in words for the evidence."""
        return "GitHub API" + (", from the cache" if self.offline else "")

    @property
    def _now(self) -> float:
        return self.clock().timestamp()

    @property
    def _today(self) -> str:
        return self.clock().date().isoformat()

    def _from_cache(self, kept: Answer | None, what: str) -> Answer:
        if kept is None:
            raise UnreachableError(f"{redact(what)}: not in the cache", hint="Run it once without --offline.")
        return _changed(kept, cached=True)

    def _json(self, answer: Answer) -> Any:
        try:
            return json.loads(answer.body)
        except (ValueError, RecursionError):
            raise UnreachableError(f"{redact(answer.url)}: the answer is not JSON", hint=_HINT) from None

    def _followed(self, url: str, kept: Answer | None) -> Answer:
        """One GET and its redirects: a renamed repository, a transferred issue. Never from HTTPS to HTTP."""
        headers = {"If-None-Match": kept.etag} if kept is not None and kept.etag else {}
        for _ in range(_MOST_REDIRECTS + 1):
            answer = self._patient("GET", url, headers)
            if answer.status not in _REDIRECTS:
                return answer
            target = urljoin(url, answer.next)
            if not answer.next or _origin(target) != _origin(self.root):
                raise UnreachableError(f"{redact(url)} sends us to {redact(target)}, away from the API", hint=_HINT)
            url = target
        raise UnreachableError(f"{redact(url)}: more than {_MOST_REDIRECTS} redirects", hint=_HINT)

    def _patient(self, method: str, url: str, headers: Mapping[str, str], body: str = "") -> Answer:
        """One request, repeated after a cut, a fault of the server, and a limit that is short enough to wait for."""
        import requests
        import urllib3

        if self._now < self._limited_until:  # GitHub asks not to go on asking then
            raise RateLimitError(redact(url), self._limited_until - self._now, has_token=bool(self.token))
        for number in range(self.patience.tries):
            try:
                response, text = self._exchange(method, url, headers, body)
            except GraftworkError:
                raise
            except (requests.RequestException, urllib3.exceptions.HTTPError, OSError) as error:
                if number + 1 == self.patience.tries or isinstance(error, requests.exceptions.SSLError):
                    raise UnreachableError(f"cannot reach {redact(url)}: {_cause(error)}", hint=_HINT) from error
                self.sleep(self.patience.backoff * 2**number)
                continue
            wait = asked_to_wait(response.status_code, response.headers, text, self._now)
            if wait is not None:
                self._wait(wait, number, url)
            elif response.status_code in _FAULTS and number + 1 < self.patience.tries:
                self.sleep(self.patience.backoff * 2**number)
            else:
                return self._answer(response, text)
        raise AssertionError("the last try returns or raises")

    def _exchange(self, method: str, url: str, headers: Mapping[str, str], body: str) -> tuple[requests.Response, str]:
        self.asked += 1
        sent = {"Accept": "application/vnd.github+json", "X-GitHub-Api-Version": "2022-11-28", **headers}
        with self._opened().request(
            method,
            url,
            headers=sent,
            data=body or None,
            allow_redirects=False,
            stream=True,
            timeout=(self.patience.connect, self.patience.read),
        ) as response:
            data = b""
            for piece in response.iter_content(1 << 16):
                data += piece
                if len(data) > _LIMIT:
                    raise UnreachableError(f"{redact(url)}: the answer is over {_LIMIT} bytes", hint=_HINT)
            return response, data.decode("utf-8", "replace")

    def _answer(self, response: requests.Response, text: str) -> Answer:
        status = response.status_code
        if status in (401, 403):
            hint = "Check GITHUB_TOKEN or GH_TOKEN (or unset it): it must be valid and may need the right to see this."
            raise UnreachableError(f"{redact(response.url)}: {status}: {_reason(text)}", hint=hint)
        if status >= 400 and status not in _GONE:
            raise UnreachableError(f"{redact(response.url)}: {status}: {_reason(text)}", hint=_HINT)
        following = response.links.get("next", {}).get("url", "")
        if following and _origin(following) != _origin(self.root):
            raise UnreachableError(f"{redact(response.url)}: its next page is {redact(following)}", hint=_HINT)
        next_url = response.headers.get("Location", "") if status in _REDIRECTS else following
        etag = response.headers.get("ETag", "")
        return Answer(url=response.url, status=status, body=text, day=self._today, etag=etag, next=next_url)

    def _wait(self, seconds: float, number: int, url: str) -> None:
        if seconds > self.patience.longest_wait or number + 1 == self.patience.tries:
            self._limited_until = self._now + seconds
            raise RateLimitError(redact(url), seconds, has_token=bool(self.token))
        self.sleep(seconds)

    def _opened(self) -> requests.Session:
        if self._session is None:
            import requests

            from graftwork import __version__

            home, token = _origin(self.root), self.token

            class OwnOrigin(requests.auth.AuthBase):
                """The token for the API's own origin; being set at all, it also keeps netrc out."""

                def __call__(self, request: Any) -> Any:
                    if token and _origin(request.url) == home:
                        request.headers["Authorization"] = f"Bearer {token}"
                    return request

            self._session = requests.Session()
            self._session.auth = OwnOrigin()
            self._session.headers["User-Agent"] = f"graftwork/{__version__}"
        return self._session


def _changed(answer: Answer, **changes: Any) -> Answer:
    import msgspec

    return msgspec.structs.replace(answer, **changes)


def _origin(url: str) -> tuple[str, str, int | None]:
    try:
        parts = urlsplit(url)
        return parts.scheme, parts.hostname or "", parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    except ValueError:
        return "", "", None


def _reason(text: str) -> str:
    try:
        return printable(str(json.loads(text)["message"]))
    except (ValueError, TypeError, KeyError, RecursionError):
        return "no reason was given"


def _cause(error: BaseException) -> str:
    from graftwork.trees.session import cause

    return printable(cause(error))
