"""``deployment.json`` as a node reads it: its parts, in which order they stop, and how long that may take."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from graftwork.launch.placeholders import placeholders

STORE = 2


@dataclass(frozen=True)
class Part:
    """A component of `graftwork.launch.deployment`, with the same fields."""

    name: str
    role: str
    node: int
    argv: list[str]
    env: dict[str, str]
    files: dict[str, str]
    ports: dict[str, int]
    gpus: list[int]
    ready: dict[str, Any]
    order: int
    drain_s: int
    fixed: dict[str, int] = field(default_factory=dict)

    @property
    def refers_to(self) -> set[str]:
        """The names of the components whose ports this one is given."""
        texts = [*self.argv, *self.env.values(), *self.files.values()]
        found = [name for text in texts for kind, name in placeholders(text) if kind == "port"]
        return {name.partition("/")[0] for name in found if "/" in name} - {self.name}


@dataclass(frozen=True)
class Plan:
    """A deployment on *nodes* nodes; *drain_s* bounds the drain of a node."""

    name: str
    nodes: int
    parts: tuple[Part, ...]
    drain_s: int
    interpreter: str

    def on(self, node: int) -> list[Part]:
        """The parts of *node*."""
        return [part for part in self.parts if part.node == node]

    @property
    def orders(self) -> list[int]:
        """The stop orders that occur, the first to stop first."""
        return sorted({part.order for part in self.parts})

    def level_s(self, order: int) -> int:
        """How long the parts of one stop order may take together, in seconds."""
        return max(part.drain_s for part in self.parts if part.order == order)

    def needs(self, part: Part) -> set[str]:
        """What must be ready before *part* starts: all that stops after it, and in the store what it refers to."""
        later = {other.name for other in self.parts if other.order > part.order}
        store = {other.name for other in self.parts if other.order == part.order == STORE}
        return later | (store & part.refers_to)


def read(path: Path) -> Plan:
    """The plan in *path*, which `graftwork.launch.deployment` has checked before. OSError, ValueError or KeyError."""
    return parse(json.loads(path.read_text("utf-8")))


def parse(data: dict[str, Any]) -> Plan:
    """The plan that the plain values of a deployment are."""
    fields = Part.__dataclass_fields__
    parts = tuple(Part(**{key: row[key] for key in fields if key in row}) for row in data["components"])
    interpreter = data["image"]["interpreter"]
    return Plan(data["name"], data["nodes"], parts, data["bounds"]["drain_s"], interpreter)
