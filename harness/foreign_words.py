"""Words of somebody else's code, made plain: a str that every file can hold, whatever it does.

An object of a plug-in may raise when it is shown, be a kind of str that answers as it likes, or
hold half of a character that cannot be written. Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from shaketable.harness.contracts.errors import clearest

SHOWN_CHARS_MAX: Final = 200


def plain(value: object, say: Callable[[object], object] = str) -> str:
    """Return what `say` makes of a value, as a plain str; if it cannot, say that."""
    try:
        said = say(value)
        # str.__str__: a class of theirs may override any other way
        return str.__str__(said).encode("utf-8", "backslashreplace").decode()
    except (KeyboardInterrupt, GeneratorExit):  # of whoever interrupts, not theirs
        raise
    except BaseException:
        return f"<{_type_name(value)} that cannot be shown>"


def shown(value: object) -> str:
    """Return a value as it is written in Python, shortened."""
    words = plain(value, repr)
    return words if len(words) <= SHOWN_CHARS_MAX else f"{words[:SHOWN_CHARS_MAX]}..."


def told(error: BaseException) -> str:
    """Say in one line what was raised: its type and its text."""
    first = clearest(error)
    return f"{_type_name(first)}: {' '.join(plain(first).split())}"


def _type_name(value: object) -> str:
    name = type.__dict__["__name__"].__get__(type(value))  # as Python knows it: no code of theirs
    return plain(name)
