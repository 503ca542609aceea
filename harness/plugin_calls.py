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

from shaketable.harness import discovery
from shaketable.harness.contracts.errors import HarnessError, UsageError
from shaketable.harness.contracts.plugins import Evidence, Fault, Json
from shaketable.harness.untrusted_text import error_text, plain, short_repr

INTERRUPTS: Final = (KeyboardInterrupt, GeneratorExit)


def pass_through() -> tuple[type[BaseException], ...]:
    """Return what may pass through a plug-in: its task is cancelled, or the process interrupted.

    A process that has not imported trio has no tasks; to import it here takes a check's time.
    """
    trio = sys.modules.get("trio")
    return INTERRUPTS if trio is None else (trio.Cancelled, *INTERRUPTS)


class PlugInError(Exception):
    """What a plug-in raised or returned that it must not, in one line."""


@contextmanager
def as_plugin_error(*may_raise: type[Exception]) -> Iterator[None]:
    """Turn everything that a plug-in raises in the body of `with` into a `PlugInError`.

    That includes `SystemExit` and other `BaseException`s; cancellation and interrupts pass through,
    and so do the errors in `may_raise`, which the protocol allows and the caller handles. Code of
    our own does not belong in the body.

    Raises:
        PlugInError: the plug-in raised something; one line says what.
    """
    through: tuple[type[BaseException], ...] = (PlugInError, *pass_through(), *may_raise)
    try:
        yield
    except through:
        raise
    except BaseExceptionGroup as group:
        ours, _ = group.split(pass_through())
        if ours is not None:
            raise ours from None
        raise PlugInError(error_text(group)) from group
    except BaseException as error:
        raise PlugInError(error_text(error)) from error


def configured(fault: Fault, options: Json) -> Fault:
    """Return a fault configured with a campaign's options.

    Raises:
        UsageError: the fault does not accept an option.
        HarnessError: its `configured` fails; one line names the fault and says why.
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
    """Return a plug-in's result if it is a JSON object that survives a round trip.

    Args:
        value: the result.
        what: how it was obtained, for the error ("its apply returned").
        wanted: what was expected, for the error.

    Raises:
        PlugInError: it is no JSON object, or JSON would change it.
    """
    if not isinstance(value, dict):
        raise PlugInError(f"{what} {short_repr(value)} in place of {wanted}")
    try:
        decoded = json.loads(json.dumps(value, allow_nan=False))  # the ledger
        msgspec.json.encode(value)  # the history
        is_same = _round_trips(value, decoded)
    except pass_through():
        raise
    except BaseException as error:  # its class may be the plug-in's
        raise PlugInError(f"{what} what is no JSON: {error_text(error)}") from error
    if not is_same:  # a number as a key comes back as text: the fault's undo would not find it
        raise PlugInError(f"{what} what JSON does not give back as it is: {short_repr(value)}")
    return value


def _round_trips(value: object, decoded: object) -> bool:
    """Return whether the decoded value equals the original, where a tuple may become a list."""
    if isinstance(value, Mapping):
        return (
            isinstance(decoded, dict)
            and value.keys() == decoded.keys()
            and all(_round_trips(value[key], decoded[key]) for key in decoded)
        )
    if isinstance(value, list | tuple):
        return (
            isinstance(decoded, list)
            and len(value) == len(decoded)
            and all(map(_round_trips, value, decoded))
        )
    return bool(value == decoded)


def text(value: object, what: str) -> str:
    """Return a plug-in's text as a plain str. Raises PlugInError if it is no text."""
    if not issubclass(type(value), str):
        # `isinstance` trusts `__class__`, which a plug-in can fake
        raise PlugInError(f"{what} {short_repr(value)} in place of words")
    return plain(value, str.__str__)


def evidence(value: object) -> Evidence:
    """Return a probe's evidence with plain texts. Raises PlugInError if it is no evidence."""
    what = "its probe returned"
    if not isinstance(value, Evidence) or not isinstance(value.took_effect, bool):
        raise PlugInError(f"{what} {short_repr(value)} in place of evidence")
    detail = text(value.what, f"{what} evidence that states")
    measures: dict[str, int | float] = {}
    for name, number in json_object(value.measures, f"{what} as measures").items():
        is_number = isinstance(number, int | float) and not isinstance(number, bool)
        if not is_number or not abs(number) <= sys.float_info.max:
            raise PlugInError(
                f"{what} as measure {short_repr(name)} {short_repr(number)}, no finite number"
            )
        measures[plain(name)] = number
    return Evidence(value.took_effect, detail, measures)


def seconds(value: object, what: str) -> float:
    """Return a plug-in's duration in seconds. Raises PlugInError if it is no such number."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number and 0 <= value <= sys.float_info.max:  # type: ignore[operator]
        return float(value)  # type: ignore[arg-type]
    raise PlugInError(f"{what} {short_repr(value)} in place of seconds")
