"""Grafting against the peers, on stand-in bases of several sizes in a registry of this machine, all in one run.

``python bench/graft.py [--sizes 1 3 10] [--peers ...] [--rounds 5]``; see graft_peers.py for what it needs. Our own
command is measured in full: interpreter start, plan, proof, graft and push, through the same byte-counting door.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "bench")]

from graft_peers import PEERS, Bench, Payload, bench, middle, peers, table  # noqa: E402
from meter import Result, Steps  # noqa: E402

GRAFTWORK = Path(sys.executable).parent / "graftwork"
# Ratio to our median that the issue asks for, by size in GB: (way, at least so many times slower).
GOALS = {
    3.0: [("skopeo", 12.0), ("buildah", 12.0), ("pulled", 12.0), ("held (", 1.0)],
    10.0: [("skopeo", 40.0), ("buildah", 40.0), ("pulled", 40.0), ("held (", 1.0)],
}


def ours(place: Bench, target: str, cache: Path, dist: Path, rounds: int) -> tuple[Result, list[Result], list[Result]]:
    """The first push on this base, which indexes it, and *rounds* after it, in full and with nothing attached."""

    def push(tag: str, kind: str, *more: str) -> Result:
        def way(steps: Steps) -> None:
            command: list[str | Path] = [GRAFTWORK, "push", target, "--catalog", ROOT, "--dist", dist, "--quiet"]
            command += ["--base", place.base, "--to", place.result(tag), *more]
            steps.run("push", command, GRAFTWORK_CACHE=str(cache))

        return place.measure(f"graftwork push{kind}", way)

    first = push("first", " (first: indexes the base)")
    pairs = [
        (push(f"ours{number}", ""), push(f"bare{number}", " --no-attest", "--no-attest")) for number in range(rounds)
    ]
    return first, [full for full, _ in pairs], [bare for _, bare in pairs]


def compared(size: float, own: Result, others: list[Result]) -> list[dict[str, object]]:
    """Each peer's time over ours, with the goal where there is one."""
    rows: list[dict[str, object]] = []
    for item in others:
        ratio = item.seconds / own.seconds if not item.failed and own.seconds else 0.0
        goal = next((least for word, least in GOALS.get(size, []) if word in item.name), None)
        rows.append({"way": item.name, "times_ours": round(ratio, 1), "goal": goal, "failed": item.failed})
    return rows


def main() -> int:
    """Measure, show the tables and ratios, write bench/graft.json; 1 if a way failed."""
    parser = argparse.ArgumentParser(description="Measure grafting against the peers.")
    parser.add_argument("--target", default="rocm-gfx950")
    parser.add_argument("--sizes", type=float, nargs="+", default=[1, 3, 10], help="of the bases, in GB")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peers", nargs="*", choices=PEERS, default=list(PEERS))
    parser.add_argument("--timeout", type=float, default=900)
    parser.add_argument("--work", type=Path, help="folder for bases and storages (about 3.5 times the largest size)")
    parser.add_argument("--out", type=Path, default=ROOT / "bench/graft.json")
    options = parser.parse_args()
    document: dict[str, object] = {"target": options.target, "layers": options.layers, "cores": os.cpu_count()}
    sizes: dict[str, object] = {}
    medians, failed = [], False
    with tempfile.TemporaryDirectory(prefix="gwg-", dir=options.work) as name:
        work = Path(name).resolve()
        cache, dist = work / "cache", work / "dist"
        prepare(options.target, cache, dist)
        payload = replace(
            Payload.of(dist / options.target / "oci", options.target, work), make=making(options.target, cache)
        )
        for size in options.sizes:
            with bench(
                work / "b", options.target, int(size * 1e9), layers=options.layers, timeout=options.timeout,
                packages=work / "packages",
            ) as place:  # fmt: skip
                first, runs, bare = ours(place, options.target, cache, dist, options.rounds)
                own = middle(runs)
                others = list(peers(place, payload, options.peers, options.rounds)) if options.peers else []
            rows = compared(size, own, others)
            print(f"\nbase of {place.size / 1e9:.2f} GB\n{table([first, own, middle(bare), *others])}", flush=True)
            for row in rows:
                goal = f" (goal {row['goal']})" if row["goal"] else ""
                print(f"    {row['way']}: {row['times_ours']} times ours{goal}", flush=True)
            medians.append(own.seconds)
            failed = failed or any(item.failed for item in (first, *runs, *bare, *others))
            sizes[f"{size:g}"] = {
                "bytes": place.size,
                "first": first.as_dict(),
                "ours": [item.as_dict() for item in runs],
                "ours_no_attest": [item.as_dict() for item in bare],
                "peers": [item.as_dict() for item in others],
                "compared": rows,
            }
    spread = max(medians) / min(medians) if medians and min(medians) else 0.0
    print(f"\nour median over all sizes: {statistics.median(medians):.2f} s, slowest / fastest size: {spread:.2f}")
    options.out.write_text(json.dumps({**document, "sizes": sizes}, indent=2) + "\n", "utf-8")
    return int(failed)


def image_command(target: str, dist: Path) -> list[str | Path]:
    """Plans, builds and proves the payload, with nothing said about it."""
    return [GRAFTWORK, "image", target, "--catalog", ROOT, "--dist", dist, "--quiet", "--no-attest"]


def making(target: str, cache: Path) -> Callable[[Steps], None]:
    """What a peer's user does before there are files to copy."""

    def way(steps: Steps) -> None:
        steps.run("make", image_command(target, steps.folder / "made"), GRAFTWORK_CACHE=str(cache))

    return way


def prepare(target: str, cache: Path, dist: Path) -> None:
    """Fill the cache with the wheel's files and make the payload that the peers are given.

    Bytecode of our sources is made first, as pip makes it: the environment may forbid an editable install to keep any.
    """
    import compileall
    import subprocess

    compileall.compile_dir(ROOT / "src/graftwork", quiet=1)
    command = image_command(target, dist)
    subprocess.run(command, check=True, env={**os.environ, "GRAFTWORK_CACHE": str(cache)}, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    sys.exit(main())
