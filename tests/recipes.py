"""Small recipes for tests: one of each engine, changed by dotted keys, and what they are rendered into."""

from __future__ import annotations

import copy
import json
from typing import Any

import msgspec

from graftwork.launch.demands import Contents
from graftwork.launch.deployment import Component
from graftwork.launch.recipe import Recipe
from graftwork.launch.render import Rendered, render

_MODEL = {"path": "/models/m", "served_name": "m"}
_NODE = {"gpus": 8, "memory_gib": 2000, "gpu_memory_gib": 131}

SGLANG: dict[str, Any] = {
    "name": "small",
    "summary": "a test",
    "engine": "sglang",
    "version": "0.5.15.post1",
    "model": _MODEL,
    "node": _NODE,
    "prefill": {"tp": 8},
    "decode": {"tp": 8},
}
VLLM: dict[str, Any] = {**SGLANG, "engine": "vllm", "version": "0.24.0"}
HISPARSE_WHEEL = "0.24.1.dev0+hisparse.c6f204424.cu129"


def recipe(base: dict[str, Any], **changes: Any) -> Recipe:
    """*base* with keys such as ``decode__seats=96``; None takes a table or key away."""
    data = copy.deepcopy(base)
    for path, value in changes.items():
        *tables, key = path.split("__")
        inner = data
        for table in tables:
            inner = inner.setdefault(table, {})
        if value is None:
            inner.pop(key, None)
        else:
            inner[key] = value
    return msgspec.convert(data, Recipe)


def rendered(base: dict[str, Any], contents: Contents | None = None, **changes: Any) -> Rendered:
    return render(recipe(base, **changes), contents or Contents())


def component(found: Rendered, name: str) -> Component:
    (one,) = [each for each in found.deployment.components if each.name == name]
    return one


def value(found: Rendered, name: str, flag: str) -> str | None:
    """The value of a flag in a component's command: "" where it takes none, None where it is not there."""
    argv = component(found, name).argv
    if flag not in argv:
        return None
    after = argv[argv.index(flag) + 1 : argv.index(flag) + 2]
    return "" if not after or after[0].startswith("--") else after[0]


def json_value(found: Rendered, name: str, flag: str) -> Any:
    """The JSON value of a flag, with placeholders left in its strings."""
    text = value(found, name, flag)
    assert text is not None, flag
    return json.loads(text.replace("{{", "{").replace("}}", "}"))
