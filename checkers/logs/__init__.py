"""Checkers of replicated logs: what clients saw of them, and what the nodes' logs hold.

Each module with a PLUGIN is a checker; the others are pure functions that they share.
"""
