"""Which engine runs on which nodes: roles by a node's place in its replica, spans, ranks."""

from __future__ import annotations

from dataclasses import dataclass

from graftwork.errors import UsageError
from graftwork.launch.deployment import Role
from graftwork.launch.recipe import Leg, Recipe


@dataclass(frozen=True)
class Engine:
    """One engine: *name* of its components, the node indices that it spans, and the leg that it is one of."""

    name: str
    role: Role
    leg: Leg
    nodes: tuple[int, ...]

    @property
    def head(self) -> int:
        """The node whose addresses the others are told."""
        return self.nodes[0]

    @property
    def speaks_first(self) -> bool:
        """Whether it prefills: it fills caches, and publishes what it filled."""
        return self.role in ("prefill", "mixed")


def legs(recipe: Recipe) -> list[tuple[Role, Leg]]:
    """The recipe's legs in the order of their nodes in a replica."""
    found: list[tuple[Role, Leg | None]] = [
        ("prefill", recipe.prefill),
        ("decode", recipe.decode),
        ("mixed", recipe.mixed),
    ]
    return [(role, leg) for role, leg in found if leg is not None]


def nodes_per_replica(recipe: Recipe) -> int:
    return sum(leg.nodes for _, leg in legs(recipe))


def node_count(recipe: Recipe) -> int:
    return recipe.replicas * nodes_per_replica(recipe)


def role_of(recipe: Recipe, node: int) -> Role:
    """The role of a node: by its place in its replica, prefill nodes first."""
    place = node % nodes_per_replica(recipe)
    for role, leg in legs(recipe):
        if place < leg.nodes:
            return role
        place -= leg.nodes
    raise AssertionError(place)


def engines(recipe: Recipe) -> list[Engine]:
    """All engines, by role and then by node. UsageError when the GPUs of a node do not fit an engine."""
    found = []
    for role, leg in legs(recipe):
        _check_gpus(recipe, role, leg)
        mine = [node for node in range(node_count(recipe)) if role_of(recipe, node) == role]
        for number in range(len(mine) // leg.span):
            found.append(
                Engine(f"{role}-{number}", role, leg, tuple(mine[number * leg.span : (number + 1) * leg.span]))
            )
    return found


def _check_gpus(recipe: Recipe, role: str, leg: Leg) -> None:
    total = leg.tp if recipe.engine == "sglang" else leg.tp * leg.dp
    hint = f"[{role}]: docs/launch.md says how tp, dp and span go together"
    if recipe.engine == "sglang" and leg.dp > 1 and leg.dp_attention and leg.tp % leg.dp:
        raise UsageError(f"{role}: tp {leg.tp} is not a multiple of dp {leg.dp}", hint=hint)
    if recipe.engine == "sglang" and leg.dp > 1 and not leg.dp_attention:
        raise UsageError(f"{role}: dp {leg.dp} without dp_attention would need {leg.dp} times the GPUs", hint=hint)
    if total % leg.span or (recipe.engine == "vllm" and leg.dp == 1 and leg.span > 1):
        raise UsageError(f"{role}: {total} GPUs do not spread over {leg.span} nodes", hint=hint)
    if recipe.engine == "vllm" and leg.span > 1 and leg.dp % leg.span:
        raise UsageError(f"{role}: dp {leg.dp} does not spread over {leg.span} nodes", hint=hint)
    if total // leg.span > recipe.node.gpus:
        raise UsageError(f"{role}: {total // leg.span} GPUs a node are needed, it has {recipe.node.gpus}", hint=hint)
