"""The documentation and the code say the same: links, exit codes, keys, modules, commands, states."""

from __future__ import annotations

import ast
import json
import re
import subprocess
from functools import cache
from typing import Any

import pytest
from click.testing import CliRunner
from toys import ROOT

from graftwork.catalog.catalog import Catalog
from graftwork.cli.main import VERBS, cli
from graftwork.errors import EXIT_CODES
from graftwork.patching.states import State

PAGES = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"]
PAGES += ["bench/README.md", "bench/hisparse/README.md", "deploy/docker/README.md", "deploy/slurm/README.md"]
PAGES += [str(path.relative_to(ROOT)) for path in sorted((ROOT / "docs").glob("*.md"))]


@cache
def text(page: str) -> str:
    return (ROOT / page).read_text("utf-8")


def prose(page: str) -> str:
    """The page without its code blocks."""
    return re.sub(r"^```.*?^```", "", text(page), flags=re.M | re.S)


def slugs(page: str) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    heads = re.findall(r"^#+ (.+)$", prose(page), re.M)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def section(page: str, heading: str) -> str:
    """What stands below a heading (or a bold line), up to the next one."""
    found = re.search(rf"^(?:#+ |\*\*){re.escape(heading)}.*?$(.*?)(?=^#+ |^\*\*`kind|\Z)", text(page), re.M | re.S)
    assert found, f"{page} has no section {heading}"
    return found[1]


def rows(part: str) -> list[list[str]]:
    """The cells of the table rows in *part*, heads and rules left out."""
    lines = [line for line in part.splitlines() if line.startswith("| ") and not line.startswith("|---")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


@pytest.mark.parametrize("page", PAGES)
def test_links_resolve(page: str) -> None:
    missing = []
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (ROOT / page).parent / path if path else ROOT / page
        known = target.exists() and (not anchor or anchor in slugs(str(target.resolve().relative_to(ROOT))))
        missing += [] if known else [link]
    assert not missing


def test_every_page_can_be_reached_from_the_readme() -> None:
    seen, todo = set(), ["README.md"]
    while todo:
        page = todo.pop()
        if page in seen:
            continue
        seen.add(page)
        for link in re.findall(r"\]\(([^)#\s]+\.md)", prose(page)):
            todo.append(str(((ROOT / page).parent / link).resolve().relative_to(ROOT)))
    assert set(PAGES) <= seen


def test_exit_codes_agree() -> None:
    table = {int(row[0]): row[1] for row in rows(text("docs/exit-codes.md")) if row[0].isdigit()}
    assert table == EXIT_CODES


def test_exit_codes_in_the_readme_are_all_of_them() -> None:
    (line,) = re.findall(r"^Exit codes: (.*?)\s\(\[", text("README.md"), re.M | re.S)
    assert {int(number) for number in re.findall(r"\b\d+\b", line)} == set(EXIT_CODES)


def test_states_in_the_readme_are_all_of_them() -> None:
    firsts = [row[0].strip("`") for row in rows(section("README.md", "What a patch is"))]
    assert firsts[firsts.index("state") + 1 :] == [state.value for state in State]


# Which section of which page documents a definition of the JSON Schemas.
SECTIONS = {
    "PatchFile": ("docs/patch-toml.md", ["The top"]),
    "Codemod": ("docs/patch-toml.md", ["[[edit]]", '`kind = "codemod"`']),
    "CodemodHunk": ("docs/patch-toml.md", ['`kind = "codemod"`']),
    "Anchor": ("docs/patch-toml.md", ["[[edit]]", '`kind = "anchor"`']),
    "AnchorHunk": ("docs/patch-toml.md", ['`kind = "anchor"`']),
    "Diff": ("docs/patch-toml.md", ["[[edit]]", '`kind = "diff"`']),
    "NewFile": ("docs/patch-toml.md", ["[[edit]]", '`kind = "file"`']),
    "Marker": ("docs/patch-toml.md", ["[[marker]]"]),
    "Mutant": ("docs/patch-toml.md", ["mutants.toml"]),
    "MutantFile": ("docs/patch-toml.md", ["mutants.toml"]),
    "Revision": ("docs/patch-toml.md", ["[[earlier]]"]),
    "RevisionFile": ("docs/patch-toml.md", ["The top"]),
    "Fact": ("docs/patch-toml.md", ["[[obsolete_when]]"]),
    "ObsoleteWhen": ("docs/patch-toml.md", ["[[obsolete_when]]"]),
    "NotNeeded": ("docs/patch-toml.md", ["[[not_needed]]"]),
    "Launch": ("docs/patch-toml.md", ["[[launch]]"]),
    "Upstream": ("docs/patch-toml.md", ["[[upstream]]"]),
    "Searched": ("docs/patch-toml.md", ["[[searched]]"]),
    "UpstreamFile": ("docs/upstream.md", ["upstream.json"]),
    "Seen": ("docs/upstream.md", ["refs"]),
    "Contained": ("docs/upstream.md", ["contained"]),
    "Collision": ("docs/upstream.md", ["collisions"]),
    "Scan": ("docs/upstream.md", ["scans"]),
    "Evidence": ("docs/patch-toml.md", ["[[evidence]]"]),
    "Target": ("docs/targets.md", ["The target"]),
    "Base": ("docs/targets.md", ["[base]"]),
    "WheelPin": ("docs/targets.md", ["[[wheel]]"]),
    "Lock": ("docs/targets.md", ["The lock"]),
    "WheelLock": ("docs/targets.md", ["The lock"]),
    "Recipe": ("docs/recipes.md", ["The recipe"]),
    "Model": ("docs/recipes.md", ["[model]"]),
    "NodeShape": ("docs/recipes.md", ["[node]"]),
    "Leg": ("docs/recipes.md", ["[prefill], [decode], [mixed]"]),
    "Mtp": ("docs/recipes.md", ["[mtp]"]),
    "Transfer": ("docs/recipes.md", ["[transfer]"]),
    "KvEvents": ("docs/recipes.md", ["[kv_events]"]),
    "Router": ("docs/recipes.md", ["[router]"]),
    "Kvd": ("docs/recipes.md", ["[kvd]"]),
    "KvCacheOffload": ("docs/recipes.md", ["[kv_cache_offload]"]),
    "HiSparse": ("docs/recipes.md", ["[hisparse]"]),
    "BoundsOf": ("docs/recipes.md", ["[bounds]"]),
    "Slurm": ("docs/recipes.md", ["[slurm]"]),
}


def definitions() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for file in sorted((ROOT / "docs/schema").glob("*.schema.json")):
        found |= json.loads(file.read_text("utf-8"))["$defs"]
    return found


@pytest.mark.parametrize("name", sorted(definitions()))
def test_every_key_is_documented(name: str) -> None:
    assert name in SECTIONS, f"say in docs/ what {name} is, and here where"
    page, headings = SECTIONS[name]
    part = "".join(section(page, heading) for heading in headings)
    shape = definitions()[name]
    unsaid = [key for key in shape["properties"] if f"`{key}`" not in part]
    assert not unsaid
    if name in ("Lock", "WheelLock", "UpstreamFile", "Seen", "Contained", "Collision", "Scan"):
        return  # made by a command: nobody needs to know which keys must be given
    stars = {row[0].split("`")[1]: row[0].endswith("*") for row in rows(part) if row[0].startswith("`")}
    required = {key: key in shape["required"] for key in shape["properties"]}
    assert {key: stars[key] for key in required} == required


def examples() -> list[str]:
    """Each TOML example of the two references."""
    return [
        block
        for page in ("docs/patch-toml.md", "docs/targets.md")
        for block in re.findall(r"^```toml\n(.*?)^```", text(page), re.M | re.S)
    ]


@pytest.mark.parametrize("example", examples())
def test_examples_are_toml_with_known_keys(example: str) -> None:
    from graftwork.catalog.toml import tomllib

    known = {key for shape in definitions().values() for key in shape["properties"]}
    free = {"SGLANG_DSA_FUSE_TOPK"}

    def keys(value: object) -> set[str]:
        if isinstance(value, dict):
            return set(value).union(*(keys(inner) for inner in value.values()))
        return set().union(*(keys(inner) for inner in value)) if isinstance(value, list) else set()

    assert keys(tomllib.loads(example)) <= known | free


def test_modules_in_the_architecture_exist() -> None:
    named = re.findall(r"`((?:\w+/)*\w+\.py)`", text("docs/architecture.md"))
    assert len(named) > 40
    assert not [name for name in named if not (ROOT / "src/graftwork" / name).is_file()]


def test_imports_run_in_the_direction_that_the_architecture_states() -> None:
    (line,) = re.findall(r"^    (cli > .*)$", text("docs/architecture.md"), re.M)
    order = line.split(" > ")
    source = ROOT / "src/graftwork"
    wrong = []
    for file in source.rglob("*.py"):
        here = file.relative_to(source).parts[0].removesuffix(".py")
        if here == "__init__":
            continue
        for node in ast.walk(ast.parse(file.read_bytes())):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for name in names:
                package, _, rest = name.partition(".")
                there = rest.split(".")[0]
                if package == "graftwork" and rest and order.index(there) < order.index(here):
                    wrong.append(f"{file.relative_to(source)} imports {name}")
    assert not wrong


def test_make_help_lists_every_target() -> None:
    rules = set(re.findall(r"^([a-z][a-z-]*):", text("Makefile"), re.M))
    shown = subprocess.run(["make", "-s", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert rules == set(re.findall(r"^  make ([a-z-]+)", shown, re.M))


@pytest.mark.parametrize("page", PAGES)
def test_commands_that_are_shown_exist(page: str) -> None:
    """Each `graftwork VERB ...` and `make TARGET`, with the options that stand behind it in the same code."""
    code = re.findall(r"^```(?:\w*)\n(.*?)^```|^    (.+)$|`([^`\n]+)`", text(page), re.M | re.S)
    lines = [line.partition("#")[0] for found in code for line in "".join(found).splitlines()]
    rules = set(re.findall(r"^([a-z][a-z-]*):", text("Makefile"), re.M))
    for line in lines:
        for verb, rest in re.findall(r"(?:^|[\s/])graftwork ([a-z]+)\b([^|;&`]*)", line):
            assert verb in VERBS, line
            offered = CliRunner().invoke(cli, [verb, "--help"]).output
            assert not [option for option in re.findall(r"--[a-z-]+", rest.split(" / ")[0]) if option not in offered], (
                line
            )
        for names in re.findall(r"(?:^|\s)make((?: [a-z][a-z-]*(?= |$))+)", line.strip()):
            assert set(names.split()) <= rules, line


def test_verbs_are_all_in_the_readme() -> None:
    shown = {row[0].split("`")[1].split()[1] for row in rows(section("README.md", "Commands")) if "`" in row[0]}
    assert shown == set(VERBS)


def test_torch_in_the_readme_is_the_one_that_make_installs() -> None:
    (version,) = re.findall(r"^TORCH \?= torch==(\S+)$", text("Makefile"), re.M)
    assert f"torch {version}" in " ".join(text("README.md").split())


def test_targets_are_all_described(catalog: Catalog) -> None:
    table = rows(section("deploy/docker/README.md", "What is here"))
    found = {row[0].strip("`"): row for row in table if row[0].startswith("`")}
    assert set(found) == set(catalog.target_names)
    for name, row in found.items():
        target = catalog.target(name)
        assert target.version in row[1]
        assert row[2] == target.base.python
        assert re.findall(r"`([^`]+)`", row[3]) == target.patches


def test_the_dockerfile_in_the_readme_is_for_the_target_that_it_names(catalog: Catalog) -> None:
    (dockerfile,) = re.findall(r"^```dockerfile\n(.*?)^```", text("README.md"), re.M | re.S)
    target = catalog.target("rocm-gfx950")
    assert f"FROM {target.base.image}@{target.base.digest}\n" in dockerfile
    assert dockerfile.count(target.base.interpreter) == 2
    assert f"/usr/share/graftwork/{target.name}.json" in dockerfile


def test_no_file_names_the_host_of_a_package_index() -> None:
    hosts = ["py" + "pi.org", "python" + "hosted.org", "deb." + "debian.org", "ftp." + "debian.org"]
    hosts += ["security." + "debian.org", "archive." + "ubuntu.com", "files.python" + "hosted"]
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True
    )
    if listed.returncode:
        pytest.skip("not a git checkout: which files belong to the repository is not known")
    names = [name for name in listed.stdout.decode().split("\0") if name and (ROOT / name).is_file()]
    assert len(names) > 100
    found = [(name, host) for name in names for host in hosts if host.encode() in (ROOT / name).read_bytes()]
    assert not found
