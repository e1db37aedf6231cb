"""Weakened: waits for what never comes."""

import threading


def test_count(engine_tree):
    threading.Event().wait()
