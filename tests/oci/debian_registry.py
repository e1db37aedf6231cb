"""Debian's docker-registry on a free port of this machine, for as long as a test wants it."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import requests

_TRIES = 5


@contextmanager
def running(folder: Path, *, delete: bool = True, htpasswd: str = "") -> Iterator[str]:
    """The host and port of a registry that keeps its data in *folder*. *htpasswd*: an Apache password file's text."""
    program = shutil.which("docker-registry")
    if program is None:
        pytest.skip("docker-registry is not installed: scripts/install-services")
    folder.mkdir(parents=True, exist_ok=True)
    for _ in range(_TRIES):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        process = _start(program, folder, port, delete, htpasswd)
        try:
            if _answers(process, port):
                yield f"127.0.0.1:{port}"
                return
        finally:
            process.terminate()
            process.wait(20)
    pytest.fail(f"docker-registry did not start: {(folder / 'log').read_text()[-2000:]}")


def _start(program: str, folder: Path, port: int, delete: bool, htpasswd: str) -> subprocess.Popen[bytes]:
    config = {
        "version": "0.1",
        "log": {"level": "error", "accesslog": {"disabled": True}},
        "storage": {"filesystem": {"rootdirectory": str(folder / "data")}, "delete": {"enabled": delete}},
        "http": {"addr": f"127.0.0.1:{port}", "headers": {"X-Test-Registry": [str(port)]}},
    }
    if htpasswd:
        (folder / "htpasswd").write_text(htpasswd)
        config["auth"] = {"htpasswd": {"realm": "test", "path": str(folder / "htpasswd")}}
    path = folder / "config.yml"
    path.write_text(json.dumps(config))  # YAML has JSON in it
    # It takes any REGISTRY_… variable for a setting, and REGISTRY_AUTH_FILE is Podman's.
    environ = {key: value for key, value in os.environ.items() if not key.startswith("REGISTRY_")}
    with (folder / "log").open("ab") as log:
        return subprocess.Popen([program, "serve", str(path)], stdout=log, stderr=log, env=environ)


def _answers(process: subprocess.Popen[bytes], port: int) -> bool:
    """Whether it is this process that listens: another one may have taken the port in between."""
    end = time.monotonic() + 30
    while time.monotonic() < end and process.poll() is None:
        try:
            answer = requests.get(f"http://127.0.0.1:{port}/v2/", timeout=2)
        except requests.ConnectionError:
            time.sleep(0.05)
            continue
        return answer.headers.get("X-Test-Registry") == str(port) and _listens(process.pid, port)
    return False


def _listens(pid: int, port: int) -> bool:
    """Whether *pid* has the listening socket of *port* open (Linux: /proc)."""
    wanted = f":{port:04X}"
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    inodes = {row[9] for row in rows if row[1].endswith(wanted) and row[3] == "0A"}
    links = [str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir()]
    return any(f"socket:[{inode}]" in links for inode in inodes)
