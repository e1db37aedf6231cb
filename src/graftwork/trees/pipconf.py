"""What pip is configured for: indexes, find-links, certificates, proxy. Asked from pip itself where it is there."""

from __future__ import annotations

import ast
import configparser
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from graftwork.errors import UsageError

# From weak to strong. pip reads [global], then its command's section, then the environment; graftwork
# fetches as 'pip install' would, and takes [download] where [install] is silent.
_SECTIONS = ("global", "download", "install", ":env:")
_LINE = re.compile(r"(?P<section>:env:|[^.=\s]+)\.(?P<key>[^=\s]+)=(?P<value>'.*'|\".*\")\s*")
_ALIASES = {"default-timeout": "timeout", "pypi-url": "index-url"}
_TRUE, _FALSE = ("1", "y", "yes", "t", "true", "on"), ("0", "n", "no", "f", "false", "off")
_HINT = "See 'pip config list' and 'pip config debug'."


@dataclass(frozen=True)
class PipSettings:
    """The settings that matter for fetching a file. Times in seconds; an index may be a URL or a folder.

    ``index_url`` None means the default index. URLs may hold credentials: never print them.
    """

    index_url: str | None = None
    extra_index_urls: tuple[str, ...] = ()
    find_links: tuple[str, ...] = ()
    no_index: bool = False
    cert: str | None = None
    client_cert: str | None = None
    proxy: str | None = None
    trusted_hosts: tuple[str, ...] = ()
    timeout: float = 15.0
    retries: int = 5

    def __repr__(self) -> str:
        return f"PipSettings({1 + len(self.extra_index_urls)} indexes, {len(self.find_links)} find-links)"


def pip_settings(python: str = sys.executable, env: Mapping[str, str] = os.environ) -> PipSettings:
    """The settings of *python*'s pip; without pip there, those of pip's environment variables and files.

    UsageError when pip, or the file, finds the configuration broken.
    """
    asked = _ask_pip(python, env)
    return settings_of(asked if asked is not None else _read_files(env))


def settings_of(items: Iterable[tuple[str, str, str]]) -> PipSettings:
    """Merge ``(section, key, value)`` as pip does: a stronger section replaces, empty values do not count."""
    merged: dict[str, str] = {}
    for wanted in _SECTIONS:
        for section, key, value in items:
            if section == wanted and value.strip():
                merged[_ALIASES.get(key, key)] = value.strip()
    return PipSettings(
        index_url=merged.get("index-url"),
        extra_index_urls=tuple(merged.get("extra-index-url", "").split()),
        find_links=tuple(merged.get("find-links", "").split()),
        no_index=_flag(merged.get("no-index", "0")),
        cert=_file(merged.get("cert")),
        client_cert=_file(merged.get("client-cert")),
        proxy=merged.get("proxy"),
        trusted_hosts=tuple(merged.get("trusted-host", "").split()),
        timeout=_number("timeout", merged.get("timeout", "15")),
        retries=int(_number("retries", merged.get("retries", "5"))),
    )


def parse_config_list(output: str) -> list[tuple[str, str, str]]:
    """The ``(section, key, value)`` of the lines of ``pip config list``; other lines are pip's own words."""
    matches = (_LINE.fullmatch(line) for line in output.splitlines())
    return [(m["section"], m["key"], str(ast.literal_eval(m["value"]))) for m in matches if m]


def _ask_pip(python: str, env: Mapping[str, str]) -> list[tuple[str, str, str]] | None:
    """None when *python* has no pip."""
    # A configured 'quiet' would silence the very lines that are asked for.
    quiet = {"PIP_QUIET": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1", "PYTHONUTF8": "1"}
    command = [python, "-m", "pip", "config", "list"]
    try:
        done = subprocess.run(
            command, env={**env, **quiet}, capture_output=True, text=True, encoding="utf-8", timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired, UnicodeDecodeError) as error:
        raise UsageError(f"'pip config list' could not be run with {python}: {error}", hint=_HINT) from error
    if done.returncode == 0:
        return parse_config_list(done.stdout)
    if "No module named pip" in done.stderr:
        return None
    said = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
    raise UsageError(f"pip's configuration is broken: {said}", hint=_HINT)


def _read_files(env: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """pip's environment variables and configuration files, weak ones first (pip's guide, 'Configuration')."""
    items: list[tuple[str, str, str]] = []
    for file in _config_files(env):
        parser = configparser.RawConfigParser()
        try:
            parser.read(file, encoding="utf-8")
        except (configparser.Error, OSError, UnicodeDecodeError) as error:
            raise UsageError(f"{file}: pip's configuration is broken: {error}", hint="Correct the file.") from error
        items += [(s, _key(key), value or "") for s in parser.sections() for key, value in parser.items(s)]
    return items + [(":env:", _key(k[4:]), value) for k, value in env.items() if k.startswith("PIP_")]


def _config_files(env: Mapping[str, str]) -> list[Path]:
    own = env.get("PIP_CONFIG_FILE", "")
    if own == os.devnull:
        return []
    system = env.get("XDG_CONFIG_DIRS") or "/etc/xdg"
    files = [Path(folder, "pip", "pip.conf") for folder in reversed(system.split(":")) if folder]
    files.append(Path("/etc/pip.conf"))
    if home := env.get("HOME"):
        files.append(Path(home, ".pip", "pip.conf"))
    user = env.get("XDG_CONFIG_HOME") or (f"{home}/.config" if home else "")
    files += [Path(user, "pip", "pip.conf")] if user else []
    files.append(Path(sys.prefix, "pip.conf"))
    return [*files, Path(own)] if own else files


def _key(name: str) -> str:
    return name.lower().replace("_", "-").removeprefix("--")


def _flag(value: str) -> bool:
    if value.lower() in _TRUE or value.lower() in _FALSE:
        return value.lower() in _TRUE
    raise UsageError(f"pip's configuration: no-index = {value!r} is not a yes or no", hint=_HINT)


def _number(key: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = -1.0
    if not 0 <= number < 1e6:
        raise UsageError(f"pip's configuration: {key} = {value!r} is not a number of seconds or tries", hint=_HINT)
    return number


def _file(value: str | None) -> str | None:
    try:
        return str(Path(value).expanduser()) if value else None
    except RuntimeError as error:
        raise UsageError(f"pip's configuration: {value}: no such home folder", hint=_HINT) from error
