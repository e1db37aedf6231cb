"""Each rule of the catalog: broken input is one clear error with file and line."""

from __future__ import annotations

import json
import re

import pytest
from toys import ROOT, TOY_PATCH, Toy

from graftwork.catalog.catalog import Catalog, wheel_for
from graftwork.errors import CatalogError, GraftworkError, PinError, UsageError


def broken(toy: Toy, text: str) -> str:
    toy.patch("rows", text)
    with pytest.raises(CatalogError) as caught:
        toy.catalog.patch("toy/rows")
    return caught.value.message


def line(message: str) -> int:
    found = re.search(r"patch\.toml:(\d+):", message)
    assert found, message
    return int(found[1])


def line_in(text: str, needle: str) -> int:
    return text[: text.index(needle)].count("\n") + 1


def test_this_checkout_is_sound(catalog: Catalog) -> None:
    catalog.check()
    assert catalog.target_names == ["cuda-hisparse", "rocm-gfx942", "rocm-gfx950", "rocm-gfx950-next"]


def test_schemas_are_what_the_code_says() -> None:
    import runpy

    module = runpy.run_path(str(ROOT / "scripts/schemas.py"))
    for name, (kind, title) in module["SCHEMAS"].items():
        file = ROOT / "docs/schema" / f"{name}.schema.json"
        assert json.loads(file.read_text("utf-8")) == json.loads(json.dumps(module["schema_of"](kind, title)))


@pytest.mark.parametrize(
    ("change", "says", "at"),
    [
        (('symptom = "too', 'symptoms = "too'), "unknown key `symptoms`", 'symptoms = "too'),
        (('revision = "R2"', "revision = 2"), "Expected `str`, got `int`", "revision = 2"),
        (('title = "Use the smaller count"\n', ""), "missing key `title`", None),
        (('kind = "codemod"', 'kind = "regex"'), "Invalid value 'regex'", 'kind = "regex"'),
        (('becomes = "count = min(', 'becoms = "count = min('), "unknown key `becoms`", "becoms"),
        (('scope = "Pool.take"', 'scope = "Pool.take"\nversions = "=>1"'), "not a version specifier", "versions ="),
        (('match = "count = rows"', 'match = "count = = rows"'), "not a Python snippet", "match = "),
        (('min(rows, padded)"', 'min($rows, padded)"'), "uses $rows, which match does not bind", "becomes = "),
        (('match = "count = rows"', 'match = "a = 1; b = 2"'), "match is 2 statements", 'match = "a'),
        (('becomes = "count = min(rows, padded)"', 'becomes = "rows"'), "becomes is an expression", "becomes ="),
        (('becomes = "count = min(rows, padded)"', 'becomes = "if a: b"'), "becomes is a compound", "becomes ="),
        (('match = "if self.is_small(): ..."', 'match = "self.is_small()"'), "match is an expression", 'match = "self'),
        (('before = "_toy_clip = count < rows"', 'before = "# a"'), "before inserts no statement", 'before = "# a"'),
        (('before = "_toy_clip = count', 'before = "_toy_clip = $count'), "inserted statements are taken", "before ="),
        (('before = "_toy_clip', 'after = "pass"\nbefore = "_toy_clip'), "has before and after", None),
        (('becomes = "count = min(rows, padded)"\n', ""), "has no action", None),
        (('file = "toy/pool.py"\nscope', 'file = "../pool.py"\nscope'), "not a path inside the tree", None),
        (('file = "toy/pool.py"\nscope', 'file = "other/pool.py"\nscope'), "not in the engine's package", None),
        (('[[marker]]\nfile = "toy/pool.py"', '[[marker]]\nfile = "toy/other.py"'), "which no edit touches", None),
        (('kind = "local"', 'kind = "comment"'), "Invalid enum value 'comment'", 'kind = "comment"'),
        (('id = "toy/rows"', 'id = "toy/Rows"'), "the folder says 'toy/rows'", 'id = "toy/Rows"'),
        (('id = "toy/rows"', 'id = "toy/rows'), "not TOML", 'id = "toy/rows'),
    ],
)
def test_broken_patch_files(toy: Toy, change: tuple[str, str], says: str, at: str | None) -> None:
    text = TOY_PATCH.replace(*change, 1)
    assert text != TOY_PATCH
    message = broken(toy, text)
    assert says in message
    if at:
        assert line(message) == line_in(text, at)


@pytest.mark.parametrize(
    ("fact", "says"),
    [
        ('file = "toy/other.py"', "needs 'defines' or 'contains'"),
        ('file = "other/pool.py"\ndefines = "f"', "not in the engine's package"),
        ('file = "toy/other.py"\ncontains = "a = 1; b = 2"', "must be one statement or expression"),
        ('file = "toy/other.py"\ncontains = "f("', "not a Python snippet"),
    ],
)
@pytest.mark.parametrize("place", ["", ".also"])
def test_broken_facts(toy: Toy, place: str, fact: str, says: str) -> None:
    sound = '\n[[obsolete_when]]\nfile = "toy/pool.py"\nreason = "r"\ndefines = "f"\n' if place else ""
    text = f"{TOY_PATCH}{sound}\n[[obsolete_when{place}]]\n" + ("" if place else 'reason = "r"\n') + f"{fact}\n"
    message = broken(toy, text)
    assert says in message
    assert line(message) >= line_in(text, f"[[obsolete_when{place}]]")


def test_two_variants_that_match_one_version(toy: Toy) -> None:
    extra = TOY_PATCH.replace('scope = "Pool.take"', 'scope = "Pool.take"\nversions = ">=0.5"', 1)
    extra += '\n[[edit]]\nid = "rows"\nkind = "anchor"\nfile = "toy/pool.py"\nversions = "<=0.5.1"\n'
    extra += '[[edit.hunk]]\nfind = "a"\nreplace = "b"\n'
    assert "two variants of edit 'rows' match version 0.5" in broken(toy, extra)
    toy.patch("rows", extra.replace("<=0.5.1", "<0.5"))
    toy.catalog.patch("toy/rows")


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [
        (">=0.5.16", "<0.5.16", False),
        (">=0.5.16", "<=0.5.16", True),
        ("", "==1.0", True),
        (">=1,<2", ">=2,<3", False),
        (">1.0", "<1.1", True),
        ("==0.5.15.post1", ">=0.5.15,<0.5.16", True),
        ("==1.*", ">=1.5", True),
        ("==1.*", "==2.*", False),
        ("!=1.0", "==1.0", False),
        ("~=1.4", "<1.4", False),
        (">1,<1.0.1", "==1.0.0.5", True),
    ],
)
def test_overlap_of_specifiers(one: str, other: str, both: bool) -> None:
    from graftwork.catalog.versions import overlap

    assert (overlap(one, other) is not None) is both
    assert (overlap(other, one) is not None) is both


def test_a_revision_that_no_marker_tells_apart(toy: Toy) -> None:
    toy.write(
        "patches/toy/rows/old.toml",
        '[[edit]]\nid = "rows"\nkind = "anchor"\nfile = "toy/pool.py"\n[[edit.hunk]]\nfind = "a"\nreplace = "b"\n'
        '[[marker]]\nfile = "toy/pool.py"\nfunction = "Pool.take"\nkind = "local"\nvalue = "_toy_clip"\n',
    )
    earlier = TOY_PATCH + '\n[[earlier]]\nid = "R1"\nedits = "old.toml"\n'
    assert "no marker discriminates revision R1" in broken(toy, earlier)
    marked = earlier.replace('value = "_toy_clip"', 'value = "_toy_clip"\ndiscriminates = ["R1"]')
    assert "it cannot discriminate" in broken(toy, marked)
    assert "no earlier revision 'R0'" in broken(toy, marked.replace('["R1"]', '["R0"]'))


def test_a_source_outside_the_patch_folder(toy: Toy) -> None:
    text = TOY_PATCH + '\n[[edit]]\nid = "f"\nkind = "file"\npath = "toy/new.py"\nsource = "../../x"\n'
    assert "not a path inside the tree" in broken(toy, text)
    assert "does not exist" in broken(toy, text.replace("../../x", "x"))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (('patches = ["toy/rows"]', 'patches = ["toy/rows", "toy/rows"]'), "listed twice"),
        (('patches = ["toy/rows"]', 'patches = ["toy/none"]'), "does not exist"),
        (('engine = "toy"', 'engine = "other"'), "is not for engine"),
        (('version = "1.0"', 'version = "one"'), "not a PEP 440 version"),
        (('version = "1.0"', 'version = "1.1"'), "is not toy 1.1"),
        (('python = "py3"', 'python = "cp310"'), "the wheel's tag is py3"),
        (('summary = "a toy"', 'summary = "a toy"\noptional = ["toy/x"]'), "not in patches"),
        (('name = "t"', 'name = "u"'), "the file says 't'"),
        (('image = "example/toy:1.0"\n', ""), "image and digest go together"),
        ((f'digest = "sha256:{"0" * 64}"\n', ""), "image and digest go together"),
    ],
)
def test_broken_targets(toy: Toy, change: tuple[str, str], says: str) -> None:
    toy.target(lambda text: text.replace(*change, 1))
    with pytest.raises(CatalogError, match=re.escape(says)):
        toy.catalog.target("t")


def test_a_target_without_a_base_cannot_have_compared_it(toy: Toy) -> None:
    pin = f'image = "example/toy:1.0"\ndigest = "sha256:{"0" * 64}"\n'
    toy.target(lambda text: text.replace(pin, ""))
    assert toy.catalog.target("t").base.pinned == ""
    toy.target(lambda text: text.replace(pin, "").replace("checked = false", "checked = true"))
    with pytest.raises(CatalogError, match="no digest that could have been compared"):
        toy.catalog.target("t")


def test_order_and_cycles_name_both_patches(toy: Toy) -> None:
    other = TOY_PATCH.replace("toy/rows", "toy/other")
    toy.patch("other", other + "\n")
    toy.patch("rows", TOY_PATCH.replace("title =", 'after = ["toy/other"]\ntitle ='))
    toy.target(lambda text: text.replace('["toy/rows"]', '["toy/rows", "toy/other"]'))
    with pytest.raises(CatalogError, match="toy/rows must come after toy/other"):
        _ = toy.patches
    toy.patch("other", other.replace("title =", 'after = ["toy/rows"]\ntitle ='))
    with pytest.raises(CatalogError, match="cycle: toy/rows comes after toy/other, which comes after toy/rows"):
        _ = toy.patches


def test_a_wheel_that_the_base_cannot_load_names_both_values(toy: Toy) -> None:
    toy.target(
        lambda t: (
            t.replace("toy-1.0-py3-none-any", "toy-1.0-cp311-cp311-linux_x86_64")
            .replace('"py3"', '"cp311"')
            .replace('"any"', '"x86_64"')
        )
    )
    with pytest.raises(PinError) as caught:
        wheel_for(toy.catalog.target("t"))
    assert caught.value.exit_code == 5
    assert "cp310/x86_64" in caught.value.message and "cp311/x86_64" in caught.value.message


@pytest.mark.parametrize(("tag", "loads"), [("cp38-abi3", True), ("cp310-abi3", True), ("cp311-abi3", False)])
def test_a_stable_abi_wheel_loads_in_its_python_and_newer(toy: Toy, tag: str, loads: bool) -> None:
    python = tag.partition("-")[0]
    toy.target(
        lambda t: (
            t.replace("toy-1.0-py3-none-any", f"toy-1.0-{tag}-linux_x86_64")
            .replace('"py3"', f'"{python}"')
            .replace('"any"', '"x86_64"')
        )
    )
    target = toy.catalog.target("t")
    if loads:
        assert wheel_for(target).python == python
    else:
        with pytest.raises(PinError, match="cp310/x86_64, pinned wheels are for cp311/x86_64"):
            wheel_for(target)


def test_lock_of_other_pins_is_refused(toy: Toy) -> None:
    target = toy.catalog.target("t")
    with pytest.raises(PinError, match="no lock"):
        toy.catalog.lock(target)
    toy.write(
        "deploy/docker/locks/t.json",
        json.dumps({"schema": 1, "target": "t", "pins": "1" * 64, "epoch": 0, "wheels": []}),
    )
    with pytest.raises(PinError, match="made for pins 111111111111"):
        toy.catalog.lock(target)
    toy.write("deploy/docker/locks/t.json", "{")
    with pytest.raises(CatalogError, match="not a lock"):
        toy.catalog.lock(target)


def test_unknown_names_list_what_there_is(toy: Toy) -> None:
    with pytest.raises(UsageError) as caught:
        toy.catalog.target("nope")
    assert "targets: t" in caught.value.hint
    with pytest.raises(GraftworkError, match="not a target name"):
        toy.catalog.target("../t")
