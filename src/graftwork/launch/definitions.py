"""The command-line arguments that an engine defines, read from its source and never by running it.

Three ways of defining them are understood: ``parser.add_argument`` calls, SGLang's annotated fields
(sglang/srt/arg_groups/arg_utils.py) and vLLM's configuration classes (vllm/engine/arg_utils.py, ``_compute_kwargs``).
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import Any, Literal, TypeVar

import msgspec

from graftwork.errors import MissingFile, TreeError
from graftwork.launch.typehints import Definitions, constant, value_of
from graftwork.names import rel_path
from graftwork.trees.tree import Tree

N = TypeVar("N", ast.ClassDef, ast.FunctionDef)


class Flag(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One argument. *takes*: no value, one, perhaps one, or one and more; *switch*: ``--no-x`` exists as well.

    *repeats*: every occurrence counts. *choices* is None where any value goes or the choices are made at run time.
    """

    name: str
    takes: Literal["none", "one", "optional", "many"] = "one"
    type: Literal["str", "int", "size", "float", "json"] = "str"
    aliases: list[str] = []
    choices: list[str] | None = None
    switch: bool = False
    repeats: bool = False
    deprecated: bool = False
    instead: str = ""


def sglang_flags(tree: Tree) -> list[Flag]:
    """The arguments of ``sglang.launch_server``: annotated fields first, then those registered by hand."""
    folder = "sglang/srt/arg_groups/"
    fields = [path for path in tree.paths() if path.startswith(folder + "fields/") and path.endswith(".py")]
    main, *others = (_parse(tree, path) for path in ("sglang/srt/server_args.py", *sorted(fields)))
    constants = Definitions([main, *(_parse(tree, p) for p in tree.paths() if p == folder + "choices.py")])
    classes = [_class(main, "ServerArgs"), *(node for module in others for node in module.body)]
    found = [
        flag
        for node in classes
        if isinstance(node, ast.ClassDef)
        for field in node.body
        if isinstance(field, ast.AnnAssign) and (flag := _sglang_field(field, constants))
    ]
    return _unique([*found, *_by_hand(_function(_class(main, "ServerArgs"), "add_cli_args"), constants)])


def vllm_flags(tree: Tree) -> list[Flag]:
    """The arguments of ``vllm serve``: of the front end, then of the engine."""
    types = Definitions(
        _parse(tree, path) for path in sorted(tree.paths()) if path.endswith(".py") and path.startswith(_VLLM_TYPES)
    )
    front_end = next((path for path in _VLLM_FRONT_ENDS if tree.exists(rel_path(path))), _VLLM_FRONT_ENDS[0])
    engine, front = _parse(tree, "vllm/engine/arg_utils.py"), _parse(tree, front_end)
    found = list(_by_hand(_function(front, "make_arg_parser"), types))
    changed: dict[str, dict[str, Any]] = {}
    for name in ("BaseFrontendArgs", "FrontendArgs"):
        changed |= _changed_fields(_function(_class(front, name), "_customize_cli_kwargs"))
    for name in ("FrontendArgs", "BaseFrontendArgs"):
        for field, hint in types.fields(_class(front, name)):
            words = {**types.argument(hint, field), **changed.get(field, {})}
            found.append(_flag(["--" + field.replace("_", "-")], words, types))
    for name in ("EngineArgs", "AsyncEngineArgs"):
        found += _by_hand(_function(_class(engine, name), "add_cli_args"), types)
    return _unique(found)


def parser_flags(tree: Tree, path: str, where: str) -> list[Flag]:
    """The arguments that *where* (``function`` or ``Class.method``) of file *path* registers."""
    module = _parse(tree, path)
    name, _, method = where.partition(".")
    function = _function(_class(module, name), method) if method else _function(module, name)
    return _unique(list(_by_hand(function, Definitions([module]))))


_VLLM_TYPES = ("vllm/config/", "vllm/entrypoints/openai/models/protocol.py", "vllm/entrypoints/chat_utils.py")
_VLLM_FRONT_ENDS = ("vllm/entrypoints/openai/cli_args.py", "vllm/entrypoints/common/cli_args.py")
_SIZES = ("human_readable_int", "human_readable_int_or_auto")
_NO_VALUE = ("store_true", "store_false", "DeprecatedAction", "DeprecatedStoreTrueAction", "DeprecatedStoreConstAction")


def _sglang_field(field: ast.AnnAssign, constants: Definitions) -> Flag | None:
    """The argument of ``name: A[type, "help"]`` or ``A[type, Arg(...)]``; None for a field without one."""
    note = field.annotation
    if not (isinstance(note, ast.Subscript) and isinstance(note.value, ast.Name) and note.value.id == "A"):
        return None
    assert isinstance(note.slice, ast.Tuple) and isinstance(field.target, ast.Name)
    hint, *metadata = note.slice.elts
    calls = [node for node in metadata if isinstance(node, ast.Call) and _name(node.func) == "Arg"]
    texts = [node for node in metadata if isinstance(node, (ast.Constant, ast.JoinedStr))]
    if not calls and not texts:
        return None
    given = {word.arg: word.value for word in calls[0].keywords if word.arg} if calls else {}
    if value_of(given.get("no_cli"), constants) is True:
        return None
    words: dict[str, Any] = constants.argument(hint, field.target.id)
    if words.get("action") == "BooleanOptionalAction":
        words = {"action": "store_true"}
    if words.get("choices"):  # unlike vLLM, SGLang does not take the word None
        words["choices"] = [choice for choice in words["choices"] if choice != "None"]
    if "type_parser" in given:
        words = {"type": given["type_parser"]}
    for key in ("choices", "nargs"):
        if key in given:
            words[key] = given[key]
    if "action" in given:
        words = {"action": given["action"]}
    for key, value in (value_of(given.get("action_kwargs"), constants) or {}).items():
        words[key] = value
    name = value_of(given.get("cli_name"), constants) or "--" + field.target.id.replace("_", "-")
    return _flag([name, *(value_of(given.get("aliases"), constants) or [])], words, constants)


def _by_hand(function: ast.FunctionDef, types: Definitions) -> Iterator[Flag]:
    """Every ``add_argument`` call in *function*, with the values that configuration classes bring to it."""
    classes: dict[str, str] = {}
    bound: dict[str, dict[str, Any]] = {}

    def words_of(node: ast.expr) -> dict[str, Any]:
        if isinstance(node, ast.Dict):
            merged: dict[str, Any] = {}
            for key, value in zip(node.keys, node.values, strict=True):
                merged |= words_of(value) if key is None else {str(constant(key)): value}
            return merged
        if isinstance(node, ast.Name):
            return bound.setdefault(node.id, {})
        assert isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name), ast.dump(node)
        name, field = node.value.id, str(constant(node.slice))
        if f"{name}.{field}" not in bound:
            bound[f"{name}.{field}"] = types.field(classes[name], field)
        return bound[f"{name}.{field}"]

    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            target, value = node.targets[0], node.value
            if isinstance(target, ast.Name) and isinstance(value, ast.Call) and _name(value.func) == "get_kwargs":
                classes[target.id] = _name(value.args[0])
            elif isinstance(target, ast.Name) and isinstance(value, ast.Subscript) and _name(value.value) in classes:
                bound[target.id] = words_of(value)
            elif isinstance(target, ast.Subscript) and _in_words(target.value, classes, bound):
                words_of(target.value).update({str(constant(target.slice)): value, "choices": None})
        elif (
            isinstance(node, ast.AugAssign)
            and isinstance(node.target, ast.Subscript)
            and _in_words(node.target.value, classes, bound)
        ):
            words_of(node.target.value)["choices"] = None
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument":
            names = [str(value_of(name, types)) for name in node.args]
            words: dict[str, Any] = {}
            for word in node.keywords:
                words |= {word.arg: word.value} if word.arg else words_of(word.value)
            if names[0].startswith("-"):
                yield _flag(names, words, types)


def _in_words(node: ast.expr, classes: dict[str, str], bound: dict[str, dict[str, Any]]) -> bool:
    if isinstance(node, ast.Name):
        return node.id in bound
    return isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id in classes


def _changed_fields(function: ast.FunctionDef) -> dict[str, dict[str, Any]]:
    """What ``frontend_kwargs[field][key] = value`` and ``del frontend_kwargs[field][key]`` change."""
    changed: dict[str, dict[str, Any]] = {}
    for node in ast.walk(function):
        targets = node.targets if isinstance(node, (ast.Assign, ast.Delete)) else []
        for target in targets:
            if isinstance(target, ast.Subscript) and isinstance(target.value, ast.Subscript):
                value = node.value if isinstance(node, ast.Assign) else None
                changed.setdefault(str(constant(target.value.slice)), {})[str(constant(target.slice))] = value
    return changed


def _flag(names: list[str], words: dict[str, Any], types: Definitions) -> Flag:
    """The argument that ``add_argument(*names, **words)`` would make; a word is a value or its syntax."""
    action, nargs = _word(words.get("action"), types), _word(words.get("nargs"), types)
    deprecated = str(action).startswith("Deprecated") or _word(words.get("deprecated"), types) is True
    choices = _word(words.get("choices"), types)
    takes: Any = "one"
    if action in _NO_VALUE or action == "BooleanOptionalAction" or nargs == 0:
        takes = "none"
    elif nargs == "?":
        takes = "optional"
    elif nargs is not None and nargs != 1:
        takes = "many"
    long = [name for name in names if name.startswith("--")]
    return Flag(
        long[0],
        takes,
        _type(words.get("type")),
        [name for name in names if name != long[0]],
        sorted(str(choice) for choice in choices) if isinstance(choices, (list, tuple, set)) else None,
        action == "BooleanOptionalAction",
        action == "append",
        deprecated,
        str(_word(words.get("new_flag"), types) or ""),
    )


def _word(word: Any, types: Definitions) -> Any:
    """A word's value; for a name or attribute that is none, the name."""
    if not isinstance(word, ast.expr):
        return word
    found = value_of(word, types)
    return _name(word) if found is None and isinstance(word, (ast.Name, ast.Attribute)) else found


def _type(word: Any) -> Any:
    if isinstance(word, str):
        return word
    name = ast.unparse(word) if isinstance(word, ast.AST) else ""
    if "json" in name:
        return "json"
    if any(size in name for size in _SIZES):
        return "size"
    return name if name in ("int", "float") else "str"


def _unique(flags: Iterable[Flag]) -> list[Flag]:
    """One entry a name, by name; what is registered again later replaces the field's own."""
    return [flag for _, flag in sorted({flag.name: flag for flag in flags}.items())]


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _parse(tree: Tree, path: str) -> ast.Module:
    try:
        return ast.parse(tree.read(rel_path(path)), path)
    except (SyntaxError, UnicodeDecodeError) as error:
        raise TreeError(f"{path} of {tree.origin}: not Python that this interpreter reads: {error}") from None


def _class(module: ast.Module, name: str) -> ast.ClassDef:
    return _only([node for node in module.body if isinstance(node, ast.ClassDef)], name)


def _function(within: ast.Module | ast.ClassDef, name: str) -> ast.FunctionDef:
    return _only([node for node in within.body if isinstance(node, ast.FunctionDef)], name)


def _only(nodes: list[N], name: str) -> N:
    found = [node for node in nodes if node.name == name]
    if len(found) != 1:
        hint = "the release defines its arguments in another way; teach graftwork.launch.definitions"
        raise MissingFile(f"{name} is defined {len(found)} times, expected once", hint=hint)
    return found[0]
