"""A toy base in a registry of this process, and a workshop that builds on it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from oci.quirky import Quirky, serve
from tiny import Store, Workshop, base_layers, put_image, tiny_workshop


@pytest.fixture
def registry() -> Iterator[Quirky]:
    with serve() as found:
        yield found


@pytest.fixture
def store(registry: Quirky) -> Store:
    return Store(registry.host)


@pytest.fixture
def workshop(tmp_path: Path) -> Workshop:
    return tiny_workshop(tmp_path)


@pytest.fixture
def base(store: Store) -> str:
    put_image(store, "base/toy", "1", base_layers())
    return f"{store.host}/base/toy:1"
