"""Decode of a whole engine, stock against HiSparse, at GLM-5's layer shapes. One GPU, vLLM 0.24.0; see README.md.

    python bench/hisparse/engine.py loaded --stock-path /opt/site --hot-path /opt/hot --json FILE
    python bench/hisparse/engine.py fits --stock-path /opt/site --hot-path /opt/hot --json FILE

*loaded*: stock's KV memory holds N long requests, 8 N are there; HiSparse gets as many bytes of the GPU, for hot rows
and indexer KV. *fits*: all KV fits the GPU. One process for stock and one for each size of hot buffers, one after the
other; every line is JSON as soon as it is known, ratios come last. Prefill is not timed: see `--fill`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import models  # noqa: E402
import sides  # noqa: E402

PATTERNS = ("still", "steady", "slow", "fast")
AT_LEAST, AT_MOST = 3.0, 1.05  # the goals: throughput of loaded, time of a step of fits


@dataclass(frozen=True)
class Sizes:
    """What both sides run. batches: running requests that are timed, widest first; blocks: of one request at its end.

    stock_bytes is the GPU memory of stock's KV; hot_rows_bytes what hot buffers take of as many bytes in hot (0 where
    memory is not what is compared).
    """

    model: dict[str, Any]
    dtype: str
    context: int
    batches: list[int]
    holds: int
    blocks: int
    tokens: int
    slots: int
    stock_bytes: int
    hot_rows_bytes: int

    @property
    def longest(self) -> int:
        return self.context + self.tokens

    @property
    def seats(self) -> int:
        return max(self.batches)

    def accounts(self) -> dict[str, Any]:
        """The bytes of the GPU that each side's KV may take, and what they are for."""
        indexer = (self.seats * self.blocks + 1) * models.BLOCK * models.indexer_bytes(self.model)
        return {
            "stock_kv_bytes": self.stock_bytes,
            "hot_rows_and_tags_bytes": self.hot_rows_bytes,
            "hot_indexer_kv_bytes_needed": indexer,
            "hot_bytes_needed_of_stocks": round((self.hot_rows_bytes + indexer) / self.stock_bytes, 3),
        }


def hot_bytes(model: dict[str, Any], dtype: str, seats: int, slots: int, longest: int) -> int:
    """GPU bytes of hot rows, tags, order, the inverse map and lists, a little rounded up."""
    stride = -(-(slots + 1) // 64) * 64
    layers, topk = int(model["num_hidden_layers"]), int(model["index_topk"])
    rows = seats * stride * models.mla_bytes(model, dtype)
    return rows + 6 * layers * seats * stride + 2 * seats * longest + 64 * seats * topk + 2**24


def sizes(options: argparse.Namespace, slots: int) -> Sizes:
    """Of the options and one buffer. Every fourth layer has an indexer, as in GLM-5.2 behind its first (21 of 78)."""
    model = models.shaped("glm5", options.layers, index_skip_topk_offset=1)
    loaded = options.mode == "loaded"
    batches = [options.holds * options.times] if loaded else sorted(options.batches, reverse=True)
    width, holds = max(batches), options.holds if loaded else max(batches)
    filling = width * options.context // options.tokens_a_step + 2 * width
    timed = (options.settle + options.steps + 8) * len(options.patterns) * len(batches)
    tokens = filling + timed + 64
    blocks = models.blocks_of(options.context + tokens)
    token = models.mla_bytes(model, options.kv_cache_dtype) + models.indexer_bytes(model)
    hot_rows = hot_bytes(model, options.kv_cache_dtype, width, slots, options.context + tokens)
    return Sizes(
        model=model,
        dtype=options.kv_cache_dtype,
        context=options.context,
        batches=batches,
        holds=holds,
        blocks=blocks,
        tokens=tokens,
        slots=slots,
        stock_bytes=(holds * blocks + 1) * models.BLOCK * token,
        hot_rows_bytes=hot_rows if loaded else 0,
    )


def asked_of(plans: list[Sizes], options: argparse.Namespace, folder: Path) -> dict[str, dict[str, Any]]:
    """What each side's process is asked: stock, and hot with each plan's buffer, as hot-4096."""
    sized = plans[0]  # they differ in hot rows alone
    compiled = options.mode == "fits" if options.compile is None else options.compile
    common = {
        "model": models.write(sized.model, folder / "model"),
        "kv_cache_dtype": sized.dtype,
        "graphs": "full",
        "compile": compiled,
        "longest": sized.longest,
        "seats": sized.seats,
        "tokens_a_step": options.tokens_a_step,
        "sizes": sorted({sized.holds, *sized.batches}),
        "blocks": None,
        "slots": None,
        "sized": asdict(sized),
        "mode": options.mode,
        "fill": options.fill,
        "patterns": options.patterns,
        "settle": options.settle,
        "steps": options.steps,
    }
    pool = models.pool_gib(sized.seats * sized.blocks + 1, sized.model, sized.dtype)
    asked = {"stock": common | {"kv_bytes": sized.stock_bytes, "pool_gib": None}}
    for plan in plans:
        more = {"kv_bytes": plan.stock_bytes - plan.hot_rows_bytes, "pool_gib": pool, "slots": plan.slots}
        asked[f"hot-{plan.slots}"] = common | more
    return asked


def run_side(asked: dict[str, Any]) -> None:
    """In a process of its own: one engine, all batches and patterns."""
    import inside
    import steady

    began = time.monotonic()
    engine = inside.start(asked)
    live = steady.Steady(engine)
    sized = Sizes(**asked["sized"])

    def tell(line: dict[str, Any]) -> None:
        sides.report(asked["answer"], {"side": asked["side"], "mode": asked["mode"], "slots": asked["slots"]} | line)

    tell({"kind": "facts", "started_s": round(time.monotonic() - began, 1)} | facts(engine) | memory(engine))
    live.locality(*steady.PATTERNS["fast"])
    if asked["fill"] == "random":
        live.fill()
        live.skipping = True
    else:
        live.locality(1.0, 1.0)
    names = enqueue(engine, sized)
    stock_loaded = asked["side"] == "stock" and asked["mode"] == "loaded"
    began = time.monotonic()
    running = live.settle(sized.holds if stock_loaded else sized.seats)
    live.skipping = False
    tell({"kind": "filled", "running": running, "seconds": round(time.monotonic() - began, 1)})
    for batch in sized.batches:
        if batch < len(names):
            engine.llm.llm_engine.abort_request(names[batch:], internal=True)
            names = names[:batch]
        for pattern in asked["patterns"]:
            live.locality(*steady.PATTERNS[pattern])
            for _ in range(asked["settle"]):
                live.step()
            live.settle(min(running, batch))
            found = live.measure(asked["steps"])
            tell({"kind": "steps", "batch": batch, "pattern": pattern} | found)
    tell({"kind": "end", "preempted": engine.preempted()})
    engine.llm.llm_engine.abort_request(names, internal=True)
    engine.stop()


def enqueue(engine: Any, sized: Sizes) -> list[str]:
    """Submit one request for each seat; their names."""
    import steady
    from vllm import SamplingParams

    sampling = SamplingParams(temperature=1.0, max_tokens=sized.tokens, ignore_eos=True, detokenize=False)
    given = [{"prompt_token_ids": steady.prompt(number, sized.context)} for number in range(sized.seats)]
    names: list[str] = engine.llm.enqueue(given, sampling, use_tqdm=False)
    return names


def facts(engine: Any) -> dict[str, Any]:
    """The machine and the versions."""
    import steady
    import torch
    import triton
    import vllm

    config = engine.llm.llm_engine.vllm_config
    return {
        "gpu": torch.cuda.get_device_name(),
        "cpus": os.cpu_count(),
        "ram_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "copy_limit_gb_s": round(steady.copy_limit(), 1),
        "vllm": vllm.__version__,
        "from": str(Path(vllm.__file__).parents[1]),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "graphs": config.compilation_config.cudagraph_mode.name,
        "compile_mode": int(config.compilation_config.mode),
        "async_scheduling": config.scheduler_config.async_scheduling,
        "blocks": config.cache_config.num_gpu_blocks,
    }


def memory(engine: Any) -> dict[str, Any]:
    """Bytes of KV on the GPU and on the host, as they are."""
    hot = getattr(engine.runner, "hot_kv", None)
    named = {name: layer.kv_cache.nbytes for name, layer in engine.caches().items()}
    if hot is None:
        return {"gpu_kv_bytes": sum(named.values()), "host_kv_bytes": 0}
    indexer = sum(size for name, size in named.items() if ".indexer" in name)
    host = sum(named.values()) - indexer
    return {"gpu_kv_bytes": hot.hot_bytes + indexer, "host_kv_bytes": host, "hot_bytes": hot.hot_bytes}


def ratios(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Hot against stock by batch and pattern, with whether the goal is reached; then what makes it unfair."""
    found = []
    by = {(line["side"], line["batch"], line["pattern"]): line for line in lines if line["kind"] == "steps"}
    ends = {line["side"]: line for line in lines if line["kind"] == "end"}
    for (side, batch, pattern), hot in by.items():
        stock = by.get(("stock", batch, pattern))
        if side == "stock" or stock is None:
            continue
        ratio: dict[str, Any] = {
            "kind": "ratio",
            "mode": hot["mode"],
            "slots": hot["slots"],
            "pattern": pattern,
            "stock_running": stock["running"],
            "hot_running": hot["running"],
            "miss_rate": hot["miss_rate"],
        }
        if hot["mode"] == "loaded":
            gpu = hot["running"] / hot["gpu_ms"] / (stock["running"] / stock["gpu_ms"])
            ratio |= {"throughput": hot["tokens_per_s"] / stock["tokens_per_s"], "throughput_of_gpu_time": gpu}
            ratio["preempted"] = ends[side]["preempted"] if side in ends else None
            ratio["reached"] = min(ratio["throughput"], gpu) >= AT_LEAST and ratio["preempted"] == 0
        else:
            ratio |= {"wall": hot["wall_ms"] / stock["wall_ms"], "gpu": hot["gpu_ms"] / stock["gpu_ms"]}
            ratio["reached"] = max(ratio["wall"], ratio["gpu"]) <= AT_MOST
        found.append(ratio)
    return found + unfair(lines)


def unfair(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What must not be: more GPU memory for hot, positions that were refused, stock that held more than it should."""
    facts = {line["side"]: line for line in lines if line["kind"] == "facts"}
    reasons = []
    for side, hot in facts.items():
        if hot["mode"] == "loaded" and "stock" in facts and hot["gpu_kv_bytes"] > facts["stock"]["gpu_kv_bytes"]:
            stock = facts["stock"]["gpu_kv_bytes"]
            reasons.append(f"{side} had {hot['gpu_kv_bytes']} bytes of the GPU for KV, stock {stock}")
    if any(line.get("refused") for line in lines):
        reasons.append("hot refused positions: none can be wrong")
    if any(line["kind"] == "steps" and line["side"] != "stock" and line["miss_rate"] is None for line in lines):
        reasons.append("hot selected no row: it did not decode from hot rows")
    return [{"kind": "unfair", "reason": reason} for reason in reasons]


def main(arguments: list[str] | None = None) -> int:
    """Run the sides and print their ratios: 0 if both ran and nothing was unfair, 1 if not."""
    options = parsed(arguments)
    if options.side:
        run_side(json.loads(options.side))
        return 0
    plans = [sizes(options, slots) for slots in options.device_buffer_size]
    report: list[dict[str, Any]] = []

    def tell(line: dict[str, Any]) -> None:
        report.append(line)
        print(json.dumps(line), flush=True)
        if options.json:
            Path(options.json).write_text(json.dumps(report, indent=1) + "\n")

    for plan in plans:
        tell({"kind": "plan", "mode": options.mode} | asdict(plan) | plan.accounts())
    tell({"kind": "machine", "nvidia_smi": nvidia_smi()})
    with tempfile.TemporaryDirectory() as name:
        folder = Path(options.logs or name)
        wanted = [
            sides.Side(
                name, __file__, asked, folder / name, options.stock_path if name == "stock" else options.hot_path
            )
            for name, asked in asked_of(plans, options, folder).items()
        ]
        codes = sides.run(wanted, 1, lambda side, line: tell(line))
    found = ratios([line for line in report if "side" in line])
    for line in found:
        tell(line)
    return int(any(codes.values()) or any(line["kind"] == "unfair" for line in found))


def nvidia_smi() -> str | None:
    """Name, driver, link and clocks; None where that cannot be asked."""
    asked = "name,driver_version,pcie.link.gen.current,pcie.link.width.current,clocks.sm,clocks.mem"
    try:
        done = subprocess.run(
            ["nvidia-smi", f"--query-gpu={asked}", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=20,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", nargs="?", default="loaded", choices=["loaded", "fits"])
    parser.add_argument("--context", type=int, help="tokens of a prompt: 65536 in loaded, 16384 in fits")
    parser.add_argument("--holds", type=int, default=4, help="loaded: requests that stock's KV memory holds")
    parser.add_argument("--times", type=int, default=8, help="loaded: requests that are there, as multiples of it")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 32, 96], help="fits: running requests")
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--patterns", nargs="+", default=list(PATTERNS), choices=PATTERNS)
    parser.add_argument("--steps", type=int, default=48, help="steps that are timed for each number")
    parser.add_argument("--settle", type=int, default=12, help="steps before, in which hot rows become steady")
    parser.add_argument("--fill", default="random", choices=["random", "prefill"], help="how KV comes into the caches")
    parser.add_argument("--kv-cache-dtype", default="fp8", choices=["fp8", "auto"])
    parser.add_argument("--device-buffer-size", type=int, nargs="+", default=[4096], help="hot has a run with each")
    parser.add_argument("--tokens-a-step", type=int, default=8192, help="max_num_batched_tokens")
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, help="torch.compile: by default in fits")
    parser.add_argument("--stock-path", help="folder of the unpatched vllm, if it is not the one that is installed")
    parser.add_argument("--hot-path", help="folder of the patched vllm")
    parser.add_argument("--logs", help="a folder for the engines' logs")
    parser.add_argument("--json", help="write all lines to a file")
    parser.add_argument("--side", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.context is None:
        options.context = 65536 if options.mode == "loaded" else 16384
    return options


if __name__ == "__main__":
    sys.exit(main())
