"""--json and --quiet, which every verb takes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import click

from graftwork.ui import Screen


def screened(function: Callable[..., int]) -> Callable[..., int]:
    """--json and --quiet; *function* is given the screen."""

    @functools.wraps(function)
    def call(as_json: bool, quiet: bool, **rest: Any) -> int:
        return function(Screen(as_json=as_json, quiet=quiet), **rest)

    for option in (
        click.option("--quiet", "-q", is_flag=True, help="Only the result and errors."),
        click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout."),
    ):
        call = option(call)
    return call
