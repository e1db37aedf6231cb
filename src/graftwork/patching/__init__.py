"""Edits, plans, states, markers, and the all-or-nothing write."""
