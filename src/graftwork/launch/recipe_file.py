"""Reading a recipe: changes from the command line, and the rules that its types cannot say."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from graftwork.catalog.toml import line_of, load
from graftwork.errors import CatalogError, UsageError
from graftwork.launch.recipe import Leg, Recipe

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def load_recipe(file: Path, changes: list[str]) -> Recipe:
    """Read a recipe with *changes* (``key.path=value``) made to it; CatalogError or UsageError for a bad one."""
    recipe = load(file, Recipe)
    if changes:
        data = tomllib.loads(file.read_text("utf-8"))
        for change in changes:
            _set(data, change)
        try:
            recipe = msgspec.convert(data, Recipe)
        except msgspec.ValidationError as error:
            raise UsageError(f"--set: {error}", hint="docs/launch.md describes every key") from None
    _check(recipe, file)
    return recipe


def _set(data: dict[str, Any], change: str) -> None:
    """Put one value in: TOML where it is TOML, else the text itself."""
    path, equals, text = change.partition("=")
    if not equals or not all(path.split(".")):
        raise UsageError(f"--set {change}: not key=value", hint="such as --set decode.seats=128")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text
    *tables, key = path.split(".")
    for table in tables:
        data = data.setdefault(table, {})
        if not isinstance(data, dict):
            raise UsageError(f"--set {change}: {table} is not a table")
    data[key] = value


# Keys that SGLang alone knows, and those that only some kinds of router do.
_SGLANG_ONLY = [(leg, key) for leg in ("prefill", "decode", "mixed") for key in ("dp_attention", "hicache_gb")]
_SGLANG_ONLY += [("mtp", key) for key in ("algorithm", "topk", "draft_tokens")]
_POLICED = ("sglang-router", "vllm-router", "infera")
_ROUTERS = {"policy": _POLICED, "version": _POLICED, "etcd": ("infera",), "overlap_weight": ("infera",)}
_ROUTERS["epp_config"] = ("llm-d",)


def _idle(recipe: Recipe) -> Iterator[tuple[tuple[str, str], str]]:
    """The keys that are given and would have no effect, and why."""

    def given(table: str, key: str) -> bool:
        part = getattr(recipe, table)
        defaults = {each.name: each.default for each in msgspec.structs.fields(part)} if part is not None else {}
        return part is not None and getattr(part, key) not in (defaults[key], {})

    for table, key in _SGLANG_ONLY if recipe.engine == "vllm" else []:
        if given(table, key):
            yield (table, key), "vLLM has no such setting"
    for key, kinds in _ROUTERS.items():
        if recipe.router is not None and recipe.router.kind not in kinds and given("router", key):
            yield ("router", key), f"a router of kind {recipe.router.kind} has no such setting"


def _check(recipe: Recipe, file: Path) -> None:
    """Rules that types cannot say, each with the line."""

    def wrong(key: tuple[str, ...], message: str, hint: str) -> CatalogError:
        return CatalogError(file, message, line=line_of(file.read_text("utf-8"), key), hint=hint)

    if (recipe.prefill is None) != (recipe.decode is None) or (recipe.mixed is None) == (recipe.prefill is None):
        raise wrong(("name",), "a recipe has [prefill] and [decode], or [mixed]", "name the legs that it has")
    for name in ("prefill", "decode", "mixed"):
        leg: Leg | None = getattr(recipe, name)
        if leg is not None and leg.nodes % leg.span:
            raise wrong((name, "span"), f"{leg.nodes} nodes do not divide into engines of {leg.span}", "change one")
        if leg is not None and leg.ranks == "apart" and recipe.engine != "vllm":
            raise wrong((name, "ranks"), "SGLang runs its ranks together", "leave it out")
    for key, why in _idle(recipe):
        raise wrong(key, f"{'.'.join(key)} would have no effect: {why}", "leave it out")
    store = recipe.kv_cache_offload
    if store is not None and store.roles == []:
        raise wrong(("kv_cache_offload", "roles"), "no role is in scope", "leave roles out for all of them")
    if store is not None and store.cpu_gib == 0:
        raise wrong(("kv_cache_offload",), "a store needs memory: disk alone is no tier", "give cpu_gib")
    if store is not None and bool(store.disk_gib) != bool(store.disk_path):
        raise wrong(("kv_cache_offload",), "disk_gib and disk_path belong together", "give both, or none")
    if recipe.router is not None and recipe.router.kind == "command" and not recipe.router.command:
        raise wrong(("router",), "a router of kind command needs a command", "give its words")
    if recipe.hisparse is not None and recipe.decode is None and recipe.mixed is None:
        raise wrong(("hisparse",), "HiSparse is for a leg that decodes", "leave it out")
