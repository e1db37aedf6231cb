"""The deployment as data: what is written is read back, and what refers to nothing is refused."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from graftwork.errors import UsageError
from graftwork.launch.deployment import Bounds, Component, Deployment, Node, Ready, check, parse_json, render_json
from graftwork.launch.placeholders import PlaceholderError, escape, fill, placeholders


def made(*components: Component, **other: Any) -> Deployment:
    fields: dict[str, Any] = {
        "name": "d",
        "engine": "sglang",
        "version": "0.5.16",
        "nodes": 1,
        "node": Node(gpus=8, memory_gib=100),
        "components": list(components),
        "bounds": Bounds(engine_s=1, drain_s=2, lead_s=3),
    }
    return Deployment(**{**fields, **other})


ENGINE = Component(name="prefill-0", role="prefill", node=0, argv=["run", "{port:http}"], ports={"http": 1})


def test_read_back() -> None:
    deployment = made(ENGINE)
    assert parse_json(render_json(deployment), "here") == deployment


def test_spoiled_or_unknown_is_refused() -> None:
    with pytest.raises(UsageError, match="here: not a deployment"):
        parse_json(render_json(made(ENGINE)).replace(b'"argv"', b'"arg"'), "here")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"argv": ["{port:other}"]}, "refers to nothing"),
        ({"argv": ["{port:store/rpc}"]}, "refers to nothing"),
        ({"env": {"A": "{host:1}"}}, "refers to nothing"),
        ({"env": {"A": "{host:x}"}}, "refers to nothing"),
        ({"files": {"a": "{"}}, "not a placeholder"),
        ({"argv": ["{home}"]}, "not a placeholder"),
        ({"node": 1}, "node 1 of 1"),
        ({"ready": Ready(kind="tcp", port="x")}, "no port 'x'"),
        ({"fixed": {"x": 8000}}, "no port 'x' can be 8000"),
        ({"fixed": {"http": 0}}, "no port 'http' can be 0"),
        ({"fixed": {"http": 65535}, "ports": {"http": 2}}, "no port 'http' can be 65535"),
    ],
)
def test_what_refers_to_nothing_is_refused(change: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        check(made(msgspec.structs.replace(ENGINE, **change)))


def test_names_are_unique() -> None:
    with pytest.raises(UsageError, match="component named twice: prefill-0"):
        check(made(ENGINE, ENGINE))


def test_a_port_of_a_node_is_given_once() -> None:
    one = msgspec.structs.replace(ENGINE, ports={"http": 4}, fixed={"http": 8000})
    two = msgspec.structs.replace(ENGINE, name="two", fixed={"http": 8003})
    with pytest.raises(UsageError, match="port 8003 of node 0 is given to prefill-0/http and to two/http"):
        check(made(one, two))
    check(made(one, msgspec.structs.replace(two, node=1), nodes=2))


def test_started_from_the_store_to_the_router() -> None:
    parts = [("router", 0), ("prefill-0", 1), ("store", 2), ("prefill-1", 1)]
    deployment = made(*(msgspec.structs.replace(ENGINE, name=name, order=order) for name, order in parts))
    assert [c.name for c in deployment.on_node(0)] == ["store", "prefill-0", "prefill-1", "router"]


def test_fill() -> None:
    text = "a {port:http} {port:store/rpc} {host:1} {run}/x {tmp} {cache} {nics} " + escape('{"a":{"b":1}}')
    assert fill(text, lambda kind, name: f"<{kind} {name}>") == (
        'a <port http> <port store/rpc> <host 1> <run >/x <tmp > <cache > <nics > {"a":{"b":1}}'
    )
    assert placeholders("{{{port:a}}}") == [("port", "a")]
    assert fill("{{{port:a}}}", lambda kind, name: "7") == "{7}"


@pytest.mark.parametrize("text", ["{", "}", "{port}", "{run:x}", "{port:}", "{Port:a}", "{{}", "{}"])
def test_fill_refuses(text: str) -> None:
    with pytest.raises(PlaceholderError):
        fill(text, lambda kind, name: "")
