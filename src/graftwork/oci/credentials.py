"""Who we are to a registry: Docker's config.json with its credential helpers, and Podman's auth.json."""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from graftwork.errors import UsageError
from graftwork.oci.reference import DEFAULT_REGISTRY, normal_registry

HELPER_TIMEOUT = 30.0  # seconds; a helper may ask a key ring, or a cloud's own command
_HELPER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_TOKEN_USER = "<token>"  # docker-credential-helpers: the secret is an identity token
_NOT_FOUND = "credentials not found"


@dataclass(frozen=True)
class Credential:
    """What to show a registry: a name with a password, an identity token (OAuth 2), or a ready bearer token."""

    username: str = field(default="", repr=False)
    password: str = field(default="", repr=False)
    identity_token: str = field(default="", repr=False)
    bearer_token: str = field(default="", repr=False)

    def basic(self) -> str:
        """The value of an Authorization header (RFC 7617)."""
        return "Basic " + base64.b64encode(f"{self.username}:{self.password}".encode()).decode()


def find_credential(
    registry: str, repository: str = "", *, environ: Mapping[str, str] | None = None, timeout: float = HELPER_TIMEOUT
) -> Credential | None:
    """The credential for *repository* of *registry*, or None where no file has one.

    Files are tried in the order: those that the environment names, Podman's, Docker's. Within one, the most specific
    entry wins, and a helper before what is written down. UsageError for a broken file or helper; never with content.
    """
    environ = os.environ if environ is None else environ
    for path in _files(environ):
        config = _read(path)
        if config is not None and (found := _in_file(config, path, registry, repository, environ, timeout)):
            return found
    return None


def _files(environ: Mapping[str, str]) -> Iterator[Path]:
    if named := environ.get("REGISTRY_AUTH_FILE"):
        yield Path(named)
        return
    if docker := environ.get("DOCKER_CONFIG"):
        yield Path(docker) / "config.json"
    if runtime := environ.get("XDG_RUNTIME_DIR"):
        yield Path(runtime) / "containers" / "auth.json"
    home = Path(environ["HOME"]) if environ.get("HOME") else Path.home()
    yield Path(environ.get("XDG_CONFIG_HOME") or home / ".config") / "containers" / "auth.json"
    if not docker:
        yield home / ".docker" / "config.json"


def _read(path: Path) -> dict[str, Any] | None:
    try:
        config = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise UsageError(f"cannot read the credentials in {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        # The parser's message would quote the file.
        raise UsageError(f"{path} is not valid JSON", hint="Repair it, or log in again.") from error
    if not isinstance(config, dict) or not all(
        isinstance(config.get(key) or {}, dict) for key in ("auths", "credHelpers")
    ):
        raise UsageError(f"{path} is not a credentials file: 'auths' and 'credHelpers' are tables in one")
    return config


def _in_file(
    config: dict[str, Any], path: Path, registry: str, repository: str, environ: Mapping[str, str], timeout: float
) -> Credential | None:
    helpers = config.get("credHelpers") or {}
    auths = config.get("auths") or {}
    if (key := _most_specific(helpers, registry, repository)) is not None:
        return _ask_helper(str(helpers[key]), key, path, environ, timeout)
    store = config.get("credsStore")
    if store and (found := _ask_helper(str(store), _server_key(registry), path, environ, timeout)):
        return found
    if (key := _most_specific(auths, registry, repository)) is None:
        return None
    return _entry(auths[key], key, path)


def _most_specific(table: Mapping[str, Any], registry: str, repository: str) -> str | None:
    """The key with the longest matching path: host/namespace/repository, then host/namespace, then host."""
    best: tuple[int, str] | None = None
    wanted = repository.split("/") if repository else []
    for key, value in table.items():
        host, parts = _normal_key(key)
        fits = host == normal_registry(registry) and parts == wanted[: len(parts)]
        # 'docker login' with a credential store leaves an empty entry behind.
        if fits and value and (best is None or len(parts) > best[0]):
            best = (len(parts), key)
    return best[1] if best else None


def _normal_key(key: str) -> tuple[str, list[str]]:
    """A key as host and path. Docker's own are URLs, whose path says nothing."""
    _, separator, rest = key.rpartition("://")
    host, _, path = rest.partition("/")
    parts = [part for part in path.split("/") if part]
    if separator or parts[:1] in (["v1"], ["v2"]):
        parts = []
    return normal_registry(host), parts


def _server_key(registry: str) -> str:
    """What a helper knows *registry* as: the default one is stored under its oldest address."""
    return f"https://index.{DEFAULT_REGISTRY}/v1/" if registry == DEFAULT_REGISTRY else registry


def _entry(entry: Any, key: str, path: Path) -> Credential | None:
    broken = UsageError(f"{path}: the entry for {key!r} is not valid", hint="Log in again.")
    if not isinstance(entry, dict) or not all(isinstance(value, str) for value in entry.values() if value is not None):
        raise broken
    username, password = entry.get("username") or "", entry.get("password") or ""
    if auth := entry.get("auth"):
        try:
            username, colon, password = base64.b64decode(auth, validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError, ValueError):
            raise broken from None
        if not colon:
            raise broken
        password = password.rstrip("\0")
    found = Credential(username, password, entry.get("identitytoken") or "", entry.get("registrytoken") or "")
    return None if found == Credential() else found


def _ask_helper(name: str, server: str, path: Path, environ: Mapping[str, str], timeout: float) -> Credential | None:
    """Ask ``docker-credential-<name> get`` (protocol of docker-credential-helpers). Its output is never shown."""
    if not _HELPER.fullmatch(name):
        raise UsageError(f"{path}: {name!r} is not the name of a credential helper")
    program = f"docker-credential-{name}"
    found = shutil.which(program, path=environ.get("PATH"))
    if found is None:
        hint = f"Install it, or remove it from {path}."
        raise UsageError(f"{path} wants {program}, which is not on the PATH", hint=hint)
    key = _server_key(server) if server == DEFAULT_REGISTRY else server
    try:
        done = subprocess.run(
            [found, "get"], input=key.encode(), capture_output=True, timeout=timeout, env=dict(environ), check=False
        )
    except subprocess.TimeoutExpired:
        raise UsageError(
            f"{program} did not answer within {timeout:g} s", hint="Does it wait for a password?"
        ) from None
    except OSError as error:
        raise UsageError(f"cannot run {program}: {error.strerror}") from error
    if done.returncode:
        if _NOT_FOUND in done.stdout.decode(errors="replace"):
            return None
        hint = f"Run '{program} get' yourself to see why; its output is not shown here."
        raise UsageError(f"{program} failed for {server} (exit {done.returncode})", hint=hint)
    try:
        answer = json.loads(done.stdout)
        username, secret = answer["Username"], answer["Secret"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise UsageError(f"{program} gave an answer for {server} that is not a credential") from None
    if not isinstance(username, str) or not isinstance(secret, str):
        raise UsageError(f"{program} gave an answer for {server} that is not a credential")
    return Credential(identity_token=secret) if username == _TOKEN_USER else Credential(username, secret)
