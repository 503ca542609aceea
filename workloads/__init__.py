"""Workloads, one a file: what clients do, and which checkers judge it.

campaigns/ holds TOML files.
"""
