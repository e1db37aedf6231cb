"""What is rendered, judged by the engines' and routers' own code and definitions, from their real wheels."""

from __future__ import annotations

import argparse
import ast
import builtins
import dataclasses
import importlib.util
import itertools
import json
import os
import re
import typing
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from recipes import SGLANG, VLLM, component, json_value, rendered, value
from toys import ROOT

from graftwork.errors import UnreachableError
from graftwork.harness.isolate import load_function, load_module, load_until, stub, stubbed
from graftwork.launch.flags import stored, table
from graftwork.launch.placeholders import fill
from graftwork.launch.recipe_file import load_recipe
from graftwork.launch.render import Rendered, render
from graftwork.launch.sglang import RADIX
from graftwork.names import rel_path
from graftwork.trees.cache import Cache
from graftwork.trees.index import PackageIndex
from graftwork.trees.remote import open_wheel

pytestmark = pytest.mark.real


def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("launch_flags", ROOT / "scripts/launch_flags.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SCRIPT = script()
OPENED: dict[str, Any] = {}


@pytest.fixture(scope="module", autouse=True)
def closed_at_the_end() -> Iterator[None]:
    """The wheels are opened once each, by the first test that reads one."""
    yield
    while OPENED:
        OPENED.popitem()[1].close()


def wheel(name: str) -> Any:
    """The wheel that the table *name* was made of, its files checked as they are read."""
    if name not in OPENED:
        OPENED[name] = open_wheel(SCRIPT.pin_of(name), Cache(), PackageIndex())
    return OPENED[name]


def wheel_file(folder: Path, program: str, version: str, path: str) -> Path:
    """One file of the wheel that a table was made of, at its own path below *folder*."""
    try:
        data = wheel(f"{program}-{version}").read(rel_path(path))
    except UnreachableError as error:
        pytest.skip(f"the package index is not reachable: {error}")
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    (folder / path).write_bytes(data)
    return folder / path


def words(found: Rendered, name: str) -> list[str]:
    """A component's command with a number for every port and a name for everything else."""
    values = {"port": "12345", "host": "node"}
    return [fill(word, lambda kind, what: values.get(kind, "/x")) for word in component(found, name).argv]


def from_wheels() -> list[str]:
    """The tables of programs that are published as wheels; Infera's are of its source."""
    return [name for name in stored() if SCRIPT.pin_of(name) is not None]


@pytest.mark.parametrize("name", from_wheels())
def test_a_table_is_what_the_wheel_says(name: str) -> None:
    try:
        text = SCRIPT.again(name, wheel(name))
    except UnreachableError as error:
        pytest.skip(f"the package index is not reachable: {error}")
    assert text == (ROOT / f"src/graftwork/launch/tables/{name}.json").read_bytes()


def sglang_parser(folder: Path, version: str) -> argparse.ArgumentParser:
    """SGLang's own ``add_cli_args_from_dataclass`` on the annotated fields of its own ServerArgs."""
    utils = load_module(wheel_file(folder, "sglang", version, "sglang/srt/arg_groups/arg_utils.py"), "arg_utils")
    actions = load_module(
        wheel_file(folder, "sglang", version, "sglang/srt/arg_groups/argparse_actions.py"), "argparse_actions"
    )
    source = wheel_file(folder, "sglang", version, "sglang/srt/server_args.py")
    module = ast.parse(source.read_bytes())
    (owner,) = [node for node in module.body if isinstance(node, ast.ClassDef) and node.name == "ServerArgs"]
    owner.body = [node for node in owner.body if isinstance(node, ast.AnnAssign)]
    constants = [node for node in module.body if isinstance(node, ast.Assign) and _is_upper(node)]
    kept = ast.Module(body=[*constants, owner], type_ignores=[])
    # Names that only a running engine has, such as parsers of values, are mocks.
    names: dict[str, Any] = {node.id: mock.MagicMock() for node in ast.walk(kept) if isinstance(node, ast.Name)}
    names |= {**vars(builtins), **{name: getattr(typing, name) for name in typing.__all__}, **vars(utils)}
    names |= {**vars(actions), "dataclasses": dataclasses, "json": json, "__name__": "server_args"}
    exec(compile(ast.fix_missing_locations(kept), str(source), "exec", dont_inherit=True), names)
    parser = argparse.ArgumentParser(exit_on_error=False)
    utils.add_cli_args_from_dataclass(parser, names["ServerArgs"])
    return parser


def _is_upper(node: ast.Assign) -> bool:
    return isinstance(node.targets[0], ast.Name) and node.targets[0].id.isupper()


@pytest.mark.parametrize("version", ["0.5.15.post1", "0.5.16"])
def test_sglangs_own_parser_agrees_with_the_table(tmp_path: Path, version: str) -> None:
    parser, known = sglang_parser(tmp_path, version), table("sglang", version)
    actions = [action for action in parser._actions if action.dest != "help"]
    assert len(actions) > 400
    for action in actions:
        flag = known.flag(action.option_strings[0])
        negated = ["--no-" + flag.name[2:]] if flag.switch else []
        assert sorted([flag.name, *flag.aliases, *negated]) == sorted(action.option_strings)
        nargs = {0: "none", None: "one", "?": "optional", "+": "many", "*": "many"}[action.nargs]
        assert flag.takes == nargs, flag.name
        if isinstance(action.choices, (list, tuple)) and flag.choices is not None:
            assert sorted(map(str, action.choices)) == flag.choices, flag.name
    by_hand = {name for name, flag in known.flags.items() if not flag.deprecated} - {
        name for action in actions for name in action.option_strings
    }
    assert by_hand <= {
        "--reasoning-parser",
        "--tool-call-parser",
        "--kv-canary-real-data",
        "--config",
        "--enable-flashinfer-allreduce-fusion",
    }


@pytest.mark.parametrize("name", ["glm52-mi325x-pd"])
def test_sglangs_own_parser_takes_what_is_rendered(tmp_path: Path, name: str) -> None:
    recipe = load_recipe(ROOT / f"deploy/recipes/{name}.toml", ["target=", "kv_events.legs=['prefill','decode']"])
    found = render(recipe, mock_contents())
    parser = sglang_parser(tmp_path, recipe.engine_version)
    for each in ("prefill-0", "decode-0"):
        said = words(found, each)[3:]
        for skipped in ("--reasoning-parser", "--tool-call-parser"):  # registered by hand, see the test above
            at = said.index(skipped)
            del said[at : at + 2]
        parsed = parser.parse_args(said)
        assert (parsed.tp_size, parsed.dp_size, parsed.enable_dp_attention) == (8, 8, True)
        assert parsed.disaggregation_mode == each.removesuffix("-0")
        assert json.loads(parsed.kv_events_config)["endpoint"] == "tcp://*:12345"


def mock_contents() -> Any:
    from graftwork.launch.demands import Contents

    return Contents(platform="rocm")


def hook(folder: Path, version: str) -> Any:
    """SGLang's own check of a decode leg's arguments; raises ValueError for what it rejects."""
    path = wheel_file(folder, "sglang", version, "sglang/srt/arg_groups/pd_disaggregation_hook.py")
    envs = SimpleNamespace(SGLANG_DISAGG_STAGING_BUFFER=SimpleNamespace(get=lambda: False))
    overrides = stub("sglang.srt.arg_groups.overrides", resolved_view=lambda arguments: arguments)
    with stubbed(stub("sglang.srt.environ", envs=envs), overrides):
        module = load_module(path, "sglang.srt.arg_groups.pd_disaggregation_hook")

        def check(arguments: Any) -> None:
            with stubbed(stub("sglang.srt.environ", envs=envs), overrides):
                module.handle_pd_disaggregation(arguments)

        return check


@pytest.mark.parametrize("version", ["0.5.15.post1", "0.5.16"])
def test_sglangs_own_hook_takes_every_decode_leg_that_we_render(tmp_path: Path, version: str) -> None:
    """And for each that we leave the radix cache out of for the engine's sake, it rejects the flag."""
    check = hook(tmp_path, version)
    spoken = 0
    for algorithm, hisparse, backend, events in itertools.product(
        ("", "EAGLE", "NEXTN", "EAGLE3"), (False, True), ("mooncake", "nixl"), (False, True)
    ):
        changes: dict[str, Any] = {"version": version, "transfer__backend": backend, "decode__seats": 8}
        changes |= {"mtp": {"algorithm": algorithm}} if algorithm else {}
        changes |= {"hisparse": {"host_pool_gib": 8}} if hisparse else {}
        changes |= {"kv_events": {"legs": ["decode"]}} if events else {}
        found = rendered(SGLANG, **changes)
        arguments = {
            "disaggregation_mode": "decode",
            "disaggregation_transfer_backend": value(found, "decode-0", "--disaggregation-transfer-backend"),
            "disaggregation_decode_enable_radix_cache": value(found, "decode-0", RADIX) is not None,
            "enable_hisparse": value(found, "decode-0", "--enable-hisparse") is not None,
            "speculative_algorithm": value(found, "decode-0", "--speculative-algorithm"),
            "enable_dp_attention": False,
            "disaggregation_decode_extra_slots": None,
            "max_running_requests": 8,
            "dp_size": 1,
        }
        check(SimpleNamespace(**arguments))
        forced = {**arguments, "disaggregation_decode_enable_radix_cache": True}
        if algorithm or hisparse:
            with pytest.raises(ValueError, match="disaggregation-decode-enable-radix-cache is incompatible"):
                check(SimpleNamespace(**forced))
        else:
            check(SimpleNamespace(**forced))
        spoken += arguments["disaggregation_decode_enable_radix_cache"] is True
    assert spoken == 1


def test_the_algorithms_beside_which_0_5_23_keeps_the_radix_cache(tmp_path: Path) -> None:
    from graftwork.launch.releases import release

    path = wheel_file(tmp_path, "sglang", "0.5.23", "sglang/srt/arg_groups/speculative_hook.py")
    (said,) = re.findall(
        r"disaggregation_decode_enable_radix_cache\s+and cfg\.speculative_algorithm not in \((.*?)\)", path.read_text()
    )
    assert set(re.findall(r'"(\w+)"', said)) == release("sglang", "0.5.23").decode_radix_with


@pytest.mark.parametrize(("program", "version"), [("sglang-router", "0.3.2"), ("vllm-router", "0.1.17")])
def test_the_routers_own_parsers_take_what_is_rendered(tmp_path: Path, program: str, version: str) -> None:
    package = program.replace("-", "_")
    path = wheel_file(tmp_path, program, version, f"{package}/router_args.py")
    native = stub(f"{package}.{package}_rs", get_available_tool_call_parsers=lambda: ["x"])
    with stubbed(native):
        owner = load_module(path, f"{package}.router_args").RouterArgs
    parser = argparse.ArgumentParser(exit_on_error=False)
    owner.add_cli_args(parser)
    base = SGLANG if program == "sglang-router" else VLLM
    found = rendered(base, replicas=2, router={"kind": program})
    parsed = parser.parse_args(words(found, "router")[3:])
    first = ["http://node:12345"] + (["12345"] if program == "sglang-router" else [])
    assert parsed.prefill == [first, first] and parsed.decode == [["http://node:12345"]] * 2
    mixed = rendered(base, prefill=None, decode=None, mixed={"tp": 8}, router={"kind": program})
    assert parser.parse_args(words(mixed, "router")[3:]).worker_urls == ["http://node:12345"]


def fields(path: Path, name: str) -> set[str]:
    """The annotated fields of a class."""
    (owner,) = [
        node for node in ast.parse(path.read_bytes()).body if isinstance(node, ast.ClassDef) and node.name == name
    ]
    return {n.target.id for n in owner.body if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)}


def test_the_file_of_a_rank_is_read_by_vllms_own_class(tmp_path: Path) -> None:
    folder = "vllm/distributed/kv_transfer/kv_connector/v1/mooncake/store/worker.py"
    path = wheel_file(tmp_path, "vllm", "0.24.0", folder)
    names: dict[str, Any] = {
        "init_logger": lambda name: None,
        "Literal": typing.Literal,
        "TypeVar": typing.TypeVar,
        "dataclass": dataclasses.dataclass,
        "os": os,
        "json": json,
        "re": re,
        "Any": Any,
        "__name__": "worker",
    }
    with stubbed(stub("worker")):
        load_until(path, "MooncakeStoreConfig", names)
        load_function(path, "_parse_size", names)
    found = rendered(VLLM, kv_cache_offload={"cpu_gib": 10})
    (text,) = component(found, "prefill-0").files.values()
    file = tmp_path / "mooncake.json"
    file.write_text(fill(text, lambda kind, name: "12345"))
    config = names["MooncakeStoreConfig"].from_file(str(file))
    assert (config.mode, config.global_segment_size, config.local_buffer_size) == ("standalone-store", 0, 4 << 30)
    assert config.master_server_address == "12345:12345"


@pytest.mark.parametrize("version", ["0.24.0", "0.33.0"])
def test_keys_and_connectors_are_those_of_the_wheel(tmp_path: Path, version: str) -> None:
    folder = "vllm/distributed/kv_transfer/kv_connector/"
    factory = wheel_file(tmp_path, "vllm", version, folder + "factory.py").read_text()
    known = set(re.findall(r'register_connector\(\s*"(\w+)"', factory))
    transfer = fields(wheel_file(tmp_path, "vllm", version, "vllm/config/kv_transfer.py"), "KVTransferConfig")
    events = fields(wheel_file(tmp_path, "vllm", version, "vllm/config/kv_events.py"), "KVEventsConfig")
    changes: dict[str, Any] = {"version": version, "kv_cache_offload": {"cpu_gib": 1}, "kv_events": {"replay": True}}
    if version == "0.33.0":
        changes |= {"hisparse": {"host_pool_gib": 1, "eager_host_mirror": True, "device_buffer_size": 4096}}
    found = rendered(VLLM, decode={"tp": 8, "seats": 8}, **changes)
    config = json_value(found, "decode-0", "--kv-transfer-config")
    connectors = [config, *config["kv_connector_extra_config"]["connectors"]]
    assert {each["kv_connector"] for each in connectors} <= known
    assert {key for each in connectors for key in each} <= transfer
    assert set(json_value(found, "prefill-0", "--kv-events-config")) <= events
    attention = wheel_file(tmp_path, "vllm", version, "vllm/config/attention.py")
    assert ("hisparse_config" in fields(attention, "AttentionConfig")) == (version == "0.33.0")
    if version == "0.33.0":
        wanted = json_value(found, "decode-0", "--attention-config")["hisparse_config"]
        assert set(wanted) == fields(attention, "HiSparseConfig")


def test_sglangs_event_keys_are_those_of_the_wheel(tmp_path: Path) -> None:
    path = wheel_file(tmp_path, "sglang", "0.5.15.post1", "sglang/srt/disaggregation/kv_events.py")
    found = rendered(SGLANG, kv_events={"replay": True})
    assert set(json_value(found, "prefill-0", "--kv-events-config")) <= fields(path, "KVEventsConfig")


def test_sglangs_ports_fit_the_block(tmp_path: Path) -> None:
    """The highest port that is derived from that of --dist-init-addr lies in the block that we allocate."""
    from graftwork.launch.sglang import DIST_PORTS

    text = wheel_file(tmp_path, "sglang", "0.5.15.post1", "sglang/srt/server_args.py").read_text()
    base = [int(number) for number in re.findall(r"port_base \+ (\d+)", text)]
    delta = [int(number) for number in re.findall(r"DP_ATTENTION_HANDSHAKE_PORT_DELTA = (\d+)", text)]
    assert base and delta
    assert max(1 + max(base), *delta) < DIST_PORTS


METRICS = {
    "sglang": ("0.5.15.post1", ["sglang/srt/observability/metrics_collector.py"]),
    "vllm": (
        "0.24.0",
        [
            "vllm/v1/metrics/loggers.py",
            "vllm/v1/spec_decode/metrics.py",
            "vllm/distributed/kv_transfer/kv_connector/v1/nixl/stats.py",
        ],
    ),
}


@pytest.mark.parametrize("engine", sorted(METRICS))
def test_metrics_that_the_operator_is_told_to_read_exist(tmp_path: Path, engine: str) -> None:
    version, paths = METRICS[engine]
    named = set(re.findall(rf"`({engine}:\w+)`", (ROOT / "docs/operations.md").read_text("utf-8")))
    text = "".join(wheel_file(tmp_path, engine, version, path).read_text() for path in paths)
    assert len(named) > 3
    assert not [name for name in named if f'"{name}"' not in text]


VARIABLES = {
    ("sglang", "0.5.15.post1"): [
        "sglang/srt/environ.py",
        "sglang/srt/utils/network.py",
        "sglang/srt/disaggregation/common/conn.py",
    ],
    ("vllm", "0.24.0"): ["vllm/envs.py", "vllm/utils/deep_gemm.py"],
}


@pytest.mark.parametrize(("engine", "version"), sorted(VARIABLES))
def test_the_engine_reads_the_variables_that_are_its_own(tmp_path: Path, engine: str, version: str) -> None:
    base = {"sglang": SGLANG, "vllm": VLLM}[engine]
    set_for_it = {
        name for name in component(rendered(base), "decode-0").env if name.startswith(("SGLANG_", "VLLM_", "DG_"))
    }
    text = "".join(wheel_file(tmp_path, engine, version, path).read_text() for path in VARIABLES[engine, version])
    assert len(set_for_it) > 2
    assert not [name for name in set_for_it if name not in text]
