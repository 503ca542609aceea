"""Call third-party plug-ins safely: whatever they raise or wrongly return is one `PlugInError`.

Every call of a plug-in's method happens inside `as_plugin_error`, and its result is checked with
one of the functions here, so that no plug-in can end a run or the trials of other plug-ins.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

import msgspec
import trio

from shaketable.harness import discovery
from shaketable.harness.contracts.errors import HarnessError, UsageError
from shaketable.harness.contracts.plugins import Evidence, Fault, Json
from shaketable.harness.foreign_text import error_text, plain, short_repr

PASS_THROUGH: Final = (trio.Cancelled, KeyboardInterrupt, GeneratorExit)
"""What passes through a plug-in when somebody ends its task, or everything."""


class PlugInError(Exception):
    """What somebody's plug-in did that it may not, in one line."""


@contextmanager
def as_plugin_error(*may_raise: type[Exception]) -> Iterator[None]:
    """Let whatever a plug-in raises within be a `PlugInError`: also what ends Python, or its task.

    Whoever cancels it, or interrupts everything, still does. `may_raise`: errors that the protocol
    allows there, and that somebody else takes. What is ours does not belong within.

    Raises:
        PlugInError: it raised something; one line says what.
    """
    through: tuple[type[BaseException], ...] = (PlugInError, *PASS_THROUGH, *may_raise)
    try:
        yield
    except through:
        raise
    except BaseExceptionGroup as group:
        ours, _ = group.split(PASS_THROUGH)
        if ours is not None:
            raise ours from None
        raise PlugInError(error_text(group)) from group
    except BaseException as error:
        raise PlugInError(error_text(error)) from error


def configured(fault: Fault, options: Json) -> Fault:
    """Return a fault under a campaign's options.

    Raises:
        UsageError: an option that it cannot take.
        HarnessError: it cannot be asked; one line names it and says why.
    """
    try:
        with as_plugin_error(UsageError):
            chosen = fault.configured(options)
    except PlugInError as error:
        raise HarnessError(f"fault {fault.name}: its configured fails: {error}") from error
    discovery.require_conforming(
        "faults", f"fault {fault.name}: what its configured returned", chosen
    )
    if chosen.name != fault.name:
        raise HarnessError(f"fault {fault.name}: its configured returned {chosen.name!r}")
    return chosen


def json_object(value: object, what: str, wanted: str = "a JSON object") -> Json:
    """Return what a plug-in gave, if our files can hold it and give it back as it is.

    Args:
        value: what it gave.
        what: says how ("its apply returned").
        wanted: what it should have been.

    Raises:
        PlugInError: it is no JSON object.
    """
    if not isinstance(value, dict):
        raise PlugInError(f"{what} {short_repr(value)} in place of {wanted}")
    try:
        given_back = json.loads(json.dumps(value, allow_nan=False))  # the ledger
        msgspec.json.encode(value)  # the history
        is_same = _is_same(value, given_back)
    except PASS_THROUGH:
        raise
    except BaseException as error:  # it may be of a class of theirs
        raise PlugInError(f"{what} what is no JSON: {error_text(error)}") from error
    if not is_same:  # a number as a key comes back as text, and its undo finds nothing
        raise PlugInError(f"{what} what JSON does not give back as it is: {short_repr(value)}")
    return value


def _is_same(value: object, given_back: object) -> bool:
    """Whether that came back, where a tuple may be a list."""
    if isinstance(value, Mapping):
        return (
            isinstance(given_back, dict)
            and value.keys() == given_back.keys()
            and all(_is_same(value[key], given_back[key]) for key in given_back)
        )
    if isinstance(value, list | tuple):
        return (
            isinstance(given_back, list)
            and len(value) == len(given_back)
            and all(map(_is_same, value, given_back))
        )
    return bool(value == given_back)


def text(value: object, what: str) -> str:
    """Return the words that a plug-in gave, plain. Raises PlugInError if they are none."""
    if not issubclass(type(value), str):  # its class may say of itself whatever it likes
        raise PlugInError(f"{what} {short_repr(value)} in place of words")
    return plain(value, str.__str__)


def evidence(value: object) -> Evidence:
    """Return the evidence that a probe gave, plain. Raises PlugInError if it is none."""
    what = "its probe returned"
    if not isinstance(value, Evidence) or not isinstance(value.took_effect, bool):
        raise PlugInError(f"{what} {short_repr(value)} in place of evidence")
    words = text(value.what, f"{what} evidence that says")
    measures: dict[str, int | float] = {}
    for name, number in json_object(value.measures, f"{what} as measures").items():
        is_number = isinstance(number, int | float) and not isinstance(number, bool)
        if not is_number or not abs(number) <= sys.float_info.max:
            raise PlugInError(
                f"{what} as measure {short_repr(name)} {short_repr(number)}, no finite number"
            )
        measures[plain(name)] = number
    return Evidence(value.took_effect, words, measures)


def seconds(value: object, what: str) -> float:
    """Return the seconds that a plug-in gave. Raises PlugInError if they are none."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number and 0 <= value <= sys.float_info.max:  # type: ignore[operator]
        return float(value)  # type: ignore[arg-type]
    raise PlugInError(f"{what} {short_repr(value)} in place of seconds")
