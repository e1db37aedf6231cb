"""WWW-Authenticate by the grammar of RFC 9110, 11.6.1; scopes by the distribution project's token specification."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

_TOKEN = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_SCHEME = re.compile(rf"[\s,]*(?P<scheme>{_TOKEN})(?=\s|,|$)")
_PARAM = re.compile(rf'[\s,]*(?P<key>{_TOKEN})\s*=\s*(?:"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<plain>{_TOKEN}))(?=\s|,|$)')
_TOKEN68 = re.compile(r"\s+[A-Za-z0-9._~+/-]+=*(?=\s*(?:,|$))")


@dataclass(frozen=True)
class Challenge:
    """One way to authenticate: the scheme in lower case and its parameters, keys in lower case."""

    scheme: str
    params: dict[str, str] = field(default_factory=dict)


def parse_challenges(header: str) -> list[Challenge]:
    """Every challenge of a WWW-Authenticate header, in order. What is not one ends the reading."""
    found: list[Challenge] = []
    at = 0
    while match := _SCHEME.match(header, at):
        at = match.end()
        params: dict[str, str] = {}
        if token := _TOKEN68.match(header, at):
            at = token.end()
        else:
            while param := _PARAM.match(header, at):
                at = param.end()
                quoted = param["quoted"]
                params[param["key"].lower()] = param["plain"] if quoted is None else re.sub(r"\\(.)", r"\1", quoted)
        found.append(Challenge(match["scheme"].lower(), params))
    return found


@dataclass(frozen=True)
class Scope:
    """What a token is for: actions (pull, push, delete) on one repository."""

    repository: str
    actions: frozenset[str]

    def __str__(self) -> str:
        order = ("pull", "push", "delete")
        known = [action for action in order if action in self.actions]
        return f"repository:{self.repository}:{','.join([*known, *sorted(self.actions - set(order))])}"


Scopes = frozenset[Scope]


def pull(repository: str) -> Scope:
    """Reading from *repository*."""
    return Scope(repository, frozenset({"pull"}))


def push(repository: str) -> Scope:
    """Reading from and writing to *repository*."""
    return Scope(repository, frozenset({"pull", "push"}))


def delete(repository: str) -> Scope:
    """Removing from *repository*."""
    return Scope(repository, frozenset({"pull", "delete"}))


def parse_scopes(text: str) -> Scopes:
    """The scopes of a challenge's ``scope`` parameter; those that are not of a repository are left out."""
    found = []
    for item in text.split():
        kind, _, rest = item.partition(":")
        repository, _, actions = rest.rpartition(":")
        if kind == "repository" and repository:
            found.append(Scope(repository, frozenset(filter(None, actions.split(",")))))
    return merged(found)


def merged(scopes: Iterable[Scope]) -> Scopes:
    """One scope for each repository, with all actions."""
    by_name: dict[str, frozenset[str]] = {}
    for scope in scopes:
        by_name[scope.repository] = by_name.get(scope.repository, frozenset()) | scope.actions
    return frozenset(Scope(name, actions) for name, actions in by_name.items())


def covers(have: Scopes, want: Scopes) -> bool:
    """Whether a token for *have* will do for *want*."""
    by_name = {scope.repository: scope.actions for scope in have}
    return all(scope.actions <= by_name.get(scope.repository, frozenset()) for scope in want)
