"""Crash points: the same short workload, with a power loss at each call to a disk in turn."""
