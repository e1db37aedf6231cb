"""The command a person types: what it prints, what it writes, and how it ends."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from tiny import tiny_workshop
from toys import ROOT

from graftwork.catalog.catalog import Catalog
from graftwork.cli.main import run
from graftwork.launch.demands import of_record, of_target
from graftwork.launch.deployment import parse_json

RECIPE = """\
name = "small"
summary = "s"
engine = "vllm"
version = "0.24.0"
[model]
path = "/m"
served_name = "m"
[node]
gpus = 8
memory_gib = 500
gpu_memory_gib = 80
[mixed]
tp = 8
args = ["--max_num_seqs=9"]
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    file = tmp_path / "small.toml"
    file.write_text(RECIPE)
    return file


def graftwork(monkeypatch: pytest.MonkeyPatch, *args: str | Path) -> int:
    monkeypatch.setattr(sys, "argv", ["graftwork", "launch", *map(str, args)])
    with pytest.raises(SystemExit) as ended:
        run()
    return int(ended.value.code or 0)


def test_commands_to_read(recipe: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert graftwork(monkeypatch, recipe, "--set", "mixed.seats=7", "--set", "mtp.steps=2") == 0
    shown = capsys.readouterr().out
    assert "vllm.entrypoints.cli.main serve /m" in shown and "--max-num-seqs 9" in shown
    assert "yours: --max-num-seqs 9, in place of --max-num-seqs 7" in shown
    assert """--speculative-config '{"method":"mtp","num_speculative_tokens":2}'""" in shown
    assert "--port '{port:http}'" in shown and "PYTHONHASHSEED=0" in shown
    assert shown.splitlines()[-1] == "small: 1 components on 1 nodes"


def test_explain_shows_the_users_word_and_what_it_replaces(
    recipe: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert graftwork(monkeypatch, recipe, "--explain", "--set", "mixed.seats=7") == 0
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    at = lines.index("python3 -m vllm.entrypoints.cli.main serve")
    assert lines[at + 1 : at + 3] == ["/m", "derived: the model of the recipe"]
    at = lines.index("--max-num-seqs 9")
    assert lines[at + 1] == "user: given by the recipe's user (in place of --max-num-seqs 7)"
    arguments = [at for at, line in enumerate(lines) if line.startswith("--")]
    assert len(arguments) == 6
    assert all(lines[at + 1].split(":")[0] in ("derived", "demanded", "user") for at in arguments)


def test_json_holds_the_deployment_and_the_reasons(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert graftwork(monkeypatch, recipe, "--json", "--out", out) == 0
    document = json.loads(capsys.readouterr().out)
    written = parse_json((out / "deployment.json").read_bytes(), "written")
    assert (
        [each["name"] for each in document["components"]] == [each.name for each in written.components] == ["mixed-0"]
    )
    assert document["written"] == {"deployment": str(out / "deployment.json")}
    assert document["memory_gib"] == {"0": {"reserved": 64}}
    assert {line["origin"] for each in document["explained"] for line in each["arguments"]} == {"derived", "user"}


def test_quiet_prints_the_result_alone(
    recipe: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert graftwork(monkeypatch, recipe, "-q") == 0
    assert capsys.readouterr().out == "small: 1 components on 1 nodes\n"


def test_a_recipe_by_its_name(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(ROOT / "docs")
    assert graftwork(monkeypatch, "glm52-single-node", "-q") == 0
    assert "glm52-single-node" in capsys.readouterr().out
    assert graftwork(monkeypatch, "glm52-nowhere") == 2
    assert "glm52-single-node" in capsys.readouterr().err


def test_an_image_by_its_record(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    record: dict[str, Any] = {
        "schema": 1,
        "graftwork": "0",
        "target": "t",
        "engine": {"name": "vllm", "version": "0.24.0", "root": "/"},
        "python": "3.12",
        "platform": "linux/amd64",
        "base": {"image": "i", "digest": "d"},
        "wheel": {"file": "w", "sha256": "0", "record_sha256": "0"},
        "bytecode": "whiteout",
        "patches": [],
        "files": [],
        "bytecode_files": [],
        "whiteouts": [],
        "markers": [],
        "launch": {"args": ["--seed", "7"], "env": {"A": "1"}},
        "epoch": 0,
    }
    file = tmp_path / "record.json"
    file.write_text(json.dumps(record))
    assert graftwork(monkeypatch, recipe, "--image-record", file, "--explain") == 0
    shown = capsys.readouterr().out
    assert "--seed 7" in shown and "A=1" in shown and "demanded: the record of t" in shown
    assert graftwork(monkeypatch, recipe, "--image-record", file, "--set", 'mixed.args=["--seed=8"]') == 2
    assert "against what the image demands" in capsys.readouterr().err
    assert graftwork(monkeypatch, recipe, "--image-record", file, "--set", "node.arch=aarch64") == 5
    assert "the image is for x86_64" in capsys.readouterr().err
    record["engine"]["version"] = "0.33.0"
    file.write_text(json.dumps(record))
    assert graftwork(monkeypatch, recipe, "--image-record", file) == 5
    said = capsys.readouterr().err
    assert "vllm 0.24.0" in said and "vllm 0.33.0" in said
    file.write_text("{}")
    assert graftwork(monkeypatch, recipe, "--image-record", file) == 4
    assert graftwork(monkeypatch, recipe, "--image-record", tmp_path / "none.json") == 2


def test_the_record_of_a_built_image(tmp_path: Path) -> None:
    """It says for which processor it is; interpreter and accelerator are those of its target."""
    workshop = tiny_workshop(tmp_path, image="127.0.0.1:1/example/toy:1.0")
    record = Path(workshop.ok("image", "--dist", tmp_path / "dist")["layout"]).with_name("record.json")
    catalog = Catalog.find(workshop.root)
    target = catalog.target("t")
    apart, known = of_record(record, None), of_record(record, catalog)
    assert (apart.target, apart.arch, apart.platform, apart.interpreter) == ("t", "x86_64", "", "python3")
    assert (known.platform, known.interpreter) == (target.platform, target.base.interpreter)
    assert known.patches == of_target(catalog, "t").patches


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (["--set", "node.memory_gib=60"], 8, "64 GiB of main memory are needed, it has 60"),
        (["--set", 'mixed.args=["--max-num-sqs=9"]'], 2, "--max-num-seqs"),
        (["--set", "mixed.chairs=9"], 2, "unknown field"),
        (["--slurm"], 2, "--out DIR"),
        (["--out", "OUT", "--sbatch=-px"], 2, "--sbatch without --slurm has no effect"),
        (["--out", "OUT", "--slurm", "--way", "init"], 2, "--way without --kubernetes"),
        (["--kubernetes", "--out", "OUT", "--image", "i", "--payload-image", "p"], 2, "is for --way volume"),
        (["--kubernetes", "--out", "OUT", "--image", "i", "--dist", "d"], 2, "there is none"),
        (["--slurm", "--kubernetes", "--out", "OUT"], 2, "--image REF"),
        (["--target", "rocm-gfx950"], 5, "the image holds sglang"),
        (["--target", "none"], 2, "no target"),
        (["--target", "x", "--image-record", "y"], 2, "give one"),
        (["--kubernetes", "--out", "OUT"], 2, "--image REF"),
        (["--kubernetes", "--out", "OUT", "--way", "init", "--image", "i"], 2, "needs the target"),
        (["--out", "/proc/x"], 2, "cannot be written"),
    ],
)
def test_how_it_ends_when_it_cannot(
    recipe: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    args: list[str],
    code: int,
    says: str,
) -> None:
    monkeypatch.chdir(ROOT)
    assert graftwork(monkeypatch, recipe, *(arg.replace("OUT", str(tmp_path / "o")) for arg in args)) == code
    shown = capsys.readouterr()
    assert says in shown.err and "Traceback" not in shown.err
    assert not (tmp_path / "o").exists()


def test_outside_a_checkout_a_recipe_without_a_target_is_enough(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert graftwork(monkeypatch, recipe, "-q") == 0
    assert graftwork(monkeypatch, recipe, "-q", "--target", "rocm-gfx950") == 2
    assert "no checkout" in capsys.readouterr().err


def test_slurm_and_kubernetes_are_written(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "job"
    image = "registry.example/i@sha256:" + "a" * 64
    said = ["--slurm", "--sbatch=--partition=gpu", "--kubernetes", "--image", image, "--out", str(out), "--json"]
    assert graftwork(monkeypatch, recipe, *said) == 0
    document = json.loads(capsys.readouterr().out)
    assert "#SBATCH --partition=gpu" in (out / "job.sbatch").read_text()
    assert document["written"] == {"slurm": str(out / "job.sbatch"), "kubernetes": str(out / "kubernetes.json")}
    assert parse_json((out / "deployment.json").read_bytes(), "written").name == "small"
    assert image in (out / "kubernetes.json").read_text()


def test_folders_that_containers_would_not_see_are_told(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pods = ["--kubernetes", "--image", "i", "--out", str(tmp_path / "o"), "-q", "--set", "model.path=/srv/m"]
    assert graftwork(monkeypatch, recipe, *pods) == 0
    assert "/srv/m is in no mount: unless the image has it, add --mount /srv=host:/srv" in capsys.readouterr().err
    assert graftwork(monkeypatch, recipe, *pods, "--mount", "/srv=claim:models") == 0
    assert "no mount" not in capsys.readouterr().err
    job = ["--slurm", "--container", "/i.sqsh", "--out", str(tmp_path / "o"), "-q", "--set", "model.path=/srv/m"]
    assert graftwork(monkeypatch, recipe, *job) == 0
    assert "add --srun=--container-mounts=/srv:/srv" in capsys.readouterr().err
    for mounts in ("/a:/b,/srv:/srv:ro", "/srv"):
        assert graftwork(monkeypatch, recipe, *job, f"--srun=--container-mounts={mounts}") == 0
        assert "no mount" not in capsys.readouterr().err
    assert graftwork(monkeypatch, recipe, *pods, "--set", "model.path=org/name") == 0
    assert "no mount" not in capsys.readouterr().err
