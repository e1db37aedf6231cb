"""The ledger, the findings and the proposals, on a toy catalog with evidence made for the case."""

from __future__ import annotations

import datetime
import re
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest
from toys import TOY_PATCH, Toy
from upstream.test_contained import FIXED, changes
from upstream.test_threads import HOSTILE

from graftwork.catalog.catalog import Catalog, Patch
from graftwork.catalog.seen import FILE, UpstreamFile, dumped
from graftwork.catalog.targets import Target
from graftwork.errors import CatalogError, PolicyError, UsageError
from graftwork.patching.states import State
from graftwork.upstream import ledger
from graftwork.upstream.policy import Problem, problems
from graftwork.upstream.proposal import Proposer

TODAY = datetime.date(2026, 10, 1)
ROW = {"ref": "o/r#7", "kind": "pull", "state": "open", "as_of": "2026-09-20", "method": "GitHub API"}
HELD = {"ref": "o/r#7", "as_of": "2026-09-20", "method": "its 2 places"}


def reference(relation: str = "superseding", assumes: str = "open", kind: str = "pull", ref: str = "o/r#7") -> str:
    table = f'\n[[upstream]]\nref = "{ref}"\nkind = "{kind}"\nrelation = "{relation}"\n'
    return table + (f'assumes = "{assumes}"\n' if assumes else "") + 'expect = "then drop | it"\n'


class Case:
    """A toy catalog whose patch has one reference, and what was seen of it."""

    def __init__(self, toy: Toy) -> None:
        self.toy = toy
        self.patch_toml(reference())
        self.saw(refs=[ROW])

    def patch_toml(self, more: str) -> None:
        self.toy.patch("rows", TOY_PATCH + more)

    def saw(self, **parts: Any) -> None:
        found = msgspec.convert({"patch": "toy/rows", **parts}, UpstreamFile)
        self.toy.write(f"patches/toy/rows/{FILE}", dumped(found).decode())

    @property
    def catalog(self) -> Catalog:
        return Catalog(self.toy.root)

    @property
    def patches(self) -> list[Patch]:
        return [self.catalog.patch(name) for name in self.catalog.patch_ids]

    @property
    def targets(self) -> list[Target]:
        return [self.catalog.target("t")]

    def problems(self) -> list[Problem]:
        return problems(self.patches, self.targets, TODAY)

    def kinds(self) -> list[str]:
        return [problem.kind for problem in self.problems()]

    def written(self) -> Path:
        """The ledger, written as it should be."""
        file = self.toy.root / ledger.FILE
        file.write_text(ledger.current(self.toy.root, self.patches, self.targets)[1], "utf-8")
        return file

    def check(self) -> None:
        ledger.check(self.toy.root, self.patches, self.targets)

    def proposer(self, state: State | None = State.OBSOLETE) -> Proposer:
        from toys import TOY_SOURCE

        rows = changes(TOY_SOURCE, FIXED)
        return Proposer(self.catalog, self.targets, lambda *_: state, lambda *_: rows)

    def applied(self, diff: str) -> str:
        """What `git apply` says to a proposed diff."""
        (self.toy.root / "x.diff").write_text(diff)
        done = subprocess.run(["git", "apply", "x.diff"], cwd=self.toy.root, capture_output=True, text=True)
        return done.stderr


@pytest.fixture
def case(toy: Toy) -> Case:
    return Case(toy)


# --- upstream.json


def test_evidence_has_one_form(case: Case) -> None:
    rows = [{**ROW, "ref": ref} for ref in ("o/r#10", "o/r#9", "a/b#11")]
    made = dumped(msgspec.convert({"patch": "toy/rows", "refs": rows}, UpstreamFile))
    assert made == dumped(msgspec.convert({"patch": "toy/rows", "refs": rows[::-1]}, UpstreamFile))
    assert re.findall(rb'"ref": "([^"]+)"', made) == [b"a/b#11", b"o/r#9", b"o/r#10"]
    assert msgspec.json.decode(made, type=UpstreamFile).refs[1].title == ""


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "not upstream evidence"),
        ('{"patch": "toy/rows", "typed": 1}', "unknown field `typed`"),
        ('{"patch": "toy/other"}', "is for 'toy/other'"),
        ('{"patch": "toy/rows", "refs": [{"ref": "o/r"}]}', "not upstream evidence"),
    ],
)
def test_evidence_that_is_not_sound_is_refused(case: Case, text: str, says: str) -> None:
    case.toy.write(f"patches/toy/rows/{FILE}", text)
    with pytest.raises(CatalogError, match=says) as caught:
        case.catalog.patch("toy/rows")
    assert "graftwork status --refresh" in caught.value.hint


# --- the findings


def test_good_evidence_has_no_findings(case: Case) -> None:
    assert case.problems() == []


@pytest.mark.parametrize(("day", "kinds"), [("2026-09-01", []), ("2026-08-31", ["stale"]), ("2026-10-02", ["stale"])])
def test_evidence_holds_for_thirty_days(case: Case, day: str, kinds: list[str]) -> None:
    case.saw(refs=[{**ROW, "as_of": day}])
    assert case.kinds() == kinds


def test_a_day_that_is_none(case: Case) -> None:
    case.saw(refs=[{**ROW, "as_of": "2026-02-30"}])
    assert "which is no day" in case.problems()[0].text


def test_a_reference_that_was_never_looked_at(case: Case) -> None:
    case.saw()
    assert case.kinds() == ["not-seen"]


def test_a_patch_says_what_upstream_has_or_what_was_searched(case: Case) -> None:
    case.patch_toml("")
    assert case.kinds() == ["no-reference"]
    with pytest.raises(CatalogError, match="does not say what was searched"):
        case.catalog.check()
    case.patch_toml('\n[[searched]]\nwhat = "rows"\nhow = "by path"\ndate = "2026-09-20"\n')
    assert case.kinds() == []
    case.catalog.check()
    case.patch_toml('\n[[searched]]\nwhat = "rows"\nhow = "by path"\ndate = "2026-01-20"\n')
    assert case.kinds() == ["stale"]


def test_a_reference_is_listed_once(case: Case) -> None:
    case.patch_toml(reference() + reference("background"))
    with pytest.raises(CatalogError, match="o/r#7 is listed twice"):
        case.catalog.check()


@pytest.mark.parametrize(
    ("seen", "kinds"),
    [
        ({"state": "closed"}, ["contradiction"]),
        ({"state": "merged"}, ["contradiction"]),
        ({"kind": "issue"}, ["kind"]),
        ({"state": "missing", "reason": "410: deleted"}, ["missing"]),
    ],
)
def test_what_contradicts_the_claim(case: Case, seen: dict[str, str], kinds: list[str]) -> None:
    case.saw(refs=[{**ROW, **seen}])
    assert case.kinds() == kinds


def test_nothing_is_assumed_where_nothing_is_said(case: Case) -> None:
    case.patch_toml(reference(assumes=""))
    case.saw(refs=[{**ROW, "state": "closed"}])
    assert case.kinds() == []


@pytest.mark.parametrize(
    ("relation", "held", "found"),
    [
        ("superseding", {"first": "0.9", "present": ["0.9", "1.0"]}, True),
        ("own", {"first": "0.9", "present": ["0.9"]}, True),
        ("same-fix", {"first": "1.0", "present": ["1.0.0"]}, True),
        ("superseding", {"first": "1.1", "present": ["1.1"], "absent": ["1.0"]}, False),
        ("superseding", {"first": "0.9", "present": ["0.9"], "absent": ["1.0"]}, False),
        ("superseding", {"first": "0.9", "present": ["0.9"], "partly": ["1.0"]}, False),
        ("superseding", {"absent": ["1.0"]}, False),
        ("background", {"first": "0.9", "present": ["1.0"]}, False),
        ("collision", {"first": "0.9", "present": ["1.0"]}, False),
    ],
)
def test_a_merged_fix_in_the_pinned_release(case: Case, relation: str, held: dict[str, Any], found: bool) -> None:
    case.patch_toml(reference(relation, "merged"))
    case.saw(refs=[{**ROW, "state": "merged"}], contained=[{**HELD, **held}])
    assert case.kinds() == (["contained"] if found else [])
    case.toy.target(lambda text: text.replace("[base]", 'optional = ["toy/rows"]\n\n[base]', 1))
    assert case.kinds() == []


# --- the ledger


def test_the_ledger_is_the_same_bytes_for_the_same_evidence(case: Case) -> None:
    first = case.written().read_bytes()
    case.check()
    assert case.written().read_bytes() == first
    text = first.decode()
    assert "| [toy/rows](#toyrows) | t | 1 open | - | not looked for | 2026-09-20 |" in text
    assert (
        "| [r#7](https://github.com/o/r/pull/7) | superseding | open | 2026-09-20, GitHub API | then drop \\| it |"
        in text
    )


def test_every_patch_has_its_row_and_its_block(case: Case) -> None:
    case.toy.patch("other", TOY_PATCH.replace("toy/rows", "toy/other"))
    text = case.written().read_text()
    for name in ("toy/rows", "toy/other"):
        assert text.count(f"| [{name}](#") == 1 and text.count(f"\n## {name}\n") == 1
        assert text.count(f"<!-- notes {name} -->") == 1


def test_notes_are_kept(case: Case) -> None:
    file = case.written()
    noted = file.read_text().replace(
        "<!-- notes toy/rows -->\n", "<!-- notes toy/rows -->\nAsked *upstream*.\n\n| a |\n"
    )
    noted = noted.replace("<!-- notes general -->\n", "<!-- notes general -->\nGeneral.\n")
    file.write_text(noted)
    case.check()
    case.saw(refs=[{**ROW, "state": "closed", "title": "new"}])
    text = case.written().read_text()
    assert "Asked *upstream*.\n\n| a |\n<!-- /notes -->" in text and "\nGeneral.\n" in text and "closed" in text


def test_notes_on_a_patch_that_is_gone_are_kept(case: Case) -> None:
    file = case.written()
    gone = (
        "<!-- notes toy/gone -->\nIt was fixed in 0.9.\n<!-- /notes -->\n<!-- notes toy/empty -->\n\n<!-- /notes -->\n"
    )
    file.write_text(file.read_text() + gone)
    text = case.written().read_text()
    assert text.endswith("## Notes on patches that are gone\n\n" + gone.split("<!-- notes toy/empty")[0])
    assert "toy/empty" not in text
    case.check()


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace("| 1 open |", "| 1 merged |"),
        lambda text: text.replace("Drop it when", "Keep it until"),
        lambda text: text + "\nA word at the end.\n",
        lambda text: text[: text.index("## toy/rows")],
        lambda text: "",
        lambda text: text.replace("\n", "\r\n"),
    ],
)
def test_a_ledger_that_was_edited_or_is_old_is_refused(case: Case, change: Any) -> None:
    file = case.written()
    file.write_bytes(change(file.read_text()).encode())
    with pytest.raises(PolicyError, match=r"patch\.upstream\.status\.md:\d+: not what the evidence says") as caught:
        case.check()
    assert "graftwork status --ledger" in caught.value.hint and caught.value.exit_code == 8
    case.written()
    case.check()


def test_evidence_that_moved_on_makes_the_ledger_stale(case: Case) -> None:
    case.written()
    case.saw(refs=[{**ROW, "as_of": "2026-09-21"}])
    with pytest.raises(PolicyError):
        case.check()


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("<!-- notes toy/rows -->\nmine\n", None),
        ("<!-- /notes -->\n", 1),
        ("<!-- notes a -->\n<!-- notes b -->\n<!-- /notes -->\n", 2),
        ("<!-- notes a -->\n<!-- /notes -->\n<!-- notes a -->\n<!-- /notes -->\n", 3),
        ("<!-- notes -->\n<!-- /notes -->\n", 1),
    ],
)
def test_marks_that_do_not_pair_up_lose_nothing(case: Case, text: str, line: int | None) -> None:
    file = case.toy.root / ledger.FILE
    file.write_text(text)
    with pytest.raises(UsageError, match=f"{ledger.FILE}:{line}: " if line else "have no end"):
        ledger.current(case.toy.root, case.patches, case.targets)
    assert file.read_text() == text


def test_text_from_upstream_is_only_text(case: Case) -> None:
    hostile = HOSTILE.replace("\r\n", " ")
    case.saw(
        refs=[{**ROW, "title": hostile, "base": "<b>", "moved_to": "x", "reason": hostile, "method": hostile}],
        collisions=[
            {
                "ref": "o/r#9",
                "title": hostile,
                "anchor": "rows[1]",
                "file": "toy/pool.py",
                "ours": [1, 2],
                "theirs": [3, 3],
            }
        ],
        contained=[{**HELD, "note": hostile}],
        scans=[
            {"repository": "o/r", "as_of": "2026-09-20", "method": hostile, "version": "1.0", "open": 1, "looked_at": 1}
        ],
    )
    text = case.written().read_text()
    for bad in ("<script", "](javascript", "\x1b", "\u202e", "@team", "`z", "<b>"):
        assert bad not in text
    assert "&lt;script&gt;" in text and max(map(len, text.split("\n"))) < 2500
    rows = [line for line in text.split("\n") if line.startswith("| [r#")]
    assert [len(re.findall(r"(?<!\\)\|", row)) for row in rows] == [6, 5]
    case.check()


def test_all_that_was_found_is_shown(case: Case) -> None:
    case.saw(
        refs=[{**ROW, "state": "merged", "merged": "2026-09-02", "opened": "2026-09-01", "base": "release/v1"}],
        contained=[{**HELD, "first": "1.1", "present": ["1.1"], "absent": ["0.9", "1.0"], "note": "reverted as abc"}],
        collisions=[
            {"ref": "o/r#9", "title": "t", "anchor": "rows[1]", "file": "toy/pool.py", "ours": [1, 2], "theirs": [3, 3]}
        ],
        scans=[
            {"repository": "o/r", "as_of": "2026-09-20", "method": "m", "version": "1.1", "open": 5, "looked_at": 3}
        ],
    )
    text = case.written().read_text()
    assert "merged (opened 2026-09-01, merged 2026-09-02, for release/v1), **assumed open**" in text
    assert "r#7: first in 1.1 (in 1.1; not in 0.9, 1.0). Decided on its 2 places, 2026-09-20. reverted as abc." in text
    assert (
        "Looked at 3 of 5 open pull requests of o/r on 2026-09-20, against its anchors in 1.1 (m): near an anchor:"
        in text
    )
    assert "| [r#9](https://github.com/o/r/pull/9) t | rows[1] in `toy/pool.py` | 1-2 | 3 |" in text


# --- what to do


def test_a_contradiction_is_corrected_by_a_diff(case: Case) -> None:
    case.saw(refs=[{**ROW, "state": "closed"}])
    (problem,) = case.problems()
    proposal = case.proposer().for_problem(case.patches[0], problem)
    assert '-assumes = "open"\n+assumes = "closed"\n' in proposal.diff
    assert case.applied(proposal.diff) == "" and case.kinds() == []


def test_a_kind_and_a_move_are_corrected_by_diffs(case: Case) -> None:
    case.saw(refs=[{**ROW, "kind": "issue", "moved_to": "new/name#7"}])
    (problem,) = case.problems()
    assert case.applied(case.proposer().for_problem(case.patches[0], problem).diff) == ""
    (moved,) = case.proposer().moved(case.patches[0])
    assert case.applied(moved.diff) == ""
    row = case.patches[0].spec.upstream[0]
    assert (row.ref, row.kind) == ("new/name#7", "issue")


@pytest.mark.parametrize("layout", ['patches = ["toy/rows"]', 'patches = [\n  "toy/rows",\n]'])
def test_a_patch_that_is_overtaken_is_dropped_by_a_diff(case: Case, layout: str) -> None:
    case.toy.target(lambda text: text.replace('patches = ["toy/rows"]', layout))
    case.patch_toml(reference(assumes="merged"))
    case.saw(refs=[{**ROW, "state": "merged"}], contained=[{**HELD, "first": "1.0", "present": ["1.0"]}])
    (problem,) = case.problems()
    proposal = case.proposer().for_problem(case.patches[0], problem)
    assert "drop it from t, which is the last target that lists it" in proposal.what
    assert proposal.commands == ("git rm -r patches/toy/rows",)
    assert case.applied(proposal.diff) == ""
    assert case.targets[0].patches == [] and case.kinds() == []


def test_one_that_still_applies_is_cut_again_or_dropped(case: Case) -> None:
    case.patch_toml(reference(assumes="merged"))
    case.saw(refs=[{**ROW, "state": "merged"}], contained=[{**HELD, "first": "1.0", "present": ["1.0"]}])
    (problem,) = case.problems()
    proposal = case.proposer(State.PENDING).for_problem(case.patches[0], problem)
    assert "there the patch is pending: drop it, or cut it down" in proposal.what
    assert proposal.commands == ("graftwork rebase toy/rows --to 1.0",)
    wanted = '[[obsolete_when]]\nfile = "toy/pool.py"\ndefines = "smaller_of"\nreason = "o/r#7"\n'
    assert proposal.add == wanted
    case.patch_toml(reference(assumes="merged") + "\n" + proposal.add)
    assert case.patches[0].spec.obsolete_when[0].defines == "smaller_of"


def test_a_list_with_comments_is_left_to_the_reader(case: Case) -> None:
    case.toy.target(lambda text: text.replace('patches = ["toy/rows"]', 'patches = [\n  "toy/rows",  # why\n]'))
    case.patch_toml(reference(assumes="merged"))
    case.saw(refs=[{**ROW, "state": "merged"}], contained=[{**HELD, "first": "1.0", "present": ["1.0"]}])
    (problem,) = case.problems()
    assert case.proposer().for_problem(case.patches[0], problem).diff == ""


def test_what_is_old_is_looked_at_again(case: Case) -> None:
    case.saw(refs=[{**ROW, "as_of": "2026-01-01"}])
    (problem,) = case.problems()
    proposal = case.proposer().for_problem(case.patches[0], problem)
    assert proposal.commands == ("graftwork status toy/rows --refresh",)


def test_the_text_to_add_where_nothing_was_searched_is_toml(case: Case) -> None:
    case.patch_toml("")
    (problem,) = case.problems()
    proposal = case.proposer().for_problem(case.patches[0], problem)
    case.patch_toml("\n" + proposal.add.replace("YYYY-MM-DD", "2026-09-30"))
    assert case.kinds() == []


def test_collisions_name_the_anchors(case: Case) -> None:
    case.saw(
        refs=[ROW],
        collisions=[
            {"ref": "o/r#9", "title": "t", "anchor": name, "file": "toy/pool.py", "ours": [4, 4], "theirs": [3, 3]}
            for name in ("rows[1]", "rows[2]")
        ],
    )
    (proposal,) = case.proposer().colliding(case.patches[0])
    assert proposal.what == "when o/r#9 lands, cut again: rows[1] (toy/pool.py:4), rows[2] (toy/pool.py:4)"
