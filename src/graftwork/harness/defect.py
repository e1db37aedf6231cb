"""For tests of patches: an error of the engine that is the defect itself becomes a failure of the test."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def defect(*kinds: type[Exception], match: str) -> Iterator[None]:
    """Run the engine's text; where it raises one of *kinds* with a message like *match* (a regular expression,
    searched), the test fails by assertion and says so. Every other error passes through unchanged.

    It is what makes a stock tree fail by the defect, and not by just any error: name the defect exactly.
    """
    try:
        yield
    except kinds as error:
        if not re.search(match, str(error)):
            raise
        pytest.fail(f"the defect: {type(error).__name__}: {error}")
