"""Targets: one file a system under test, and what reads its files."""
