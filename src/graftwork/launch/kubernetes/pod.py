"""The pod of one node: containers in the order in which they start, their probes, devices and mounts."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from graftwork.launch.deployment import Component, Deployment
from graftwork.launch.kubernetes.cluster import Cluster
from graftwork.launch.kubernetes.names import CACHE, RUN, TMP, Names
from graftwork.launch.kubernetes.payload import FOLDER
from graftwork.launch.node.plan import Plan, parse

Json = dict[str, Any]
CHECK = f"/{FOLDER}/check.py"
_FILES, _PAYLOAD = "/graftwork/files", "/graftwork/payload"
_STARTUP_S, _READY_S = 5, 10


def pod(deployment: Deployment, cluster: Cluster, names: Names, node: int) -> Json:
    """The spec of *node*'s pod, but for its grace period.

    Components that stop first are its containers; those that stop later are sidecars, in the order of their start.
    Before each order stands a container that waits for what other pods must have ready.
    """
    plan = parse(msgspec.to_builtins(deployment))
    parts = sorted(deployment.on_node(node), key=lambda part: part.role != "store-master")
    mounts = [*_shared_mounts(deployment, names), *_payload_mounts(cluster)]
    first: list[Json] = []
    if cluster.way == "init":
        unpacked = [{"name": "payload", "mountPath": _PAYLOAD}]
        first.append(_helper(deployment, cluster, "unpack", [f"{_FILES}/payload.tar.gz", _PAYLOAD], unpacked))
    first.append(_self_check(deployment, cluster, mounts))
    orders = sorted({part.order for part in parts}, reverse=True)
    containers: list[Json] = []
    for order in orders:
        waits = _waits(plan, names, node, order)
        if waits:
            first.append(_helper(deployment, cluster, f"wait-{order}", waits, []))
        made = [_container(cluster, names, part, mounts) for part in parts if part.order == order]
        if order == orders[-1]:
            containers = made
        else:
            first += [{**container, "restartPolicy": "Always"} for container in made]
    return {
        # A program that is the first process of its container ignores a SIGTERM that it does not handle.
        "shareProcessNamespace": True,
        "initContainers": first,
        "containers": containers,
        "volumes": _volumes(cluster, names),
    }


def _container(cluster: Cluster, names: Names, part: Component, mounts: list[Json]) -> Json:
    env = {**cluster.env, **{name: names.fill(part, value) for name, value in part.env.items()}}
    limits = {cluster.gpu: str(len(part.gpus))} if part.gpus else {}
    if part.gpus and cluster.rdma:
        limits[cluster.rdma] = "1"
    own = {"name": "tmp", "mountPath": f"{TMP}/{part.name}", "subPath": part.name}
    found: Json = {
        "name": part.name,
        "image": cluster.image,
        "command": [names.fill(part, argument) for argument in part.argv],
        "env": [{"name": name, "value": value} for name, value in sorted(env.items())],
        "ports": [{"containerPort": names.port(part.name, port)} for port in part.ports],
        "volumeMounts": [*mounts, own],
        **_probes(names, part),
    }
    if limits:
        found["resources"] = {"limits": limits}
    if part.gpus and cluster.rdma:
        found["securityContext"] = {"capabilities": {"add": ["IPC_LOCK"]}}  # memory is pinned for the transfers
    return found


def _probes(names: Names, part: Component) -> Json:
    """Ready when it serves. No liveness probe: an engine that is busy must not be killed for it."""
    if part.ready.kind == "none":
        return {}
    port = names.port(part.name, part.ready.port)
    if part.ready.kind == "http":
        how: Json = {"httpGet": {"path": names.fill(part, part.ready.path), "port": port}}
    else:
        how = {"tcpSocket": {"port": port}}
    tries = math.ceil(part.ready.bound_s / _STARTUP_S)
    return {
        "startupProbe": {**how, "periodSeconds": _STARTUP_S, "failureThreshold": tries},
        "readinessProbe": {**how, "periodSeconds": _READY_S},
    }


def _self_check(deployment: Deployment, cluster: Cluster, mounts: list[Json]) -> Json:
    """No pod becomes ready, and nothing in it starts, before the image's own Python has proved the patches."""
    return {
        "name": "self-check",
        "image": cluster.image,
        "command": [deployment.image.interpreter, CHECK],
        "volumeMounts": mounts,
    }


def _helper(deployment: Deployment, cluster: Cluster, name: str, arguments: list[str], mounts: list[Json]) -> Json:
    program = f"{_FILES}/{name.partition('-')[0]}.py"
    return {
        "name": name,
        "image": cluster.image,
        "command": [deployment.image.interpreter, program, *arguments],
        "volumeMounts": [{"name": "files", "mountPath": _FILES}, *mounts],
    }


def _waits(plan: Plan, names: Names, node: int, order: int) -> list[str]:
    """(bound in seconds, host:port...) of what must listen in other pods before *order* starts here; or nothing."""
    wanted = {name for part in plan.on(node) if part.order == order for name in plan.needs(part)}
    needed = [part for part in plan.parts if part.name in wanted and part.node != node and part.ready["port"]]
    if not needed:
        return []
    places = [f"{names.host(part.node)}:{names.port(part.name, part.ready['port'])}" for part in needed]
    return [str(max(part.ready["bound_s"] for part in needed)), *sorted(places)]


def _shared_mounts(deployment: Deployment, names: Names) -> list[Json]:
    files = [path for part in deployment.components for path in part.files]
    return [
        {"name": "run", "mountPath": RUN},
        *({"name": "files", "mountPath": f"{RUN}/{path}", "subPath": names.key(path)} for path in files),
        {"name": "cache", "mountPath": CACHE},
        {"name": "shm", "mountPath": "/dev/shm"},
    ]


def _payload_mounts(cluster: Cluster) -> list[Json]:
    """The mounts of the cluster's own folders, and where the base is not grafted, of every file of the payload."""
    found: list[Json] = [{"name": f"mount-{n}", "mountPath": mount.path} for n, mount in enumerate(cluster.mounts)]
    if cluster.way == "grafted" or cluster.payload is None:
        return found
    for path in (*cluster.payload.files, f"/{FOLDER}"):
        found.append({"name": "payload", "mountPath": path, "subPath": path.lstrip("/"), "readOnly": True})
    for number, folder in enumerate(cluster.payload.bytecode_folders):
        found.append({"name": "bytecode", "mountPath": folder, "subPath": str(number)})
    return found


def _volumes(cluster: Cluster, names: Names) -> list[Json]:
    found: list[Json] = [
        {"name": "files", "configMap": {"name": names.config}},
        *({"name": name, "emptyDir": {}} for name in ("run", "tmp", "cache")),
        {"name": "shm", "emptyDir": {"medium": "Memory"}},
    ]
    found += [mount.volume(f"mount-{number}") for number, mount in enumerate(cluster.mounts)]
    if cluster.way != "grafted":
        image = {"image": {"reference": cluster.payload_image}}
        found.append({"name": "payload", **(image if cluster.way == "volume" else {"emptyDir": {}})})
        found.append({"name": "bytecode", "emptyDir": {}})
    return found
