"""Deterministic worlds: the system's own code on a simulated clock, network and disk."""
