"""Execute the real text of an engine file without importing the engine.

This runs engine code. Only tests may use it, on trees they trust; planning and proving never execute a tree.
What is executed is the file's own text, so a patched tree and a stock one are judged by the same test. Line
numbers and file names are kept, so a traceback points into the tree under test.
"""

from __future__ import annotations
import __future__

import ast
import copy
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from graftwork.errors import MissingFile, UsageError

_FUTURE = __future__.annotations.compiler_flag
_Function = (ast.FunctionDef, ast.AsyncFunctionDef)


def stub(name: str, **attributes: object) -> ModuleType:
    """A module called *name* that holds just *attributes*; a package to importers, so submodules can be stubs too."""
    module = ModuleType(name, "stub made by graftwork.harness.isolate")
    module.__path__ = []
    vars(module).update(attributes)
    return module


@contextmanager
def stubbed(*modules: ModuleType) -> Iterator[None]:
    """Install *modules* in ``sys.modules`` and put back what was there, whatever happens inside.

    Parents that no stub provides are made empty, and everything imported below a stubbed top-level name while
    the block runs is forgotten again, so that the next tree does not see this one's modules.
    """
    wanted = {module.__name__: module for module in modules}
    for name in list(wanted):
        while "." in name:
            name = name.rpartition(".")[0]
            wanted.setdefault(name, stub(name))
    for name, module in wanted.items():
        parent, _, leaf = name.rpartition(".")
        if parent:
            setattr(wanted[parent], leaf, module)
    tops = {name.partition(".")[0] for name in wanted}
    before = {name: module for name, module in sys.modules.items() if name.partition(".")[0] in tops}
    for name in before:
        del sys.modules[name]
    sys.modules.update(wanted)
    try:
        yield
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] in tops]:
            del sys.modules[name]
        sys.modules.update(before)


def read_engine_file(tree: Path, *candidates: str) -> Path:
    """The first of *candidates* (POSIX paths inside *tree*) that exists; MissingFile names them all otherwise."""
    for candidate in candidates:
        if (tree / candidate).is_file():
            return tree / candidate
    raise MissingFile(
        f"{tree}: none of these files is there: {', '.join(candidates)}",
        hint="give the folder that holds the engine package; for graftwork prove, name the file in patch.toml (reads)",
    )


def load_module(path: Path, name: str, *, optimize: int = -1) -> ModuleType:
    """Execute the whole file *path* as a module *name*. Its imports must be real or stubbed (see `stubbed`).

    *optimize* is that of `compile`: 2 drops assert statements, as ``python -OO`` does.
    """
    code = compile(path.read_bytes(), str(path), "exec", dont_inherit=True, optimize=optimize)
    module = ModuleType(name)
    module.__file__ = str(path)
    sys.modules[name] = module
    exec(code, vars(module))
    return module


def load_function(path: Path, qualname: str, namespace: dict[str, Any], *, optimize: int = -1) -> Any:
    """Execute one function of *path* alone, with *namespace* as its globals, and return it.

    *qualname* is a top-level function or ``Class.method``; decorators are dropped (a plain staticmethod is kept in a
    class, see `load_class`). UsageError if the file has no such function, or more than one.
    """
    node = copy.deepcopy(_find(path, _parse(path).body, qualname))
    node.decorator_list = []
    exec(_code(path, [node], optimize), namespace)
    return namespace[node.name]


def load_class(
    path: Path,
    name: str,
    members: Collection[str],
    namespace: dict[str, Any],
    *,
    optional: Collection[str] = (),
    optimize: int = -1,
) -> type:
    """A bare class with only the *members* (methods) of class *name* in *path*: no bases, no class decorators.

    Method decorators are dropped except a plain ``@staticmethod``. A member that is missing is a UsageError unless
    it is in *optional*; *namespace* becomes the methods' globals.
    """
    source = copy.copy(_find(path, _parse(path).body, name))
    if not isinstance(source, ast.ClassDef):
        raise UsageError(f"{path}: {name} is not a class")
    body: list[ast.stmt] = []
    for member in members:
        found = [node for node in source.body if isinstance(node, _Function) and node.name == member]
        if not found and member in optional:
            continue
        method = copy.deepcopy(_only(path, f"{name}.{member}", found))
        method.decorator_list = [d for d in method.decorator_list if isinstance(d, ast.Name) and d.id == "staticmethod"]
        body.append(method)
    source.bases, source.keywords, source.decorator_list = [], [], []
    source.body = body or [ast.Pass()]
    exec(_code(path, [source], optimize), namespace)
    loaded = namespace[name]
    assert isinstance(loaded, type)
    return loaded


def load_until(path: Path, name: str, namespace: dict[str, Any], *, optimize: int = -1) -> dict[str, Any]:
    """Execute the definitions of *path* from its top to the one that binds *name*, in *namespace*, and return that.

    Definitions are def, class and assignment statements. Imports and conditional statements are left out, so
    *namespace* must bring what they would. For the head of a file whose imports are too many to stub.
    """
    body = _parse(path).body
    _only(path, name, [node for node in body if name in _bound(node)])
    last = next(index for index, node in enumerate(body) if name in _bound(node))
    exec(_code(path, [node for node in body[: last + 1] if _bound(node)], optimize), namespace)
    return namespace


def _bound(node: ast.stmt) -> set[str]:
    """The names that a definition statement binds; empty for any other statement."""
    if isinstance(node, (*_Function, ast.ClassDef)):
        return {node.name}
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return {target.id for target in targets if isinstance(target, ast.Name)}


def _parse(path: Path) -> ast.Module:
    return _parsed(path.read_bytes(), str(path))


@lru_cache(maxsize=16)
def _parsed(source: bytes, path: str) -> ast.Module:
    """Engine files are large and tests load many functions of them: change copies of its nodes only."""
    return ast.parse(source, path)


def _code(path: Path, body: list[ast.stmt], optimize: int) -> CodeType:
    """Compile with postponed annotations, so that names used only in annotations need no stand-in."""
    module = ast.fix_missing_locations(ast.Module(body=body, type_ignores=[]))
    code: CodeType = compile(module, str(path), "exec", flags=_FUTURE, dont_inherit=True, optimize=optimize)
    return code


def _find(path: Path, body: list[ast.stmt], qualname: str) -> Any:
    head, _, rest = qualname.partition(".")
    kinds = (*_Function, ast.ClassDef)
    node = _only(path, qualname, [n for n in body if isinstance(n, kinds) and n.name == head])
    return _find(path, node.body, rest) if rest else node


def _only(path: Path, what: str, found: list[Any]) -> Any:
    if len(found) != 1:
        raise UsageError(
            f"{path}: {what} is defined {len(found)} times, expected once",
            hint="the release keeps it elsewhere, or under a condition; look at the file",
        )
    return found[0]
