"""Time of `graftwork plan` and `graftwork --help` as cold processes, and memory of `graftwork image`.

``python bench/plan.py [--target T] [--rounds N] [--out FILE] [--check]``. All cases run in turn, round by round, so
that a busy moment of the machine falls on all of them. The numbers go to the screen and to bench/plan.json;
bench/README.md explains them. With --check it exits 8 when a budget is exceeded.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
GRAFTWORK = Path(sys.executable).parent / "graftwork"
PARSE = "import libcst, sys; [libcst.parse_module(open(file).read()) for file in sys.argv[1:]]"
MEMORY_ROUNDS = 3


@dataclass
class Case:
    """One thing to time: *commands* run one after the other. Times in seconds, memory in bytes."""

    name: str
    commands: list[list[str]]
    folder: Path
    seconds: list[float] = field(default_factory=list)
    peak: int = 0

    def run(self) -> float:
        """Run it once; the time it took."""
        began = time.perf_counter()
        for command in self.commands:
            self.peak = max(self.peak, peak_of(command, self.folder))
        return time.perf_counter() - began

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    def as_dict(self) -> dict[str, object]:
        return {
            "min_s": round(min(self.seconds), 4),
            "median_s": round(self.median, 4),
            "max_s": round(max(self.seconds), 4),
            "peak_rss_bytes": self.peak,
        }


@dataclass(frozen=True)
class Budget:
    """A limit: *value* and *limit* in *unit*."""

    name: str
    value: float
    limit: float
    unit: str

    @property
    def kept(self) -> bool:
        return self.value <= self.limit


def peak_of(command: list[str], folder: Path) -> int:
    """Run *command* in *folder*; the peak resident memory of it and its children in bytes. Exits if it fails."""
    environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(folder.parent)}
    with subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.DEVNULL) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"exit code {process.returncode}: {' '.join(command)}")
    return usage.ru_maxrss * 1024


def prepare(target: str, folder: Path) -> None:
    """Unpack the target's pinned wheel into *folder*: every file checked against RECORD, the wheel against its pin.

    Runs in a process of its own: a child's peak memory starts at that of the process that forked it.
    """
    from graftwork.catalog.catalog import Catalog, wheel_for
    from graftwork.names import sha256_hex
    from graftwork.trees.cache import Cache
    from graftwork.trees.index import PackageIndex
    from graftwork.trees.remote import WheelPin, open_wheel

    wanted = Catalog.find(ROOT).target(target)
    pin = wheel_for(wanted)
    with open_wheel(WheelPin(wanted.engine, pin.file, sha256_hex(pin.sha256)), Cache(), PackageIndex()) as wheel:
        for path in wheel.paths():
            file = folder / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(wheel.read(path))


def said(*arguments: str) -> str:
    """What graftwork prints for *arguments*."""
    command = [str(GRAFTWORK), *arguments, "--catalog", str(ROOT)]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


def measure(target: str, rounds: int, work: Path) -> tuple[dict[str, Case], Case]:
    """The timed cases by name, and the image build with a warm cache."""
    tree, diff = work / "tree", work / "patches.diff"
    subprocess.run([sys.executable, __file__, "--target", target, "--prepare", str(tree)], check=True)
    diff.write_text(said("plan", target, "--tree", str(tree), "--diff"), "utf-8")
    planned = json.loads(said("plan", target, "--tree", str(tree), "--quiet", "--json"))
    patched = [tree / file["path"] for file in planned["files"] if file["old_sha256"]]
    python = sys.executable
    parse = [python, "-c", PARSE, str(max(patched, key=lambda file: file.stat().st_size))]
    parse_all = [python, "-c", PARSE, *map(str, patched)]
    plan = [str(GRAFTWORK), "plan", target, "--tree", str(tree), "--quiet", "--catalog", str(ROOT)]
    cases = [
        Case("graftwork plan", [plan], tree),
        Case("import libcst, parse", [parse], tree),
        Case("import libcst, parse every file", [parse_all], tree),
        Case("git apply --check, then that parse", [["git", "apply", "--check", str(diff)], parse], tree),
        Case("graftwork --help", [[str(GRAFTWORK), "--help"]], tree),
        Case("python -c pass", [[python, "-c", "pass"]], tree),
    ]
    for number in range(-1, rounds):
        for case in cases[number % len(cases) :] + cases[: number % len(cases)]:
            seconds = case.run()
            if number >= 0:  # the round before the first warms the disk cache and the bytecode
                case.seconds.append(seconds)
    command = [str(GRAFTWORK), "image", target, "--dist", str(work / "dist"), "--catalog", str(ROOT)]
    image = Case("graftwork image, warm cache", [command], work)
    image.run()
    image.peak = 0
    image.seconds = [image.run() for _ in range(MEMORY_ROUNDS)]
    return {case.name: case for case in cases}, image


def budgets(cases: dict[str, Case], image: Case) -> list[Budget]:
    """What issue 2 allows, and what was measured (medians)."""
    plan, parse = cases["graftwork plan"], cases["import libcst, parse"]
    shown, bare = cases["graftwork --help"], cases["python -c pass"]
    return [
        Budget("graftwork plan / import libcst, parse", plan.median / parse.median, 1.5, "x"),
        Budget("graftwork --help (limit: 2 x python -c pass + 0.1 s)", shown.median, 2 * bare.median + 0.1, "s"),
        Budget("peak memory of graftwork image, warm cache", image.peak / 1e6, 200, "MB"),
    ]


def facts(target: str, rounds: int, load: float) -> dict[str, object]:
    """What the numbers depend on; no name of a machine."""
    import importlib.metadata

    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text("utf-8").splitlines() if cpuinfo.is_file() else []
    model = next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine()
    )
    git = subprocess.run(["git", "--version"], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    return {
        "target": target,
        "rounds": rounds,
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)),
        "load_before": round(load, 2),
        "load_after": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "libcst": importlib.metadata.version("libcst"),
        "git": git.removeprefix("git version "),
    }


def show(found: dict[str, object], cases: dict[str, Case], image: Case, limits: list[Budget]) -> None:
    """The numbers for people."""
    print(", ".join(f"{key.replace('_', ' ')} {value}" for key, value in found.items()))
    print(f"\n{'whole cold processes':<36}{'min':>9}{'median':>9}{'max':>9}{'memory':>10}")
    for case in [*cases.values(), image]:
        times = "".join(f"{value * 1000:>6.0f} ms" for value in (min(case.seconds), case.median, max(case.seconds)))
        print(f"{case.name:<36}{times}{case.peak / 1e6:>7.0f} MB")
    plan = cases["graftwork plan"]
    for name in ("import libcst, parse", "import libcst, parse every file", "git apply --check, then that parse"):
        low = min(plan.seconds) / min(cases[name].seconds)
        print(f"\ngraftwork plan / {name}: {low:.2f} (min), {plan.median / cases[name].median:.2f} (median)", end="")
    print("\n")
    for limit in limits:
        word = "kept" if limit.kept else "EXCEEDED"
        print(f"{word:<9}{limit.name}: {limit.value:.3g} {limit.unit} of {limit.limit:.3g} {limit.unit}")


def main() -> int:
    """Measure, show, and write the numbers."""
    parser = argparse.ArgumentParser(description="Measure planning against git apply and libcst.")
    parser.add_argument("--target", default="rocm-gfx950")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out", type=Path, default=ROOT / "bench/plan.json")
    parser.add_argument("--check", action="store_true", help="exit 8 when a budget is exceeded")
    parser.add_argument("--prepare", type=Path, metavar="DIR", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rounds < 1:
        parser.error("--rounds must be at least 1")
    if options.prepare:
        prepare(options.target, options.prepare)
        return 0
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="graftwork-bench-") as work:
        cases, image = measure(options.target, options.rounds, Path(work).resolve())
    limits, found = budgets(cases, image), facts(options.target, options.rounds, load)
    show(found, cases, image, limits)
    document = {
        "facts": found,
        "cases": {case.name: case.as_dict() for case in [*cases.values(), image]},
        "budgets": [
            {"name": b.name, "value": round(b.value, 4), "limit": round(b.limit, 4), "unit": b.unit, "kept": b.kept}
            for b in limits
        ],
    }
    options.out.write_text(json.dumps(document, indent=2) + "\n", "utf-8")
    return 8 if options.check and not all(limit.kept for limit in limits) else 0


if __name__ == "__main__":
    sys.exit(main())
