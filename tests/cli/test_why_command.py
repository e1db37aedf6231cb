"""``graftwork why``: one page with what is known of a patch, where it stands, and what would let it go."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny import Workshop, tiny_workshop
from toys import TOY_PATCH

MORE = """
[[not_needed]]
versions = "<1"
reason = "there were no rows"

[[obsolete_when]]
file = "toy/pool.py"
defines = "fixed"
reason = "it is mended"

[[launch]]
reason = "rows must be on"
env = { ROWS = "1" }

[[upstream]]
ref = "example/toy#12"
kind = "pull"
relation = "own"
expect = "drop it then"

[[evidence]]
kind = "read"
text = "rows and padded differ"
source = "1.0 pool.py:13"
"""


@pytest.fixture
def workshop(tmp_path: Path) -> Workshop:
    made = tiny_workshop(tmp_path)
    (made.root / "patches/toy/rows/patch.toml").write_text(TOY_PATCH + MORE)
    return Workshop(made.root, "rows", made.environment)


def test_the_page_says_it_all(workshop: Workshop) -> None:
    said = workshop.run("why").out
    for text in (
        "toy/rows R2: Use the smaller count",
        "too many rows",
        "rows: toy/pool.py, Pool.take",
        "local _toy_clip in Pool.take",
        "ROWS=1: rows must be on",
        "t (toy 1.0, cpu)",
        "rows and padded differ (1.0 pool.py:13)",
        "example/toy#12, own, never looked at",
        "- drop it then",
        "<1: there were no rows",
        "when toy/pool.py has fixed: it is mended",
        "upstream takes the smaller one",
    ):
        assert text in said, text
    row = [line.split() for line in said.splitlines() if line.startswith("  toy/rows")]
    assert row[0][:4] == ["toy/rows", "pending", "1.0", "2/2"]


def test_the_same_as_data_and_without_an_index(workshop: Workshop) -> None:
    document = workshop.ok("why")
    assert document["patch"]["drop_when"] == "upstream takes the smaller one"
    assert [(cell["version"], cell["state"]) for cell in document["matrix"]] == [("1.0", "pending")]
    bare = Workshop(workshop.root, "rows", {**workshop.environment, "PIP_FIND_LINKS": "/nonexistent"})
    without = bare.ok("why")
    assert without["matrix"] == [] and without["matrix_unread"]
    assert bare.ok("why", "--no-matrix")["matrix_unread"] == ""
    assert "no patch 'gone'" in Workshop(workshop.root, "gone", {}).refused(2, "why")
