"""Blocks of ports: where they come from, what holds them, and ten legs that start at once."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from multiprocessing.sharedctypes import SynchronizedArray
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest

from graftwork.launch import ports
from graftwork.launch.ports import NODEPORTS, NoFreePorts, chosen_block, default_window, free_block, nodeports

# One worker for all of them: legs that take blocks at random would meet the ports of a test beside them.
pytestmark = pytest.mark.xdist_group("ports")

LEGS, ROUNDS = 10, 1000


@pytest.fixture
def near() -> Iterator[range]:
    """Twenty ports that are free now: a block gives them back just before."""
    with free_block(20) as block:
        found = block.ports
    yield found


def listening(port: int, host: str = "127.0.0.1") -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind((host, port))
    sock.listen()
    return sock


def test_a_block_lies_below_the_ephemeral_range_and_outside_the_nodeports() -> None:
    ephemeral = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    with free_block(8) as block:
        assert len(block.ports) == 8
        assert block.ports.start >= 1024 and block.ports[-1] < ephemeral
        assert not set(block.ports) & (set(NODEPORTS) | ports.DEFAULTS)


def test_starts_are_random() -> None:
    starts = set()
    for _ in range(5):
        with free_block(2) as block:
            starts.add(block.base)
    assert len(starts) > 1


def test_the_ports_are_held_until_they_are_handed_over(near: range) -> None:
    with free_block(3, window=near) as block:
        for port in block.ports:
            with pytest.raises(OSError):
                listening(port)
        for port in block.hand_over():
            listening(port).close()


def test_after_the_hand_over_another_block_still_keeps_away(near: range) -> None:
    with free_block(20, window=near) as block:
        block.hand_over()
        with pytest.raises(NoFreePorts):
            free_block(1, window=near)
    with free_block(1, window=near) as after:
        assert after.base in near


def test_the_probe_is_made_on_the_address_that_will_be_bound(near: range) -> None:
    one = range(near.start, near.start + 1)
    taken = listening(near.start, "127.0.0.2")
    try:
        with free_block(1, "127.0.0.1", window=one):
            pass
        with pytest.raises(NoFreePorts, match=r"0\.0\.0\.0"):
            free_block(1, "0.0.0.0", window=one)
    finally:
        taken.close()


def test_a_block_that_fails_on_its_last_port_leaves_nothing_behind(near: range) -> None:
    taken = listening(near[-1], "0.0.0.0")
    try:
        with pytest.raises(NoFreePorts):
            free_block(20, window=near)
        with free_block(19, window=near) as block:
            assert block.base == near.start
    finally:
        taken.close()


@pytest.mark.skipif(not socket.has_ipv6 or not Path("/proc/net/if_inet6").exists(), reason="this machine has no IPv6")
def test_an_address_of_the_other_family() -> None:
    with free_block(2, "::1") as block:
        assert len(block.ports) == 2


@pytest.mark.parametrize(
    ("text", "window"),
    [
        ("31000-31010", range(31000, 31011)),
        ("none", range(0)),
        (" OFF ", range(0)),
        ("", NODEPORTS),
        ("garbage", NODEPORTS),
        ("31000", NODEPORTS),
        ("9-5", NODEPORTS),
        ("0-70000", NODEPORTS),
    ],
)
def test_the_nodeport_window(text: str, window: range) -> None:
    assert nodeports(text) == window


def test_the_variable_moves_the_nodeport_window(near: range, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ports.NODEPORT_VARIABLE, f"{near.start}-{near[-1]}")
    with pytest.raises(NoFreePorts, match=f"{near.start}-{near[-1]}"):
        free_block(1, window=near)


def test_ports_that_the_host_reserves_are_left_alone(near: range, monkeypatch: pytest.MonkeyPatch) -> None:
    said = {"ip_local_reserved_ports": [f"{near.start}-{near[-2]}"]}
    monkeypatch.setattr(ports, "_proc_words", lambda name: said.get(name, []))
    with free_block(1, window=near) as block:
        assert block.base == near[-1]
    assert default_window() == range(1024, 32768)


def test_no_block_of_nothing() -> None:
    with pytest.raises(ValueError, match="at least one"):
        free_block(0)


def leg(place: int, window: range | None, count: int, bases: SynchronizedArray[int], barrier: Barrier) -> None:
    """One of the legs: each round it takes a block, says which, binds it as an engine would, and gives it back."""
    for _ in range(len(bases) // LEGS):
        with free_block(count, window=window) as block:
            bases[_ * LEGS + place] = block.base
            barrier.wait(120)
            bound = [listening(port, "0.0.0.0") for port in block.hand_over()]
            barrier.wait(120)
            for sock in bound:
                sock.close()
        barrier.wait(120)


def run_legs(window: range | None, count: int, rounds: int) -> list[list[int]]:
    """The bases of *rounds* rounds of ten processes that start at once; a leg that fails fails the test."""
    context = multiprocessing.get_context("fork")
    bases = context.Array("i", LEGS * rounds)
    barrier = context.Barrier(LEGS)
    legs = [context.Process(target=leg, args=(n, window, count, bases, barrier)) for n in range(LEGS)]
    for process in legs:
        process.start()
    for process in legs:
        process.join()
    assert [process.exitcode for process in legs] == [0] * LEGS
    return [list(bases[start : start + LEGS]) for start in range(0, LEGS * rounds, LEGS)]


def test_a_chosen_block_is_kept_from_others_and_not_bound(near: range) -> None:
    with free_block(2, window=near) as block:
        base = block.base
        with pytest.raises(NoFreePorts, match="another deployment"):
            chosen_block(base, 1)
    with chosen_block(base, 2) as chosen, socket.socket() as child:
        assert chosen.hand_over() == range(base, base + 2)
        child.bind(("0.0.0.0", base))
        with pytest.raises(NoFreePorts):
            free_block(1, window=range(base, base + 2))


def test_ten_legs_at_once_never_collide() -> None:
    for bases in run_legs(None, 4, ROUNDS):
        taken = [port for base in bases for port in range(base, base + 4)]
        assert len(set(taken)) == len(taken)


def test_ten_legs_in_a_window_that_is_almost_full(near: range) -> None:
    for bases in run_legs(near[:11], 1, ROUNDS // 10):
        assert len(set(bases)) == LEGS


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="needs root to make a network namespace")
def test_a_network_namespace_with_none_free() -> None:
    code = "from graftwork.launch.ports import free_block; free_block(2)"
    settings = "/proc/sys/net/ipv4/ip_local_port_range"
    inside = f'echo "1025 60999" > {settings}; exec "{sys.executable}" -c "{code}"'
    done = subprocess.run(["unshare", "-n", "sh", "-c", inside], capture_output=True, text=True, check=False)
    if "unshare failed" in done.stderr:
        pytest.skip(f"this machine makes no network namespaces: {done.stderr.strip()}")
    assert done.returncode == 1
    assert "NoFreePorts: no 2 consecutive free ports on 0.0.0.0 in 1024-1024" in done.stderr
