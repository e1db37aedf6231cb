"""JSON in one form, so that the same content has the same digest everywhere."""

from __future__ import annotations

import json
from typing import Any

import msgspec


def canonical_json(value: Any) -> bytes:
    """UTF-8 JSON with sorted keys and no spaces; msgspec structs become objects under their wire names."""
    plain = msgspec.to_builtins(value)
    return json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def readable_json(value: Any) -> bytes:
    """The same for people: two spaces, sorted keys, a newline at the end."""
    plain = msgspec.to_builtins(value)
    return (json.dumps(plain, sort_keys=True, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()
