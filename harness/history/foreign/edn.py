"""A parser of EDN (extensible data notation), as far as histories need it. Pure.

Values are returned as None, bool, int, float, str, tuple (vectors and lists), frozenset and dict;
keywords as Keyword, symbols as str. A tag is dropped and its value kept (`#inst "..."` is the text,
`#jepsen.history.Op{...}` the map); `#_` and metadata are skipped.

The EDN parsers on PyPI tokenise by a parser generator in Python, too slow for a history of a
million lines (docs/adr/0010).

Source: the EDN format's description (edn-format/edn); jepsen.history for what is printed.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Any, Final

DEPTH_MAX: Final = 200
"""Nesting limit; deeper means damage (and would exhaust Python's stack)."""
DIGITS_MAX: Final = 4_000
"""Longest integer, in digits; longer means damage (and Python refuses to parse it)."""


class Keyword(str):
    """An EDN keyword without its colon: equal to the text of the same name."""

    __slots__ = ()


class EdnError(ValueError):
    """The text is not EDN; `at` is the index of the error."""

    def __init__(self, why: str, at: int) -> None:
        super().__init__(why)
        self.why = why
        self.at = at


class CutError(EdnError):
    """The text ends inside a value."""


_BLANK = re.compile(r"(?:[\s,]+|;[^\n]*(?:\n|$))*")
_ATOM = re.compile(r'[^\s,;()\[\]{}"]+')
_STRING = re.compile(r'"((?:[^"\\]++|\\.)*+)"', re.DOTALL)
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_INTEGER = re.compile(r"[+-]?\d+N?")
_FLOAT = re.compile(r"[+-]?\d+(?:\.\d*)?(?:[eE][+-]?\d+)?M?")
_RATIO = re.compile(r"[+-]?\d+/\d+")
_CHARACTER = re.compile(r"\\(?:[a-zA-Z][a-zA-Z0-9]*|.)", re.DOTALL)
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}
_CHARACTERS: Final = {
    "newline": "\n", "space": " ", "tab": "\t", "return": "\r", "backspace": "\b",
    "formfeed": "\f",
}  # fmt: skip
_WORDS: Final[dict[str, Any]] = {
    "nil": None, "true": True, "false": False,
    "##Inf": float("inf"), "##-Inf": float("-inf"), "##NaN": float("nan"),
}  # fmt: skip
_CLOSING: Final = {"[": "]", "(": ")", "{": "}", "#{": "}"}


def skip(text: str, at: int, depth: int = 0) -> int:
    """Return the index after blanks, commas, comments and discarded values.

    Raises:
        EdnError: a discarded value is invalid.
    """
    at = _end(_BLANK, text, at)
    while text.startswith("#_", at):
        _, at = parse(text, at + 2, depth + 1)
        at = _end(_BLANK, text, at)
    return at


def parse(text: str, at: int = 0, depth: int = 0) -> tuple[Any, int]:
    """Parse one value at `at`; return it and the index after it.

    Raises:
        CutError: the text ends before the value does, or there is none.
        EdnError: it is not a value.
    """
    if depth > DEPTH_MAX:
        raise EdnError("nested too deeply", at)
    at = skip(text, at, depth)
    if at >= len(text):
        raise CutError("the text ends where a value is expected", at)
    character = text[at]
    if character in "[(":
        values, at = _sequence(text, at, character, depth)
        return tuple(values), at
    if character == "{":
        return _map(text, at, depth)
    if character == '"':
        return _string(text, at)
    if character == "#":
        return _dispatched(text, at, depth)
    if character == "^":  # metadata, then the value that has it
        _, at = parse(text, at + 1, depth + 1)
        return parse(text, at, depth + 1)
    if character == "\\":
        return _character(text, at)
    if character in ")]}":
        raise EdnError(f"{character!r} closes nothing", at)
    match = _ATOM.match(text, at)
    assert match is not None, "whatever starts no other value starts an atom"
    return atom(match[0], at), match.end()


def atom(word: str, at: int = 0) -> Any:
    """Return the value of a keyword, symbol, number, nil, true or false.

    Raises:
        EdnError: it starts like a number and is not one.
    """
    if word[0] == ":":
        return Keyword(word[1:])
    if word in _WORDS:
        return _WORDS[word]
    if word[0].isdigit() or (word[0] in "+-" and word[1:2].isdigit()):
        if len(word) > DIGITS_MAX:
            raise EdnError(f"a number of {len(word)} digits", at)
        if _INTEGER.fullmatch(word):
            return int(word.rstrip("N"))
        if _FLOAT.fullmatch(word):
            return float(word.rstrip("M"))
        if _RATIO.fullmatch(word):
            above, _, below = word.partition("/")
            if int(below):
                return _ratio(int(above), int(below))
        raise EdnError(f"{word!r} is no number", at)
    return word


def _ratio(above: int, below: int) -> float | str:
    """Return a ratio as a float if exact, else as text: rounded, it might equal another ratio."""
    exact = Fraction(above, below)
    try:
        number = float(exact)
    except OverflowError:
        return str(exact)
    return number if Fraction(number) == exact else str(exact)


def _end(pattern: re.Pattern[str], text: str, at: int) -> int:
    match = pattern.match(text, at)
    return at if match is None else match.end()


def _sequence(text: str, at: int, opening: str, depth: int) -> tuple[list[Any], int]:
    closing, values = _CLOSING[opening], []
    begin = at
    at = skip(text, at + len(opening), depth)
    while not text.startswith(closing, at):
        if at >= len(text):
            raise CutError(f"nothing closes the {opening!r}", begin)
        value, at = parse(text, at, depth + 1)
        values.append(value)
        at = skip(text, at, depth)
    return values, at + 1


def _map(text: str, at: int, depth: int) -> tuple[dict[Any, Any], int]:
    values, end = _sequence(text, at, "{", depth)
    if len(values) % 2:
        raise EdnError("a map has a key without a value", at)
    keys = map(frozen, values[::2])
    return dict(zip(keys, values[1::2], strict=True)), end


def _string(text: str, at: int) -> tuple[str, int]:
    match = _STRING.match(text, at)
    if match is None:
        raise CutError("nothing closes the text", at)
    inner = match[1]
    if "\\" not in inner:
        return inner, match.end()
    try:  # Java strings are UTF-16: larger code points are escaped as a surrogate pair
        joined = _ESCAPE.sub(_unescaped, inner).encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError:
        raise EdnError("a text holds one half of a pair of UTF-16", at) from None
    return joined, match.end()


def _unescaped(match: re.Match[str]) -> str:
    escape = match[1]
    if len(escape) == 5:
        return chr(int(escape[1:], 16))
    return _ESCAPES.get(escape, escape)


def _dispatched(text: str, at: int, depth: int) -> tuple[Any, int]:
    """Parse what starts with #: a set, a symbolic number, or a tag with its value."""
    if text.startswith("#{", at):
        values, at = _sequence(text, at, "#{", depth)
        return frozenset(map(frozen, values)), at
    match = _ATOM.match(text, at)
    assert match is not None, "# itself is part of an atom"
    if match[0] in _WORDS:
        return _WORDS[match[0]], match.end()
    if match[0] == "#" and match.end() < len(text):
        raise EdnError("'#' tags nothing", at)
    return parse(text, match.end(), depth + 1)


def _character(text: str, at: int) -> tuple[str, int]:
    match = _CHARACTER.match(text, at)
    if match is None:
        raise CutError("a character is missing", at)
    name = match[0][1:]
    if len(name) == 5 and name[0] == "u":
        return _unpaired(chr(int(name[1:], 16)), at), match.end()
    return _CHARACTERS.get(name, name), match.end()


def _unpaired(character: str, at: int) -> str:
    if "\ud800" <= character <= "\udfff":
        raise EdnError("a character is one half of a pair of UTF-16", at)
    return character


def frozen(value: Any) -> Any:
    """Return a hashable copy of a value: dicts become tuples of their items."""
    if isinstance(value, dict):
        return tuple((frozen(key), frozen(item)) for key, item in value.items())
    if isinstance(value, tuple):
        return tuple(map(frozen, value))
    return value
