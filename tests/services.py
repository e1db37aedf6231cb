"""Real services for tests and benches: Debian's registry and a Docker Engine.

Each lives inside the folder that it is given, on a port or socket of its own, and is ended by its process id.
``scripts/install-services`` installs the programs. ``Unavailable`` says why a service cannot run here.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO

LOOPBACK = "127.0.0.1"
_SEARCH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])
_ACCESS = re.compile(rb'^\S+ - \S* \[[^]]*\] "([A-Z]+) (\S+) HTTP/[^"]*" (\d+)', re.MULTILINE)
_SOCKET_PATH_LIMIT = 107  # bytes, sun_path of unix(7) without its end
_LONGEST_SOCKET = "/exec/containerd/containerd-debug.sock.ttrpc"


class Unavailable(Exception):
    """A service cannot run here; the message says why and what to do."""


@dataclass(frozen=True)
class Request:
    """One line of the registry's access log."""

    method: str
    path: str
    status: int


@dataclass(frozen=True)
class Registry:
    """A running registry: ``host`` is address:port, *storage* holds its blobs, *log* what it wrote."""

    host: str
    pid: int
    storage: Path
    log: Path

    @property
    def url(self) -> str:
        return f"http://{self.host}"

    def requests(self, since: int = 0) -> list[Request]:
        """What was asked since the log had *since* bytes."""
        data = self.log.read_bytes()[since:]
        return [Request(m[1].decode(), m[2].decode(), int(m[3])) for m in _ACCESS.finditer(data)]

    def mark(self) -> int:
        """The log's size now, for ``requests``."""
        return self.log.stat().st_size


@dataclass(frozen=True)
class Docker:
    """Programs of one Docker version: *programs* has ``bin`` and ``sbin``, *plugins* those of the client."""

    programs: Path
    plugins: Path


@dataclass(frozen=True)
class Engine:
    """A running Docker Engine: *host* is for DOCKER_HOST, *driver* its storage driver, *data* its data root."""

    host: str
    pid: int
    driver: str
    data: Path
    log: Path
    environment: Mapping[str, str]
    client: str

    def docker(
        self, *arguments: str, check: bool = True, stdin: IO[bytes] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run Docker's client against this engine; RuntimeError with what it said if it fails and *check* is set."""
        command = [self.client, *arguments]
        environment = {**os.environ, **self.environment}
        done = subprocess.run(command, env=environment, stdin=stdin, capture_output=True, text=True, check=False)
        if check and done.returncode:
            raise RuntimeError(f"exit code {done.returncode}: {' '.join(command)}\n{done.stdout}{done.stderr}")
        return done


def program(name: str, package: str) -> str:
    """The path of *name*; Unavailable if it is not installed."""
    found = shutil.which(name, path=_SEARCH)
    if not found:
        raise Unavailable(f"{name} is not installed (Debian package {package}); run scripts/install-services")
    return found


@contextmanager
def registry(folder: Path, *, attempts: int = 5) -> Iterator[Registry]:
    """Debian's docker-registry with its storage in *folder*, deletes enabled, plain HTTP on loopback."""
    command = program("docker-registry", "docker-registry")
    storage, config, log = folder / "storage", folder / "config.yml", folder / "registry.log"
    storage.mkdir(parents=True, exist_ok=True)
    for _ in range(attempts):
        port = _free_port()
        config.write_text(_registry_config(storage, port), "utf-8")
        # docker-registry takes any REGISTRY_… variable for a setting, and REGISTRY_AUTH_FILE is Podman's.
        environment = {key: value for key, value in os.environ.items() if not key.startswith("REGISTRY_")}
        with log.open("wb") as output:
            process = subprocess.Popen([command, "serve", str(config)], stdout=output, stderr=output, env=environment)
        try:
            if _wait(partial(listens, process.pid, port), process, seconds=20):
                yield Registry(f"{LOOPBACK}:{port}", process.pid, storage, log)
                return
        finally:
            _end(process)
        if b"address already in use" not in log.read_bytes():
            break
    raise Unavailable(f"docker-registry did not start:\n{tail(log)}")


def _registry_config(storage: Path, port: int) -> str:
    return f"""version: 0.1
log: {{level: info, accesslog: {{disabled: false}}}}
storage:
  filesystem: {{rootdirectory: '{storage}', maxthreads: 100}}
  delete: {{enabled: true}}
  maintenance: {{uploadpurging: {{enabled: false}}}}
http: {{addr: '{LOOPBACK}:{port}', secret: only-for-tests}}
"""


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def listens(pid: int, port: int) -> bool:
    """Whether process *pid* itself holds the socket that listens on loopback *port* (proc(5), net/tcp)."""
    wanted = f"{int.from_bytes(socket.inet_aton(LOOPBACK), 'little'):08X}:{port:04X}"
    rows = [line.split() for line in Path("/proc/net/tcp").read_text("ascii").splitlines()[1:]]
    inodes = {f"socket:[{row[9]}]" for row in rows if row[1] == wanted and row[3] == "0A"}
    try:
        return any(str(handle.readlink()) in inodes for handle in Path(f"/proc/{pid}/fd").iterdir())
    except FileNotFoundError:  # the process, or one of its handles, has gone meanwhile
        return False


def runs(pid: int) -> bool:
    """Whether the process lives; one that ended and was not yet waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@contextmanager
def engine(
    folder: Path,
    *,
    registries: Sequence[str] = (),
    drivers: Sequence[str] = ("overlay2", "vfs"),
    docker: Docker | None = None,
    containerd: bool = False,
) -> Iterator[Engine]:
    """A Docker Engine whose data lies in *folder*, without bridge and iptables; needs root.

    The first of *drivers* that works here is its storage driver. *registries* (address:port) may be plain HTTP.
    *docker* are other programs than the machine's. With *containerd* images are kept in containerd, not by *drivers*.
    """
    command = program("dockerd", "docker.io") if docker is None else str(docker.programs / "sbin/dockerd")
    for helper in ("containerd", "runc"):
        program(helper, helper)
    if os.geteuid() != 0:
        raise Unavailable("a Docker Engine of our own needs root")
    folder.mkdir(parents=True, exist_ok=True)
    with _short(folder) as short:
        log = folder / "dockerd.log"
        for driver in ("overlayfs", "native") if containerd else drivers:
            with log.open("wb") as output:
                path = _SEARCH if docker is None else f"{docker.programs}/bin{os.pathsep}{_SEARCH}"
                process = _start_engine(command, folder, short, driver, registries, output, path, containerd)
            try:
                if _wait(partial(_pings, short / "docker.sock"), process, seconds=60):
                    yield _engine(folder, short, process.pid, driver, docker)
                    return
            finally:
                _end(process, seconds=40)
                _end_containerd(short / "exec/containerd/containerd.pid", short)
                unmount_below(folder)
    raise Unavailable(f"dockerd did not start with any of {', '.join(drivers)}:\n{tail(log)}")


def _engine(folder: Path, short: Path, pid: int, driver: str, docker: Docker | None) -> Engine:
    (folder / "client/cli-plugins").mkdir(parents=True, exist_ok=True)
    client = program("docker", "docker.io") if docker is None else str(docker.programs / "bin/docker")
    for plugin in docker.plugins.iterdir() if docker is not None else ():
        with suppress(FileExistsError):
            (folder / "client/cli-plugins" / plugin.name).symlink_to(plugin)
    host = f"unix://{short}/docker.sock"
    environment = {"DOCKER_HOST": host, "DOCKER_CONFIG": str(folder / "client"), "DOCKER_BUILDKIT": "0"}
    return Engine(host, pid, driver, folder / "data", folder / "dockerd.log", environment, client)


def _start_engine(
    command: str,
    folder: Path,
    short: Path,
    driver: str,
    registries: Sequence[str],
    output: IO[bytes],
    path: str,
    containerd: bool,
) -> subprocess.Popen[bytes]:
    (short / "daemon.json").write_text(json.dumps({"features": {"containerd-snapshotter": containerd}}), "utf-8")
    arguments = [command, f"--config-file={short}/daemon.json", f"--host=unix://{short}/docker.sock"]
    arguments += [f"--data-root={folder.resolve()}/data", f"--exec-root={short}/exec", f"--pidfile={short}/dockerd.pid"]
    arguments += ["--iptables=false", "--ip6tables=false", "--bridge=none", f"--storage-driver={driver}"]
    arguments += [f"--insecure-registry={host}" for host in registries]
    hidden = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "DOCKER_HOST", "NOTIFY_SOCKET")
    environment = {k: v for k, v in os.environ.items() if k.upper() not in hidden} | {"PATH": path}
    return subprocess.Popen(
        arguments,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        env=environment,
        start_new_session=True,
    )


def _pings(path: Path) -> bool:
    """Whether the engine's API answers at the socket *path*."""
    connection = http.client.HTTPConnection("engine", timeout=5)
    try:
        with socket.socket(socket.AF_UNIX) as stream:
            stream.settimeout(5)
            stream.connect(str(path))
            connection.sock = stream
            connection.request("GET", "/_ping")
            return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False


@contextmanager
def _short(folder: Path) -> Iterator[Path]:
    """*folder*, or a link to it where the engine's socket paths would become too long."""
    if len(os.fsencode(folder)) + len(_LONGEST_SOCKET) <= _SOCKET_PATH_LIMIT:
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="gw-") as place:
        link = Path(place) / "e"
        link.symlink_to(folder.resolve(), target_is_directory=True)
        yield link


def _end_containerd(pidfile: Path, folder: Path) -> None:
    """End the engine's containerd, which outlives an engine that was killed."""
    with suppress(FileNotFoundError, ProcessLookupError, ValueError):
        pid = int(pidfile.read_text("ascii"))
        if os.fsencode(folder) in Path(f"/proc/{pid}/cmdline").read_bytes():
            os.kill(pid, signal.SIGKILL)


def unmount_below(folder: Path) -> None:
    """Unmount everything that is still mounted below *folder*, the deepest first."""
    real = str(folder.resolve())
    points = [line.split()[4].encode().decode("unicode_escape") for line in _lines("/proc/self/mountinfo")]
    for point in sorted((p for p in points if p == real or p.startswith(real + "/")), key=len, reverse=True):
        subprocess.run(["umount", "--lazy", point], check=True)


def _lines(path: str) -> list[str]:
    return Path(path).read_text("utf-8").splitlines()


def tail(log: Path, lines: int = 15) -> str:
    """The last *lines* of a log."""
    return "\n".join(log.read_text("utf-8", "replace").splitlines()[-lines:])


def _until(holds: Callable[[], bool], seconds: float) -> bool:
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def _wait(holds: Callable[[], bool], process: subprocess.Popen[bytes], *, seconds: float) -> bool:
    """Wait until *holds* says so; False when the process ends first or the time is over."""
    return _until(lambda: process.poll() is not None or holds(), seconds) and process.poll() is None


def _end(process: subprocess.Popen[bytes], *, seconds: float = 10) -> None:
    process.terminate()
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
