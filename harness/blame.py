"""Asks somebody's plug-in: what it raises, or answers and may not, is one line that says so.

Whoever calls a method of a plug-in does so within `blamed`, and looks at the answer with one of the
functions here, so that no plug-in ends a run, or the trials of others, by what it does.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import msgspec

from harness import discovery
from harness.errors import HarnessError, UsageError, clearest
from harness.plugins import Evidence, Fault, Json

SHOWN_CHARS_MAX: Final = 200


class PlugInError(Exception):
    """What somebody's plug-in did that it may not, in one line."""


@contextmanager
def blamed(*may_raise: type[Exception]) -> Iterator[None]:
    """Let whatever a plug-in raises within be a `PlugInError`, its ending Python as well.

    Whoever cancels it, or interrupts everything, still does. `may_raise`: errors that the protocol
    allows there, and that somebody else takes.

    Raises:
        PlugInError: it raised something; one line says what.
    """
    try:
        yield
    except (Exception, SystemExit) as error:
        if isinstance(error, (PlugInError, *may_raise)):
            raise
        raise PlugInError(told(error)) from error
    except BaseExceptionGroup as group:
        _, others = group.split((Exception, SystemExit))
        if others is not None:
            raise others from None
        raise PlugInError(told(group)) from group


def told(error: BaseException) -> str:
    """Say in one line what was raised: its type and its text."""
    first = clearest(error)
    return f"{type(first).__name__}: {' '.join(str(first).split())}"


def configured(fault: Fault, options: Json) -> Fault:
    """Return a fault under a campaign's options.

    Raises:
        UsageError: an option that it cannot take.
        HarnessError: it cannot be asked; one line names it and says why.
    """
    try:
        with blamed(UsageError):
            chosen = fault.configured(options)
    except PlugInError as error:
        raise HarnessError(f"fault {fault.name}: its configured fails: {error}") from error
    discovery.conform("faults", f"fault {fault.name}: what its configured returned", chosen)
    if chosen.name != fault.name:
        raise HarnessError(f"fault {fault.name}: its configured returned {chosen.name!r}")
    return chosen


def json_object(value: object, what: str, wanted: str = "a JSON object") -> Json:
    """Return what a plug-in gave, if our files can hold it.

    Args:
        value: what it gave.
        what: says how ("its apply returned").
        wanted: what it should have been.

    Raises:
        PlugInError: it is no JSON object.
    """
    if not isinstance(value, dict):
        raise PlugInError(f"{what} {_shown(value)} in place of {wanted}")
    try:
        json.dumps(value)  # the ledger
        msgspec.json.encode(value)  # the history
    except (TypeError, ValueError, ArithmeticError, RecursionError, msgspec.MsgspecError) as error:
        raise PlugInError(f"{what} what is no JSON: {told(error)}") from error
    return value


def text(value: object, what: str) -> str:
    """Return the words that a plug-in gave. Raises PlugInError if they are none."""
    if not isinstance(value, str):
        raise PlugInError(f"{what} {_shown(value)} in place of words")
    return value


def evidence(value: object) -> Evidence:
    """Return the evidence that a probe gave. Raises PlugInError if it is none."""
    what = "its probe returned"
    if not isinstance(value, Evidence) or not isinstance(value.bit, bool):
        raise PlugInError(f"{what} {_shown(value)} in place of evidence")
    text(value.what, f"{what} evidence that says")
    for name, number in json_object(value.measures, f"{what} as measures").items():
        if isinstance(number, bool) or not isinstance(number, int | float):
            raise PlugInError(f"{what} as measure {name!r} {_shown(number)}, no number")
    return value


def seconds(value: object, what: str) -> float:
    """Return the seconds that a plug-in gave. Raises PlugInError if they are none."""
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf:
        return float(value)
    raise PlugInError(f"{what} {_shown(value)} in place of seconds")


def _shown(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= SHOWN_CHARS_MAX else f"{shown[:SHOWN_CHARS_MAX]}..."
