"""The stand-in base: real tools read it, a real engine runs it, and nobody can take it for the real base."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from services import Engine, Registry, Unavailable, engine, registry

pytestmark = [pytest.mark.real, pytest.mark.registry]
ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts/standin_base.py"
ENGINE = "sgl-workspace/sglang/python/sglang"


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), "rocm-gfx950", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture(scope="session")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not shutil.which("apt-get"):
        pytest.skip("the stand-in is made of Debian packages; this system has no apt-get")
    return tmp_path_factory.mktemp("packages")


def make(packages: Path, to: str | Path, *arguments: str) -> dict[str, Any]:
    done = run("--to", to, "--packages", packages, "--json", *arguments)
    if done.returncode and ("download" in done.stderr or done.returncode == 6):
        pytest.skip(f"packages are not to be had here: {done.stderr}")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="session")
def layout(tmp_path_factory: pytest.TempPathFactory, packages: Path) -> Path:
    folder = tmp_path_factory.mktemp("standin") / "oci"
    made = make(packages, f"oci:{folder}:standin", "--size", "60MB", "--layers", "3")
    assert made["layers"] == 8 and 59e6 < made["bytes"] < 62e6
    return folder


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    try:
        with registry(tmp_path_factory.mktemp("registry")) as found:
            yield found
    except Unavailable as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def docker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    try:
        with engine(tmp_path_factory.mktemp("engine")) as found:
            yield found
    except Unavailable as error:
        pytest.skip(str(error))


def document(layout: Path, digest: str) -> Any:
    return json.loads((layout / "blobs/sha256" / digest.partition(":")[2]).read_bytes())


def manifest(layout: Path) -> Any:
    return document(layout, json.loads((layout / "index.json").read_bytes())["manifests"][0]["digest"])


def test_it_says_what_it_is(layout: Path) -> None:
    config = document(layout, manifest(layout)["config"]["digest"])
    labels = config["config"]["Labels"]
    assert labels["graftwork.standin"] == "true" and "STAND-IN" in labels["org.opencontainers.image.title"]
    real = [step for step in config["history"] if not step.get("empty_layer")]
    assert len(real) == len(config["rootfs"]["diff_ids"]) == len(manifest(layout)["layers"])


def test_the_same_arguments_give_the_same_digest(layout: Path, packages: Path, tmp_path: Path) -> None:
    make(packages, f"oci:{tmp_path / 'again'}:standin", "--size", "60MB", "--layers", "3")
    assert (tmp_path / "again/index.json").read_bytes() == (layout / "index.json").read_bytes()


def test_layers_are_ordered_like_an_engines(layout: Path) -> None:
    config = document(layout, manifest(layout)["config"]["digest"])
    steps = [step["created_by"].split(":")[0] for step in config["history"] if not step.get("empty_layer")]
    fillers = ["filler 0", "filler 1", "filler 2"]
    top = ["RUN python -m venv /opt/venv", "COPY sglang", "RUN a first start", "RUN rm -r build"]
    assert steps == ["Debian packages", *fillers, *top]
    sizes = [layer["size"] for layer in manifest(layout)["layers"]][1:4]
    assert sizes == sorted(sizes, reverse=True)


@pytest.mark.oci
def test_umoci_unpacks_it_with_its_owners_modes_and_bytecode(layout: Path, tmp_path: Path) -> None:
    if not shutil.which("umoci"):
        pytest.skip("umoci is not installed: scripts/install-services")
    command = ["umoci", "unpack", "--image", f"{layout}:standin", str(tmp_path / "bundle")]
    subprocess.run(command, check=True, capture_output=True)
    root = tmp_path / "bundle/rootfs"
    folder = (root / ENGINE / "srt/mem_cache").stat()
    assert (folder.st_mode & 0o7777, folder.st_uid, folder.st_gid) == (0o2775, 1000, 1000)
    assert list((root / ENGINE / "srt/layers/attention/dsa/__pycache__").glob("dsa_indexer.cpython-3*.pyc"))
    assert not (root / "opt/build").exists() and list((root / "var/cache").iterdir()) == []


@pytest.mark.engine
@pytest.mark.parametrize(("editable", "python"), [("pth", "auto"), ("finder", "debian")])
def test_a_real_engine_runs_it_and_finds_the_package(
    docker: Engine, local: Registry, packages: Path, editable: str, python: str
) -> None:
    """Finding, not importing: the package itself needs torch. The bytecode must be the one that Python would load."""
    name = f"{local.host}/standin/{editable}:1"
    made = make(packages, name, "--editable", editable, "--family", "docker", "--python-from", python)
    docker.docker("pull", name)
    script = (
        "import importlib.util as u, sys;"
        "spec = u.find_spec('sglang'); print(spec.origin, sys.version_info[:2]);"
        "from importlib.machinery import SourceFileLoader as L;"
        f"p = '/{ENGINE}/srt/mem_cache/pool_host/common.py'; cache = u.cache_from_source(p);"
        "from importlib._bootstrap_external import _classify_pyc as c, _validate_timestamp_pyc as v;"
        "import os; data = open(cache, 'rb').read(); c(data, 'x', {}); s = os.stat(p);"
        "v(data, int(s.st_mtime), s.st_size, 'x', {}); print('fresh')"
    )
    # In its working folder Python would take the checkout itself for a namespace package before the finder is asked.
    shown = docker.docker("run", "--rm", "--network=none", "--workdir=/", name, "-c", script).stdout.splitlines()
    assert shown == [f"/{ENGINE}/__init__.py ({made['python'].replace('.', ', ')})", "fresh"]


@pytest.mark.parametrize("family", ["oci", "docker"])
def test_an_index_of_two_platforms_with_every_compression(local: Registry, packages: Path, family: str) -> None:
    made = make(
        packages, f"{local.host}/standin/{family}:1", "--family", family, "--index", "--compression", "mixed",
        "--size", "50MB", "--layers", "2",
    )  # fmt: skip
    where = f"{local.url}/v2/standin/{family}/manifests"
    headers = {
        "Accept": "application/vnd.oci.image.index.v1+json, application/vnd.docker.distribution.manifest.list.v2+json"
    }
    answer = requests.get(f"{where}/1", headers=headers, timeout=10)
    assert answer.headers["Docker-Content-Digest"] == made["digest"]
    assert family in answer.headers["Content-Type"]
    platforms = [item["platform"]["architecture"] for item in answer.json()["manifests"]]
    assert platforms == ["amd64", "arm64"]
    layers = []
    for item in answer.json()["manifests"]:
        one = requests.get(f"{where}/{item['digest']}", headers={"Accept": item["mediaType"]}, timeout=10)
        layers.append(one.json()["layers"])
    assert layers[0] == layers[1] and all(family in layer["mediaType"] for layer in layers[0])
    assert len({layer["mediaType"] for layer in layers[0]}) == 3
    if family == "docker":  # skopeo refuses this family's zstd layers, which exist nevertheless
        return
    shown = subprocess.run(
        ["skopeo", "inspect", "--tls-verify=false", f"docker://{local.host}/standin/{family}:1"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert json.loads(shown.stdout)["Labels"]["graftwork.standin"] == "true"


@pytest.mark.parametrize(
    ("to", "says"),
    [
        ("registry.example.com/standin:1", "loopback only, not to registry.example.com"),
        ("127.0.0.1:5000/sglang:1", "name the stand-in"),
        ("127.0.0.1:5000/standin", "name the stand-in"),
        ("oci:folder", "name the layout"),
    ],
)
def test_a_place_where_it_could_be_taken_for_real_is_refused(to: str, says: str) -> None:
    done = run("--to", to)
    assert done.returncode == 2 and says in done.stderr and "Traceback" not in done.stderr
