"""Weakened: looks at the text of the patch, not at what it does."""


def test_text_is_there(engine_tree):
    assert "min(rows, padded)" in (engine_tree / "toy/pool.py").read_text()
