"""A component in the making: what runs, with a reason for each word, and what was left out and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from graftwork.errors import UsageError
from graftwork.launch.arguments import Arguments, Line, Origin
from graftwork.launch.demands import Contents, Demand
from graftwork.launch.deployment import STOP_ENGINES, Component, Order, Ready, Role
from graftwork.launch.environment import Environment
from graftwork.launch.placeholders import escape, placeholders
from graftwork.launch.recipe import Recipe
from graftwork.launch.releases import Release
from graftwork.launch.values import chosen_ports


class Explained(msgspec.Struct, frozen=True):
    """Why a component's arguments and environment are what they are; *notes* say what is not there."""

    component: str
    program: str
    arguments: list[Line]
    environment: list[Line]
    notes: list[str]


@dataclass
class Plan:
    """What every part of rendering looks at; *warnings* collects what the operator should read."""

    recipe: Recipe
    release: Release
    contents: Contents
    platform: str
    warnings: list[str] = field(default_factory=list)

    def warn(self, text: str) -> None:
        """Say it once, however many components it is about."""
        if text not in self.warnings:
            self.warnings.append(text)


@dataclass
class Draft:
    """A component before its command line is put together; *prefix* and *plain* words may hold placeholders."""

    name: str
    role: Role
    node: int
    prefix: list[str]
    ready: Ready
    drain_s: int
    order: Order = STOP_ENGINES
    args: Arguments | None = None
    env: Environment = field(default_factory=lambda: Environment({}))
    plain: list[tuple[tuple[str, ...], Origin, str]] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)
    ports: dict[str, int] = field(default_factory=dict)
    gpus: list[int] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def checked(self) -> Arguments:
        """The arguments of a program that has a table of them."""
        assert self.args is not None
        return self.args

    def demand(self, demands: Sequence[Demand]) -> None:
        """Add what the image needs of an engine. UsageError where the user's word is against it."""
        for demand in demands:
            if demand.args:
                self.checked.demand(demand.args, demand.reason)
            for name, value in demand.env:
                self.env.demand(name, value, demand.reason)

    def word(self, *words: str, why: str) -> None:
        """Words of a program without a table of arguments."""
        self.plain.append((words, "derived", why))

    def said(self, words: Sequence[str]) -> None:
        """The user's words for such a program, as they are."""
        self.plain += [((escape(word),), "user", "given by the recipe's user") for word in words]

    def finish(self) -> tuple[Component, Explained]:
        """The component, and the reasons. UsageError where nothing tells it its port."""
        words = [word for each, _, _ in self.plain for word in each]
        lines = [Line(" ".join(each), origin, why) for each, origin, why in self.plain]
        if self.args is not None:
            checked, said = self.args.finish()
            words, lines = [*words, *checked], [*lines, *said]
        env, env_lines = self.env.finish()
        component = Component(
            name=self.name,
            role=self.role,
            node=self.node,
            argv=[*self.prefix, *words],
            env=env,
            files=self.files,
            ports=self.ports,
            fixed=self._fixed(),
            gpus=self.gpus,
            ready=self.ready,
            order=self.order,
            drain_s=self.drain_s,
        )
        self._check_port(component)
        return component, Explained(self.name, " ".join(self.prefix), lines, env_lines, self.notes)

    def _check_port(self, component: Component) -> None:
        """UsageError where it would be waited for on a port that it is not told."""
        port = self.ready.port
        texts = [*component.argv, *component.env.values(), *component.files.values()]
        told = {pair for text in texts for pair in placeholders(text)}
        if port and port not in component.fixed and not told & {("port", port), ("port", f"{self.name}/{port}")}:
            raise UsageError(
                f"{self.name}: nothing tells it the port on which it is waited for",
                hint="leave its argument in: take it out of drop, or give it a number",
            )

    def _fixed(self) -> dict[str, int]:
        """The own ports that the user has chosen: in the arguments, the environment, or the words of a program."""
        found = {**self.env.fixed, **(self.args.fixed if self.args is not None else {}), **self._fixed_words()}
        own = {name.removeprefix(f"{self.name}/"): number for name, number in found.items()}
        return {name: number for name, number in own.items() if name in self.ports}

    def _fixed_words(self) -> dict[str, int]:
        """Of ``-name=value`` and ``--name value`` the last counts, in programs that read either."""
        found: dict[str, int] = {}
        derived = [word.lstrip("-").partition("=") for each, who, _ in self.plain if who == "derived" for word in each]
        words = [word for each, who, _ in self.plain if who == "user" for word in each]
        for at, word in enumerate(words):
            name, equals, value = word.lstrip("-").partition("=")
            said = value if equals else "".join(words[at + 1 : at + 2])
            for ours in (ours for known, _, ours in derived if ours and known == name):
                found.update(chosen_ports(ours, said))
        return found
