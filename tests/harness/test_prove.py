"""The revert harness on a toy: a good patch is green, and each way to weaken its tests is red, for its own reason."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from proving import GOOD, MUTANTS, Proving
from toys import TAKE, codemod, head, local

WEAKENED = Path(__file__).parent / "weakened"

# File in weakened/: the variant that gives it away, and the fault that is reported.
FAULTS = {
    "asserts_nothing": ("patch out", r"no test fails by its own assertion: 1 pass$"),
    "only_imports": ("patch out", r"no test fails by its own assertion: 1 pass$"),
    "missing_name": ("patch out", r"test_clip_comes_last breaks in its call \(ValueError: .* at test_rows.py:12\)"),
    "markers_only": ("markers, stock logic", r"no test fails by its own assertion: 1 pass$"),
    "text_only": ("one-less", r"no test fails of it: 1 pass$"),
    "one_direction": ("always-padded", r"no test fails of it: 1 pass$"),
    "swallows_errors": ("patch out", r"no test fails by its own assertion: 1 pass$"),
    "raw_error": (
        "patch out",
        r"test_count ends in an error of the engine in its call \(ValueError: Expected .*pool.py",
    ),
    "wrong_defect": ("patch out", r"test_count ends in an error of the engine in its call \(ValueError: Expected "),
    "skips": ("all in", r"no test passes on the patched tree: 1 are skipped \(.*not today\)"),
    "skips_on_stock": ("patch out", r"no test fails by its own assertion: 1 are skipped \(.*not patched\)"),
    "fixture_error": ("patch out", r"test_count breaks in its setup \(AssertionError: "),
    "collection_error": ("patch out", r"test_rows.py breaks in its collection \(.*ValueError"),
    "fails_anyway": ("all in", r"1 tests fail on the patched tree, first .*::test_count: AssertionError"),
    "exits_early": ("all in", r"pytest ended with exit code 2 \(interrupted\)"),
    "ends_the_process": ("all in", r"the test process died \(exit code 0\)"),
}
SORTS = {"all in": "in", "patch out": "out", "markers, stock logic": "markers"}


def test_a_good_patch_is_green_in_every_variant(tmp_path: Path) -> None:
    rows = Proving(tmp_path).prove()
    assert {name: row.verdict.fault for name, row in rows.items() if row.verdict.fault} == {}
    assert {name: row.verdict.noticed for name, row in rows.items()} == {
        "all in": (),
        "patch out": ("marker", "test"),
        "rows[1]": ("test",),
        "rows[2]": ("marker",),
        "rows[3]": ("test",),
        "R1": ("marker", "test"),
        "markers, stock logic": ("test",),
        "always-padded": ("test",),
        "one-less": ("test",),
    }
    assert rows["rows[1]"].verdict.by.startswith("test_smaller_count[8-5-5] (Failed: the defect: ValueError: Expected")


def test_every_weakened_file_has_a_reason() -> None:
    assert {file.stem for file in WEAKENED.glob("*.py")} == {*FAULTS, "hangs"}


@pytest.mark.parametrize("name", FAULTS)
def test_weakened_tests_are_red(tmp_path: Path, name: str) -> None:
    variant, fault = FAULTS[name]
    toy = Proving(tmp_path, (WEAKENED / f"{name}.py").read_text("utf-8"))
    rows = toy.prove({"in", SORTS.get(variant, "mutant")})
    assert re.search(fault, rows[variant].verdict.fault)
    if variant != "all in":
        assert rows["all in"].verdict.fault == ""


def test_tests_that_hang_are_ended_and_red(tmp_path: Path) -> None:
    toy = Proving(tmp_path, (WEAKENED / "hangs.py").read_text("utf-8"))
    assert toy.prove({"in"}, limit=3)["all in"].verdict.fault.startswith("the tests did not end in 3 s")


def test_a_hunk_that_nothing_notices_is_red_unless_it_is_inert(tmp_path: Path) -> None:
    log = '[[edit]]\nid = "log"\nkind = "anchor"\nfile = "toy/pool.py"\n[[edit.hunk]]\nfind = "class Pool:"\n'
    log += 'replace = "logger.debug(1)\\n\\n\\nclass Pool:"\n'
    toy = Proving(tmp_path)
    toy.change("patches/toy/rows/patch.toml", "[[marker]]", f"{log}\n[[marker]]")
    row = toy.prove({"hunk"})["log[1]"]
    assert row.verdict.fault == "nothing notices that this hunk is missing: 4 pass"
    toy.change("patches/toy/rows/patch.toml", log, f'{log}inert = "a log line"\n')
    assert toy.prove({"hunk"})["log[1]"].verdict.fault == ""


def test_an_inert_hunk_that_is_noticed_is_red(tmp_path: Path) -> None:
    toy = Proving(tmp_path)
    toy.change("patches/toy/rows/patch.toml", 'before = "_toy_clip', 'inert = "only a name"\nbefore = "_toy_clip')
    row = toy.prove({"hunk"})["rows[2]"]
    assert row.verdict.fault == "declared inert, but noticed by marker: take 'inert' away"


def test_a_hunk_that_later_edits_need_is_noticed_by_their_anchors(tmp_path: Path) -> None:
    toy = Proving(tmp_path)
    second = '[[edit]]\nid = "more"\nkind = "anchor"\nfile = "toy/pool.py"\n[[edit.hunk]]\nfind = "min(rows, padded)"\n'
    toy.change(
        "patches/toy/rows/patch.toml", "[[marker]]", f'{second}replace = "min(rows, padded)  # smaller"\n\n[[marker]]'
    )
    rows = toy.prove({"hunk"})
    assert rows["rows[1]"].verdict.noticed == ("anchor",)
    assert rows["rows[1]"].verdict.by.startswith("more[1] is missing then: ")
    assert rows["more[1]"].verdict.fault == "nothing notices that this hunk is missing: 4 pass"


def test_a_hunk_without_which_nothing_compiles_is_noticed_by_the_compiler(tmp_path: Path) -> None:
    toy = Proving(tmp_path)
    opened = '[[edit]]\nid = "text"\nkind = "anchor"\nfile = "toy/pool.py"\n'
    opened += '[[edit.hunk]]\nfind = "logger = "\nreplace = "logger = (\\n    "\n'
    opened += '[[edit.hunk]]\nfind = "(__name__)\\n"\nreplace = "(__name__)\\n)\\n"\n'
    toy.change("patches/toy/rows/patch.toml", "[[marker]]", f"{opened}\n[[marker]]")
    rows = toy.prove({"hunk"})
    assert [rows[name].verdict.noticed for name in ("text[1]", "text[2]")] == [("compile",), ("compile",)]
    assert "does not compile" in rows["text[1]"].verdict.by


def test_a_mutant_that_does_not_fit_is_red(tmp_path: Path) -> None:
    toy = Proving(tmp_path)
    toy.write(
        "patches/toy/rows/mutants.toml", MUTANTS.replace('find = "min(rows, padded)"', 'find = "max(rows, padded)"')
    )
    rows = toy.prove({"mutant"})
    assert rows["one-less"].verdict.fault.startswith("cannot be built: rows[1] is missing then: ")
    assert rows["always-padded"].verdict.fault == ""


def test_an_earlier_revision_that_no_marker_refuses_is_red(tmp_path: Path) -> None:
    toy = Proving(tmp_path)
    toy.change(
        "patches/toy/rows/old.toml", "count = _toy_old = min(rows, 1)", "count = _toy_clip = _toy_old = min(rows, 1)"
    )
    row = toy.prove({"earlier"})["R1"]
    assert row.verdict.fault == "no marker refuses it: the tree is partial, 1 of 1 markers are there"


def test_new_files_and_diffs_are_taken_out_one_by_one(tmp_path: Path) -> None:
    toy = Proving(tmp_path)
    diff = "--- a/toy/pool.py\n+++ b/toy/pool.py\n@@ -5,3 +5,3 @@\n \n-logger = logging.getLogger(__name__)\n"
    diff += '+logger = logging.getLogger("pool")\n \n@@ -17,2 +17,2 @@\n def kernel(count, padded):\n'
    diff += "-    if count > padded:\n+    if count > padded or count < 0:\n"
    toy.write("patches/toy/rows/change.diff", diff)
    toy.write("patches/toy/rows/new/used.py", "LIMIT = 1\n")
    toy.write("patches/toy/rows/new/unused.py", "")
    edits = '[[edit]]\nid = "diff"\nkind = "diff"\nsource = "change.diff"\n'
    edits += '[[edit]]\nid = "new"\nkind = "file"\npath = "toy/new"\nsource = "new"\n'
    toy.change("patches/toy/rows/patch.toml", "[[marker]]", f"{edits}\n[[marker]]")
    toy.tests(
        GOOD
        + "\n\ndef test_new(engine_tree):\n"
        + '    file = engine_tree / "toy/new/used.py"\n    assert file.is_file()\n'
        + "\n\ndef test_negative(engine_tree):\n"
        + '    pool = load_module(engine_tree / "toy/pool.py", "toy.pool").Pool()\n'
        + "    with pytest.raises(ValueError):\n        pool.take(-1, 3)\n"
    )
    rows = toy.prove({"hunk"})
    noticed = {name: bool(row.verdict.noticed) for name, row in rows.items() if name.startswith(("diff", "new"))}
    assert noticed == {"diff[1]": False, "diff[2]": True, "new[1]": False, "new[2]": True}


def test_the_same_files_are_tested_once_for_all_targets(tmp_path: Path) -> None:
    from graftwork.harness.prove import prove

    toy = Proving(tmp_path)
    toy.tests(GOOD + f"\n\ndef test_once():\n    open({str(tmp_path / 'runs')!r}, 'a').write('x')\n")
    rows = prove([*toy.stages({"in"}), ("other", toy.stages({"in"})[0][1])], at_once=2)
    assert [(row.target, row.verdict.fault) for row in rows] == [("t", ""), ("other", "")]
    assert (tmp_path / "runs").read_text() == "x"


def test_the_other_patches_stay_in(tmp_path: Path) -> None:
    toy = Proving(tmp_path)
    second = head("toy/more") + '[[edit]]\nid = "more"\nkind = "anchor"\nfile = "toy/pool.py"\n'
    second += '[[edit.hunk]]\nfind = "return [count] * padded"\n'
    second += 'replace = "_toy_more = [count] * padded\\n    return _toy_more"\n'
    second += local("kernel", "_toy_more")
    toy.patch("more", second)
    toy.write("patches/toy/more/tests/test_more.py", GOOD)
    toy.target(lambda text: text.replace('["toy/rows"]', '["toy/rows", "toy/more"]'))
    for _, stage in toy.stages():
        for variant in stage.variants():
            text = variant.files["toy/pool.py"].decode()
            assert ("_toy_more" in text) == (stage.patch.id == "toy/rows" or variant.sort in ("in", "markers"))
            assert ("min(rows, padded)" in text) or stage.patch.id == "toy/rows"


def test_a_patch_that_builds_on_this_one_goes_with_it(tmp_path: Path) -> None:
    toy = Proving(tmp_path)
    second = head("toy/more") + 'after = ["toy/rows"]\n'
    second += codemod("more", TAKE, {"match": "_toy_clip = count < rows", "after": "_toy_more = _toy_clip"})
    second += local(TAKE, "_toy_more")
    toy.patch("more", second)
    toy.target(lambda text: text.replace('["toy/rows"]', '["toy/rows", "toy/more"]'))
    (_, stage), _ = toy.stages({"in", "out", "hunk"})
    found = {variant.name: variant for variant in stage.variants()}
    texts = {name: variant.files["toy/pool.py"].decode() for name, variant in found.items() if variant.files}
    assert {name: "_toy_more" in text for name, text in texts.items()} == {
        "all in": True,
        "patch out": False,
        "rows[1]": True,
        "rows[3]": True,
    }
    assert found["rows[2]"].refusal.startswith("toy/more is drifted then: ")
