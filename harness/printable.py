"""Text of others, made fit for a terminal: nothing steers it or breaks a line. Pure.

Names of files and the values of a history come from anywhere.
"""

from __future__ import annotations


def printable(text: str) -> str:
    """Return a text as one line of signs that can be seen: what steers becomes a mark."""
    return text if text.isprintable() else "".join(map(_sign, text))


def _sign(sign: str) -> str:
    if sign.isprintable():
        return sign
    return " " if sign.isspace() else "\ufffd"
