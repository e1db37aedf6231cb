"""What the graft bench counts is what happened."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from counting import Counter, counting
from services import Registry, Unavailable, registry, runs

pytestmark = pytest.mark.registry


@pytest.fixture
def meter(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "bench"))
    import meter

    found: ModuleType = meter
    return found


@pytest.fixture
def local(tmp_path: Path) -> Iterator[tuple[Registry, Counter]]:
    try:
        with registry(tmp_path / "registry") as found, counting(found.host) as door:
            yield found, door
    except Unavailable as error:
        pytest.skip(str(error))


def python(code: str) -> list[str]:
    return [sys.executable, "-S", "-c", code]


def test_bytes_requests_memory_and_disk(meter: ModuleType, local: tuple[Registry, Counter], tmp_path: Path) -> None:
    found, door = local
    ask = f"import urllib.request as u; u.urlopen('http://{door.host}/v2/').read()"
    # The grandchild holds the memory, so that only a look at the whole tree can see it.
    inner = "b = bytes([1]) * (300 << 20)"
    hold = f"import subprocess, sys; subprocess.run([sys.executable, '-S', '-c', {inner!r}])"
    (tmp_path / "way").mkdir()
    write = "open('made', 'wb').write(bytes([1]) * (5 << 20))"
    result = meter.measure(
        "three steps", [python(ask), python(hold), python(write)], registry=found, door=door, folder=tmp_path / "way"
    )
    assert not result.failed and result.requests == 1 and len(result.steps) == 3
    assert 100 < result.received < 2000 and 50 < result.sent < 1000
    assert 300 << 20 < result.memory < 2 << 30  # a fork that has not yet become its program counts twice
    assert 5 << 20 <= result.disk < 6 << 20
    assert result.seconds == pytest.approx(sum(result.steps.values()))


def test_a_way_that_fails_is_not_a_figure(meter: ModuleType, local: tuple[Registry, Counter], tmp_path: Path) -> None:
    found, door = local
    ways = [python("import sys; sys.exit('no space')"), python("open('later', 'w')")]
    result = meter.measure("failing", ways, registry=found, door=door, folder=tmp_path)
    assert "exit code 1" in result.failed and "no space" in result.failed
    assert not (tmp_path / "later").exists()


def test_a_way_that_hangs_is_stopped_with_its_children(
    meter: ModuleType, local: tuple[Registry, Counter], tmp_path: Path
) -> None:
    found, door = local
    inner = "import os, pathlib, time; pathlib.Path('inner').write_text(str(os.getpid())); time.sleep(600)"
    outer = f"import subprocess, sys; subprocess.run([sys.executable, '-S', '-c', {inner!r}])"
    result = meter.measure("hanging", [python(outer)], registry=found, door=door, folder=tmp_path, timeout=3)
    assert "the time was over" in result.failed
    pid = int((tmp_path / "inner").read_text())
    end = time.monotonic() + 30  # it is told to end, and does so when it is its turn
    while runs(pid) and time.monotonic() < end:
        time.sleep(0.05)
    assert not runs(pid)


def test_disk_counts_hard_links_once_and_holes_not_at_all(meter: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(os.urandom(1 << 20))
    os.link(tmp_path / "one", tmp_path / "two")
    with (tmp_path / "holes").open("wb") as file:
        file.truncate(1 << 30)
    assert 1 << 20 <= meter.disk_of(tmp_path) < 2 << 20
