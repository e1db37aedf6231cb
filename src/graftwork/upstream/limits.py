"""GitHub's two rate limits: what an answer asks us to wait for, and the error where that is too long."""

from __future__ import annotations

import datetime
import email.utils
from collections.abc import Mapping

from graftwork.errors import UnreachableError

# Seconds. GitHub, "Rate limits for the REST API": at least a minute where a secondary limit names no time.
UNTOLD = 60.0


class RateLimitError(UnreachableError):
    """The limit on requests is used up, and waiting for it would take too long. ``seconds``: what is asked."""

    def __init__(self, url: str, seconds: float, *, has_token: bool) -> None:
        hint = "Run it again later: what was read is kept and costs nothing then."
        if not has_token:
            hint = f"Set GITHUB_TOKEN or GH_TOKEN (its limit is much higher). {hint}"
        super().__init__(f"{url}: the limit on requests is used up; it asks to wait {seconds:.0f} s", hint=hint)
        self.seconds = seconds


def asked_to_wait(status: int, headers: Mapping[str, str], body: str, now: float) -> float | None:
    """Seconds to wait before the request may be repeated, or None when *status* is no rate limit.

    A 403 is one only if it says so: by Retry-After, by no remaining requests, or in its text. *now*: Unix time.
    """
    if status not in (403, 429):
        return None
    asked = headers.get("Retry-After", "").strip()
    if asked:
        return max(_seconds(asked, now), 0.0)
    if headers.get("X-RateLimit-Remaining", "").strip() == "0":
        reset = headers.get("X-RateLimit-Reset", "").strip()
        # A second more: the server's clock and ours are not one.
        return max(float(reset) - now, 0.0) + 1 if reset.isascii() and reset.isdecimal() else UNTOLD
    if status == 429 or "rate limit" in body.lower():
        return UNTOLD
    return None


def _seconds(asked: str, now: float) -> float:
    """Retry-After (RFC 9110, 10.2.3): seconds or a date."""
    if asked.isascii() and asked.isdecimal():
        return float(asked)
    try:
        when = email.utils.parsedate_to_datetime(asked)
    except (ValueError, TypeError):
        return UNTOLD
    return (when if when.tzinfo else when.replace(tzinfo=datetime.timezone.utc)).timestamp() - now
