"""What the node's modules are made of: placeholders, devices, sockets, Envoy's files, the Python they need."""

from __future__ import annotations

import ast
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from graftwork.launch import slurm
from graftwork.launch.node import envoy, listening, values
from graftwork.launch.node.board import Board
from graftwork.launch.ucx import net_devices


def device(root: Path, name: str, port: int, state: str, layer: str) -> None:
    folder = root / name / "ports" / str(port)
    folder.mkdir(parents=True)
    (folder / "state").write_text(f"4: {state}\n")
    (folder / "link_layer").write_text(f"{layer}\n")


def test_ucx_takes_every_active_infiniband_port(tmp_path: Path) -> None:
    for name, port in (("mlx5_10", 1), ("mlx5_2", 1), ("mlx5_2", 2)):
        device(tmp_path, name, port, "ACTIVE", "InfiniBand")
    device(tmp_path, "mlx5_0", 1, "DOWN", "InfiniBand")
    device(tmp_path, "mlx5_bond_0", 1, "ACTIVE", "Ethernet")
    assert net_devices(tmp_path) == "mlx5_2:1,mlx5_2:2,mlx5_10:1"


def test_ucx_takes_roce_where_no_infiniband_is_active(tmp_path: Path) -> None:
    device(tmp_path, "mlx5_0", 1, "INIT", "InfiniBand")
    device(tmp_path, "rocep1s0", 1, "ACTIVE", "Ethernet")
    assert net_devices(tmp_path) == "rocep1s0:1"


def test_ucx_takes_all_where_nothing_is_known(tmp_path: Path) -> None:
    assert net_devices(tmp_path / "absent") == "all"
    (tmp_path / "mlx5_0/ports/1").mkdir(parents=True)
    assert net_devices(tmp_path) == "all"


@pytest.mark.parametrize(
    ("rocm", "given", "shown"),
    [
        (False, {}, {"CUDA_VISIBLE_DEVICES": "1,3"}),
        (False, {"CUDA_VISIBLE_DEVICES": "4,5,6,7"}, {"CUDA_VISIBLE_DEVICES": "5,7"}),
        (True, {}, {"HIP_VISIBLE_DEVICES": "1,3"}),
        (
            True,
            {"ROCR_VISIBLE_DEVICES": "4,5,6,7", "CUDA_VISIBLE_DEVICES": "4,5,6,7"},
            {"ROCR_VISIBLE_DEVICES": "4,5,6,7", "HIP_VISIBLE_DEVICES": "1,3"},
        ),
    ],
)
def test_gpus_count_within_those_of_the_job(rocm: bool, given: dict[str, str], shown: dict[str, str]) -> None:
    environment = dict(given)
    values.show_only([1, 3], environment, rocm=rocm)
    assert environment == shown


def test_more_gpus_than_the_job_has_is_an_error() -> None:
    with pytest.raises(IndexError):
        values.show_only([2], {"CUDA_VISIBLE_DEVICES": "0,1"}, rocm=False)


def test_a_cache_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert values.own_folder(tmp_path / "a/b").stat().st_mode & 0o777 == 0o700
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(PermissionError, match="another user"):
        values.own_folder(tmp_path / "a/b")


@pytest.mark.parametrize(
    ("family", "host", "shown"), [(socket.AF_INET, "0.0.0.0", "127.0.0.1"), (socket.AF_INET6, "::1", "::1")]
)
def test_only_a_socket_that_listens_is_a_listener(family: int, host: str, shown: str) -> None:
    with socket.socket(family) as sock:
        try:
            sock.bind((host, 0))
        except OSError as error:
            pytest.skip(f"{host}: {error}")
        port = sock.getsockname()[1]
        assert listening.listener(os.getpid(), port) is None
        sock.listen()
        assert listening.listener(os.getpid(), port) == shown
    assert listening.listener(os.getpid(), port) is None
    assert not listening.answers("127.0.0.1", port, "/")


def test_a_unix_socket_that_listens(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(path)
        assert not listening.unix_listener(os.getpid(), path)
        sock.listen()
        assert listening.unix_listener(os.getpid(), path)
        assert not listening.unix_listener(os.getpid(), path + "s")


@pytest.mark.parametrize(
    ("argv", "added"),
    [
        (["envoy", "-c", "f"], ["--use-dynamic-base-id", "--base-id-path", "/t/id"]),
        (["envoy", "--use-dynamic-base-id"], ["--base-id-path", "/t/id"]),
        (["envoy", "--use-dynamic-base-id", "--base-id-path=/x"], []),
        (["envoy", "--disable-hot-restart"], []),
        (["envoy", "--base-id=7"], []),
    ],
)
def test_an_envoy_gets_a_base_id_of_its_own(argv: list[str], added: list[str]) -> None:
    assert envoy.with_own_id(argv, Path("/t/id")) == [*argv, *added]


def test_only_shared_memory_of_our_own_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = tmp_path / "envoy_shared_memory_120"
    left.touch()
    (tmp_path / "id").write_text("12\n")
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    envoy.clean(str(tmp_path / "id"), tmp_path)
    assert left.exists()
    monkeypatch.undo()
    envoy.clean(str(tmp_path / "id"), tmp_path)
    assert not left.exists()
    envoy.clean(str(tmp_path / "id"), tmp_path)
    envoy.clean(str(tmp_path / "absent"), tmp_path)


def test_the_address_is_the_one_towards_the_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_LAUNCH_NODE_IPADDR", "127.0.0.1")
    assert values.own_address() == "127.0.0.1"
    monkeypatch.setenv("GRAFTWORK_HOST", "ib0.example")
    assert values.own_address() == "ib0.example"


def test_a_marker_replaces_an_older_one_whole(tmp_path: Path) -> None:
    board = Board(tmp_path, "7")
    assert board.crash(0, "a", "first", 1) and board.crash(0, "b", "second", None)
    assert [path.name for path in tmp_path.iterdir()] == ["CRASH_0"]
    assert '"component": "b"' in (tmp_path / "CRASH_0").read_text()


def test_what_is_shipped_needs_only_python_3_8_and_its_library() -> None:
    shipped = {name: text for name, text in slurm.shipped().items() if name.endswith(".py")}
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import vermin; vermin.main()",
            "--target=3.8-",
            "--no-tips",
            "--violations",
            *_sources(shipped),
        ],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    modules = {name[4:-3].replace("/", ".").removesuffix(".__init__") for name in shipped}
    for name, text in shipped.items():
        tree = ast.parse(text, feature_version=(3, 8))
        imports = [node for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom))]
        if any(isinstance(node, (ast.FunctionDef, ast.ClassDef)) for node in tree.body):
            assert any(isinstance(node, ast.ImportFrom) and node.module == "__future__" for node in imports), name
        for node in imports:
            names = [alias.name for alias in node.names]
            base = node.module if isinstance(node, ast.ImportFrom) else None
            for module in [f"{base}.{each}" if base == "graftwork.launch" else base or each for each in names]:
                known = module in modules or module.rpartition(".")[0] in modules
                assert known or module.partition(".")[0] in sys.stdlib_module_names, f"{name}: {module}"


def _sources(shipped: dict[str, str]) -> list[str]:
    import graftwork

    root = Path(graftwork.__file__).parent
    places = {"lib/start.py": root / "launch/node/start.py"}
    return [str(places.get(name, root / name.replace("lib/graftwork/", "", 1))) for name in shipped]
