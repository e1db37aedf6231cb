"""A rendered deployment: which process runs on which node with which arguments. Slurm and Kubernetes read it."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from graftwork.errors import UsageError
from graftwork.launch.placeholders import PlaceholderError, placeholders

Role = Literal["prefill", "decode", "mixed", "router", "sidecar", "discovery", "store-master", "store-client"]
Name = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")]
Seconds = Annotated[int, msgspec.Meta(gt=0)]

Order = Literal[0, 1, 2]
STOP_FIRST: Order = 0
STOP_ENGINES: Order = 1
STOP_LAST: Order = 2


class Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A row of deployment.json: strict, so that a spoiled one is noticed."""


class Ready(Row, frozen=True, kw_only=True):
    """When a component serves, within *bound_s*.

    ``tcp``: *port* (a name) listens; ``http``: *path* answers 200 on it too; ``unix``: the socket *path* listens.
    """

    kind: Literal["http", "tcp", "unix", "none"]
    port: str = ""
    path: str = ""
    bound_s: Seconds = 600


class Component(Row, frozen=True, kw_only=True):
    """One process on one node.

    *argv*, the values of *env* and of *files*, and ``ready.path`` may hold placeholders (docs/launch.md): ``{port:P}``
    is an own port, ``{port:COMPONENT/P}`` another component's, ``{host:N}`` the address of node N, ``{run}`` the job's
    shared folder, ``{tmp}`` a private folder of this component on its node, ``{cache}`` the user's cache on the node,
    ``{nics}`` the node's network devices as UCX names them. A literal brace is doubled. *files* are paths below
    ``{run}``. *ports* names ports to allocate on the node, each with how many consecutive ones; the placeholder stands
    for the first. *fixed* are the numbers of those ports that the user chose. *order* says when to stop: 0 router and
    sidecars, 1 engines, 2 store; starting goes the other way round. *drain_s* bounds this component's own shutdown.
    """

    name: Name
    role: Role
    node: Annotated[int, msgspec.Meta(ge=0)]
    argv: Annotated[list[str], msgspec.Meta(min_length=1)]
    env: dict[str, str] = {}
    files: dict[str, str] = {}
    ports: dict[str, int] = {}
    fixed: dict[str, int] = {}
    gpus: list[int] = []
    ready: Ready = Ready(kind="none")
    order: Order = STOP_ENGINES
    drain_s: Seconds = 600


class Bounds(Row, frozen=True, kw_only=True):
    """Seconds; each must be larger than the one before it, or a drain is cut short.

    An engine's own shutdown < the drain of a node < how long before its time limit a job is told to stop.
    """

    engine_s: Seconds
    drain_s: Seconds
    lead_s: Seconds


class Node(Row, frozen=True, kw_only=True):
    """What each node has; *memory_gib* is main memory."""

    gpus: Annotated[int, msgspec.Meta(ge=0)]
    memory_gib: Annotated[float, msgspec.Meta(gt=0)]


class Image(Row, frozen=True, kw_only=True):
    """What to run it in: a target of this catalog, its base, or any image by reference; empty where not said."""

    target: str = ""
    reference: str = ""
    interpreter: str = "python3"


class Deployment(Row, frozen=True, kw_only=True):
    """A rendered recipe; ``deployment.json``. *nodes* is how many nodes of the shape *node* it takes."""

    schema: Literal[1] = 1
    name: Name
    engine: Literal["sglang", "vllm"]
    version: str
    nodes: Annotated[int, msgspec.Meta(gt=0)]
    node: Node
    components: Annotated[list[Component], msgspec.Meta(min_length=1)]
    bounds: Bounds
    image: Image = Image()
    sbatch: list[str] = []
    warnings: list[str] = []

    def on_node(self, node: int) -> list[Component]:
        """The components of *node*, in the order in which they are started."""
        return sorted((c for c in self.components if c.node == node), key=lambda c: -c.order)


def render_json(deployment: Deployment) -> bytes:
    """The one form in which a deployment is stored: fields in order, two spaces, a newline at the end."""
    return msgspec.json.format(msgspec.json.encode(deployment), indent=2) + b"\n"


def parse_json(data: bytes, where: str) -> Deployment:
    """Read a deployment back and check it; UsageError naming *where* if it is spoiled."""
    try:
        deployment = msgspec.json.decode(data, type=Deployment)
    except msgspec.DecodeError as error:
        raise UsageError(f"{where}: not a deployment: {error}", hint="render it again: graftwork launch") from None
    check(deployment)
    return deployment


def check(deployment: Deployment) -> None:
    """UsageError when a name or a port is taken twice, a node is out of range, or a placeholder refers to nothing."""
    names = [component.name for component in deployment.components]
    files = [path for component in deployment.components for path in component.files]
    for kind, values in (("component", names), ("file", files)):
        if twice := sorted({value for value in values if values.count(value) > 1}):
            raise UsageError(f"deployment {deployment.name}: {kind} named twice: {', '.join(twice)}")
    known = {f"{component.name}/{port}" for component in deployment.components for port in component.ports}
    for component in deployment.components:
        if component.node >= deployment.nodes:
            raise UsageError(f"component {component.name}: node {component.node} of {deployment.nodes}")
        if component.ready.kind in ("http", "tcp") and component.ready.port not in component.ports:
            raise UsageError(f"component {component.name}: no port {component.ready.port!r} to be ready on")
        _check_placeholders(component, known, deployment.nodes)
    _check_fixed(deployment)


def _check_fixed(deployment: Deployment) -> None:
    holders: dict[tuple[int, int], str] = {}
    for component in deployment.components:
        for name, first in component.fixed.items():
            if name not in component.ports or not 1 <= first <= (1 << 16) - component.ports[name]:
                raise UsageError(f"component {component.name}: no port {name!r} can be {first}")
            for port in range(first, first + component.ports[name]):
                holder = holders.setdefault((component.node, port), f"{component.name}/{name}")
                if holder != f"{component.name}/{name}":
                    raise UsageError(
                        f"port {port} of node {component.node} is given to {holder} and to {component.name}/{name}",
                        hint="leave one out: a free port is found on the node",
                    )


def _check_placeholders(component: Component, known: set[str], nodes: int) -> None:
    texts = [*component.argv, *component.env.values(), *component.files.values(), component.ready.path]
    for text in texts:
        try:
            found = placeholders(text)
        except PlaceholderError as error:
            raise UsageError(f"component {component.name}: {error}") from None
        for kind, name in found:
            there = (
                (name if "/" in name else f"{component.name}/{name}") in known
                if kind == "port"
                else kind != "host" or (name.isdecimal() and int(name) < nodes)
            )
            if not there:
                raise UsageError(f"component {component.name}: {{{kind}:{name}}} refers to nothing in {text!r}")
