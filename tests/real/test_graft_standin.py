"""Grafting in full on a stand-in base: the real engine, real registries and engines, other tools as judges.

The stand-in's Python is Debian's, so the catalog is a copy whose target says so and pins the wheel for it.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from newer_docker import newer_docker
from services import Engine, Registry, Unavailable, engine, registry
from tiny import GRAFTWORK, Entry, Store, on_top
from toys import ROOT

pytestmark = [pytest.mark.real, pytest.mark.registry, pytest.mark.xdist_group("standin")]
TARGET = "rocm-gfx950"
PACKAGE = "sgl-workspace/sglang/python/sglang"
INDEXER = f"{PACKAGE}/srt/layers/attention/dsa/dsa_indexer.py"
CHECK = "usr/share/graftwork/check.py"
PYTHON = "/opt/venv/bin/python"


@dataclass
class Bench:
    """A registry with the stand-in, a catalog for it, and graftwork as a process."""

    folder: Path
    registry: Registry
    base: str
    python: str

    @property
    def store(self) -> Store:
        return Store(self.registry.host)

    def ref(self, name: str) -> str:
        return f"{self.registry.host}/{name}:1"

    def run(self, verb: str, *arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
        command = [*GRAFTWORK, verb, TARGET, "--catalog", str(self.folder / "catalog"), *map(str, arguments)]
        env = {**os.environ, "GRAFTWORK_CACHE": str(self.folder / "cache"), **environment}
        done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
        assert "Traceback" not in done.stderr and done.returncode != 70, done.stderr
        return done

    def ok(self, verb: str, *arguments: object, **environment: str) -> dict[str, Any]:
        done = self.run(verb, *arguments, "--json", **environment)
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    folder = tmp_path_factory.mktemp("bench")
    if not shutil.which("apt-get"):
        pytest.skip("the stand-in is made of Debian packages; this system has no apt-get")
    try:
        with registry(folder / "registry") as found:
            base = f"{found.host}/standin/sglang:small"
            made = _make("--to", base, "--packages", str(folder / "packages"))
            bench = Bench(folder, found, base, made["python"])
            _catalog(folder / "catalog", bench.python)
            locked = bench.run("lock")
            if locked.returncode == 6:
                pytest.skip(f"the package index is not reachable: {locked.stderr}")
            assert locked.returncode == 0, locked.stderr
            yield bench
    except Unavailable as error:
        pytest.skip(str(error))


def _make(*arguments: str) -> dict[str, Any]:
    command = [sys.executable, str(ROOT / "scripts/standin_base.py"), TARGET, *arguments, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode and ("download" in done.stderr or done.returncode == 6):
        pytest.skip(f"packages are not to be had here: {done.stderr}")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _catalog(root: Path, python: str) -> None:
    """This checkout's patches; the target's Python and wheel are *python*'s, its base one that nobody has."""
    shutil.copytree(ROOT / "patches", root / "patches")
    shutil.copytree(ROOT / "deploy/docker/targets", root / "deploy/docker/targets")
    file = root / f"deploy/docker/targets/{TARGET}.toml"
    tag = "cp" + python.replace(".", "")
    text = file.read_text("utf-8").replace('python = "3.10"', f'python = "{python}"')
    text = re.sub(r'(?m)^image = ".*"$', 'image = "127.0.0.1:9/nobody/sglang:1"', text)
    if f'python = "{tag}"' not in text:
        release = json.loads((ROOT / "tests/real/releases.json").read_bytes())["0.5.15.post1"]
        if tag != "cp311":
            pytest.skip(f"no wheel of the engine is pinned for the stand-in's Python {python}")
        name = f"sglang-0.5.15.post1-{tag}-{tag}-manylinux_2_34_x86_64.whl"
        pin = (
            f'[[wheel]]\nfile = "{name}"\npython = "{tag}"\narch = "x86_64"\nsha256 = "{release["wheel"]}"\nsize = 1\n'
        )
        text = re.sub(r"\[\[wheel\]\].*?(?=\n\[\[launch)", pin, text, flags=re.DOTALL)
    file.write_text(text, "utf-8")


@pytest.fixture(scope="module")
def pushed(bench: Bench) -> dict[str, Any]:
    return bench.ok("push", "--base", bench.base, "--to", bench.ref("team/sglang"))


@pytest.fixture(scope="module")
def docker(bench: Bench) -> Iterator[Engine]:
    try:
        with engine(bench.folder / "engine", registries=[bench.registry.host]) as found:
            yield found
    except Unavailable as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def newer(bench: Bench) -> Iterator[Engine]:
    """A newer engine, which has BuildKit and keeps its images in containerd."""
    try:
        folder, programs = bench.folder / "newer", newer_docker()
        with engine(folder, registries=[bench.registry.host], docker=programs, containerd=True) as found:
            yield found
    except Unavailable as error:
        pytest.skip(str(error))


def need(*programs: str) -> None:
    for name in programs:
        if not shutil.which(name):
            pytest.skip(f"{name} is not installed: scripts/install-services")
    if os.geteuid() != 0:
        pytest.skip("unpacking with owners and chroot need root")


def unpacked(bench: Bench, reference: str, to: Path) -> Path:
    """The root file system of an image, by skopeo and umoci."""
    copy = ["skopeo", "copy", "-q", "--src-tls-verify=false", f"docker://{reference}", f"oci:{to}/layout:x"]
    subprocess.run(copy, check=True, capture_output=True)
    unpack = ["umoci", "unpack", "--image", f"{to}/layout:x", str(to / "bundle")]
    subprocess.run(unpack, check=True, capture_output=True)
    return to / "bundle/rootfs"


def in_chroot(root: Path, *command: str) -> subprocess.CompletedProcess[str]:
    chroot = shutil.which("chroot") or "chroot"
    env = {"PATH": "/usr/bin:/bin"}
    return subprocess.run([chroot, root, *command], capture_output=True, text=True, check=False, env=env)


def test_a_push_mounts_every_base_layer_and_moves_little(bench: Bench, pushed: dict[str, Any]) -> None:
    _, before = bench.store.manifest("standin/sglang", "small")
    _, after = bench.store.manifest("team/sglang", "1")
    assert after["layers"][:-1] == before["layers"]
    assert pushed["written"][0]["mounted"] == len(before["layers"]) and pushed["base_bytes_copied"] == 0
    again = bench.ok("push", "--base", bench.base, "--to", bench.ref("team/again"))
    assert again["grafted"] == pushed["grafted"] and again["facts"] == ["cache"]
    assert again["bytes_in"] < 10_000 and again["bytes_out"] < after["layers"][-1]["size"] + 100_000
    # A first scan reads each layer once.
    assert pushed["bytes_in"] < sum(layer["size"] for layer in before["layers"]) + 20_000


def test_verify_proves_it_wherever_it_is(bench: Bench, pushed: dict[str, Any], tmp_path: Path) -> None:
    assert bench.ok("verify", "--image", bench.ref("team/sglang"), "--deep")["digest"] == pushed["grafted"]
    for to, more in [(f"oci:{tmp_path}/full:x", ["--full"]), (f"oci:{tmp_path}/sparse:x", []),
                     (f"docker-archive:{tmp_path}/image.tar", [])]:  # fmt: skip
        done = bench.ok("image", "--base", bench.base, "--to", to, *more)
        assert (done["layer"], done["grafted"]) == (pushed["layer"], pushed["grafted"])
        assert bench.ok("verify", "--image", to)["proved"]


@pytest.mark.oci
def test_other_tools_unpack_it_and_its_own_python_proves_it(
    bench: Bench, pushed: dict[str, Any], tmp_path: Path
) -> None:
    need("skopeo", "umoci", "chroot")
    root = unpacked(bench, bench.ref("team/sglang"), tmp_path)
    done = in_chroot(root, PYTHON, f"/{CHECK}")
    assert done.returncode == 0 and "proved" in done.stdout, done.stdout + done.stderr
    folder = (root / PACKAGE / "srt/mem_cache").stat()
    assert (folder.st_mode & 0o7777, folder.st_uid) == (0o2775, 1000)
    assert (root / INDEXER).stat().st_uid == 1000
    (root / INDEXER).write_bytes((root / INDEXER).read_bytes() + b"#")
    done = in_chroot(root, PYTHON, f"/{CHECK}")
    assert done.returncode != 0 and "dsa_indexer.py" in done.stdout + done.stderr


def test_a_base_with_its_own_comment_is_patched_from_its_own_bytes(bench: Bench, pushed: dict[str, Any]) -> None:
    """The layer is large, the file is read by range: what is moved is a small part of it."""
    own = _base_file(bench, INDEXER).replace(b"class Indexer(", b"# the vendor's remark\nclass Indexer(", 1)
    noise = [Entry(f"opt/noise/{number}", os.urandom(1 << 20)) for number in range(12)]
    layer = [*noise[:6], Entry(INDEXER, own, mode=0o664, owner=1000), *noise[6:]]
    on_top(bench.store, "standin/sglang", "small", "own", layer)
    first = bench.run("push", "--base", f"{bench.registry.host}/standin/sglang:own", "--to", bench.ref("team/own"))
    assert first.returncode == 0, first.stderr
    assert "read from the base: sglang/srt/layers/attention/dsa/dsa_indexer.py" in first.stdout
    done = bench.ok("push", "--base", f"{bench.registry.host}/standin/sglang:own", "--to", bench.ref("team/own"))
    assert done["bytes_in"] < 5 << 20 and done["facts"] == ["cache"] and done["layer"] != pushed["layer"]
    text = _file_of(gzip.decompress(bench.store.read_blob("team/own", done["layer"])), INDEXER)
    assert text is not None
    assert b"# the vendor's remark" in text and b"_p1v2_rows" in text
    assert bench.ok("verify", "--image", bench.ref("team/own"))["proved"]


def _base_file(bench: Bench, path: str) -> bytes:
    _, manifest = bench.store.manifest("standin/sglang", "small")
    for layer in reversed(manifest["layers"]):
        data = _file_of(gzip.decompress(bench.store.read_blob("standin/sglang", layer["digest"])), path)
        if data is not None:
            return data
    raise AssertionError(path)


def _file_of(layer: bytes, path: str) -> bytes | None:
    with tarfile.open(fileobj=io.BytesIO(layer)) as tar:
        file = tar.extractfile(path) if path in tar.getnames() else None
        return file.read() if file else None


def test_a_drifted_base_leaves_nothing_in_the_registry(bench: Bench, pushed: dict[str, Any]) -> None:
    """A fork's image may have renamed what the patch names."""
    drifted = _base_file(bench, INDEXER).replace(b"def _get_topk_paged(", b"def _get_topk_paged_renamed(", 1)
    on_top(bench.store, "standin/sglang", "small", "drift", [Entry(INDEXER, drifted, mode=0o664, owner=1000)])
    done = bench.run("push", "--base", f"{bench.registry.host}/standin/sglang:drift", "--to", bench.ref("team/drift"))
    assert done.returncode == 3 and "sglang/dsa-indexer-rows" in done.stderr
    answer = bench.store.session.get(f"{bench.registry.url}/v2/team/drift/tags/list", timeout=10)
    assert answer.status_code == 404


@pytest.fixture(params=["docker", "newer"])
def every(request: pytest.FixtureRequest) -> Engine:
    found: Engine = request.getfixturevalue(request.param)
    return found


@pytest.mark.engine
def test_a_real_engine_pulls_it_runs_it_and_gives_it_back(
    bench: Bench, pushed: dict[str, Any], every: Engine, tmp_path: Path
) -> None:
    docker = every
    reference = bench.ref("team/sglang")
    docker.docker("pull", "--quiet", reference)
    shown = docker.docker("run", "--rm", "--network=none", f"--entrypoint={PYTHON}", reference, f"/{CHECK}")
    assert "proved" in shown.stdout
    assert bench.ok("verify", "--image", f"docker:{reference}", **docker.environment)["proved"]
    docker.docker("save", "--output", str(tmp_path / "saved.tar"), reference)
    assert bench.ok("verify", "--image", f"docker-archive:{tmp_path / 'saved.tar'}")["proved"]


@pytest.mark.engine
def test_an_engines_own_image_is_grafted_in_the_engine(bench: Bench, pushed: dict[str, Any], docker: Engine) -> None:
    docker.docker("pull", "--quiet", bench.base)
    base = f"docker:{bench.base}"
    done = bench.ok("image", "--base", base, "--to", "docker:patched:1", **docker.environment)
    assert done["layer"] == pushed["layer"]
    layers = {name: _inspect(docker, name)["RootFS"]["Layers"] for name in (bench.base, "patched:1")}
    want = bench.store.config("team/sglang", "1")["rootfs"]["diff_ids"]
    assert layers["patched:1"] == want and want[:-1] == layers[bench.base]
    before, after = _inspect(docker, bench.base)["Config"], _inspect(docker, "patched:1")["Config"]
    assert {k: v for k, v in after.items() if k != "Labels"} == {k: v for k, v in before.items() if k != "Labels"}
    docker.docker("run", "--rm", "--network=none", f"--entrypoint={PYTHON}", "patched:1", f"/{CHECK}")
    assert bench.ok("verify", "--image", "docker:patched:1", **docker.environment)["proved"]
    again = bench.ok("image", "--base", base, **docker.environment)
    assert again["written"][0]["to"] == f"docker:{TARGET}:latest" and again["facts"] == ["cache"]
    assert docker.docker("ps", "--all", "--quiet").stdout == ""  # no container is left
    refused = bench.run("image", "--base", base, "--to", bench.ref("team/x"), **docker.environment)
    assert refused.returncode == 2 and "in an engine, which gives no layers" in refused.stderr
    onto = bench.run("image", "--base", "docker:patched:1", **docker.environment)
    assert onto.returncode == 2 and "graft onto its base" in onto.stderr


@pytest.mark.engine
def test_a_registrys_image_goes_to_an_engine_that_has_its_base_and_to_no_other(
    bench: Bench, pushed: dict[str, Any], every: Engine
) -> None:
    docker = every
    for identity in set(docker.docker("images", "--all", "--quiet").stdout.split()):
        docker.docker("image", "rm", "--force", identity, check=False)
    to = ("image", "--base", bench.base, "--to", "docker:there:1")
    refused = bench.run(*to, **docker.environment)
    assert refused.returncode == 6 and f"docker pull {bench.base} first" in refused.stderr
    docker.docker("pull", "--quiet", bench.base)
    assert bench.ok(*to, **docker.environment)["layer"] == pushed["layer"]
    docker.docker("run", "--rm", "--network=none", f"--entrypoint={PYTHON}", "there:1", f"/{CHECK}")


def _inspect(docker: Engine, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(docker.docker("image", "inspect", name).stdout)[0]
    return found


@pytest.mark.engine
def test_the_engine_of_the_current_context_is_used_and_an_absent_one_is_told(
    bench: Bench, docker: Engine, tmp_path: Path
) -> None:
    docker.docker("pull", "--quiet", bench.base)
    env = {"DOCKER_CONFIG": str(tmp_path)}
    for command in (["create", "ours", "--docker", f"host={docker.host}"], ["use", "ours"]):
        client = {k: v for k, v in os.environ.items() if k != "DOCKER_HOST"} | env
        subprocess.run(["docker", "context", *command], check=True, capture_output=True, env=client)
    done = bench.ok("image", "--base", f"docker:{bench.base}", "--to", "docker:context:1", DOCKER_HOST="", **env)
    assert done["written"][0]["to"] == "docker:context:1" and _inspect(docker, "context:1")
    absent = {"DOCKER_HOST": f"unix://{tmp_path}/nothing.sock"}
    refused = bench.run("image", "--base", f"docker:{bench.base}", **absent)
    assert refused.returncode == 6 and "no Docker Engine answers" in refused.stderr
    unknown = bench.run("image", "--base", "docker:no/such:1", **docker.environment)
    assert unknown.returncode == 2 and "no such image" in unknown.stderr.lower()


def dockerfile(bench: Bench, folder: Path) -> Path:
    bench.ok("image", "--base", bench.base, "--dockerfile", "--dist", folder)
    assert (folder / TARGET / "Dockerfile").read_text("utf-8").count(bench.base) == 1
    return folder / TARGET


def without_removal(folder: Path) -> None:
    text = (folder / "Dockerfile").read_text("utf-8")
    (folder / "Dockerfile").write_text(re.sub(r"RUN rm -f .* && ", "RUN ", text), "utf-8")


@pytest.mark.engine
@pytest.mark.parametrize("buildkit", ["0", "1"])
def test_the_dockerfile_builds_and_its_self_check_fails_on_stale_bytecode(
    bench: Bench, pushed: dict[str, Any], every: Engine, tmp_path: Path, buildkit: str
) -> None:
    """By the classic builder and by BuildKit, of each engine."""
    docker, folder = replace(every, environment={**every.environment, "DOCKER_BUILDKIT": buildkit}), tmp_path / TARGET
    if buildkit == "1" and docker.docker("buildx", "version", check=False).returncode:
        pytest.skip("this machine's Docker client has no BuildKit (Debian package docker-buildx)")
    dockerfile(bench, tmp_path)
    docker.docker("pull", "--quiet", bench.base)
    docker.docker("build", "--network=none", "--tag=built:1", str(folder))
    docker.docker("run", "--rm", "--network=none", f"--entrypoint={PYTHON}", "built:1", f"/{CHECK}")
    layers = {name: _inspect(docker, name)["RootFS"]["Layers"] for name in (bench.base, "built:1")}
    assert layers["built:1"][: len(layers[bench.base])] == layers[bench.base]
    without_removal(folder)
    failed = docker.docker("build", "--network=none", str(folder), check=False)
    assert failed.returncode != 0 and "__pycache__" in failed.stdout + failed.stderr


@pytest.mark.engine
def test_the_bake_file_is_one_for_this_folder(bench: Bench, newer: Engine, tmp_path: Path) -> None:
    folder = dockerfile(bench, tmp_path)
    bake = [newer.client, "buildx", "bake", "--print"]
    done = subprocess.run(
        bake, cwd=folder, env={**os.environ, **newer.environment}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    (target,) = json.loads(done.stdout)["target"].values()
    assert (target["context"], target["tags"]) == (".", [f"{TARGET}:latest"])


@pytest.mark.engine
def test_an_image_kept_in_containerd_is_grafted_by_its_name_in_the_registry(
    bench: Bench, pushed: dict[str, Any], newer: Engine, tmp_path: Path
) -> None:
    newer.docker("pull", "--quiet", bench.base)
    refused = bench.run("image", "--base", f"docker:{bench.base}", "--to", "docker:patched:1", **newer.environment)
    (known,) = _inspect(newer, bench.base)["RepoDigests"]
    assert refused.returncode == 2 and f"--base {known}, its name in the registry" in refused.stderr
    done = bench.ok("image", "--base", known, "--to", "docker:patched:1", **newer.environment)
    assert done["layer"] == pushed["layer"]
    assert _inspect(newer, "patched:1")["Id"] == done["grafted"], "there an image is its manifest"
    assert bench.ok("verify", "--image", "docker:patched:1", **newer.environment)["proved"]
    newer.docker("save", "--output", str(tmp_path / "base.tar"), bench.base)
    full = tmp_path / "full.tar"
    bench.ok("image", "--base", f"docker-archive:{tmp_path / 'base.tar'}", "--to", f"docker-archive:{full}")
    with full.open("rb") as file:
        newer.docker("load", stdin=file)
    newer.docker("run", "--rm", "--network=none", f"--entrypoint={PYTHON}", f"{TARGET}:latest", f"/{CHECK}")
