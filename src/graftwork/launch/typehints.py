"""Constants, type aliases and configuration classes of a source tree, and the arguments that their types stand for."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import Any


class Definitions:
    """The top-level names of *modules*: assignments as expressions, classes by name."""

    def __init__(self, modules: Iterable[ast.Module]) -> None:
        self.values: dict[str, ast.expr] = {}
        self.classes: dict[str, ast.ClassDef] = {}
        for module in modules:
            for node in module.body:
                if isinstance(node, ast.ClassDef):
                    self.classes.setdefault(node.name, node)
                elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                    self.values.setdefault(node.targets[0].id, node.value)
                elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value:
                    self.values.setdefault(node.target.id, node.value)

    def fields(self, node: ast.ClassDef) -> Iterator[tuple[str, ast.expr]]:
        """The annotated fields of a class body: name and type."""
        for field in node.body:
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                yield field.target.id, field.annotation

    def field(self, class_name: str, name: str) -> dict[str, Any]:
        """`argument` of a field of a class or of the classes that it extends; KeyError where there is none."""
        node = self.classes[class_name]
        for field, hint in self.fields(node):
            if field == name:
                return self.argument(hint, name)
        for base in node.bases:
            if isinstance(base, ast.Name) and base.id in self.classes:
                return self.field(base.id, name)
        raise KeyError(f"{class_name}.{name}")

    def argument(self, hint: ast.expr, name: str) -> dict[str, Any]:
        """The ``add_argument`` words that stand for a field *name* of type *hint* (action, nargs, type, choices)."""
        parts = list(self._parts(hint))
        names = {part if isinstance(part, str) else part[0] for part in parts}
        generic = [part for part in parts if not isinstance(part, str)]
        literal = [values for kind, values in generic if kind == "Literal"]
        optional = ["None"] if "None" in names else []
        if any(part in self.classes and self._is_record(part) for part in names):
            return {"type": "json"}
        if names == {"bool", "str", "None"}:
            return {"type": "str", "nargs": "?"}
        if "bool" in names:
            return {"action": "BooleanOptionalAction"}
        if literal:
            choices = None if "str" in names else [*sorted(str(value) for value in literal[0]), *optional]
            kind = "int" if all(isinstance(value, int) for value in literal[0]) else "str"
            return {"type": kind, "choices": choices}
        for sequence in ("tuple", "list", "set"):
            found = [inner for kind, inner in generic if kind == sequence]
            if found or sequence in names:
                inner = self.argument(found[0], name) if found and isinstance(found[0], ast.expr) else {}
                return {"type": inner.get("type", "str"), "nargs": "+", "choices": inner.get("choices")}
        if "int" in names:
            return {"type": "size" if name in _SIZES else "int"}
        if "float" in names:
            return {"type": "float"}
        return {"type": "json" if "dict" in names and "str" not in names else "str"}

    def _parts(self, hint: ast.expr) -> Iterator[str | tuple[str, Any]]:
        """The members of a union; a name, or ("Literal", values), ("list", element) and the like."""
        if isinstance(hint, ast.BinOp):
            yield from self._parts(hint.left)
            yield from self._parts(hint.right)
        elif isinstance(hint, ast.Constant):
            if isinstance(hint.value, str):
                yield from self._parts(ast.parse(hint.value, mode="eval").body)
            else:
                yield "None"
        elif isinstance(hint, ast.Name) and hint.id in self.values:
            yield from self._parts(self.values[hint.id])
        elif isinstance(hint, (ast.Name, ast.Attribute)):
            name = hint.id if isinstance(hint, ast.Name) else hint.attr
            yield _LOWER.get(name, name)
        elif isinstance(hint, ast.Subscript):
            yield from self._generic(hint)

    def _generic(self, hint: ast.Subscript) -> Iterator[str | tuple[str, Any]]:
        outer = hint.value.id if isinstance(hint.value, ast.Name) else getattr(hint.value, "attr", "")
        inner = hint.slice.elts if isinstance(hint.slice, ast.Tuple) else [hint.slice]
        if outer in ("Optional", "Union"):
            for part in inner:
                yield from self._parts(part)
            if outer == "Optional":
                yield "None"
        elif outer in ("Annotated", "SkipValidation"):
            yield from self._parts(inner[0])
        elif outer == "Literal":
            yield "Literal", [value for part in inner for value in self._literals(part)]
        elif outer.lower() in ("list", "tuple", "set", "sequence"):
            yield "list" if outer == "Sequence" else outer.lower(), inner[0]
        else:
            yield _LOWER.get(outer, outer)

    def _literals(self, node: ast.expr) -> list[Any]:
        """A Literal may hold constants and other Literals by name."""
        if isinstance(node, ast.Constant):
            return [node.value]
        parts = [part for part in self._parts(node) if not isinstance(part, str)]
        return [value for kind, values in parts if kind == "Literal" for value in values]

    def _is_record(self, name: str) -> bool:
        """Whether the class is a dataclass: decorated, or extending one."""
        node = self.classes[name]
        for decorator in node.decorator_list:
            inner = decorator.func if isinstance(decorator, ast.Call) else decorator
            if isinstance(inner, ast.Name) and inner.id in ("config", "dataclass"):
                return True
        return any(isinstance(b, ast.Name) and b.id in self.classes and self._is_record(b.id) for b in node.bases)


# vllm/engine/arg_utils.py: these fields take 4k, 1.5M and the like.
_SIZES = ("max_model_len", "max_num_batched_tokens", "kv_cache_memory_bytes", "safetensors_prefetch_block_size")
_LOWER = {"List": "list", "Dict": "dict", "Tuple": "tuple", "Set": "set", "Mapping": "dict"}


def constant(node: ast.expr) -> Any:
    """The value of a constant; ValueError for any other expression."""
    if isinstance(node, ast.Constant):
        return node.value
    raise ValueError(f"not a constant: {ast.unparse(node)}")


def value_of(node: Any, names: Definitions) -> Any:
    """The value of an expression of constants, lists, dicts, sums and known names; None for any other."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
        values: list[Any] = []
        for element in node.elts:
            inner = value_of(element.value if isinstance(element, ast.Starred) else element, names)
            if inner is None:
                return None
            values += inner if isinstance(element, ast.Starred) else [inner]
        return values
    if isinstance(node, ast.Dict):
        return {value_of(key, names): value_of(value, names) for key, value in zip(node.keys, node.values, strict=True)}
    if isinstance(node, ast.Name) and node.id in names.values:
        return value_of(names.values[node.id], names)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = value_of(node.left, names), value_of(node.right, names)
        return None if left is None or right is None else left + right
    if isinstance(node, ast.JoinedStr):  # f"--{prefix}policy", where the prefix is that of another program
        return "".join(str(constant(part)) for part in node.values if isinstance(part, ast.Constant))
    return None
