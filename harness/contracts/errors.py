"""Errors of a client's operation, definite or indefinite in the type, and of the user's input.

Source: Jepsen's ok/fail/info; maelstrom marks each error *definite?* or not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping


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


def all_of(failed: Mapping[str, Exception]) -> Exception:
    """Return one error for what failed of several, by whose it was; the only one as it is."""
    if len(failed) == 1:
        return next(iter(failed.values()))
    told = "; ".join(f"{whose}: {error}" for whose, error in failed.items())
    error = HarnessError(told)
    error.__cause__ = ExceptionGroup("what failed", list(failed.values()))
    return error


def clearest(error: BaseException) -> BaseException:
    """Return, of a group of errors, the one that says most: what one can do something about."""
    leaves = list(_leaves(error))
    for kind in (UsageError, HarnessError):
        for leaf in leaves:
            if isinstance(leaf, kind):
                return leaf
    return leaves[0]


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if not isinstance(error, BaseExceptionGroup):
        yield error
        return
    for inner in error.exceptions:
        yield from _leaves(inner)
