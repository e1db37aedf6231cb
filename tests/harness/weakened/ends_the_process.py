"""Weakened: takes the whole process down."""

import os


def test_count(engine_tree):
    os._exit(0)
