"""Loaded first in the process that all test processes are forked from: modules loaded there warn in nobody's name."""

from __future__ import annotations

import warnings

warnings.simplefilter("ignore")
