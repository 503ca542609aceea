"""What an event's value means: Jepsen writes one value where OPERATIONS has four columns. Pure.

By the operation's name f:

- cas: `[old new]` is `expected` and `input`; an ok answer is `output` 1 ("yes"), unless its value
  is false or 0: "no".
- read, get, dequeue, poll, peek: the value of the completion is `output`; the invoke's says
  nothing (older recordings repeat the answer there).
- any other: the value of the invoke is `input`; the completion's is `output` where it differs.

`fail` means that the operation certainly did not happen, for cas as well. The published
histories of knossos settle that: with a failed cas read as "the value was another" two of them
that are known to be valid would not be. Who knows that the answer was "no" records ok with
output 0.

Source: jepsen.history; knossos.history/complete; the verdicts that come with knossos' data.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

from shaketable.harness.history.foreign.edn import Keyword
from shaketable.harness.printable import printable

CAS: Final = frozenset(("cas", "compare-and-set", "compare_and_set"))
ANSWERED_ALONE: Final = frozenset(("read", "get", "dequeue", "poll", "peek"))
COLUMNS: Final = frozenset(("input", "output", "offset", "expected", "extra"))
"""A JSON object with no other names than these is read column by column."""

YES: Final = 1
NO: Final = 0


class Asked(NamedTuple):
    """What an invoke says."""

    input: Any = None
    expected: Any = None
    offset: Any = None


def asked(f: str, value: Any) -> Asked:
    """Read the value of an invoke.

    Raises:
        ValueError: the value of a cas is no pair.
    """
    if f in ANSWERED_ALONE:
        return Asked()
    if f in CAS:
        if not isinstance(value, (tuple, list)) or len(value) != 2:
            raise ValueError(f"the value of a {f} is [old new], not {show(value)}")
        return Asked(value[1], value[0])
    return Asked(value)


def answered(f: str, call: Any, value: Any) -> Any:
    """Return the output of an ok completion whose invoke had the value `call`."""
    if f in ANSWERED_ALONE:
        return value
    if f in CAS:
        return NO if value == 0 else YES  # False equals 0, and no pair does
    return None if value == call else value


def is_columns(value: Any) -> bool:
    """True if a JSON value names the columns themselves."""
    return isinstance(value, dict) and value.keys() <= COLUMNS


def split_key(value: Any) -> tuple[str, Any] | None:
    """Split the tuple [key value] of Jepsen's independent keys; None if it is none."""
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        return None
    key = value[0]
    if key is None or isinstance(key, (dict, list, tuple, frozenset)):
        return None
    return key_text(key), value[1]


def key_text(key: Any) -> str:
    """Return a key as the OPERATIONS column holds it."""
    return str(key) if isinstance(key, (str, int)) else show(key)


def plain(value: Any) -> Any:
    """Return a value as JSON can hold it: sets become sorted lists, keys text."""
    if isinstance(value, Keyword):
        return str(value)
    if isinstance(value, (tuple, list)):
        return [plain(item) for item in value]
    if isinstance(value, frozenset):
        return sorted((plain(item) for item in value), key=_place)
    if isinstance(value, Mapping):
        return {key_text(key): plain(item) for key, item in value.items()}
    if value.__class__ is float and not math.isfinite(value):
        return str(value)  # JSON has no word for it
    return value


def _place(item: Any) -> tuple[str, Any]:
    """Order the members of a set, of whatever types they are."""
    if isinstance(item, (list, dict)):
        return (str(type(item)), msgspec.json.encode(item, order="deterministic"))
    return (str(type(item)), 0 if item is None else item)


def show(value: Any) -> str:
    """Print a value for a message, cut where it is long."""
    text = "nil" if value is None else printable(str(plain(value)))
    return text if len(text) <= 60 else text[:59] + "…"
