"""vllm/hisparse on the real wheels of vLLM: where it applies, what it says elsewhere, and both architectures."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from graftwork.catalog.catalog import Catalog
from graftwork.catalog.rules import edit_files
from graftwork.errors import UnreachableError
from graftwork.names import rel_path, sha256_hex
from graftwork.trees.cache import Cache
from graftwork.trees.index import PackageIndex
from graftwork.trees.remote import RemoteWheelTree, WheelPin

pytestmark = [pytest.mark.real, pytest.mark.xdist_group("hisparse")]

ROOT = Path(__file__).parents[2]
# Of the releases from 0.24.0 on, those at which something changes; all were read once, see the patch's README.
SOME = ">=0.24,<=0.33,!=0.25.*,!=0.26.*,!=0.27.0,!=0.28.*,!=0.31.*,!=0.32.*"
STATES = {"0.24.0": "pending", "0.27.1": "drifted", "0.29.0": "drifted", "0.30.0": "obsolete", "0.33.0": "obsolete"}


def graftwork(*args: str | Path, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from graftwork.cli.main import run; run()", *map(str, args)]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, **env}, capture_output=True, text=True, check=False)
    if done.returncode == 6:
        pytest.skip(f"the package index is not reachable: {done.stderr}")
    return done


@pytest.fixture(scope="module")
def cells() -> dict[str, dict[str, Any]]:
    done = graftwork("matrix", "--patch", "vllm/hisparse", "--versions", SOME, "--json")
    assert done.returncode == 0, done.stderr
    return {cell["version"]: cell for cell in json.loads(done.stdout)["cells"] if cell["version"] in STATES}


def test_where_it_applies(cells: dict[str, dict[str, Any]]) -> None:
    assert {version: cell["state"] for version, cell in cells.items()} == STATES


def test_between_it_and_upstreams_own_the_anchors_may_fit_but_it_was_not_tested(cells: dict[str, Any]) -> None:
    assert "written and tested for ==0.24.0, this is 0.27.1" in json.dumps(cells["0.27.1"])


def test_upstreams_own_is_named_with_the_place_of_its_configuration(cells: dict[str, Any]) -> None:
    said = json.dumps(cells["0.30.0"])
    assert "kv_connector_extra_config of a HiSparseConnector" in said and "host_pool_gib" in said


@pytest.fixture(scope="module")
def wheels() -> list[RemoteWheelTree]:
    catalog = Catalog(ROOT)
    target = catalog.target("cuda-hisparse")
    records = {wheel.sha256: wheel.record_sha256 for wheel in catalog.lock(target).wheels}
    made = []
    for pin in target.wheel:
        wanted = WheelPin(target.engine, pin.file, sha256_hex(pin.sha256), sha256_hex(records[pin.sha256]))
        made.append(RemoteWheelTree(wanted, Cache(), PackageIndex()))
    return made


@pytest.fixture(scope="module")
def stock(wheels: list[RemoteWheelTree]) -> dict[str, bytes]:
    """The files that the patch touches, of the x86_64 wheel; those of the other are the same."""
    patch = Catalog(ROOT).patch("vllm/hisparse")
    paths = sorted(set().union(*(edit_files(edit, patch.folder) for edit in patch.spec.edit)))
    found: dict[str, bytes] = {}
    try:
        for path in [*paths, "vllm/_version.py"]:
            here = [tree.exists(rel_path(path)) for tree in wheels]
            assert len(set(here)) == 1, path
            if all(here):
                x86_64, aarch64 = (tree.read(rel_path(path)) for tree in wheels)
                assert x86_64 == aarch64 or path == "vllm/_version.py", path
                found[path] = x86_64
    except UnreachableError as error:
        pytest.skip(f"the package index is not reachable: {error}")
    return found


def test_both_architectures_have_the_same_text(stock: dict[str, bytes]) -> None:
    assert "vllm/v1/attention/backends/mla/flashmla_sparse.py" in stock and len(stock) == 11


def test_a_folder_is_patched_proved_and_put_back(stock: dict[str, bytes], tmp_path: Path) -> None:
    for path, data in stock.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(data)
    assert graftwork("apply", "cuda-hisparse", "--tree", tmp_path).returncode == 0
    assert (tmp_path / "vllm/v1/hot_kv/kernels.py").is_file()
    assert graftwork("verify", "cuda-hisparse", "--tree", tmp_path).returncode == 0
    pool = tmp_path / "vllm/v1/hot_kv/pool.py"
    text = pool.read_bytes()
    pool.unlink()
    assert graftwork("verify", "cuda-hisparse", "--tree", tmp_path).returncode in (3, 4)
    pool.write_bytes(text)
    assert graftwork("revert", "cuda-hisparse", "--tree", tmp_path).returncode == 0
    left = {str(f.relative_to(tmp_path)): f.read_bytes() for f in tmp_path.rglob("*") if f.is_file()}
    assert left == stock
