"""A Docker with BuildKit and the containerd image store: packages of Debian's next release, in a folder of their own.

Debian 12's engine has neither. Nothing is installed; runc stays the machine's, since the newer one needs a newer libc.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from pathlib import Path

from services import Docker, Unavailable

from graftwork.trees.cache import cache_folder

_SUITE = "trixie"
_PACKAGES = ("docker.io", "docker-cli", "docker-buildx", "containerd", "tini")
_KEYS = Path("/usr/share/keyrings/debian-archive-keyring.gpg")


def newer_docker(folder: Path | None = None) -> Docker:
    """Its programs in *folder* (default: in the cache), fetched with apt the first time; Unavailable says why not."""
    place = (folder or cache_folder() / "test-docker" / _SUITE).absolute()
    root = place / "root"
    place.mkdir(parents=True, exist_ok=True)
    with (place / ".lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not root.exists():
            _fetch(place)
            new = place / "new"
            for package in sorted(place.glob("*.deb")):
                _run(["dpkg-deb", "--extract", str(package), str(new)], place)
                package.unlink()
            for spent in ("lists", "cache"):
                shutil.rmtree(place / spent)
            new.rename(root)
    return Docker(root / "usr", root / "usr/libexec/docker/cli-plugins")


def _fetch(place: Path) -> None:
    """The packages, from the mirror that this machine's apt uses."""
    found = _run(["apt-get", "indextargets", "--format", "$(REPO_URI) $(COMPONENT) $(CREATED_BY)"], place).splitlines()
    mirrors = [line.split()[0] for line in found if line.endswith(" main Packages") and "security" not in line]
    if not mirrors or not _KEYS.is_file():
        raise Unavailable("apt knows no mirror of Debian here")
    for name in ("lists/partial", "cache/archives/partial"):
        (place / name).mkdir(parents=True, exist_ok=True)
    (place / "sources.list").write_text(f"deb [signed-by={_KEYS}] {mirrors[0]} {_SUITE} main\n", "utf-8")
    options = {"Dir::Etc::sourcelist": place / "sources.list", "Dir::Etc::sourceparts": "-"}
    options |= {"Dir::State::lists": place / "lists", "Dir::Cache": place / "cache", "APT::Sandbox::User": "root"}
    apt = ["apt-get", "-qq", *(word for key, value in options.items() for word in ("-o", f"{key}={value}"))]
    _run([*apt, "update"], place)
    _run([*apt, "download", *_PACKAGES], place)


def _run(command: list[str], folder: Path) -> str:
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, check=False, env={**os.environ, "LC_ALL": "C"}
        )
    except FileNotFoundError as error:
        raise Unavailable(f"{command[0]} is not there: {error}") from error
    if done.returncode:
        raise Unavailable(f"Docker's packages cannot be had: {done.stderr.strip()[-300:]}")
    return done.stdout
