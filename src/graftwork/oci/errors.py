"""What a registry can answer instead of what it was asked for."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from graftwork.errors import UnreachableError, redact

_LONGEST_MESSAGE = 300  # characters of what the registry says
_NO_BODY = "an answer to HEAD has no body, so the registry gave no reason"


class RegistryError(UnreachableError):
    """A registry refused a request, or answered something else than it should.

    ``status`` is the HTTP status (0 if there was none), ``codes`` are the distribution-spec's error codes.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 0,
        codes: Sequence[str] = (),
        method: str = "",
        url: str = "",
        hint: str = "",
    ) -> None:
        super().__init__(message, hint=hint)
        self.status, self.codes, self.method, self.url = status, tuple(codes), method, redact(url)


class AccessError(RegistryError):
    """401 or 403: the registry wants other credentials, or none that we have will do."""


class NotFoundError(RegistryError):
    """404: the registry has no such repository, manifest or blob."""


class RangesRefusedError(RegistryError):
    """The registry answers a ranged request with the whole blob; nothing of it was read."""


def refusal(
    status: int, headers: Mapping[str, str], body: bytes, *, method: str, url: str, what: str, host: str
) -> RegistryError:
    """The typed error for an answer with *status*. *what* says in words what was asked for."""
    codes, said = _reasons(body)
    reason = _NO_BODY if method == "HEAD" else said or "it gave no reason"
    kind: type[RegistryError] = RegistryError
    hint = "Try again later; 'graftwork doctor' tells what this registry can do."
    if status in (401, 403):
        kind = AccessError
        hint = _login_hint(status, host)
    elif status == 404:
        kind = NotFoundError
        hint = "Check the name, tag and digest; some registries also say this of what you may not see."
    elif status == 429 or headers.get("Retry-After"):
        wait = headers.get("Retry-After", "")
        hint = (
            f"The registry limits requests{f'; it asks to wait {wait[:40]} s' if wait.isdecimal() else ''}. Try later."
        )
    message = f"{what}: {host} answered {status} to {method} {redact(url)}: {reason}"
    return kind(message, status=status, codes=codes, method=method, url=url, hint=hint)


def printable(text: str) -> str:
    """*text* from a server, on one line and short."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return line if len(line) <= _LONGEST_MESSAGE else line[:_LONGEST_MESSAGE] + "…"


def _login_hint(status: int, host: str) -> str:
    if status == 403:
        return f"These credentials do not allow it at {host}: ask for the right to it, or log in as somebody else."
    return f"Log in with 'docker login {host}' or 'podman login {host}', or name an auth file in REGISTRY_AUTH_FILE."


def _reasons(body: bytes) -> tuple[list[str], str]:
    """Codes and words of the distribution-spec's error body; of any other body its text."""
    try:
        errors = json.loads(body)["errors"]
        pairs = [(str(item.get("code", "")), str(item.get("message", ""))) for item in errors]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        text = body.decode("utf-8", errors="replace")
        return [], "" if "<html" in text.lower() else printable(text)
    return [code for code, _ in pairs if code], printable("; ".join(": ".join(filter(None, pair)) for pair in pairs))
