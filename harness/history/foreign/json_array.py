"""Read a history that is one JSON array: its members are events, or operations.

Source: elle-cli, whose histories in JSON are arrays of Jepsen's events.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from shaketable.harness.history.foreign.history import Damage
from shaketable.harness.history.foreign.jepsen import MARK
from shaketable.harness.history.foreign.text_lines import NOT_UTF8

_BLANK: Final = re.compile(r"\s*")
_NEXT_MEMBER: Final = re.compile(r"(?<=[\n,])\s*(?=\{)")


def read_array(
    path: Path, take: Callable[[bytes, int], None]
) -> tuple[list[Damage], Damage | None]:
    """Pass each member's text and number to `take`; return damage, and where the end is missing.

    Raises:
        OSError: the file cannot be read.
    """
    raw = path.read_bytes()
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        return [Damage(line, error.start, NOT_UTF8)], None
    return _Array(text.removeprefix(MARK), take).read()


class _Array:
    """The text of an array, read member by member."""

    def __init__(self, text: str, take: Callable[[bytes, int], None]) -> None:
        self._text, self._take = text, take
        self._damage: list[Damage] = []
        self._decoder = json.JSONDecoder()

    def read(self) -> tuple[list[Damage], Damage | None]:
        """Read all members."""
        text, number = self._text, 0
        at = self._skip(self._skip(0) + 1)
        while at < len(text) and text[at] != "]":
            number += 1
            try:
                _, end = self._decoder.raw_decode(text, at)
            except (json.JSONDecodeError, RecursionError) as error:
                after = _NEXT_MEMBER.search(text, at + 1)
                why = getattr(error, "msg", "nested too deeply")
                if after is None:
                    return self._damage, self._place(at, f"cut, or no JSON: {why}")
                self._damage.append(self._place(at, f"no JSON: {why}"))
                at = after.end()
                continue
            self._pass_on(at, end, number)
            at = self._skip(end)
            if at < len(text) and text[at] == ",":
                at = self._skip(at + 1)
            elif at < len(text) and text[at] != "]":
                self._damage.append(self._place(at, "a comma is missing"))
        if at >= len(text):
            return self._damage, self._place(len(text), "cut: nothing closes the history with ']'")
        if (end := self._skip(at + 1)) < len(text):
            self._damage.append(self._place(end, "text after the end of the array"))
        return self._damage, None

    def _pass_on(self, at: int, end: int, number: int) -> None:
        try:
            self._take(self._text[at:end].encode(), number)
        except msgspec.MsgspecError as error:
            self._damage.append(self._place(at, f"no event and no operation: {error}"))
        except RecursionError:
            self._damage.append(self._place(at, "nested too deeply"))
        except ValueError as error:
            self._damage.append(self._place(at, str(error)))

    def _skip(self, at: int) -> int:
        match = _BLANK.match(self._text, at)
        return at if match is None else match.end()

    def _place(self, at: int, why: str) -> Damage:
        before = self._text[:at]
        return Damage(before.count("\n") + 1, len(before.encode()), why)
