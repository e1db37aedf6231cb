"""A deployment as Kubernetes manifests: a stateful set for each node, and what its pods share.

Every node of the deployment is one pod with a stable name, so what Slurm's nodes find out while they start is known
here: a pod has an address of its own, hence fixed ports, and a DNS name. Native sidecars (Kubernetes 1.29 and later)
give the order: what stops last is started first. Source: kubernetes.io/docs, 'Sidecar Containers'.
"""

from __future__ import annotations

import base64
import hashlib
import json
from importlib import resources
from pathlib import Path
from typing import Any

from graftwork.errors import UsageError
from graftwork.launch.deployment import Deployment
from graftwork.launch.kubernetes.cluster import Cluster
from graftwork.launch.kubernetes.names import Names
from graftwork.launch.kubernetes.pod import pod
from graftwork.launch.node.board import write_whole

Json = dict[str, Any]
CONFIG_MAP_LIMIT = 1 << 20  # bytes; Kubernetes refuses more
SCRIPTS = ("wait.py", "unpack.py")
# A pod is killed this much after the drain's own bound at the earliest: its last words must get out.
GRACE_MARGIN_S = 30


def manifests(deployment: Deployment, cluster: Cluster) -> Json:
    """All objects of *deployment* as one ``List``. UsageError where a name or a map is too long."""
    names = Names.of(deployment)
    config = _config_map(deployment, cluster, names)
    digest = hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()
    sets = [
        _stateful_set(deployment, names, node, pod(deployment, cluster, names, node), digest)
        for node in range(deployment.nodes)
    ]
    objects = [config, _peers(names), *_front(deployment, names), *sets]
    for item in objects:
        if cluster.namespace:
            item["metadata"]["namespace"] = cluster.namespace
    return {"apiVersion": "v1", "kind": "List", "items": objects}


def write(deployment: Deployment, folder: Path, cluster: Cluster) -> Path:
    """Write ``kubernetes.json`` into *folder*, in one step; ``kubectl apply -f`` takes it. Returns the file."""
    file = folder / "kubernetes.json"
    text = json.dumps(manifests(deployment, cluster), indent=2) + "\n"
    try:
        write_whole(file, text)
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror}", hint="choose another --out folder") from None
    return file


def script(name: str) -> str:
    """A script that pods run, as it is shipped."""
    return (resources.files("graftwork") / "launch/kubernetes/scripts" / name).read_text("utf-8")


def _config_map(deployment: Deployment, cluster: Cluster, names: Names) -> Json:
    """The scripts, the components' files with their placeholders filled in, and for ``init`` the payload's layer."""
    data = {name: script(name) for name in SCRIPTS}
    for component in deployment.components:
        for path, text in component.files.items():
            data[names.key(path)] = names.fill(component, text)
    found: Json = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": names.config, "labels": names.labels()},
        "data": data,
    }
    if cluster.way == "init" and cluster.payload is not None:
        found["binaryData"] = {"payload.tar.gz": base64.b64encode(cluster.payload.compressed()).decode()}
    size = len(json.dumps(found))
    if size > CONFIG_MAP_LIMIT:
        raise UsageError(
            f"the config map would have {size} bytes, Kubernetes takes {CONFIG_MAP_LIMIT}",
            hint="graft the image, or mount the payload as an image volume",
        )
    return found


def _peers(names: Names) -> Json:
    """The headless service that gives each pod its name; also before it is ready, as peers start together."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": names.peers, "labels": names.labels()},
        "spec": {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": names.labels()},
    }


def _front(deployment: Deployment, names: Names) -> list[Json]:
    """A service for each router, under the name of the deployment (and of the router, where there are several)."""
    routers = [part for part in deployment.components if part.role == "router" and part.ready.kind != "none"]
    return [
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {
                "name": names.name if len(routers) == 1 else f"{names.name}-{part.name}",
                "labels": names.labels(),
            },
            "spec": {
                "selector": names.labels(part.node),
                "ports": [{"name": "http", "port": 80, "targetPort": names.port(part.name, part.ready.port)}],
            },
        }
        for part in routers
    ]


def _stateful_set(deployment: Deployment, names: Names, node: int, pod: Json, digest: str) -> Json:
    grace = deployment.bounds.drain_s + GRACE_MARGIN_S
    template = {
        "metadata": {"labels": names.labels(node), "annotations": {"graftwork/config-sha256": digest}},
        "spec": {"terminationGracePeriodSeconds": grace, **pod},
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": names.pod_set(node), "labels": names.labels(node)},
        "spec": {
            "replicas": 1,
            "serviceName": names.peers,
            "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": names.labels(node)},
            "template": template,
        },
    }
