"""Authorization for one registry: basic, or bearer tokens (distribution's token specification)."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode, urlsplit

from graftwork.oci.challenge import Challenge, Scopes, covers, merged, parse_challenges, parse_scopes
from graftwork.oci.credentials import Credential
from graftwork.oci.errors import AccessError, RegistryError, refusal
from graftwork.oci.reference import is_loopback
from graftwork.oci.wire import Reply

# How a token server is asked: method, URL, headers, body. The answer is read; what failed was tried again.
Ask = Callable[[str, str, Mapping[str, str], bytes], Reply]

_SHORTEST_LIFE = 60.0  # seconds; the token specification's default, and what a token may be counted on for at least
_MARGIN = 10.0  # seconds before its end from which a token is not used
_CLIENT = "graftwork"


@dataclass(frozen=True)
class _Token:
    scopes: Scopes
    header: str
    ends: float

    def __repr__(self) -> str:
        return f"_Token({sorted(map(str, self.scopes))})"


class Authenticator:
    """Answers a registry's challenges. Looks for credentials only once it is challenged."""

    def __init__(
        self,
        host: str,
        find: Callable[[str], Credential | None],
        ask: Ask,
        *,
        insecure: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._host, self._find, self._ask, self._insecure, self._clock = host, find, ask, insecure, clock
        self._challenge: Challenge | None = None
        self._tokens: list[_Token] = []
        self._found: dict[str, Credential | None] = {}
        self._lock = threading.RLock()

    def learn(self, header: str) -> None:
        """Remember how this registry wants to be asked: the strongest of its challenges that we know."""
        known = {challenge.scheme: challenge for challenge in reversed(parse_challenges(header))}
        bearer = known.get("bearer")
        with self._lock:
            self._challenge = bearer if bearer and bearer.params.get("realm") else known.get("basic", self._challenge)

    def authorization(self, scopes: Scopes) -> str | None:
        """The Authorization header for *scopes*; None where none is needed or none is to be had."""
        with self._lock:
            if self._challenge is None:
                return None
            if self._challenge.scheme == "basic":
                credential = self._credential(scopes)
                return credential.basic() if credential and credential.username else None
            now = self._clock()
            self._tokens = [token for token in self._tokens if token.ends > now]
            usable = [token for token in self._tokens if covers(token.scopes, scopes)]
            if not usable:
                usable = [self._token(self._challenge, scopes)]
                self._tokens.append(usable[0])
            return usable[0].header

    def rejected(self, header: str, scopes: Scopes, used: str | None) -> Scopes | None:
        """What to ask for after a 401, or None if asking again is of no use.

        A registry may want more than we thought (its challenge says so), or have forgotten a token.
        """
        with self._lock:
            self.learn(header)
            self._tokens = [token for token in self._tokens if token.header != used]
            if self._challenge is None:
                return None
            if self._challenge.scheme == "basic":
                return scopes if used is None and self._credential(scopes) else None
            return merged([*scopes, *parse_scopes(self._challenge.params.get("scope", ""))])

    def _credential(self, scopes: Scopes) -> Credential | None:
        """By the repository that is written to, else the first one: Podman's file has entries by repository."""
        order = sorted(scopes, key=lambda scope: ("push" not in scope.actions, scope.repository))
        repository = order[0].repository if order else ""
        if repository not in self._found:
            self._found[repository] = self._find(repository)
        return self._found[repository]

    def _token(self, challenge: Challenge, scopes: Scopes) -> _Token:
        credential = self._credential(scopes)
        if credential and credential.bearer_token:
            return _Token(scopes, f"Bearer {credential.bearer_token}", float("inf"))
        realm = challenge.params["realm"]
        self._check_realm(realm)
        service = challenge.params.get("service", "")
        wanted = sorted(map(str, scopes))
        if credential and credential.identity_token:
            form = {"grant_type": "refresh_token", "service": service, "client_id": _CLIENT}
            form |= {"scope": " ".join(wanted), "refresh_token": credential.identity_token}
            headers = {"Content-Type": "application/x-www-form-urlencoded"}
            reply = self._ask("POST", realm, headers, urlencode(form).encode())
        else:
            query = ([("service", service)] if service else []) + [("scope", scope) for scope in wanted]
            headers = {"Authorization": credential.basic()} if credential else {}
            url = f"{realm}{'&' if urlsplit(realm).query else '?'}{urlencode(query)}" if query else realm
            reply = self._ask("GET", url, headers, b"")
        return self._read(reply, scopes)

    def _read(self, reply: Reply, scopes: Scopes) -> _Token:
        what = f"a token for {self._host}"
        if reply.status != 200:
            error = refusal(
                reply.status, reply.headers, reply.data, method=reply.method, url=reply.url, what=what, host=self._host
            )
            # A token server refuses a wrong password with 400 or 401, and both mean the same to a user.
            if reply.status == 400 and not isinstance(error, AccessError):
                raise AccessError(error.message, status=400, codes=error.codes, hint=f"Log in to {self._host} again.")
            raise error
        try:
            answer: dict[str, Any] = json.loads(reply.data)
            text = answer.get("token") or answer.get("access_token")
            life = float(answer.get("expires_in") or _SHORTEST_LIFE)
        except (ValueError, TypeError, AttributeError, RecursionError):
            text, life = None, 0.0
        if not isinstance(text, str) or not text.isascii() or not text.isprintable() or " " in text:
            raise RegistryError(f"{what}: the token server's answer holds no token", status=200, url=reply.url)
        usable = max(life - _MARGIN, life / 2)
        return _Token(scopes, f"Bearer {text}", self._clock() + usable)

    def _check_realm(self, realm: str) -> None:
        parts = urlsplit(realm)
        plain_is_fine = self._insecure or is_loopback(parts.netloc.rpartition("@")[2])
        if parts.scheme != "https" and not (parts.scheme == "http" and plain_is_fine):
            hint = "Its configuration is wrong, or somebody is in between: a token server must be reached by HTTPS."
            raise AccessError(f"{self._host} wants a token from {realm}, which is not safe to ask", hint=hint)
