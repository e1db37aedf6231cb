"""Does decode from hot rows give what stock decode gives? On a GPU, in the image of cuda-hisparse.

A small random DeepSeek-V3.2 runs in a process for each side: stock twice (what noise is), with HiSparse, and with
HiSparse and spoiled hot rows, which must show. Weights are scaled, so that attention matters. Sides differ in nothing
but the setting.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SIDES = ("stock", "stock-again", "hot", "spoiled")
FLOOR = 0.02  # of a logprob: less than this is bf16 in any case
VOCABULARY = 4096
MODEL = {
    "architectures": ["DeepseekV32ForCausalLM"],
    "model_type": "deepseek_v32",
    "torch_dtype": "bfloat16",
    "hidden_size": 2048,
    "intermediate_size": 4096,
    "moe_intermediate_size": 512,
    "num_hidden_layers": 4,
    "first_k_dense_replace": 4,
    "num_attention_heads": 64,
    "num_key_value_heads": 64,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "index_n_heads": 64,
    "index_head_dim": 128,
    "index_topk": 2048,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 32768,
    "rope_theta": 10000,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}

Answers = list[list[dict[str, float]]]  # request, step, logprob by token


@dataclass(frozen=True)
class Verdict:
    """noise, hot, spoiled: largest difference to stock of a logprob that both name. faults: why it did not pass."""

    noise: float
    hot: float
    spoiled: float
    faults: tuple[str, ...]


def difference(one: Answers, other: Answers) -> tuple[float, int]:
    """The largest difference of a logprob up to where the best tokens part, and how many requests part.

    Behind that the contexts are others, so nothing is compared. ValueError where requests or steps are missing.
    """
    largest, parted = 0.0, 0
    for a, b in zip(one, other, strict=True):
        for left, right in zip(a, b, strict=True):
            if shared := left.keys() & right.keys():
                largest = max(largest, *(abs(left[token] - right[token]) for token in shared))
            if max(left, key=left.__getitem__) != max(right, key=right.__getitem__):
                parted += 1
                break
    return largest, parted


def judge(answers: dict[str, Answers]) -> Verdict:
    """Hot may differ from stock by twice stock's own noise or FLOOR; spoiled must differ by more than that."""
    noise, noisy = difference(answers["stock"], answers["stock-again"])
    hot, parted = difference(answers["stock"], answers["hot"])
    spoiled, spoiled_parted = difference(answers["stock"], answers["spoiled"])
    allowed, faults = max(2 * noise, FLOOR), []
    if hot > allowed:
        faults.append(f"logprobs differ by {hot:.4f}, {allowed:.4f} is allowed")
    if parted > noisy:
        faults.append(f"{parted} requests give other tokens, stock against itself {noisy}")
    if spoiled <= allowed and spoiled_parted <= noisy:
        faults.append("spoiled hot rows do not show: this comparison proves nothing")
    return Verdict(noise, hot, spoiled, tuple(faults))


def prompts(contexts: list[int], batch: int, seed: int) -> list[list[int]]:
    """Token numbers of *batch* requests, their lengths in turn from *contexts*; two share a prefix of half."""
    chance = random.Random(seed)
    made = [[chance.randrange(VOCABULARY) for _ in range(contexts[row % len(contexts)])] for row in range(batch)]
    if batch > 1:
        half = min(len(made[0]), len(made[1])) // 2
        made[1][:half] = made[0][:half]
    return made


def run_side(asked: dict[str, Any]) -> list[Answers]:
    """In a process of its own: the answers of each batch. Needs vLLM and a GPU."""
    from vllm import LLM, SamplingParams

    side = asked["side"]
    setting = {"host_pool_gib": asked["pool"]} if side in ("hot", "spoiled") else None
    engine = LLM(
        model=asked["model"],
        load_format="dummy",
        skip_tokenizer_init=True,
        kv_cache_dtype=asked["kv_cache_dtype"],
        block_size=64,
        max_model_len=max(asked["contexts"]) + asked["tokens"] + 64,
        max_num_seqs=max(asked["batches"]),
        gpu_memory_utilization=asked["gpu_memory_utilization"],
        enforce_eager=asked["eager"],
        compilation_config={"cudagraph_mode": "NONE" if asked["eager"] else "FULL_DECODE_ONLY"},
        attention_config={"backend": "FLASHMLA_SPARSE", "hisparse_config": setting},
        seed=0,
    )
    engine.apply_model(scale)
    if side == "spoiled":
        engine.collective_rpc(spoil_each_step)
    sampling = SamplingParams(temperature=0, max_tokens=asked["tokens"], logprobs=20, ignore_eos=True, detokenize=False)
    found = []
    for number, batch in enumerate(asked["batches"]):
        given = [{"prompt_token_ids": one} for one in prompts(asked["contexts"], batch, number)]
        outputs = engine.generate(given, sampling)
        found.append(
            [
                [{str(token): each.logprob for token, each in step.items()} for step in output.outputs[0].logprobs]
                for output in outputs
            ]
        )
    return found


def scale(model: Any) -> None:
    """Dummy weights are uniform within 1e-3: bring them to about 1 / sqrt(width), with what is made of them."""
    for name, parameter in model.named_parameters():
        if parameter.is_floating_point() and "norm" not in name:
            parameter.data.mul_(38)
    for module in model.modules():
        for name in ("W_UV", "W_UK_T"):
            if getattr(module, name, None) is not None:
                getattr(module, name).data.mul_(38)


def spoil_each_step(worker: Any) -> None:
    """From now on hot rows are wrong whenever a step begins."""
    hot = worker.model_runner.hot_kv
    begin = hot.begin_step

    def spoiled(*given: Any) -> None:
        begin(*given)
        hot.spoil()

    hot.begin_step = spoiled


def ask(side: str, options: argparse.Namespace, folder: Path) -> list[Answers]:
    """Run one side in a process; its answers. SystemExit where it fails, after its own output."""
    answer = folder / f"{side}.json"
    asked = vars(options) | {"side": side, "model": str(folder / "model"), "answer": str(answer)}
    environment = os.environ | {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_ALLOW_INSECURE_SERIALIZATION": "1"}
    done = subprocess.run([sys.executable, __file__, "--side", json.dumps(asked)], env=environment, check=False)
    if done.returncode:
        raise SystemExit(f"{side}: the engine ended with {done.returncode}")
    answers: list[Answers] = json.loads(answer.read_text())
    return answers


def main(arguments: list[str] | None = None) -> int:
    """Run all sides and judge each batch: 0 if all pass, 1 if not."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--contexts", type=int, nargs="+", default=[1000, 4000, 4200, 20000], help="prompt lengths")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--tokens", type=int, default=64, help="tokens to decode")
    parser.add_argument("--kv-cache-dtype", default="fp8", choices=["fp8", "auto"])
    parser.add_argument("--pool", type=float, default=16, help="host_pool_gib")
    parser.add_argument("--gpu-memory-utilization", type=float, default=0.5)
    parser.add_argument("--eager", action="store_true", help="without graphs")
    parser.add_argument("--heads", type=int, default=64, help="16 is the case in which stock has one kernel for all")
    parser.add_argument("--side", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.side:
        asked = json.loads(options.side)
        Path(asked["answer"]).write_text(json.dumps(run_side(asked)))
        return 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "model").mkdir()
        model = MODEL | {"num_attention_heads": options.heads, "num_key_value_heads": options.heads}
        (folder / "model/config.json").write_text(json.dumps(model))
        answers = {side: ask(side, options, folder) for side in SIDES}
    failed = False
    for number, batch in enumerate(options.batches):
        verdict = judge({side: found[number] for side, found in answers.items()})
        failed = failed or bool(verdict.faults)
        state = "; ".join(verdict.faults) or "passes"
        print(
            f"batch {batch}: stock against itself {verdict.noise:.4f}, hot {verdict.hot:.4f}, "
            f"spoiled {verdict.spoiled:.4f}: {state}"
        )
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
