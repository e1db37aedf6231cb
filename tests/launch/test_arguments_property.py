"""Whatever a user writes behind what is derived, argparse reads our command line as it would read both, in order."""

from __future__ import annotations

import argparse

from hypothesis import given
from hypothesis import strategies as st

from graftwork.launch.arguments import Arguments
from graftwork.launch.flags import Table, table
from graftwork.launch.placeholders import fill

TABLE = table("sglang", "0.5.16")
# One of each kind, with an alias, and names that begin alike.
NAMES = ["--tp-size", "--enable-metrics", "--cuda-graph-bs-decode", "--served-model-name", "--random-seed", "--host"]
TEXT = st.text("ab{}:,\"' =-", min_size=1, max_size=5).filter(lambda text: not text.startswith("-"))


def values_of(name: str) -> st.SearchStrategy[list[str]]:
    flag = TABLE.flag(name)
    one = st.integers(0, 99).map(str) if flag.type == "int" else TEXT
    if flag.takes == "none":
        return st.just([])
    return st.lists(one, min_size=1, max_size=3) if flag.takes == "many" else one.map(lambda value: [value])


def spelled(name: str, values: list[str], how: int) -> list[str]:
    """One of the spellings of a flag with its values."""
    alias = TABLE.flag(name).aliases
    text = [name, name.replace("-", "_").replace("__", "--", 1), alias[0] if alias else name][how % 3]
    return [f"{text}={values[0]}"] if len(values) == 1 and how > 2 else [text, *values]


ITEM = st.sampled_from(NAMES).flatmap(lambda name: st.tuples(st.just(name), values_of(name), st.integers(0, 5)))


def reference(known: Table) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(exit_on_error=False)
    for name in NAMES:
        flag = known.flag(name)
        if flag.takes == "none":
            parser.add_argument(name, *flag.aliases, action="store_true")
        else:
            parser.add_argument(name, *flag.aliases, nargs="+" if flag.takes == "many" else None)
    return parser


@given(st.lists(ITEM, max_size=4), st.lists(ITEM, max_size=5))
def test_read_as_derived_first_and_the_users_last(
    derived: list[tuple[str, list[str], int]], user: list[tuple[str, list[str], int]]
) -> None:
    arguments = Arguments(TABLE, [word for item in user for word in spelled(*item)])
    for name, values, _ in derived:
        arguments.add(name, *(value.replace("{", "{{").replace("}", "}}") for value in values), why="derived")
    ours = [fill(word, lambda kind, what: "") for word in arguments.finish()[0]]
    plain = [word for name, values, _ in [*derived, *user] for word in [name, *values]]
    parser = reference(TABLE)
    assert parser.parse_args(ours) == parser.parse_args(plain)
    names = [word.partition("=")[0] for word in ours if word.startswith("--")]
    assert len(names) == len(set(names))
