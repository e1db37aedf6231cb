"""One function or class of a file, parsed by libcst on its own: a small part of a large module, so it is fast."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import libcst as cst

from graftwork.errors import TreeError
from graftwork.patching import regions
from graftwork.patching.pattern import Change, Statement, alike, children, reads_back


@dataclass(frozen=True)
class Match:
    """One place where a pattern matches: the node, and for a statement its block and its position there."""

    node: cst.CSTNode
    block: Sequence[Statement]
    position: int


@dataclass(frozen=True)
class Scope:
    """The parsed lines of *region* below a made-up *header* (``if True:`` for each enclosing block).

    ``code`` is what ``module`` was parsed from: rendering a module costs as much as parsing it.
    """

    path: str
    before: str
    after: str
    header: str
    code: str
    module: cst.Module
    region: regions.Region

    @property
    def text(self) -> str:
        """The whole file."""
        return self.before + self.code[len(self.header) :] + self.after

    @cached_property
    def _parents(self) -> dict[int, cst.CSTNode]:
        """Parent of each syntax node, by identity, in source order; the module is its own."""
        parents: dict[int, cst.CSTNode] = {id(self.module): self.module}
        stack: list[cst.CSTNode] = [self.module]
        while stack:
            node = stack.pop()
            for child in children(node):
                parents[id(child)] = node
                stack.append(child)
        return parents

    @cached_property
    def by_kind(self) -> dict[type, list[cst.CSTNode]]:
        """The syntax nodes of each type, in source order."""
        kinds: dict[type, list[cst.CSTNode]] = {}

        def visit(node: cst.CSTNode) -> None:
            kinds.setdefault(type(node), []).append(node)
            for child in children(node):
                visit(child)

        visit(self.module)
        return kinds

    def matches(self, want: cst.CSTNode) -> list[Match]:
        """Every place that the pattern *want* matches."""
        if not isinstance(want, (cst.BaseSmallStatement, cst.BaseCompoundStatement)):
            return [Match(node, (), 0) for node in self.by_kind.get(type(want), ()) if alike(want, node, {})]
        found = []
        for block in (*self.by_kind[cst.Module], *self.by_kind.get(cst.IndentedBlock, ())):
            body: Sequence[Any] = block.body
            for position, line in enumerate(body):
                inner = line.body if isinstance(line, cst.SimpleStatementLine) else (line,)
                found += [Match(item, body, position) for item in inner if alike(want, item, {})]
        return found

    def changed(self, changes: Mapping[int, Sequence[Change]]) -> Scope:
        """The scope with each change applied to the node of that identity. TreeError if it does not read back."""
        ancestors = set()
        for key in changes:
            while key not in ancestors:
                ancestors.add(key)
                key = id(self._parents[key])
        module = self.module.visit(_Apply(changes, ancestors))
        assert isinstance(module, cst.Module)
        code = module.code
        again = _module(code, self.path, self.region)
        if not reads_back(module, again, self._parents.keys()):
            raise TreeError(
                f"{self.path}: a replacement changes the meaning of the code around it", hint="put it in parentheses"
            )
        grown = code.count("\n") - self.code.count("\n")
        region = regions.Region(self.region.first, self.region.last + grown, self.region.parents)
        return Scope(self.path, self.before, self.after, self.header, code, again, region)

    def line_of(self, node: cst.CSTNode) -> int:
        """The line of *node* in the file. Positions cost a rendering of the scope: for messages only."""
        from libcst.metadata import MetadataWrapper, PositionProvider

        positions = MetadataWrapper(self.module, unsafe_skip_copy=True).resolve(PositionProvider)
        return self.region.first + positions[node].start.line - 1 - self.header.count("\n")


_KEPT: OrderedDict[tuple[str, str, str], list[Scope]] = OrderedDict()


def load(text: str, path: str, name: str) -> list[Scope]:
    """Every definition called *name* in *text* (one, in a sound file), or the whole module for the empty name."""
    key = (path, name, text)
    if key in _KEPT:
        _KEPT.move_to_end(key)
        return _KEPT[key]
    found = regions.find(regions.parsed(text, path), text, name)
    return _keep(key, [_parse(text, region, path) for region in found])


def remember(scope: Scope, name: str) -> str:
    """Keep a changed scope under its text, which is returned, so that it is not parsed again."""
    text = scope.text
    _keep((scope.path, name, text), [scope])
    return text


def _keep(key: tuple[str, str, str], scopes: list[Scope]) -> list[Scope]:
    _KEPT[key] = scopes
    while len(_KEPT) > 16:
        _KEPT.popitem(last=False)
    return scopes


def _parse(text: str, region: regions.Region, path: str) -> Scope:
    lines = regions.lines_of(text)
    newline = "\r\n" if lines and lines[0].endswith("\r\n") else "\n"
    header = "".join(f"{indent}if True:{newline}" for indent in region.parents)
    code = header + "".join(lines[region.first - 1 : region.last])
    before, after = "".join(lines[: region.first - 1]), "".join(lines[region.last :])
    return Scope(path, before, after, header, code, _module(code, path, region), region)


def _module(code: str, path: str, region: regions.Region) -> cst.Module:
    try:
        return cst.parse_module(code)
    except (cst.ParserSyntaxError, RecursionError) as error:
        raise TreeError(f"{path}: libcst cannot parse lines {region.first}-{region.last}: {error}") from None


class _Apply(cst.CSTTransformer):
    """Applies changes to nodes by identity, innermost first; visits only what lies above a change."""

    def __init__(self, changes: Mapping[int, Sequence[Change]], ancestors: set[int]) -> None:
        super().__init__()
        self.changes, self.ancestors = changes, ancestors

    def on_visit(self, node: cst.CSTNode) -> bool:
        return id(node) in self.ancestors

    def on_leave(self, original_node: cst.CSTNode, updated_node: cst.CSTNode) -> cst.CSTNode:  # type: ignore[override]
        for change in self.changes.get(id(original_node), ()):
            updated_node = change(updated_node)
        return updated_node
