"""What the drift matrix costs: bytes, requests, CPU and wall time, cold and warm, against planning unpacked folders.

``python bench/matrix.py [--rounds N] [--versions SPEC] [--out FILE] [--check]``. Every line is a whole process. The
cold one has an empty cache and moves what it needs from the package index. bench/README.md explains the numbers. With
--check it exits 8 when a budget is exceeded.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
GRAFTWORK = Path(sys.executable).parent / "graftwork"
SPAN = ">=0.5.13.post1,<=0.5.23"
MOST_BYTES = 25_000_000
MOST_CPU = 1.5  # of planning the same trees from unpacked folders


@dataclass(frozen=True)
class Cost:
    """One process and its children. Times in seconds; bytes and requests are of wheels and index pages."""

    cpu: float
    wall: float
    moved_bytes: int = 0
    requests: int = 0


def run(command: list[str], cache: Path) -> tuple[Cost, str]:
    """Run *command* with its own cache; what it cost and its stdout. Exits if it fails."""
    environment = {**os.environ, "GRAFTWORK_CACHE": str(cache)}
    with tempfile.TemporaryFile("w+") as said, tempfile.TemporaryFile("w+") as noted:
        began = time.perf_counter()
        with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=said, stderr=noted) as process:
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        wall = time.perf_counter() - began
        said.seek(0)
        noted.seek(0)
        out, notes = said.read(), noted.read()
    if process.returncode:
        raise SystemExit(f"exit code {process.returncode}: {' '.join(command)}\n{notes}")
    requests = re.search(r"moved in (\d+) requests", notes)
    return Cost(usage.ru_utime + usage.ru_stime, wall, 0, int(requests[1]) if requests else 0), out


def matrix(versions: str, cache: Path) -> tuple[Cost, list[dict[str, object]]]:
    """``graftwork matrix`` as a whole process."""
    command = [str(GRAFTWORK), "matrix", "--engine", "sglang", "--versions", versions, "--json"]
    cost, out = run(command, cache)
    cells = json.loads(out)["cells"]
    moved = sum(cell["bytes"] for cell in cells)
    return Cost(cost.cpu, cost.wall, moved, cost.requests), cells


def prepare(versions: str, folder: Path) -> None:
    """Write the files that planning may read of each release into a folder of its own, named by the version."""
    from graftwork.names import rel_path
    from graftwork.patching.assess import Engine, planned_files
    from graftwork.upstream.releases import open_release

    cache, index, patches, releases = _releases(versions)
    for release in releases:
        with open_release(release, cache, index) as tree:
            for path in set().union(*(planned_files(patch, Engine(release.version, "rocm")) for patch in patches)):
                if tree.exists(rel_path(path)):
                    file = folder / str(release.version) / path
                    file.parent.mkdir(parents=True, exist_ok=True)
                    file.write_bytes(tree.read(rel_path(path)))


def plan_folders(folder: Path) -> None:
    """Plan every patch alone on each folder, as the matrix does on each release; prints the states."""
    from packaging.version import Version

    from graftwork.catalog.catalog import Catalog
    from graftwork.patching.overlay import Overlay
    from graftwork.trees.folder import FolderTree
    from graftwork.upstream.matrix_work import plan_alone

    catalog = Catalog.find(ROOT)
    patches = [catalog.patch(name) for name in catalog.patch_ids if name.startswith("sglang/")]
    platforms = catalog.platforms_of(patches)
    states = {}
    for tree in sorted(folder.iterdir()):
        over = Overlay(FolderTree(tree))
        for patch in patches:
            planned = plan_alone(over, patch, Version(tree.name), platforms[patch.id])
            states[f"{patch.id} {tree.name}"] = planned.state.value
    print(json.dumps(states))


def _releases(versions: str):  # type: ignore[no-untyped-def]
    from graftwork.catalog.catalog import Catalog
    from graftwork.trees.cache import Cache
    from graftwork.trees.index import PackageIndex
    from graftwork.upstream.releases import FirstUse, find_releases, in_range, locked_pins

    catalog, cache, index = Catalog.find(ROOT), Cache(), PackageIndex()
    patches = [catalog.patch(name) for name in catalog.patch_ids if name.startswith("sglang/")]
    pins = locked_pins(catalog, "sglang")
    return cache, index, patches, find_releases(index, "sglang", pins, FirstUse(cache), in_range(versions, patches))


def measure(versions: str, rounds: int, work: Path) -> tuple[dict[str, list[Cost]], int, int]:
    """The costs of each line, round by round in turn; and how many patches and releases there were."""
    lines: dict[str, list[Cost]] = {"cold": [], "warm": [], "folders": []}
    cache, folder, this = work / "cache", work / "folders", [sys.executable, str(Path(__file__))]
    cells: list[dict[str, object]] = []
    for number in range(rounds):
        shutil.rmtree(cache, ignore_errors=True)
        cost, cells = matrix(versions, cache)
        lines["cold"].append(cost)
        lines["warm"].append(matrix(versions, cache)[0])
        if not number:
            run([*this, "--versions", versions, "--prepare", str(folder)], cache)
        cost, out = run([*this, "--plan", str(folder)], cache)
        lines["folders"].append(cost)
        if json.loads(out) != {f"{cell['patch']} {cell['version']}": cell["state"] for cell in cells}:
            raise SystemExit("planning the folders gave other states than the matrix: the comparison is void")
    return lines, len({str(cell["patch"]) for cell in cells}), len({str(cell["version"]) for cell in cells})


def budgets_of(lines: dict[str, list[Cost]]) -> list[dict[str, object]]:
    """What issue 4 allows, and what was measured: the most bytes, medians of CPU."""
    cpu = {name: statistics.median(cost.cpu for cost in costs) for name, costs in lines.items()}
    moved = {name: max(cost.moved_bytes for cost in costs) for name, costs in lines.items()}
    found = [
        ("bytes of wheels moved, cold", moved["cold"], MOST_BYTES),
        ("bytes of wheels moved, warm", moved["warm"], 0),
        ("CPU cold / CPU of the folders", round(cpu["cold"] / cpu["folders"], 3), MOST_CPU),
        ("CPU warm / CPU of the folders", round(cpu["warm"] / cpu["folders"], 3), MOST_CPU),
    ]
    return [{"name": name, "value": value, "limit": limit, "kept": value <= limit} for name, value, limit in found]


def show(facts: dict[str, object], lines: dict[str, list[Cost]], budgets: list[dict[str, object]]) -> None:
    """The numbers for people."""
    print(", ".join(f"{key.replace('_', ' ')} {value}" for key, value in facts.items()))
    print(f"\n{'whole processes, medians':<30}{'moved':>12}{'requests':>10}{'CPU':>9}{'wall':>9}")
    for name, costs in lines.items():
        cpu, wall = (statistics.median(getattr(cost, kind) for cost in costs) for kind in ("cpu", "wall"))
        moved = f"{max(cost.moved_bytes for cost in costs) / 1e6:.1f} MB"
        print(f"{name:<30}{moved:>12}{max(cost.requests for cost in costs):>10}{cpu:>7.2f} s{wall:>7.2f} s")
    print()
    for budget in budgets:
        print(f"{'kept' if budget['kept'] else 'EXCEEDED':<9}{budget['name']}: {budget['value']} of {budget['limit']}")


def main() -> int:
    """Measure, show, and write the numbers."""
    parser = argparse.ArgumentParser(description="Measure the drift matrix against planning unpacked folders.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--versions", default=SPAN)
    parser.add_argument("--out", type=Path, default=ROOT / "bench/matrix.json")
    parser.add_argument("--check", action="store_true", help="exit 8 when a budget is exceeded")
    parser.add_argument("--prepare", type=Path, metavar="DIR", help=argparse.SUPPRESS)
    parser.add_argument("--plan", type=Path, metavar="DIR", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.prepare:
        prepare(options.versions, options.prepare)
        return 0
    if options.plan:
        plan_folders(options.plan)
        return 0
    if options.rounds < 1:
        parser.error("--rounds must be at least 1")
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="graftwork-bench-") as work:
        lines, patches, releases = measure(options.versions, options.rounds, Path(work).resolve())
    facts: dict[str, object] = {
        "patches": patches,
        "releases": releases,
        "rounds": options.rounds,
        "cores": len(os.sched_getaffinity(0)),
        "load_before": round(load, 2),
        "load_after": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
    }
    budgets = budgets_of(lines)
    show(facts, lines, budgets)
    costs = {name: [asdict(cost) for cost in found] for name, found in lines.items()}
    options.out.write_text(json.dumps({"facts": facts, "lines": costs, "budgets": budgets}, indent=2) + "\n", "utf-8")
    return 8 if options.check and not all(budget["kept"] for budget in budgets) else 0


if __name__ == "__main__":
    sys.exit(main())
