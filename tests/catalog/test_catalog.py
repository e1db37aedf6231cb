"""What the whole catalog says of its parts."""

from __future__ import annotations

from pathlib import Path

import pytest
from toys import TOY_PATCH, TOY_TARGET, Toy


@pytest.mark.parametrize(
    ("own", "target", "expected"),
    [
        ('platforms = ["rocm", "cuda"]\n', "rocm", "rocm"),
        ("", "rocm", "rocm"),
        ("", "", "cuda"),
    ],
    ids=["its own first one", "that of a target with it", "in no target"],
)
def test_the_platform_to_look_at_a_patch_on(tmp_path: Path, own: str, target: str, expected: str) -> None:
    toy = Toy(tmp_path)
    toy.patch("rows", own + TOY_PATCH)
    text = TOY_TARGET.replace('platform = "cpu"', f'platform = "{target or "cpu"}"')
    toy.write("deploy/docker/targets/t.toml", text if target else text.replace('["toy/rows"]', "[]"))
    assert toy.catalog.platforms_of([toy.catalog.patch("toy/rows")]) == {"toy/rows": expected}
