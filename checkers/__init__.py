"""Checkers: one file each, a pure function of Arrow tables, and the engines that run them.

A module of this package, of `anomalies` or of `logs` with an attribute `PLUGIN` is a checker
(contracts.plugins.Checker).
"""
