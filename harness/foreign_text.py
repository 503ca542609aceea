"""Turn text from third-party code into a plain str that every file can hold. Pure.

A plug-in's object may raise in its `__str__`, be a subclass of str with methods of its own, or hold
half of a surrogate pair, which cannot be encoded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from shaketable.harness.contracts.errors import clearest

REPR_CHARS_MAX: Final = 200


def plain(value: object, convert: Callable[[object], object] = str) -> str:
    """Convert a value to a plain str; return a placeholder if the conversion raises."""
    try:
        text = convert(value)
        # str.__str__: a subclass may override any other way
        return str.__str__(text).encode("utf-8", "backslashreplace").decode()
    except (KeyboardInterrupt, GeneratorExit):
        # from the user or the interpreter, not from the value
        raise
    except BaseException:
        return f"<{_type_name(value)} that cannot be shown>"


def short_repr(value: object) -> str:
    """Return the repr of a value, shortened."""
    text = plain(value, repr)
    return text if len(text) <= REPR_CHARS_MAX else f"{text[:REPR_CHARS_MAX]}..."


def error_text(error: BaseException) -> str:
    """Describe an exception in one line: its type and its text."""
    first = clearest(error)
    return f"{_type_name(first)}: {' '.join(plain(first).split())}"


def _type_name(value: object) -> str:
    # the real name, without running the metaclass's code
    name = type.__dict__["__name__"].__get__(type(value))
    return plain(name)
