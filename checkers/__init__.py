"""Checkers, one module each, and the engines that run them.

A checker is a pure function of Arrow tables: a module here, in `anomalies` or in `logs` with an
attribute `PLUGIN` (contracts.plugins.Checker).
"""
