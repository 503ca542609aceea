"""Invariants of a simulated run: of every step, and of what its clients observed."""
