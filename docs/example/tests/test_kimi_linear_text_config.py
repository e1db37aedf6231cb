"""A Kimi Linear config is found whether it stands alone or below a wrapping one, and nothing else is."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from graftwork.harness.isolate import load_function, read_engine_file

FILE = "sglang/srt/configs/hybrid_arch.py"


class KimiLinearConfig(SimpleNamespace):
    """Stands for the engine's class of that name."""


@pytest.fixture
def find(engine_tree: Path) -> Any:
    function = load_function(
        read_engine_file(engine_tree, FILE), "kimi_linear_config", {"KimiLinearConfig": KimiLinearConfig}
    )
    return lambda config: function(SimpleNamespace(hf_config=config))


def test_a_wrapped_config_is_found(find: Any) -> None:
    inner = KimiLinearConfig()
    assert find(SimpleNamespace(text_config=inner)) is inner


def test_the_outer_config_comes_first(find: Any) -> None:
    outer = KimiLinearConfig(text_config=KimiLinearConfig())
    assert find(outer) is outer


@pytest.mark.parametrize(
    "config", [SimpleNamespace(), SimpleNamespace(text_config=None), SimpleNamespace(text_config=1)]
)
def test_others_are_not_taken_for_one(find: Any, config: SimpleNamespace) -> None:
    assert find(config) is None
