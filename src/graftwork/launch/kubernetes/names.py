"""Names, addresses and ports of a deployment in Kubernetes, and the placeholders that they fill in."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from graftwork.errors import UsageError
from graftwork.launch.deployment import Component, Deployment
from graftwork.launch.placeholders import fill

# A pod's ports are its own: any start will do that is no usual default.
FIRST_PORT = 21000
RUN, TMP, CACHE = "/graftwork/run", "/graftwork/tmp", "/graftwork/cache"
_LONGEST = 63 - len("-n000-0")  # a pod's name is a DNS label


@dataclass(frozen=True)
class Names:
    """*name* of the deployment, and its ports by ``COMPONENT/PORT``."""

    name: str
    ports: Mapping[str, int]

    @classmethod
    def of(cls, deployment: Deployment) -> Names:
        """Ports are numbered in each pod anew. UsageError for a name that is too long for a pod."""
        if len(deployment.name) > _LONGEST:
            raise UsageError(f"{deployment.name}: longer than the {_LONGEST} characters that a pod's name leaves")
        ports: dict[str, int] = {}
        for node in range(deployment.nodes):
            here = [part for part in deployment.components if part.node == node]
            chosen = [range(base, base + part.ports[name]) for part in here for name, base in part.fixed.items()]
            following = FIRST_PORT
            for component in here:
                for port, count in component.ports.items():
                    while taken := [
                        each for each in chosen if each.start < following + count and following < each.stop
                    ]:
                        following = taken[0].stop
                    ports[f"{component.name}/{port}"] = component.fixed.get(port, following)
                    following += count if port not in component.fixed else 0
        return cls(deployment.name, ports)

    @property
    def config(self) -> str:
        return f"{self.name}-files"

    @property
    def peers(self) -> str:
        return f"{self.name}-peers"

    def pod_set(self, node: int) -> str:
        return f"{self.name}-n{node}"

    def host(self, node: int) -> str:
        """The DNS name of a node's pod, from within the namespace."""
        return f"{self.pod_set(node)}-0.{self.peers}"

    def labels(self, node: int | None = None) -> dict[str, str]:
        """The labels of everything, or of one node's pod."""
        found = {"app.kubernetes.io/name": self.name, "app.kubernetes.io/managed-by": "graftwork"}
        return found if node is None else {**found, "app.kubernetes.io/component": f"node-{node}"}

    def port(self, component: str, name: str) -> int:
        return self.ports[name if "/" in name else f"{component}/{name}"]

    def key(self, path: str) -> str:
        """The config map's key for a file below ``{run}``; keys have no slashes. Distinct paths, distinct keys."""
        return "run." + re.sub(r"[^A-Za-z0-9-]", lambda found: f"_{ord(found[0]):x}_", path)

    def fill(self, component: Component, text: str) -> str:
        """*text* with the placeholders of *component*: what a node finds out at its start is known here."""

        def look_up(kind: str, name: str) -> str:
            if kind == "port":
                return str(self.port(component.name, name))
            if kind == "host":
                return self.host(int(name))
            # UCX's own word for every device: a pod sees only those that its device plugin gave it.
            return {"run": RUN, "tmp": f"{TMP}/{component.name}", "cache": CACHE, "nics": "all"}[kind]

        return fill(text, look_up)
