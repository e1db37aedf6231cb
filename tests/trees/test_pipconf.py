from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from graftwork.errors import UsageError
from graftwork.trees.pipconf import PipSettings, parse_config_list, pip_settings, settings_of

CONF = """
[global]
index-url = https://global.example/simple
extra-index-url =
    https://one.example/simple
    https://two.example/simple
timeout = 7
retries = 5
trusted-host = a.example b.example:8443
[download]
index-url = https://download.example/simple
proxy = http://proxy.example:3128
[install]
no_index = yes
[wheel]
index-url = https://wheel.example/simple
"""


@pytest.fixture(params=["pip", "files"])
def ask(request: pytest.FixtureRequest, tmp_path: Path) -> object:
    """Ask as with pip and as without it: both must say the same of the same files and environment."""

    def settings(conf: str = "", **env: str) -> PipSettings:
        (tmp_path / "pip.conf").write_text(conf)
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("PIP_", "XDG_"))}
        clean |= {"HOME": str(tmp_path / "home"), "XDG_CONFIG_DIRS": str(tmp_path / "none")}
        clean |= {"PIP_CONFIG_FILE": str(tmp_path / "pip.conf"), **env}
        python = sys.executable
        if request.param == "files":
            (tmp_path / "python").write_text("#!/bin/sh\necho 'x: No module named pip' >&2\nexit 1\n")
            (tmp_path / "python").chmod(0o755)
            python = str(tmp_path / "python")
        return pip_settings(python, clean)

    return settings


def test_sections_in_order_of_strength(ask) -> None:  # type: ignore[no-untyped-def]
    found = ask(CONF)
    assert found.index_url == "https://download.example/simple"
    assert found.extra_index_urls == ("https://one.example/simple", "https://two.example/simple")
    assert found.trusted_hosts == ("a.example", "b.example:8443")
    assert (found.timeout, found.retries, found.proxy) == (7.0, 5, "http://proxy.example:3128")
    assert found.no_index


def test_environment_wins_and_empty_values_do_not_count(ask) -> None:  # type: ignore[no-untyped-def]
    env = {"PIP_INDEX_URL": "https://u:p%40w@env.example/simple", "PIP_EXTRA_INDEX_URL": "", "PIP_NO_INDEX": "0"}
    found = ask(CONF, **env, PIP_DEFAULT_TIMEOUT="9", PIP_FIND_LINKS="/wheels https://x.example/links")
    assert found.index_url == "https://u:p%40w@env.example/simple"
    assert len(found.extra_index_urls) == 2
    assert not found.no_index
    assert found.timeout == 9.0
    assert found.find_links == ("/wheels", "https://x.example/links")


def test_pip_told_to_be_quiet(ask) -> None:  # type: ignore[no-untyped-def]
    assert ask("[global]\nquiet = 3\nindex-url = https://q.example/simple\n").index_url == "https://q.example/simple"


def test_broken_file(ask) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(UsageError, match=r"pip's configuration is broken: .*section"):
        ask("garbage\n")


def test_config_file_switched_off(ask) -> None:  # type: ignore[no-untyped-def]
    assert ask(CONF, PIP_CONFIG_FILE=os.devnull) == PipSettings()


def test_other_lines_of_pip_are_not_settings() -> None:
    output = (
        "WARNING: x\nFor variant 'global', will try loading '/etc/pip.conf'\nglobal.index-url='a'\n:env:.cert=\"b's\"\n"
    )
    assert parse_config_list(output) == [("global", "index-url", "a"), (":env:", "cert", "b's")]


@pytest.mark.parametrize(
    ("key", "value"), [("timeout", "soon"), ("retries", "-1"), ("timeout", "nan"), ("no-index", "maybe")]
)
def test_senseless_values(key: str, value: str) -> None:
    with pytest.raises(UsageError, match=key):
        settings_of([("global", key, value)])


def test_python_that_is_not_there() -> None:
    with pytest.raises(UsageError, match="could not be run"):
        pip_settings("/no/such/python", {})


def test_repr_shows_no_secret() -> None:
    assert "secret" not in repr(PipSettings(index_url="https://u:secret@x.example/simple"))
