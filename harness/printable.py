"""Make untrusted text safe to print: no control characters and no line breaks. Pure.

File names and the values of a history may hold anything.
"""

from __future__ import annotations


def printable(text: str) -> str:
    """Return one printable line: control characters become U+FFFD, white space a blank."""
    return text if text.isprintable() else "".join(map(_sign, text))


def _sign(sign: str) -> str:
    if sign.isprintable():
        return sign
    return " " if sign.isspace() else "\ufffd"
