"""Measures resolve and copy of the HiSparse kernels against the copy limit, plain gathers, and another kernel.

    python bench/hisparse/copy_rows.py --json FILE          # one H200: minutes, 46 GiB of pinned memory
    python bench/hisparse/copy_rows.py --peer FILE          # FILE has make(shape, host, traffic); see README.md
    TRITON_INTERPRET=1 python bench/hisparse/copy_rows.py --tiny    # no device: checks the script, times mean nothing

What is timed is one replay of a graph over all layers, each of which has a part of the pool and positions of its own,
so that no host row is read twice; then its bytes are compared with the pool. See bench/hisparse/README.md.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import triton
import triton.language as tl

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "patches" / "vllm" / "hisparse" / "files")]

from hot_kv.kernels_launch import Tuning, copy, resolve, tuning_for  # noqa: E402
from hot_kv.state import HotShape, HotState  # noqa: E402
from traffic import Case, Chosen, Pool, Traffic  # noqa: E402


@triton.jit
def gather_kernel(host_ptr, out_ptr, list_ptr, WORDS: tl.constexpr, BLOCK_W: tl.constexpr):
    """One program a row: the plain way, as the practical limit for a list of rows."""
    row = tl.program_id(0).to(tl.int64)
    word = tl.arange(0, BLOCK_W)
    source = tl.load(list_ptr + row).to(tl.int64)
    words = tl.load(host_ptr + source * WORDS + word, mask=word < WORDS, other=0)
    tl.store(out_ptr + row * WORDS + word, words, mask=word < WORDS)


class Replay:
    """A piece of work that is captured once where there is a device, and timed per replay in seconds."""

    def __init__(self, work: Callable[[], None], device: torch.device) -> None:
        self.work, self.graph = work, None
        work()
        if device.type == "cuda":
            torch.cuda.synchronize()
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                work()

    def run(self) -> None:
        if self.graph is None:
            self.work()
        else:
            self.graph.replay()

    def seconds(self) -> float:
        if self.graph is None:
            began = time.perf_counter()
            self.work()
            return time.perf_counter() - began
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        start.record()
        self.graph.replay()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / 1_000


class Ours:
    """The kernels of this patch on a case; `step` runs one layer on the selection that lies in its buffer."""

    def __init__(self, shape: HotShape, host: list[torch.Tensor], traffic: Traffic, tuning: Tuning) -> None:
        device = host[0].device
        self.shape, self.host, self.tuning = shape, host, tuning
        self.state = HotState(shape, device)
        self.regions = self.state.place_rows(range(shape.regions))
        self.hot = [torch.empty(shape.hot_rows, shape.words, dtype=torch.int32, device=device) for _ in host]
        self.topk = torch.full((len(host), shape.rows, shape.topk), -1, dtype=torch.int32, device=device)
        self.fixed = (traffic.seq_lens, traffic.slots, traffic.table)
        self.index = torch.empty_like(self.topk)

    def reset(self) -> None:
        self.state.reset(range(self.shape.regions))

    def select(self, layer: int, topk: torch.Tensor) -> None:
        self.topk[layer].copy_(topk)

    def step(self, layer: int) -> None:
        lens, slots, table = self.fixed
        rows = self.host[layer].shape[0]
        self.state.index = self.index[layer]  # an engine's layers share one; here all are kept, to be looked at
        resolve(self.state, layer, self.topk[layer], lens, slots, self.regions, table, rows, self.tuning)
        copy(self.state, self.host[layer], self.hot[layer], self.tuning)

    def misses(self) -> int:
        """Rows that the last layer lacked."""
        return int(self.state.ends[-1])

    def rows(self, layer: int) -> torch.Tensor:
        """What attention would read for each column: int32 [batch, topk, words]."""
        return self.hot[layer][self.index[layer].to(torch.int64)]


def measure(case: Case, shape: HotShape, host: list[torch.Tensor], args: argparse.Namespace) -> dict[str, list[float]]:
    """All kernels on one case, in turn in each round, each on positions of its own: seconds for all layers."""
    device, layers = host[0].device, range(len(host))
    traffic = Traffic(case, shape, host[0], args.context, seed=case.batch)
    kinds: dict[str, Any] = {"ours": Ours(shape, host, traffic, tuning_for(device))}
    if args.peer:
        kinds["peer"] = load(args.peer).make(shape, host, traffic)
    replays = {name: Replay(lambda k=kind: [k.step(i) for i in layers], device) for name, kind in kinds.items()}
    count = case.batch * case.missing(shape.topk)
    listed = torch.zeros(len(host), max(1, count), dtype=torch.int64, device=device)
    out = torch.empty(max(1, count), shape.words, dtype=torch.int32, device=device)
    plain = Replay(lambda: gather(host, out, listed, shape.words), device)
    times: dict[str, list[float]] = {name: [] for name in kinds}
    for _ in range(args.rounds):
        for name, kind in kinds.items():
            times[name].append(decode(name, kind, replays[name], traffic, host))
        if kinds["ours"].misses() != count:
            raise RuntimeError(f"{case}: {kinds['ours'].misses()} rows were missing, not {count} as planned")
        for name in ("plain", "sorted") if count else ():
            for layer in layers:
                rows = traffic.host_rows(traffic.choose().fresh).flatten()
                listed[layer].copy_(rows.sort().values if name == "sorted" else rows)
            times.setdefault(name, []).append(plain.seconds())
    return times


def decode(name: str, kind: Any, replay: Replay, traffic: Traffic, host: list[torch.Tensor]) -> float:
    """Two steps that fill the hot rows, and the seconds of a third; all rows of the third are compared."""
    chosen = [traffic.choose() for _ in host]
    kind.reset()
    for turn in range(3):
        for layer, selection in enumerate(chosen):
            kind.select(layer, selection.turns[turn])
        if turn < 2:
            replay.run()
    seconds = replay.seconds()
    check(name, kind, traffic, chosen, host)
    return seconds


def gather(host: list[torch.Tensor], out: torch.Tensor, lists: torch.Tensor, words: int) -> None:
    """Every layer's list of rows into *out*."""
    block = triton.next_power_of_2(words)
    for layer, rows in enumerate(host):
        gather_kernel[(lists.shape[1],)](rows, out, lists[layer], WORDS=words, BLOCK_W=block, num_warps=2)


def check(name: str, kind: Any, traffic: Traffic, chosen: list[Chosen], host: list[torch.Tensor]) -> None:
    """Every row that attention would read is that of its position; RuntimeError, because a wrong copy has no speed."""
    for layer, rows in enumerate(host):
        if not torch.equal(kind.rows(layer), rows[traffic.host_rows(chosen[layer].turns[2])]):
            raise RuntimeError(f"{name}: layer {layer} of {traffic.case} holds wrong rows")


def report(
    case: Case, shape: HotShape, host: list[torch.Tensor], limit: float, times: dict[str, list[float]]
) -> dict[str, Any]:
    """One line: the case, the range that its rows are spread over, and for each kernel the median of a layer."""
    count = case.batch * case.missing(shape.topk)
    line: dict[str, Any] = {**asdict(case), "rows_missing": count, "layer_gib": round(host[0].nbytes / 2**30, 3)}
    for name, seconds in times.items():
        each = statistics.median(seconds) / len(host)
        speed = count * shape.row_bytes / each / 1e9
        line[name] = {"us": round(each * 1e6, 1), "gb_s": round(speed, 2), "of_limit": round(speed / limit, 3)}
    return line


def copy_limit(pool: Pool, device: torch.device) -> float:
    """GB/s of one plain copy of up to 1 GiB from the pool to the device: best of five."""
    part = pool.memory[: 2**28]
    into = torch.empty_like(part, device=device)
    replay = Replay(lambda: into.copy_(part, non_blocking=True), device)
    return round(part.nbytes / min(replay.seconds() for _ in range(5)) / 1e9, 2)


def cases(args: argparse.Namespace) -> Iterator[Case]:
    return itertools.starmap(
        Case, itertools.product(args.row_bytes, args.layouts, args.patterns, args.batch, args.misses)
    )


def load(path: Path) -> ModuleType:
    """A peer's module, from a file that is not part of this repository."""
    sys.path.insert(0, str(path.parent))
    return __import__(path.stem)


def options() -> argparse.Namespace:
    take = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    take.add_argument("--batch", type=int, nargs="+", default=[1, 2, 8, 32, 96])
    take.add_argument("--misses", type=float, nargs="+", default=[0, 0.1, 1, 5, 20, 100], help="per cent")
    take.add_argument("--row-bytes", type=int, nargs="+", default=[656, 1152])
    take.add_argument("--layouts", nargs="+", default=["scattered", "contiguous"])
    take.add_argument("--patterns", nargs="+", default=["uniform", "recent"])
    take.add_argument("--context", type=int, default=32_768, help="tokens of each request")
    take.add_argument("--topk", type=int, default=2_048)
    take.add_argument("--slots", type=int, default=4_096, help="hot rows of a request")
    take.add_argument("--layers", type=int, default=24)
    take.add_argument("--pool-gib", type=float, default=46.0)
    take.add_argument("--rounds", type=int, default=5)
    take.add_argument("--peer", type=Path, help="a Python file with make(shape, host, traffic)")
    take.add_argument("--json", type=Path, help="write all of it there too")
    take.add_argument("--tiny", action="store_true", help="sizes for a run without a device")
    args = take.parse_args()
    if args.tiny:
        args.batch, args.misses, args.context, args.topk, args.slots = [2], [0, 50], 128, 8, 16
        args.layers, args.pool_gib, args.rounds, args.row_bytes = 2, 2.5 / 1024, 1, [1152]
    return args


def main() -> None:
    args = options()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cpu" and not args.tiny:
        sys.exit("there is no device here: TRITON_INTERPRET=1 with --tiny checks the script, and measures nothing")
    name = torch.cuda.get_device_name() if device.type == "cuda" else "none (interpreted: times mean nothing)"
    pool = Pool(int(args.pool_gib * 2**30) // 4096 * 4096, device)
    limit = copy_limit(pool, device)
    facts = {"device": name, "torch": torch.__version__, "triton": triton.__version__, "copy_limit_gb_s": limit}
    facts |= {key: getattr(args, key) for key in ("context", "topk", "slots", "layers", "pool_gib", "rounds")}
    print(json.dumps(facts))
    lines = []
    for case in cases(args):
        shape = HotShape(args.layers, case.batch, args.slots, args.topk, args.context, case.row_bytes, case.batch)
        host = pool.layers(args.layers, shape.words)
        lines.append(report(case, shape, host, limit, measure(case, shape, host, args)))
        print(json.dumps(lines[-1]), flush=True)
    if args.json:
        args.json.write_text(json.dumps({"facts": facts, "lines": lines}, indent=1) + "\n")
    pool.close()


if __name__ == "__main__":
    main()
