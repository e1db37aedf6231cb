"""The pod of one node: containers in the order in which they start, their probes, devices and mounts."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from graftwork.launch.deployment import STOP_ENGINES, Component, Deployment
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
    if deployment.image.target or cluster.way != "grafted":  # of a stock image nothing has to be proved
        first.append(_self_check(deployment, cluster, mounts))
    orders = sorted({part.order for part in parts}, reverse=True)
    containers: list[Json] = []
    together: list[Component] = []
    for order in orders:
        waits = _waits(deployment, plan, names, node, order, together)
        if waits:
            first.append(_helper(deployment, cluster, f"wait-{order}", waits, []))
        here = [part for part in parts if part.order == order]
        containers = [_container(deployment, cluster, names, part, mounts) for part in here]
        if order == orders[-1]:
            break
        if order == STOP_ENGINES and len(here) > 1:
            # Ranks of one engine need each other: a startup probe would hold back the second until the first is ready.
            together = here
            for container in containers:
                container.pop("startupProbe", None)
        first += [{**container, "restartPolicy": "Always"} for container in containers]
    return {
        # A program that is the first process of its container ignores a SIGTERM that it does not handle.
        "shareProcessNamespace": True,
        # Else a service called vllm would set VLLM_PORT to something that vLLM takes for its own.
        "enableServiceLinks": False,
        "initContainers": first,
        "containers": containers,
        "volumes": _volumes(cluster, names),
    }


def _container(deployment: Deployment, cluster: Cluster, names: Names, part: Component, mounts: list[Json]) -> Json:
    env = {**cluster.env, **{name: names.fill(part, value) for name, value in part.env.items()}}
    limits = {cluster.gpu: str(len(part.gpus))} if part.gpus else {}
    if part.gpus and cluster.rdma:
        limits[cluster.rdma] = "1"
    own = [{"name": "tmp", "mountPath": f"{TMP}/{part.name}", "subPath": part.name}]
    if part.ready.kind == "unix":
        own.append({"name": "files", "mountPath": _FILES})  # its probe is a script
    found: Json = {
        "name": part.name,
        "image": cluster.image,
        "command": [_literal(names.fill(part, argument)) for argument in part.argv],
        "env": [{"name": name, "value": _literal(value)} for name, value in sorted(env.items())],
        "ports": [{"containerPort": names.port(part.name, port)} for port in part.ports],
        "volumeMounts": [*mounts, *own],
        **_probes(names, part, deployment.image.interpreter),
    }
    if limits:
        found["resources"] = {"limits": limits}
    if part.gpus and cluster.rdma:
        found["securityContext"] = {"capabilities": {"add": ["IPC_LOCK"]}}  # memory is pinned for the transfers
    return found


def _literal(text: str) -> str:
    """*text* for a command or a variable, in which Kubernetes would replace ``$(NAME)`` and halve ``$$``."""
    return text.replace("$", "$$")


def _probes(names: Names, part: Component, interpreter: str) -> Json:
    """Ready when it serves. No liveness probe: an engine that is busy must not be killed for it."""
    ready = part.ready
    if ready.kind == "none":
        return {}
    if ready.kind == "http":
        how: Json = {"httpGet": {"path": names.fill(part, ready.path), "port": names.port(part.name, ready.port)}}
    elif ready.kind == "tcp":
        how = {"tcpSocket": {"port": names.port(part.name, ready.port)}}
    else:
        ask = [interpreter, _script("wait"), "0", _place(names, part, "")]
        how = {"exec": {"command": [_literal(word) for word in ask]}, "timeoutSeconds": _STARTUP_S}
    tries = math.ceil(ready.bound_s / _STARTUP_S)
    return {
        "startupProbe": {**how, "periodSeconds": _STARTUP_S, "failureThreshold": tries},
        "readinessProbe": {**how, "periodSeconds": _READY_S},
    }


def _place(names: Names, part: Component, host: str) -> str:
    """What scripts/wait.py asks to see whether *part*, which runs on *host*, serves."""
    if part.ready.kind == "unix":
        return f"unix:{names.fill(part, part.ready.path)}"
    there = f"{host}:{names.port(part.name, part.ready.port)}"
    return there if part.ready.kind == "tcp" else f"http://{there}{names.fill(part, part.ready.path)}"


def _script(name: str) -> str:
    return f"{_FILES}/{name}.py"


def _self_check(deployment: Deployment, cluster: Cluster, mounts: list[Json]) -> Json:
    """No pod becomes ready, and nothing in it starts, before the image's own Python has proved the patches."""
    return {
        "name": "self-check",
        "image": cluster.image,
        "command": [deployment.image.interpreter, CHECK],
        "volumeMounts": mounts,
    }


def _helper(deployment: Deployment, cluster: Cluster, name: str, arguments: list[str], mounts: list[Json]) -> Json:
    program = _script(name.partition("-")[0])
    return {
        "name": name,
        "image": cluster.image,
        "command": [deployment.image.interpreter, program, *arguments],
        "volumeMounts": [{"name": "files", "mountPath": _FILES}, *mounts],
    }


def _waits(
    deployment: Deployment, plan: Plan, names: Names, node: int, order: int, together: list[Component]
) -> list[str]:
    """(bound in seconds, places...) of what must serve before *order* starts here; or nothing.

    That is what it needs in other pods, and of its own pod what was started *together*. A Unix socket is no use to
    another pod.
    """
    wanted = {name for part in plan.on(node) if part.order == order for name in plan.needs(part)}
    needed = [part for part in deployment.components if part.name in wanted and part.node != node]
    places = [(part, names.host(part.node)) for part in needed if part.ready.kind in ("http", "tcp")]
    places += [(part, "127.0.0.1") for part in together if part.ready.kind != "none"]
    if not places:
        return []
    bound = max(part.ready.bound_s for part, _ in places)
    return [str(bound), *sorted(_place(names, part, host) for part, host in places)]


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
