"""The environment of one component: derived first, then what the image demands, then the user's word, which wins."""

from __future__ import annotations

from collections.abc import Mapping

from graftwork.errors import UsageError
from graftwork.launch.arguments import Line, Origin
from graftwork.launch.placeholders import escape
from graftwork.launch.values import chosen_ports


class Environment:
    """Variables with why they are set; *user* is the recipe's, literal text. *fixed*: see `Arguments`."""

    def __init__(self, user: Mapping[str, str]) -> None:
        self.fixed: dict[str, int] = {}
        self._user = dict(user)
        self._set: dict[str, tuple[str, Origin, str, str]] = {}

    def add(self, name: str, value: object, why: str) -> None:
        """Derive a variable; its value may hold placeholders."""
        self._set[name] = (str(value), "derived", why, "")

    def demand(self, name: str, value: str, why: str) -> None:
        """What the image needs. UsageError when the user's word is against it."""
        if self._user.get(name, value) != value:
            raise UsageError(
                f"{name}={self._user[name]} is against what the image demands: {name}={value}. {why}",
                hint="leave it out of env: it is added",
            )
        old = self._set.get(name, ("", "", "", ""))[0]
        self._set[name] = (escape(value), "demanded", why, "" if old in ("", escape(value)) else f"{name}={old}")

    def value(self, name: str) -> str | None:
        """The variable as it will be."""
        return self._user[name] if name in self._user else self._set.get(name, (None,))[0]

    def finish(self) -> tuple[dict[str, str], list[Line]]:
        """The variables, and a line for each."""
        for name, value in self._user.items():
            old = self._set.get(name)
            replaced = f"{name}={old[0]}" if old and old[0] != escape(value) else ""
            self.fixed.update(chosen_ports(old[0], escape(value)) if old else {})
            self._set[name] = (escape(value), "user", "given by the recipe's user", replaced)
        lines = [Line(f"{name}={value}", who, why, old) for name, (value, who, why, old) in self._set.items()]
        return {name: value for name, (value, *_) in self._set.items()}, lines
