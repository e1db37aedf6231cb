"""One Slurm for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from services import Unavailable
from slurm.cluster import Cluster, cluster


@pytest.fixture(scope="session")
def slurm_cluster() -> Iterator[Cluster]:
    try:
        with cluster() as found:
            yield found
    except Unavailable as reason:
        pytest.skip(str(reason))
