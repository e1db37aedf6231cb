"""What placeholders stand for on this node, and the environment of its components."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Mapping
from pathlib import Path

from graftwork.launch import ucx
from graftwork.launch.node.plan import Part
from graftwork.launch.placeholders import fill

_HOST = "GRAFTWORK_HOST"
_CACHE = "GRAFTWORK_CACHE"
_HIP, _CUDA = "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"
_VISIBLE = frozenset({"ROCR_VISIBLE_DEVICES", _HIP, _CUDA})
_KFD = Path("/dev/kfd")


class Values:
    """*ports* by ``COMPONENT/NAME``, *hosts* by node, the job's folder and this node's *scratch* folder."""

    def __init__(self, run: Path, scratch: Path, ports: Mapping[str, int], hosts: Mapping[int, str]) -> None:
        self._run, self._scratch, self._ports, self._hosts = run, scratch, ports, hosts
        self._nics = ""

    def fill(self, part: Part, text: str) -> str:
        """*text* with all placeholders of *part* filled in. KeyError for a port or node that nobody published."""

        def look_up(kind: str, name: str) -> str:
            if kind == "port":
                return str(self.port(part, name))
            return self._hosts[int(name)] if kind == "host" else self._place(part, kind)

        return fill(text, look_up)

    def port(self, part: Part, name: str) -> int:
        """The number of the port *name* of *part*, or of ``COMPONENT/NAME``."""
        return self._ports[name if "/" in name else f"{part.name}/{name}"]

    def tmp(self, part: Part) -> Path:
        """The private folder of *part* on this node, made when it is first asked for."""
        folder = self._scratch / part.name
        folder.mkdir(mode=0o700, exist_ok=True)
        return folder

    def environment(self, part: Part, outer: Mapping[str, str]) -> dict[str, str]:
        """*outer* with the devices of *part*; what the part itself says wins over both."""
        found = {name: value for name, value in outer.items() if name not in (_HOST, _CACHE)}
        if part.gpus and not part.env.keys() & _VISIBLE:
            show_only(part.gpus, found, rocm=_KFD.exists())
        found.update({name: self.fill(part, value) for name, value in part.env.items()})
        return found

    def _place(self, part: Part, kind: str) -> str:
        if kind == "run":
            return str(self._run)
        if kind == "tmp":
            return str(self.tmp(part))
        if kind == "nics":
            self._nics = self._nics or ucx.net_devices()
            return self._nics
        return str(own_folder(Path(os.environ.get(_CACHE) or f"{tempfile.gettempdir()}/graftwork-{os.geteuid()}")))


def show_only(gpus: list[int], environment: dict[str, str], *, rocm: bool) -> None:
    """Show *gpus* alone: of the devices that the job was given, where it says which. IndexError if it has fewer.

    Slurm may set the variables of every vendor. HIP counts within ROCR_VISIBLE_DEVICES, and takes CUDA's for its own.
    """
    name = _HIP if rocm else _CUDA
    given = [device for device in environment.get(name, "").split(",") if device]
    environment[name] = ",".join(given[index] if given else str(index) for index in gpus)
    if rocm:
        environment.pop(_CUDA, None)


def own_folder(path: Path) -> Path:
    """*path* as a folder of this user that nobody else can enter. OSError if it is another user's."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    if path.lstat().st_uid != os.geteuid():
        raise PermissionError(f"{path}: belongs to another user; set {_CACHE} to a folder of your own")
    return path


def own_address() -> str:
    """The address of this node for the others: GRAFTWORK_HOST, or the one from which it reaches Slurm's launcher.

    SLURM_LAUNCH_NODE_IPADDR is set by srun. Connecting a datagram socket sends nothing; it only chooses an address.
    """
    said, launcher = os.environ.get(_HOST), os.environ.get("SLURM_LAUNCH_NODE_IPADDR")
    if said:
        return said
    if not launcher:
        return socket.gethostname()
    with socket.socket(socket.AF_INET6 if ":" in launcher else socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((launcher, 9))
        return str(probe.getsockname()[0])
