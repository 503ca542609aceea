"""Starts on copies of a node's disk, each broken as a mistake or a fault leaves it."""
