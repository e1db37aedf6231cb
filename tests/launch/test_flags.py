"""Arguments read from source: each way of defining them, on small trees; and the stored tables."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent
from typing import Any, cast

import msgspec
import pytest

from graftwork.errors import GraftworkError, UsageError
from graftwork.launch import flags
from graftwork.launch.definitions import Flag, parser_flags, sglang_flags, vllm_flags
from graftwork.launch.flags import TableFile, render_table, stored, table
from graftwork.launch.releases import release
from graftwork.trees.folder import FolderTree

SGLANG = {
    "sglang/srt/server_args.py": """
    import argparse
    BACKENDS = ["a", "b"]
    MORE = [*BACKENDS, "c"]
    class ServerArgs:
        "text"
        model_path: A[str, Arg(help="p", aliases=["--model"])]
        tp_size: A[int, "gpus"] = 1
        share: A[Optional[float], "share"] = None
        on: A[bool, "on"] = False
        sizes: A[Optional[List[int]], Arg(help="s")] = None
        parsed: A[Optional[List[int]], Arg(help="s", type_parser=json_list_type)] = None
        mode: A[Literal["x", "y"], "mode"] = "x"
        backend: A[str, Arg(help="b", choices=MORE)] = "a"
        sum: A[str, Arg(help="b", choices=["z"] + BACKENDS)] = "a"
        renamed: A[str, Arg(help="r", cli_name="--other-name")] = "a"
        hidden: A[int, Arg(help="h", no_cli=True)] = 1
        acted: A[list, Arg(help="l", action=LoRAPathAction, action_kwargs={"nargs": "*", "type": str})] = None
        plain: int = 3
        @staticmethod
        def add_cli_args(parser):
            add_cli_args_from_dataclass(parser, ServerArgs)
            found = list(Detector.map.keys())
            parser.add_argument("--parser", type=str, choices=["auto"] + found)
            parser.add_argument("--old", action=DeprecatedAliasStoreAction, new_flag="--tp-size", type=int)
            parser.add_argument("--older", action=DeprecatedAction, help="gone")
            parser.add_argument("positional")
    """,
}
VLLM = {
    "vllm/config/model.py": """
    Dtype = Literal["auto", "half"]
    @config
    class Base:
        inherited: int = 1
    @config
    class ModelConfig(Base):
        model: str = "m"
        dtype: Dtype | str = "auto"
        runner: Literal["a", "b"] = "a"
        maybe: Literal["a", "b"] | None = None
        linear: Literal["p", "q"] = "p"
        max_model_len: int = 1
        extra: dict[str, int] | None = None
        either: dict | str = ""
        sub: SubConfig | None = None
        eager: bool = False
        progress: bool | str | None = None
        names: list[str] | str | None = None
        kinds: list[Literal["u", "v"]] | None = None
        backend: "Backend" = None
    @config(config=dict(arbitrary=True))
    class SubConfig:
        x: int = 1
    class Backend:
        pass
    """,
    "vllm/engine/arg_utils.py": """
    class EngineArgs:
        @staticmethod
        def add_cli_args(parser):
            kw = get_kwargs(ModelConfig)
            group = parser.add_argument_group(title="t")
            if True:
                group.add_argument("--model", **kw["model"])
            for_names = 1
            group.add_argument("--dtype", "-d", **kw["dtype"])
            group.add_argument("--runner", **kw["runner"])
            group.add_argument("--maybe", **kw["maybe"])
            group.add_argument("--inherited", **{**kw["inherited"], "default": None})
            group.add_argument("--max-model-len", **kw["max_model_len"])
            group.add_argument("--extra", **kw["extra"])
            group.add_argument("--either", **kw["either"])
            group.add_argument("--sub", **kw["sub"])
            group.add_argument("--eager", **kw["eager"])
            group.add_argument("--progress", **kw["progress"])
            group.add_argument("--names", **kw["names"])
            group.add_argument("--kinds", **kw["kinds"])
            group.add_argument("--backend", **kw["backend"])
            changed = kw["linear"]
            changed["type"] = lambda s: s
            group.add_argument("--changed", **changed)
            parser.add_argument("--rank", "-dpn", type=int)
            parser.add_argument("--gone", deprecated=True)
    class AsyncEngineArgs(EngineArgs):
        @staticmethod
        def add_cli_args(parser):
            parser.add_argument("--log", action=argparse.BooleanOptionalAction)
    """,
    "vllm/entrypoints/openai/cli_args.py": """
    class BaseFrontendArgs:
        response_role: str = "x"
        middleware: list[str] = []
        @classmethod
        def _customize_cli_kwargs(cls, frontend_kwargs):
            frontend_kwargs["middleware"]["action"] = "append"
            if "nargs" in frontend_kwargs["middleware"]:
                del frontend_kwargs["middleware"]["nargs"]
            return frontend_kwargs
    class FrontendArgs(BaseFrontendArgs):
        port: int = 8000
        allowed: list[str] = []
        @classmethod
        def _customize_cli_kwargs(cls, frontend_kwargs):
            frontend_kwargs["allowed"]["type"] = json.loads
            del frontend_kwargs["allowed"]["nargs"]
    def make_arg_parser(parser):
        parser.add_argument("--headless", action="store_true")
        return parser
    """,
}


def tree(folder: Path, files: dict[str, str]) -> FolderTree:
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(dedent(text))
    return FolderTree(folder)


def test_sglangs_fields_and_what_it_registers_by_hand(tmp_path: Path) -> None:
    assert {flag.name: flag for flag in sglang_flags(tree(tmp_path, SGLANG))} == {
        flag.name: flag
        for flag in [
            Flag("--model-path", aliases=["--model"]),
            Flag("--tp-size", type="int"),
            Flag("--share", type="float"),
            Flag("--on", takes="none"),
            Flag("--sizes", takes="many", type="int"),
            Flag("--parsed", type="json"),
            Flag("--mode", choices=["x", "y"]),
            Flag("--backend", choices=["a", "b", "c"]),
            Flag("--sum", choices=["a", "b", "z"]),
            Flag("--other-name"),
            Flag("--acted", takes="many"),
            Flag("--parser"),
            Flag("--old", type="int", deprecated=True, instead="--tp-size"),
            Flag("--older", takes="none", deprecated=True),
        ]
    }


def test_vllms_configuration_classes_and_its_front_end(tmp_path: Path) -> None:
    assert {flag.name: flag for flag in vllm_flags(tree(tmp_path, VLLM))} == {
        flag.name: flag
        for flag in [
            Flag("--model"),
            Flag("--dtype", aliases=["-d"]),
            Flag("--runner", choices=["a", "b"]),
            Flag("--maybe", choices=["None", "a", "b"]),
            Flag("--inherited", type="int"),
            Flag("--max-model-len", type="size"),
            Flag("--extra", type="json"),
            Flag("--either"),
            Flag("--sub", type="json"),
            Flag("--eager", takes="none", switch=True),
            Flag("--progress", takes="optional"),
            Flag("--names", takes="many"),
            Flag("--kinds", takes="many", choices=["u", "v"]),
            Flag("--backend"),
            Flag("--changed"),
            Flag("--rank", type="int", aliases=["-dpn"]),
            Flag("--gone", deprecated=True),
            Flag("--log", takes="none", switch=True),
            Flag("--response-role"),
            Flag("--middleware", repeats=True),
            Flag("--port", type="int"),
            Flag("--allowed", type="json"),
            Flag("--headless", takes="none"),
        ]
    }


def test_a_parser_of_another_program(tmp_path: Path) -> None:
    text = """
    class RouterArgs:
        @staticmethod
        def add_cli_args(parser, use_router_prefix=False):
            prefix = "router-" if use_router_prefix else ""
            parser.add_argument(f"--{prefix}prefill", nargs="+", action="append")
            parser.add_argument(f"--{prefix}decode", nargs=1, action="append")
            parser.add_argument("--urls", nargs="*", default=[])
    """
    found = parser_flags(tree(tmp_path, {"r.py": text}), "r.py", "RouterArgs.add_cli_args")
    assert found == [
        Flag("--decode", repeats=True),
        Flag("--prefill", takes="many", repeats=True),
        Flag("--urls", takes="many"),
    ]


def test_source_that_defines_its_arguments_elsewhere_is_an_error(tmp_path: Path) -> None:
    for text, says in (("class Other: ...", "ServerArgs is defined 0 times"), ("class ServerArgs(", "not Python")):
        with pytest.raises(GraftworkError, match=says):
            sglang_flags(tree(tmp_path, {"sglang/srt/server_args.py": text}))


@pytest.mark.parametrize("name", stored())
def test_stored_tables_are_in_their_one_form(name: str) -> None:
    data = (flags._FOLDER / f"{name}.json").read_bytes()
    file = msgspec.json.decode(data, type=TableFile)
    assert f"{file.program}-{file.version}" == name and (file.wheel is None) == bool(file.source)
    assert render_table(file) == data
    spellings = [spelling for flag in file.flags for spelling in (flag.name, *flag.aliases)]
    assert len(spellings) == len(set(spellings)) and all(spelling.startswith("-") for spelling in spellings)


# What the specification names (5.1, 5.2): "*" takes no value, "~" is deprecated, "+" takes several.
SURFACE = {
    "sglang 0.5.15.post1": """--model-path --served-model-name+ --host --port --trust-remote-code* --tp-size --dp-size
        --ep-size
        --enable-dp-attention* --enable-dp-lm-head* --moe-a2a-backend --kv-cache-dtype --mem-fraction-static
        --chunked-prefill-size --max-running-requests --page-size --context-length --dsa-prefill-backend
        --dsa-decode-backend --watchdog-timeout --disable-custom-all-reduce* --enable-metrics* --enable-cache-report*
        --dist-init-addr --nnodes --node-rank --disaggregation-mode --disaggregation-transfer-backend
        --disaggregation-ib-device --json-model-override-args --speculative-algorithm --speculative-num-steps
        --speculative-eagle-topk --speculative-num-draft-tokens --disaggregation-bootstrap-port --kv-events-config
        --enable-hierarchical-cache* --hicache-size --hicache-ratio --hicache-write-policy --hicache-storage-backend
        --hicache-storage-backend-extra-config --disaggregation-decode-enable-radix-cache*
        --disaggregation-decode-enable-offload-kvcache* --num-reserved-decode-tokens --enable-hisparse*
        --hisparse-config --cuda-graph-max-bs-decode --cuda-graph-bs-decode+ --nsa-decode-backend~ --cuda-graph-bs~+
        --disable-cuda-graph~* --prefill-round-robin-balance~*""",
    "vllm 0.24.0": """--model --served-model-name+ --host --port --tensor-parallel-size --data-parallel-size
        --data-parallel-size-local --data-parallel-rank --data-parallel-address --data-parallel-rpc-port
        --data-parallel-external-lb* --enable-expert-parallel* --all2all-backend --enable-dbo*
        --safetensors-load-strategy --kv-transfer-config --kv-events-config --speculative-config --attention-config
        --compilation-config --max-num-seqs --max-num-batched-tokens --gpu-memory-utilization --max-model-len
        --kv-cache-dtype --block-size --enable-prefix-caching* --prefix-caching-hash-algo --reasoning-parser
        --tool-call-parser --enable-auto-tool-choice* --api-server-count --headless* --shutdown-timeout""",
}
ABSENT = {"sglang 0.5.15.post1": ["--disaggregation-decode-tp", "--disaggregation-prefill-pp"], "vllm 0.24.0": []}


@pytest.mark.parametrize("label", sorted(SURFACE))
def test_the_surface_that_the_specification_names(label: str) -> None:
    known = table(*label.split())
    for word in SURFACE[label].split():
        flag = known.flag(word.rstrip("*~+"))
        takes = "none" if "*" in word else "many" if "+" in word else "one"
        if flag.name != "--served-model-name":  # one for SGLang, several for vLLM
            assert (flag.takes, flag.deprecated) == (takes, "~" in word), word
    for name in ABSENT[label]:
        with pytest.raises(UsageError):
            known.flag(name)


@pytest.mark.parametrize("name", [name for name in stored() if name.rpartition("-")[0] in ("sglang", "vllm")])
def test_every_engine_version_with_a_table_has_its_facts(name: str) -> None:
    engine, _, version = name.rpartition("-")
    assert release(cast(Any, engine), version).table == version


def test_no_table_of_a_version_that_nobody_read() -> None:
    with pytest.raises(
        UsageError, match=r"no arguments are known of sglang 0\.1\.0, only of 0\.5\.15\.post1"
    ) as caught:
        table("sglang", "0.1.0")
    assert "scripts/launch_flags.py" in caught.value.hint
