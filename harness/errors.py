"""Errors of a client's operation, definite or indefinite in the type, and of the user's input.

Source: Jepsen's ok/fail/info; maelstrom marks each error *definite?* or not.
"""

from __future__ import annotations


class DefiniteError(Exception):
    """The operation certainly did not happen and never will: recorded as `fail`."""


class IndefiniteError(Exception):
    """The operation may have happened, or may happen later: recorded as `info`."""


class UsageError(Exception):
    """The user asked for something that cannot be: one line, exit code 254."""


class HarnessError(Exception):
    """The harness could not do its work: one line, exit code 255."""


class NamespaceNeededError(HarnessError):
    """The command runs in a network namespace of its own: the entry starts it again in one."""
