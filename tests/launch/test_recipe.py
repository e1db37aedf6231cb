"""Recipes as files: what is wrong is told with its line, and --set changes one key."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from recipes import SGLANG, recipe
from toys import ROOT

from graftwork.errors import CatalogError, UsageError
from graftwork.launch.recipe import Recipe
from graftwork.launch.recipe_file import load_recipe
from graftwork.launch.topology import engines, node_count, role_of

RECIPES = sorted((ROOT / "deploy/recipes").glob("*.toml"))
SMALL = """\
name = "small"
summary = "s"
engine = "sglang"
version = "0.5.16"
[model]
path = "m"
served_name = "m"
[node]
gpus = 8
memory_gib = 100
gpu_memory_gib = 100
"""


def written(folder: Path, text: str) -> Path:
    file = folder / "recipe.toml"
    file.write_text(SMALL + text)
    return file


@pytest.mark.parametrize("file", RECIPES, ids=lambda file: file.stem)
def test_every_recipe_of_the_checkout_loads_under_its_name(file: Path) -> None:
    assert load_recipe(file, []).name == file.stem


def test_set_changes_a_key_by_its_path(tmp_path: Path) -> None:
    file = written(tmp_path, "[prefill]\ntp = 8\n[decode]\ntp = 8\n")
    changes = ["decode.seats=96", "model.path=/other one", 'decode.args=["--a"]', "mtp.steps=2", "name=other"]
    found = load_recipe(file, changes)
    assert found.decode is not None and found.mtp is not None
    assert (found.decode.seats, found.decode.args, found.mtp.steps) == (96, ["--a"], 2)
    assert (found.model.path, found.name) == ("/other one", "other")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("decode.seats", "not key=value"),
        ("=3", "not key=value"),
        ("decode..seats=3", "not key=value"),
        ("decode.seats=many", "Expected `int"),
        ("decode.chairs=3", "unknown field `chairs`"),
        ("name.first=3", "name is not a table"),
        ("decode.seats=0", "`int` >= 1"),
    ],
)
def test_a_change_that_has_no_meaning(tmp_path: Path, change: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        load_recipe(written(tmp_path, "[prefill]\n[decode]\n"), [change])


@pytest.mark.parametrize(
    ("text", "says", "line"),
    [
        ("", "has \\[prefill\\] and \\[decode\\], or \\[mixed\\]", 1),
        ("[prefill]\n", "has \\[prefill\\] and \\[decode\\]", 1),
        ("[prefill]\n[decode]\n[mixed]\n", "has \\[prefill\\] and \\[decode\\]", 1),
        ("[mixed]\nnodes = 3\nspan = 2\n", "do not divide", 14),
        ('[mixed]\nranks = "apart"\n', "runs its ranks together", 13),
        ('[mixed]\n[router]\nkind = "command"\n', "needs a command", 13),
        ('[mixed]\n[router]\nkind = "infera"\nepp_config = "a"\n', "router.epp_config would have no effect", 15),
        ('[mixed]\n[router]\nkind = "command"\ncommand = ["a"]\npolicy = "p"\n', "kind command has no such", 16),
        ("[mixed]\n[hisparse]\nhost_pool_gib = 0\n", "> 0", 14),
        ("[mixed]\n[hisparse]\n", "missing key `host_pool_gib`", 13),
        ("[mixed]\nchairs = 1\n", "unknown key `chairs`", 13),
        ("[mixed]\n[mtp]\nlegs = []\n", "length >= 1", 14),
        ("[mixed]\nname = = 1\n", "not TOML", 13),
    ],
)
def test_what_is_wrong_is_told_with_its_line(tmp_path: Path, text: str, says: str, line: int) -> None:
    file = written(tmp_path, text)
    with pytest.raises(CatalogError, match=says) as caught:
        load_recipe(file, [])
    assert caught.value.line == line


@pytest.mark.parametrize(
    "change",
    ["mixed.dp_attention=true", "mixed.hicache_gb=8", "mtp.topk=2", "mtp.draft_tokens=3", "mtp.algorithm=EAGLE3"],
)
def test_what_only_sglang_has_is_not_taken_in_silence(tmp_path: Path, change: str) -> None:
    file = written(tmp_path, "[mixed]\n")
    load_recipe(file, [change])
    with pytest.raises(CatalogError, match=f"{change.partition('=')[0]} would have no effect: vLLM"):
        load_recipe(file, [change, "engine=vllm"])


def test_roles_by_the_place_in_a_replica() -> None:
    found = recipe(SGLANG, replicas=2, prefill={"nodes": 2, "span": 2, "tp": 16}, decode={"nodes": 1, "tp": 8})
    assert node_count(found) == 6
    assert [role_of(found, node) for node in range(6)] == ["prefill", "prefill", "decode"] * 2
    assert [(each.name, each.nodes) for each in engines(found)] == [
        ("prefill-0", (0, 1)),
        ("prefill-1", (3, 4)),
        ("decode-0", (2,)),
        ("decode-1", (5,)),
    ]


def test_defaults_are_nobodys_but_their_own() -> None:
    one, two = (msgspec.convert({**SGLANG, "mtp": {}, "kv_events": {}}, Recipe) for _ in range(2))
    assert one.mtp is not None and two.mtp is not None
    one.mtp.legs.append("mixed")
    assert two.mtp.legs == ["prefill", "decode", "mixed"]
