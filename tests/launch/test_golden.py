"""The recipes of this checkout rendered into files that a review can read; `make golden` writes them again."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from toys import ROOT

from graftwork.catalog.catalog import Catalog
from graftwork.launch.demands import Contents, Demand, of_target
from graftwork.launch.deployment import parse_json, render_json
from graftwork.launch.recipe import Recipe
from graftwork.launch.recipe_file import load_recipe
from graftwork.launch.render import Rendered, render

GOLDEN = Path(__file__).parent / "golden"
RECIPES = sorted(file.stem for file in (ROOT / "deploy/recipes").glob("*.toml"))
# Demands as targets make them, kept apart from today's targets, which change for reasons of their own.
DEMANDS = (
    Demand("target: MTP", ("--json-model-override-args", '{"index_share_for_mtp_iteration":false}')),
    Demand("patch: indexer", env=(("SGLANG_DSA_FUSE_TOPK", "0"),)),
)


def load(name: str) -> Recipe:
    return load_recipe(ROOT / f"deploy/recipes/{name}.toml", [])


def contents(recipe: Recipe) -> Contents:
    if not recipe.target:
        return Contents()
    return Contents(
        recipe.engine, recipe.engine_version, "rocm", "/opt/venv/bin/python", recipe.target, demands=DEMANDS
    )


def as_golden(found: Rendered) -> str:
    """Components one after the other, a word a line."""
    lines = [f"{found.deployment.name}: {found.deployment.engine} {found.deployment.version}"]
    bounds = found.deployment.bounds
    lines += [f"bounds: {bounds.engine_s} < {bounds.drain_s} < {bounds.lead_s}"]
    lines += [f"warning: {warning}" for warning in found.deployment.warnings]
    for each in found.deployment.components:
        ready = f"{each.ready.kind} {each.ready.port}{each.ready.path} within {each.ready.bound_s} s"
        lines += ["", f"{each.name}: {each.role} on node {each.node}, stops in stage {each.order} in {each.drain_s} s"]
        lines += [f"  ready: {ready}", f"  ports: {json.dumps(each.ports)}", f"  gpus: {json.dumps(each.gpus)}"]
        lines += [f"  {name}={value}" for name, value in each.env.items()]
        lines += [f"    {word}" for word in each.argv]
        for path, text in each.files.items():
            lines += [f"  file {path}:", *(f"    {line}" for line in text.splitlines())]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("name", RECIPES)
def test_golden(name: str) -> None:
    recipe = load(name)
    text = as_golden(render(recipe, contents(recipe)))
    file = GOLDEN / f"{name}.txt"
    if os.environ.get("GRAFTWORK_GOLDEN") == "write":
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, "utf-8")
    assert text == file.read_text("utf-8"), "rendering changed; if it was meant: make golden"


def test_no_golden_file_is_left_over() -> None:
    assert sorted(file.stem for file in GOLDEN.glob("*")) == RECIPES


@pytest.mark.parametrize("name", [name for name in RECIPES if load(name).target])
def test_rendered_against_its_target_it_holds_what_that_demands(name: str, catalog: Catalog) -> None:
    recipe = load(name)
    held = of_target(catalog, recipe.target)
    found = render(recipe, held)
    assert parse_json(render_json(found.deployment), "here") == found.deployment
    engines = [each for each in found.deployment.components if each.role in ("prefill", "decode", "mixed")]
    for demand in held.demands:
        for each in engines:
            text = " ".join(each.argv).replace("{{", "{").replace("}}", "}")
            assert all(word in text for word in demand.args)
            assert {key: each.env.get(key) for key, _ in demand.env} == dict(demand.env)


@pytest.mark.parametrize("name", RECIPES)
def test_rendering_twice_is_the_same(name: str) -> None:
    recipe = load(name)
    first, second = (render(recipe, contents(recipe)) for _ in range(2))
    assert render_json(first.deployment) == render_json(second.deployment)
