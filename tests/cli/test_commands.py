"""The command as a person calls it: exit codes, messages, JSON, and that heavy libraries stay out of --help."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from toys import TOY_SOURCE, Toy


def graftwork(*args: str | Path, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from graftwork.cli.main import run; run()", *map(str, args)]
    return subprocess.run(command, cwd=cwd, env={**os.environ, **env}, capture_output=True, text=True, check=False)


def lock(toy: Toy) -> None:
    """A lock for the toy's pins: apply and revert want one, and the toy has no wheel to make it from."""
    from graftwork.catalog.rules import pins_digest

    target = toy.catalog.target("t")
    wheels = [{"file": w.file, "sha256": w.sha256, "record_sha256": "1" * 64} for w in target.wheel]
    document = {"schema": 1, "target": "t", "pins": pins_digest(target), "epoch": 0, "wheels": wheels}
    toy.write("deploy/docker/locks/t.json", json.dumps(document))


def test_help_names_every_verb_and_loads_nothing_heavy(tmp_path: Path) -> None:
    shown = graftwork("--help", cwd=tmp_path)
    assert shown.returncode == 0
    for verb in ("plan", "apply", "revert", "verify", "image", "lock"):
        assert f"  {verb} " in shown.stdout
    code = (
        "import sys; from graftwork.cli import main\n"
        "heavy = {'libcst', 'requests', 'rich', 'remotezip', 'pypi_simple', 'unidiff', 'msgspec'} & set(sys.modules)\n"
        "sys.exit(str(heavy) if heavy else 0)"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert loaded.returncode == 0, loaded.stderr


def test_no_arguments_and_wrong_ones_are_usage_errors(toy: Toy, tmp_path: Path) -> None:
    assert graftwork(cwd=toy.root).returncode == 2
    wrong = graftwork("plan", "t", "--nope", cwd=toy.root)
    assert wrong.returncode == 2 and "No such option" in wrong.stderr and "graftwork plan --help" in wrong.stderr
    outside = graftwork("plan", "t", cwd=tmp_path)
    assert outside.returncode == 2 and "--catalog DIR" in outside.stderr
    assert graftwork("plan", "t", "--catalog", toy.root, "--tree", toy.tree, cwd=tmp_path).returncode == 0
    unknown = graftwork("plan", "x", cwd=toy.root)
    assert unknown.returncode == 2 and "targets: t" in unknown.stderr


def test_apply_verify_revert(toy: Toy) -> None:
    lock(toy)
    for _ in range(2):
        assert graftwork("apply", "t", "--tree", toy.tree, cwd=toy.root).returncode == 0
    proved = graftwork("verify", "t", "--tree", toy.tree, "--json", cwd=toy.root)
    assert proved.returncode == 0 and json.loads(proved.stdout)["proved"] is True
    back = graftwork("revert", "t", "--tree", toy.tree, "--json", cwd=toy.root)
    assert back.returncode == 0 and json.loads(back.stdout)["restored"] == ["toy/pool.py"]
    assert toy.pool.read_text() == TOY_SOURCE
    missing = graftwork("verify", "t", "--tree", toy.tree, cwd=toy.root)
    assert missing.returncode == 4 and "not in the tree: toy/rows" in missing.stderr


def test_a_source_checkout_layout(toy: Toy) -> None:
    lock(toy)
    (toy.root / "checkout/python").mkdir(parents=True)
    toy.tree.joinpath("toy").rename(toy.root / "checkout/python/toy")
    assert graftwork("apply", "t", "--tree", toy.root / "checkout", cwd=toy.root).returncode == 0
    assert "_toy_clip" in (toy.root / "checkout/python/toy/pool.py").read_text()


def test_drift_is_exit_3_with_the_whole_report_as_json_too(toy: Toy) -> None:
    lock(toy)
    toy.pool.write_text(TOY_SOURCE.replace("count = rows", "count = rows - 1"))
    shown = graftwork("apply", "t", "--tree", toy.tree, cwd=toy.root)
    assert shown.returncode == 3
    assert "anchor not found" in shown.stdout and "nearest candidate, toy/pool.py:13" in shown.stdout
    assert "nothing was written" in shown.stderr and "next:" in shown.stderr
    document = json.loads(graftwork("plan", "t", "--tree", toy.tree, "--json", cwd=toy.root).stdout)
    assert document["error"]["exit_code"] == 3
    (patch,) = document["patches"]
    assert patch["state"] == "drifted" and patch["hunks"][0]["state"] == "missing"


def test_the_trees_version_must_be_the_targets(toy: Toy) -> None:
    toy.write("tree/toy/_version.py", "__version__ = version = '1.1'\n")
    wrong = graftwork("plan", "t", "--tree", toy.tree, cwd=toy.root)
    assert wrong.returncode == 5 and "holds toy 1.1" in wrong.stderr and "pins 1.0" in wrong.stderr
    assert graftwork("plan", "t", "--tree", toy.tree, "--engine-version", "1.1", cwd=toy.root).returncode == 0
    assert graftwork("plan", "t", "--tree", toy.tree, "--engine-version", "x", cwd=toy.root).returncode == 2


def test_a_plan_as_a_diff_applies_with_git(toy: Toy) -> None:
    diff = graftwork("plan", "t", "--tree", toy.tree, "--diff", cwd=toy.root)
    assert diff.returncode == 0 and diff.stdout.startswith("diff --git") and "1 of 1 patches" in diff.stderr
    applied = subprocess.run(["git", "apply", "-"], cwd=toy.tree, input=diff.stdout, text=True, check=False)
    assert applied.returncode == 0 and "_toy_clip" in toy.pool.read_text()


def test_verify_catches_a_spoiled_byte_and_stale_bytecode(toy: Toy) -> None:
    import py_compile

    lock(toy)
    py_compile.compile(str(toy.pool), doraise=True)  # says which Python the folder belongs to
    assert graftwork("apply", "t", "--tree", toy.tree, cwd=toy.root).returncode == 0
    good = toy.pool.read_bytes()
    toy.pool.write_bytes(good + b"# one more\n")
    spoiled = graftwork("verify", "t", "--tree", toy.tree, cwd=toy.root)
    assert spoiled.returncode == 4 and "toy/pool.py: it has" in spoiled.stderr
    toy.pool.write_bytes(good)
    stale = toy.root / "stale.py"
    stale.write_text(TOY_SOURCE.ljust(len(good)))
    (pyc,) = (toy.tree / "toy/__pycache__").glob("pool.*.pyc")
    os.utime(stale, (toy.pool.stat().st_mtime,) * 2)
    py_compile.compile(
        str(stale), cfile=str(pyc), doraise=True, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH
    )
    trapped = graftwork("verify", "t", "--tree", toy.tree, cwd=toy.root)
    assert trapped.returncode == 4 and "pool" in trapped.stderr


def test_an_interrupted_apply_is_named(toy: Toy) -> None:
    toy.write("tree/.graftwork/journal.json", '{"schema": 1, "files": [], "applied": null}')
    found = graftwork("verify", "t", "--tree", toy.tree, cwd=toy.root)
    assert found.returncode == 3 and "was interrupted" in found.stderr


def test_a_missing_tree_and_package(toy: Toy, tmp_path: Path) -> None:
    assert graftwork("plan", "t", "--tree", tmp_path / "none", cwd=toy.root).returncode == 2
    (tmp_path / "empty").mkdir()
    empty = graftwork("plan", "t", "--tree", tmp_path / "empty", cwd=toy.root)
    assert empty.returncode == 2 and "toy" in empty.stderr


def test_no_index_is_exit_6_and_no_host_or_password_is_shown(toy: Toy, tmp_path: Path) -> None:
    lock(toy)
    env = {
        "PIP_INDEX_URL": "http://user:secret@127.0.0.1:9/simple?token=hidden",
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_FIND_LINKS": "",
        "PIP_RETRIES": "0",
        "GRAFTWORK_CACHE": str(tmp_path / "cache"),
    }
    away = graftwork("image", "t", cwd=toy.root, **env)
    assert away.returncode == 6, away.stderr
    assert "secret" not in away.stderr and "hidden" not in away.stderr
    assert not (toy.root / "dist").exists()


def wheel(toy: Toy, folder: Path, text: str = TOY_SOURCE) -> None:
    """A real wheel of the toy, pinned in its target."""
    import base64
    import zipfile

    files = {"toy/__init__.py": b"", "toy/pool.py": text.encode()}
    rows = []
    for name, data in files.items():
        value = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        rows.append(f"{name},sha256={value},{len(data)}")
    files["toy-1.0.dist-info/WHEEL"] = b"Wheel-Version: 1.0\nTag: py3-none-any\n"
    value = base64.urlsafe_b64encode(hashlib.sha256(files["toy-1.0.dist-info/WHEEL"]).digest()).rstrip(b"=").decode()
    rows.append(f"toy-1.0.dist-info/WHEEL,sha256={value},{len(files['toy-1.0.dist-info/WHEEL'])}")
    files["toy-1.0.dist-info/RECORD"] = ("\n".join([*rows, "toy-1.0.dist-info/RECORD,,"]) + "\n").encode()
    folder.mkdir(exist_ok=True)
    file = folder / "toy-1.0-py3-none-any.whl"
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(zipfile.ZipInfo(name, (2026, 1, 2, 3, 4, 6)), data)
    data = file.read_bytes()
    toy.target(
        lambda t: t.replace(f'sha256 = "{"0" * 64}"', f'sha256 = "{hashlib.sha256(data).hexdigest()}"').replace(
            "size = 1", f"size = {len(data)}"
        )
    )


def test_lock_then_image_offline_from_a_folder_of_wheels(toy: Toy, tmp_path: Path) -> None:
    links = tmp_path / "links"
    wheel(toy, links)
    env = {
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(links),
        "PIP_CONFIG_FILE": os.devnull,
        "GRAFTWORK_CACHE": str(tmp_path / "cache"),
    }
    assert graftwork("image", "t", cwd=toy.root, **env).returncode == 5, "no lock yet"
    assert graftwork("lock", "t", cwd=toy.root, **env).returncode == 0
    assert graftwork("lock", "t", "--check", cwd=toy.root, **env).returncode == 0
    first = json.loads(graftwork("image", "t", "--json", cwd=toy.root, **env).stdout)
    again = json.loads(graftwork("image", "t", "--json", cwd=toy.root, **env).stdout)
    assert (first["unchanged"], again["unchanged"]) == (False, True) and first["digest"] == again["digest"]
    assert first["record"]["epoch"] == 1767323046
    quiet = graftwork("image", "t", "--quiet", cwd=toy.root, **env)
    assert quiet.stdout.startswith(first["digest"]) and quiet.stdout.count("\n") == 1
    assert graftwork("verify", "t", cwd=toy.root, **env).returncode == 0
    dated = json.loads(graftwork("image", "t", "--json", cwd=toy.root, SOURCE_DATE_EPOCH="1", **env).stdout)
    assert dated["record"]["epoch"] == 1 and dated["digest"] != first["digest"]
    bad = graftwork("image", "t", cwd=toy.root, SOURCE_DATE_EPOCH="yesterday", **env)
    assert bad.returncode == 2 and "SOURCE_DATE_EPOCH" in bad.stderr
    toy.patch("rows", (toy.root / "patches/toy/rows/patch.toml").read_text().replace('"R2"', '"R3"'))
    older = graftwork("verify", "t", cwd=toy.root, **env)
    assert older.returncode == 4 and "the target wants toy/rows R3" in older.stderr


def test_a_wheel_with_another_hash_is_exit_5_and_names_both(toy: Toy, tmp_path: Path) -> None:
    links = tmp_path / "links"
    wheel(toy, links)
    lock(toy)
    pinned = toy.catalog.target("t").wheel[0].sha256
    with (links / "toy-1.0-py3-none-any.whl").open("ab") as file:
        file.write(b"x")
    found = hashlib.sha256((links / "toy-1.0-py3-none-any.whl").read_bytes()).hexdigest()
    env = {
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(links),
        "PIP_CONFIG_FILE": os.devnull,
        "GRAFTWORK_CACHE": str(tmp_path / "cache"),
    }
    wrong = graftwork("image", "t", cwd=toy.root, **env)
    assert wrong.returncode == 5
    assert pinned[:12] in wrong.stderr and found[:12] in wrong.stderr


@pytest.mark.parametrize("value", ["", "1"])
def test_colours_only_on_a_terminal(toy: Toy, value: str) -> None:
    import pty

    parent, child = pty.openpty()
    code = "from graftwork.cli.main import run; run()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, "plan", "t", "--tree", str(toy.tree)],
        cwd=toy.root,
        stdout=child,
        env={**os.environ, "NO_COLOR": value, "TERM": "xterm"},
    )
    process.wait()
    os.close(child)
    shown = os.read(parent, 100_000).decode()
    os.close(parent)
    assert ("\033[" in shown) is (value == "")
    assert "\033[" not in graftwork("plan", "t", "--tree", toy.tree, cwd=toy.root).stdout
