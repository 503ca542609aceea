"""Support for users' own tests: a recorder for clients, Hypothesis strategies, pytest fixtures.

`checkers.api` checks the recorded histories. Heavy modules are imported only when needed.
"""
