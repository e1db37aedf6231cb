"""Whatever the source is, a plan is a plan or a clear error: no traceback, nothing written, two runs agree."""

from __future__ import annotations

from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from toys import TOY_SOURCE, Toy

from graftwork.errors import GraftworkError
from graftwork.patching.plan import plan
from graftwork.patching.states import State
from graftwork.trees.folder import open_folder

quick = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
LINES = TOY_SOURCE.splitlines(keepends=True)


def planned_twice(toy: Toy, data: bytes) -> None:
    toy.pool.write_bytes(data)
    try:
        found = plan(open_folder(toy.tree, "toy"), toy.patches, toy.engine)
    except GraftworkError:
        return
    finally:
        assert toy.pool.read_bytes() == data
    if found.patches[0].state is State.PENDING and found.refusal() is None:
        toy.pool.write_bytes(found.changes[0].new or b"")
        again = plan(open_folder(toy.tree, "toy"), toy.patches, toy.engine)
        assert again.patches[0].state is State.APPLIED and again.changes == ()
        assert again.patched[0].pristine == data, "taking it out gives the bytes that were there"


@quick
@given(st.binary(max_size=200))
def test_random_bytes(toy: Toy, data: bytes) -> None:
    planned_twice(toy, data)


@quick
@given(st.integers(0, len(TOY_SOURCE)), st.integers(0, 30), st.text(max_size=8))
def test_a_part_replaced(toy: Toy, start: int, length: int, middle: str) -> None:
    planned_twice(toy, (TOY_SOURCE[:start] + middle + TOY_SOURCE[start + length :]).encode("utf-8", "surrogatepass"))


@quick
@given(st.lists(st.sampled_from(LINES), max_size=30))
def test_lines_shuffled_dropped_and_doubled(toy: Toy, lines: list[str]) -> None:
    planned_twice(toy, "".join(lines).encode())


@quick
@given(
    st.lists(st.tuples(st.integers(0, len(LINES)), st.sampled_from(["\n", "# note\n", "\t\n", "\x0c\n"])), max_size=6)
)
def test_blank_lines_and_comments_anywhere(toy: Toy, added: list[tuple[int, str]]) -> None:
    """The edits apply whatever stands between the statements, and come out again to the byte."""
    lines = list(LINES)
    for at, text in added:
        lines.insert(at, text)
    planned_twice(toy, "".join(lines).encode())


def test_the_folder_is_left_alone(toy: Toy) -> None:
    before = sorted(str(f) for f in Path(toy.tree).rglob("*"))
    planned_twice(toy, TOY_SOURCE.encode())
    assert sorted(str(f) for f in Path(toy.tree).rglob("*")) == before
