"""Checkers of replicated logs: what clients saw of them, and what the nodes' own logs hold.

Each module with a PLUGIN is a checker; the others are the pure steps that they share.
"""
