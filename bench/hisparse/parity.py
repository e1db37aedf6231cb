"""Does decode from hot rows give what stock decode gives? On a GPU, with vLLM 0.24.0 and the patch vllm/hisparse.

    python bench/hisparse/parity.py --stock-path /opt/site --hot-path /opt/hot --model deepseek glm \\
        --kv-cache-dtype fp8 auto --graphs eager full --jobs 6 --json FILE

Each case is a model, a KV type and a graph mode, in three processes with one engine each: *unpatched* (the stock tree),
*off* (the patched tree without the setting) and *hot*. They run the same batches; off runs them twice, which is the
noise; hot ends with spoiled rows, which must show. One line a check, as soon as both sides have answered.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import judging  # noqa: E402
import models  # noqa: E402
import sides  # noqa: E402
from judging import Answers, Check  # noqa: E402

SIDES = ("unpatched", "off", "hot")
SQUEEZE_TOKENS = 200  # each grows by more than three blocks, and the pool has one for each
SHORT, SHORT_BLOCKS = 8, 5  # requests that come last, and so are preempted first: each frees little
LEAST = SHORT * (SHORT_BLOCKS + 1) + 4 * 8  # blocks of the pool, for them and four longer ones
TAIL = 300  # tokens behind a shared prefix


@dataclass(frozen=True)
class Batch:
    """Requests that are submitted at once. kind: plain, prefix (the second request of a shared prefix) or squeeze."""

    name: str
    contexts: list[int]
    tokens: int
    seed: int
    kind: str = "plain"
    prefix: int = 0  # tokens that all prompts share, and that stay cached from the batch before
    fresh: bool = True  # the prefix cache is emptied before

    def blocks(self) -> int:
        """Blocks that all of it fills; a token more, as steps are scheduled ahead."""
        return sum(models.blocks_of(context + self.tokens + 1) for context in self.contexts)


@dataclass(frozen=True)
class Plan:
    """What every side of a case runs. blocks: of the pool, the null block included, for off and hot."""

    batches: list[Batch]
    blocks: int
    longest: int
    seats: int

    def control(self) -> Batch:
        """The batch that is run once more with spoiled rows: one of several requests, if there is one."""
        plain = [batch for batch in self.batches if batch.kind == "plain"]
        return next((batch for batch in plain if len(batch.contexts) > 1), plain[-1])


def plan(contexts: list[int], batches: list[int], tokens: int, squeeze: bool = True) -> Plan:
    """A batch of one is each context alone, wider ones take contexts in turn. The pool just holds the widest batch."""
    made: list[Batch] = []
    for width in batches:
        turns = [[each] for each in contexts] if width == 1 else [[contexts[i % len(contexts)] for i in range(width)]]
        for turn in turns:
            names = "+".join(map(str, sorted(set(turn))))
            made.append(Batch(f"{width} x {names}", turn, tokens, seed=len(made)))
    long = max(contexts)
    for number in (1, 2):
        name = f"prefix of {long}, request {number}"
        made.append(Batch(name, [long + TAIL + number], tokens, 100 + number, "prefix", long, fresh=number == 1))
    longest = long + TAIL + tokens + SQUEEZE_TOKENS + 64
    blocks = max(*(batch.blocks() for batch in made), models.blocks_of(longest) + 1, LEAST) + 1
    if squeeze:
        made.append(squeezing(blocks, longest - SQUEEZE_TOKENS - 1))
    return Plan(made, blocks, longest, max(len(batch.contexts) for batch in made))


def squeezing(blocks: int, longest: int) -> Batch:
    """Prompts that all fit *blocks* with one block to spare for each; then each grows by more than three.

    Without the block to spare the last would wait for the first to end, and nobody would be preempted.
    """
    room = blocks - 1 - SHORT * (SHORT_BLOCKS + 1)
    long = max(4, -(-room // (longest // models.BLOCK + 1)))
    each = room // long - 1
    contexts = [each * models.BLOCK - 1] * long + [SHORT_BLOCKS * models.BLOCK - 1] * SHORT
    return Batch(f"squeeze of {len(contexts)}", contexts, SQUEEZE_TOKENS, 7, "squeeze")


def prompts(batch: Batch) -> list[list[int]]:
    """Token numbers of its requests, the same for each side; the first two of a plain batch share a prefix of half."""
    chance = random.Random(batch.seed)
    made = [[chance.randrange(models.VOCABULARY) for _ in range(length)] for length in batch.contexts]
    if batch.kind == "prefix":
        shared = random.Random(batch.prefix)
        for prompt in made:
            prompt[: batch.prefix] = [shared.randrange(models.VOCABULARY) for _ in range(batch.prefix)]
    elif batch.kind == "plain" and len(made) > 1:
        half = min(len(made[0]), len(made[1])) // 2
        made[1][:half] = made[0][:half]
    return made


def rounds(side: str, planned: Plan) -> list[tuple[str, Batch]]:
    """What a side runs, in order."""
    done = [("first", batch) for batch in planned.batches]
    if side == "off":
        done += [("again", batch) for batch in planned.batches if batch.kind != "squeeze"]
    if side == "hot":
        done.append(("spoiled", planned.control()))
    return done


class Bench:
    """The answers of one case as they come, and the checks that can be made of them.

    *siblings* are all cases that differ from it in the graphs alone, itself among them: stock's noise is what any of
    their stock runs differ, because where stock's top-k meets a tie, it takes this or that position from run to run.
    """

    def __init__(self, case: str, planned: Plan, siblings: list[Bench] | None = None) -> None:
        self.case, self.plan = case, planned
        self.siblings = [] if siblings is None else siblings
        self.siblings.append(self)
        self.seen: dict[tuple[str, str, str], dict[str, Any]] = {}
        self.open = {batch.name: batch for batch in planned.batches}
        self.pending = {f"hot: {name}" for name in self.open} | {"control"}
        # Where requests are preempted, off is and unpatched is not: their bits are not compared.
        self.pending |= {f"off: {batch.name}" for batch in planned.batches if batch.kind != "squeeze"}

    def take(self, side: str, line: dict[str, Any]) -> list[Check]:
        """One line of a side; the checks that pass with it. Those that fail wait, as noise may be seen later."""
        self.seen[side, line["round"], line["batch"]] = line
        passed = [check for name in sorted(self.pending) if (check := self._try(name)) and not check.faults]
        self.pending -= {name for name in self.pending if any(check.asked == name for check in passed)}
        return passed

    def rest(self) -> list[Check]:
        """What did not pass, and a failed check for each that could not be made."""
        missing = "no answer of a side: not checked"
        return [self._try(name) or Check(name, faults=[missing]) for name in sorted(self.pending)]

    def _try(self, name: str) -> Check | None:
        kind, _, batch = name.partition(": ")
        wanted = self.plan.control() if kind == "control" else self.open[batch]
        try:
            check: Check = self._control(wanted) if kind == "control" else getattr(self, f"_{kind}")(wanted)
        except KeyError:
            return None
        check.asked = name
        return check

    def _answers(self, side: str, which: str, batch: Batch) -> Answers:
        found: Answers = self.seen[side, which, batch.name]["answers"]
        return found

    def _noise(self, batch: Batch) -> judging.Difference:
        """Stock against itself: of all pairs of runs of one tree the one that differs most. KeyError without a run.

        Where requests are preempted only off counts, which is: recomputed rows are rounded in another way.
        """
        sides = ("off",) if batch.kind == "squeeze" else ("unpatched", "off")
        pairs = []
        for side in sides:
            keys = [(side, which, batch.name) for which in ("first", "again")]
            runs = [bench.seen[key]["answers"] for bench in self.siblings for key in keys if key in bench.seen]
            pairs += [judging.difference(one, other) for one, other in itertools.combinations(runs, 2)]
        if not pairs and batch.kind == "squeeze":
            return judging.difference(*[self._answers("off", "first", batch)] * 2)
        if ("off", "again", batch.name) not in self.seen and batch.kind != "squeeze":
            raise KeyError(batch.name)
        return max(pairs, key=lambda pair: (pair.largest, not pair.exact))

    def _hot(self, batch: Batch) -> Check:
        like = "off" if batch.kind == "squeeze" else "unpatched"  # off is preempted as hot is
        stock, hot = (self._answers(side, "first", batch) for side in (like, "hot"))
        check = judging.equal(f"hot = stock, {batch.name}", stock, hot, self._noise(batch))
        lines = {side: self.seen[side, "first", batch.name] for side in SIDES}
        judging.kept_back(check, lines["hot"]["refused"], lines["hot"]["misses"])
        if batch.kind == "prefix" and not batch.fresh:
            wanted = batch.prefix // models.BLOCK * models.BLOCK
            judging.reused(check, {side: min(line["cached"]) for side, line in lines.items()}, wanted)
        if batch.kind == "squeeze":
            judging.squeezed(check, {side: line["preempted"] for side, line in lines.items()})
        return check

    def _off(self, batch: Batch) -> Check:
        unpatched, off = (self._answers(side, "first", batch) for side in ("unpatched", "off"))
        return judging.same(f"off = unpatched, {batch.name}", unpatched, off, self._noise(batch))

    def _control(self, batch: Batch) -> Check:
        stock, wrong = self._answers("unpatched", "first", batch), self._answers("hot", "spoiled", batch)
        return judging.spoiled(f"spoiled rows show, {batch.name}", stock, wrong, self._noise(batch))


def run_side(asked: dict[str, Any]) -> None:
    """In a process of its own: all batches of a side in one engine."""
    import inside

    if asked["sort"]:
        inside.sort_selections()
    began = time.monotonic()
    engine = inside.start(asked)
    print(f"started in {time.monotonic() - began:.1f} s", flush=True)
    planned = Plan(**asked["plan"] | {"batches": [Batch(**batch) for batch in asked["plan"]["batches"]]})
    for which, batch in rounds(asked["side"], planned):
        if which == "spoiled":
            inside.spoil_each_step(engine)
        sides.report(asked["answer"], answer(engine, batch, asked["logprobs"]) | {"round": which})
    engine.stop()


def answer(engine: Any, batch: Batch, logprobs: int) -> dict[str, Any]:
    """Run one batch; its answers, and what the engine counted meanwhile."""
    from vllm import SamplingParams

    sampling = SamplingParams(
        temperature=0, max_tokens=batch.tokens, logprobs=logprobs, ignore_eos=True, detokenize=False
    )
    if batch.fresh:
        engine.forget_prefixes()
    began, before, preempted = time.monotonic(), engine.counts(), engine.preempted()
    given = [{"prompt_token_ids": prompt} for prompt in prompts(batch)]
    outputs = engine.llm.generate(given, sampling, use_tqdm=False)
    hits, misses, refused, copied = (now - then for now, then in zip(engine.counts(), before, strict=True))
    return {
        "batch": batch.name,
        "answers": [steps(output.outputs[0]) for output in outputs],
        "cached": [output.num_cached_tokens or 0 for output in outputs],
        "preempted": engine.preempted() - preempted,
        "hits": hits,
        "misses": misses,
        "refused": refused,
        "copied_bytes": copied,
        "seconds": round(time.monotonic() - began, 2),
    }


def steps(output: Any) -> Any:
    """Token and logprobs of each step of a CompletionOutput."""
    return [
        (token, {str(each): value.logprob for each, value in best.items()})
        for token, best in zip(output.token_ids, output.logprobs, strict=True)
    ]


def case_sides(case: str, planned: Plan, options: argparse.Namespace, folder: Path) -> list[sides.Side]:
    """The three processes of a case, with what each is asked."""
    name, dtype, graphs = case.split("-")
    model = models.shaped(name, heads=options.heads)
    token = models.mla_bytes(model, dtype) + models.indexer_bytes(model)
    common = {
        "model": models.write(model, folder / name),
        "kv_cache_dtype": dtype,
        "graphs": graphs,
        "compile": options.compile,
        "longest": planned.longest,
        "seats": planned.seats,
        "tokens_a_step": options.tokens_a_step,
        "sizes": sorted({1, 2, 4, 8, *(len(batch.contexts) for batch in planned.batches)}),
        "kv_bytes": 2 * planned.blocks * models.BLOCK * token,
        "blocks": None,
        "pool_gib": None,
        "slots": options.device_buffer_size,
        "sort": options.sort,
        "logprobs": options.logprobs,
        "plan": asdict(planned),
    }
    differ: dict[str, dict[str, Any]] = {
        "unpatched": {},
        "off": {"blocks": planned.blocks},
        "hot": {"pool_gib": models.pool_gib(planned.blocks, model, dtype)},
    }
    paths = {"unpatched": options.stock_path, "off": options.hot_path, "hot": options.hot_path}
    return [
        sides.Side(side, __file__, common | more, folder / f"{case}-{side}", paths[side])
        for side, more in differ.items()
    ]


def show(case: str, check: Check) -> None:
    """One line for a reader."""
    numbers = " ".join(f"{key}={value:.5g}" for key, value in check.numbers.items())
    state = "FAILS: " + "; ".join(check.faults) if check.faults else "ok"
    print(f"{case} | {check.name} | {numbers} | {state}", flush=True)


def main(arguments: list[str] | None = None) -> int:
    """Run all cases and judge them: 0 if all checks pass, 1 if not."""
    options = parsed(arguments)
    if options.side:
        run_side(json.loads(options.side))
        return 0
    planned = plan(options.contexts, options.batches, options.tokens, not options.no_squeeze)
    cases = ["-".join(case) for case in itertools.product(options.model, options.kv_cache_dtype, options.graphs)]
    siblings: dict[str, list[Bench]] = {}
    benches = {case: Bench(case, planned, siblings.setdefault(case.rpartition("-")[0], [])) for case in cases}
    report: list[dict[str, Any]] = []

    def done(case: str, checks: list[Check]) -> None:
        for check in checks:
            show(case, check)
            report.append({"case": case} | asdict(check))
        if options.json and checks:
            Path(options.json).write_text(json.dumps({"options": vars(options), "checks": report}, indent=1) + "\n")

    def on_line(side: sides.Side, line: dict[str, Any]) -> None:
        case = side.folder.name.rpartition("-")[0]
        facts = {key: value for key, value in line.items() if key not in ("answers", "cached")}
        print(f"# {case} {side.name} {json.dumps(facts)}", flush=True)
        done(case, benches[case].take(side.name, line))

    with tempfile.TemporaryDirectory() as name:
        folder = Path(options.logs or name)
        folder.mkdir(parents=True, exist_ok=True)
        started = [side for case in cases for side in case_sides(case, planned, options, folder)]
        codes = sides.run(started, options.jobs, on_line)
    for case, bench in benches.items():
        done(case, bench.rest())
    ended = [name for name, code in codes.items() if code]
    failed = sum(bool(each["faults"]) for each in report)
    print(f"{len(report)} checks, {failed} fail" + (f"; ended early: {', '.join(ended)}" if ended else ""), flush=True)
    return int(bool(failed or ended))


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", default=["deepseek"], choices=["deepseek", "glm"])
    parser.add_argument("--kv-cache-dtype", nargs="+", default=["fp8"], choices=["fp8", "auto"], help="auto is bf16")
    parser.add_argument("--graphs", nargs="+", default=["full"], choices=["eager", "full"])
    parser.add_argument("--contexts", type=int, nargs="+", default=[1000, 4000, 4200, 20000], help="prompt lengths")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--tokens", type=int, default=24, help="tokens to decode")
    parser.add_argument("--logprobs", type=int, default=10)
    parser.add_argument("--device-buffer-size", type=int, default=4096)
    parser.add_argument("--heads", type=int, help="16 is the case in which stock has one kernel for all")
    parser.add_argument("--tokens-a-step", type=int, default=8192, help="max_num_batched_tokens")
    parser.add_argument("--compile", action="store_true", help="torch.compile with graphs: slower to start")
    parser.add_argument("--no-squeeze", action="store_true", help="without preemption")
    parser.add_argument("--no-sort", dest="sort", action="store_false", help="leave the order of selections to chance")
    parser.add_argument("--stock-path", help="folder of the unpatched vllm, if it is not the one that is installed")
    parser.add_argument("--hot-path", help="folder of the patched vllm")
    parser.add_argument("--jobs", type=int, default=3, help="engines at a time, all on one GPU")
    parser.add_argument("--logs", help="a folder for the engines' logs and answers")
    parser.add_argument("--json", help="write all checks to a file")
    parser.add_argument("--side", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
