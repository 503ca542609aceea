"""Reads the logs that stopped nodes left, from the facts of their formats alone."""
