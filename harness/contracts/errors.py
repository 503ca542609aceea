"""Errors of client operations (definite or indefinite, by type), of user input, of the harness.

Source: Jepsen's ok/fail/info; maelstrom marks each error *definite?* or not.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from typing import Final


class DefiniteError(Exception):
    """The operation did not happen and never will; recorded as `fail`."""


class IndefiniteError(Exception):
    """The operation may have happened, or may still happen; recorded as `info`."""


class UsageError(Exception):
    """The user's request is invalid: printed as one line, exit code 254."""


class HarnessError(Exception):
    """The harness could not do its work: printed as one line, exit code 255."""


class NamespaceNeededError(HarnessError):
    """The command needs its own network namespace; the entry point restarts it in one."""


def all_of(failed: Mapping[str, Exception]) -> Exception:
    """Return one error for several failures, by what failed; a single one is returned as is."""
    if len(failed) == 1:
        return next(iter(failed.values()))
    text = "; ".join(f"{whose}: {error}" for whose, error in failed.items())
    error = HarnessError(text)
    error.__cause__ = ExceptionGroup("what failed", list(failed.values()))
    return error


NAMES_MAX: Final = 60
"""Known names that an error lists (a campaign file has some 40 keys); of more it says where they
are."""


def unknown_name(what: str, name: str, known: Iterable[str]) -> str:
    """Return an error text for an unknown name: the nearest known name, and all of them."""
    names = sorted(known)
    nearest = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    meant = f"; did you mean {nearest[0]!r}?" if nearest else ""
    if len(names) > NAMES_MAX:
        return f"unknown {what} {name!r}{meant} (there are {len(names)}: see the command list)"
    there_are = ", ".join(names) if names else "none"
    return f"unknown {what} {name!r}{meant} (there are: {there_are})"


def clearest(error: BaseException) -> BaseException:
    """Return the most useful error of a group: one that the user can act on, if there is any."""
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
