"""The GitHub API and the package index of this process, and a client that never really waits."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from upstream.github_server import GitHubServer
from upstream.toy_releases import ToyIndex, toy_index

from graftwork.oci.traffic import Patience
from graftwork.trees.cache import Cache
from graftwork.upstream.answers import Answers
from graftwork.upstream.github import GitHub

NOW = datetime.datetime(2026, 10, 1, 12, 0, tzinfo=datetime.timezone.utc)
Client = Callable[..., GitHub]


@pytest.fixture
def server() -> Iterator[GitHubServer]:
    found = GitHubServer()
    yield found
    found.close()


@pytest.fixture
def waits() -> list[float]:
    """The pauses that a client was told to make, in seconds."""
    return []


@pytest.fixture
def client(server: GitHubServer, tmp_path: Path, waits: list[float], monkeypatch: pytest.MonkeyPatch) -> Client:
    """Makes clients that share one cache; options as GitHub's fields. No proxy of this machine comes between."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")

    def make(**options: object) -> GitHub:
        given: dict[str, object] = {
            "root": server.root,
            "clock": lambda: NOW,
            "sleep": waits.append,
            "patience": Patience(tries=4, backoff=1.0, longest_wait=120.0, connect=20.0, read=20.0),
            **options,
        }
        return GitHub(Answers(Cache(tmp_path / "cache")), **given)  # type: ignore[arg-type]

    return make


@pytest.fixture
def index() -> Iterator[ToyIndex]:
    with toy_index() as found:
        yield found


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")
