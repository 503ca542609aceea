"""Make text that others wrote safe to print, and to write to a file. Pure.

File names and the values of a history may hold any character. A plug-in's object may also raise in
its `__str__`, be a subclass of str with methods of its own, or hold half of a surrogate pair, which
cannot be encoded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from shaketable.harness.contracts.errors import clearest

REPR_CHARS_MAX: Final = 200


def printable(text: str) -> str:
    """Return one printable line: control characters become U+FFFD, white space a blank."""
    return text if text.isprintable() else "".join(map(_sign, text))


def _sign(sign: str) -> str:
    if sign.isprintable():
        return sign
    return " " if sign.isspace() else "\ufffd"


# Text from objects of third-party code.


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
