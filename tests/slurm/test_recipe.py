"""A recipe of this checkout as a job: what ``graftwork launch --slurm`` writes, with the programs replaced."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from slurm.cluster import Cluster
from slurm.deployed import Deployed

from graftwork.cli.main import cli

pytestmark = [pytest.mark.slurm, pytest.mark.xdist_group("slurm")]

PROGRAM = Path(__file__).with_name("program.py")


def replaced(row: dict[str, Any]) -> dict[str, Any]:
    """A component whose program is `program.py`, with its own arguments behind."""
    ready = row["ready"]
    endpoint = f"{{port:{ready['port']}}}" if ready["port"] else ready["path"] or "-"
    return {**row, "argv": [sys.executable, "-ESs", str(PROGRAM), ready["kind"], endpoint, *row["argv"]]}


def test_a_recipe_runs_and_drains(slurm_cluster: Cluster, tmp_path: Path) -> None:
    told = CliRunner().invoke(cli, ["launch", "glm52-mi355x-pd", "--slurm", "--out", str(tmp_path), "--quiet"])
    assert told.exit_code == 0, told.output
    file = tmp_path / "deployment.json"
    plan = json.loads(file.read_text())
    plan["components"] = [replaced(row) for row in plan["components"]]
    file.write_text(json.dumps(plan))
    names = [row["name"] for row in plan["components"]]

    job = Deployed(slurm_cluster, tmp_path, slurm_cluster.submit(tmp_path / "job.sbatch"), names).ready()
    slurm_cluster.run("scancel", "--batch", "--signal=TERM", job.job)

    assert job.ended() == ("COMPLETED", "0:0"), job.log()
    for name in names:
        argv, env, *rest = (job.run / "logs" / f"{name}.log").read_text().splitlines()
        assert rest == ["TERM"], name
        assert argv.startswith("argv ") and env.startswith("env ")
        assert not [kind for kind in ("port", "host", "run", "tmp", "cache", "nics") if f"{{{kind}" in argv + env]
