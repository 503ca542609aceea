"""Faults of the links among nodes."""
