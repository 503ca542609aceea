"""Words of somebody else's code, made plain: a str that every file can hold, whatever it does.

An object of a plug-in may raise when it is shown, be a kind of str that answers as it likes, or
hold half of a character that cannot be written. Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from shaketable.harness.contracts.errors import clearest

REPR_CHARS_MAX: Final = 200


def plain(value: object, convert: Callable[[object], object] = str) -> str:
    """Return what `convert` makes of a value, as a plain str; if it cannot, say that."""
    try:
        said = convert(value)
        # str.__str__: a class of theirs may override any other way
        return str.__str__(said).encode("utf-8", "backslashreplace").decode()
    except (KeyboardInterrupt, GeneratorExit):  # of whoever interrupts, not theirs
        raise
    except BaseException:
        return f"<{_type_name(value)} that cannot be shown>"


def short_repr(value: object) -> str:
    """Return a value as it is written in Python, shortened."""
    words = plain(value, repr)
    return words if len(words) <= REPR_CHARS_MAX else f"{words[:REPR_CHARS_MAX]}..."


def error_text(error: BaseException) -> str:
    """Say in one line what was raised: its type and its text."""
    first = clearest(error)
    return f"{_type_name(first)}: {' '.join(plain(first).split())}"


def _type_name(value: object) -> str:
    name = type.__dict__["__name__"].__get__(type(value))  # as Python knows it: no code of theirs
    return plain(name)
