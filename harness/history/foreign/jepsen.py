"""Read Jepsen's histories: EDN (a vector, a list or one map per line) and console logs.

The order of events in the file is the order in which they happened. Their times are kept as far as
they agree with it, and increased by a nanosecond where they do not. porcupine's kv test data is
EDN, one map per line, with the key in the field `:key`.

Source: jepsen.store (history.edn, history.txt), jepsen.util/log-op; jepsen.independent for tuples
[key value].
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final

from shaketable.harness.history.foreign import edn
from shaketable.harness.history.foreign.columns import (
    NO_EVENT,
    Event,
    PairedEvents,
    key_text,
    require_time,
    show,
)
from shaketable.harness.history.foreign.edn import CutError, EdnError, Keyword
from shaketable.harness.history.foreign.history import NOT_UTF8, Damage

CHUNK_BYTES: Final = 1 << 20
EVENT_CHARACTERS_MAX: Final = 1 << 24
"""Longest event; a longer one has lost its closing bracket, and would take minutes to scan."""
CACHED_VALUES_MAX: Final = 1 << 16
"""Parsed values that are cached by their text."""
MARK: Final = "\ufeff"
"""The byte order mark that Windows writes before a text."""
FOREIGN: Final = "surrogateescape"
"""The error handler that preserves invalid UTF-8 bytes, so that they can be found later."""

_PLAIN = r"[^\s,;()\[\]{}\"#^\\]++"
_IN_VECTOR = r"[^\[\]{}\"#;()^\\]*+"
_VALUE = rf'(?:{_PLAIN}|\[{_IN_VECTOR}(?:\[{_IN_VECTOR}\]{_IN_VECTOR})*+\]|"[^"\\]*+")'
_FLAT = re.compile(rf"\{{\s*+(?::[\w.-]++\s++{_VALUE}[\s,]*+)*+\}}")
"""A map of simple values, as nearly all events are: the fast path, two regular expressions."""
_PAIR = re.compile(rf":([\w.-]++)\s++({_VALUE})")
_NEXT_EVENT = re.compile(r"\n\s*[\[(]?\s*(?=(?:#[\w.]+\s*)?\{)")
_RECORD: Final = "#jepsen.history.Op"
CONSOLE_LINE: Final = re.compile(
    r"(?:^|.*?\s)(-?\d+|:[\w.-]+)\s+:(invoke|ok|fail|info)\s+:(\S+)(?:\s+(\S.*?))?\s*$"
)

_FOREIGN_BYTES = re.compile("[\udc80-\udcff]")

_LOOKS_LIKE_EVENT = re.compile(
    r"(?:^|\s)(?:-?\d+|:nemesis)\s+:(?:invoke|ok|fail|info)\b"
    r"|\{.*(?::type\s+:|\"type\":\s*\")(?:invoke|ok|fail|info)\b"
)
"""A line that is not a valid event of a console log, but not a plain message either."""


class Recorder(PairedEvents):
    """Takes the events of a Jepsen history in order, and pairs them."""

    def __init__(self, unit: str, *, splits_keys: bool) -> None:
        super().__init__(unit, splits_keys=splits_keys)
        self._now = -1
        self.is_timed = False
        """Whether the events have times; one and the same for all of them is none."""
        self._first_ns: int | None = None

    def take(self, event: dict[Any, Any], place: int) -> None:
        """Add one event.

        Raises:
            ValueError: it is not an event, or its value is invalid.
        """
        index = self.events
        self.events += 1
        if not isinstance(event, dict) or "type" not in event:
            raise ValueError(NO_EVENT)
        get = event.get
        f, key = get("f"), get("key")
        given = Event(
            event["type"],
            get("process"),
            None if f is None else str(f),
            get("value"),
            None if key is None else key_text(key),
            self._time(get("time")),
            index,
        )
        row = self.paired.add(given, place)
        if row is not None:
            self._add_details(row, event)

    def _time(self, time: Any) -> int:
        """Return an event's time, after that of the one before it."""
        self._now += 1
        if time is not None and time.__class__ is int:
            self._now = max(self._now, require_time(time))
            self._first_ns = time if self._first_ns is None else self._first_ns
            self.is_timed |= time != self._first_ns
        return self._now

    def _add_details(self, row: int, event: dict[Any, Any]) -> None:
        columns = self.columns
        if (error := event.get("error")) is not None:
            columns.error[row] = error if isinstance(error, str) else show(error)
        if (node := event.get("node")) is not None:
            columns.node[row] = str(node)


class ValueCache(dict[str, Any]):
    """Parsed values by their text; histories repeat few distinct ones."""

    def __missing__(self, text: str) -> Any:
        if text.isdigit() and len(text) <= edn.DIGITS_MAX:
            return int(text)
        value, end = edn.parse(text)
        if edn.skip(text, end) != len(text):
            raise EdnError(f"more than one value: {show(text)}", end)
        if len(self) >= CACHED_VALUES_MAX:
            self.clear()
        self[text] = value
        return value


def read_edn(path: Path, recorder: Recorder) -> tuple[list[Damage], Damage | None]:
    """Read a history in EDN; return the unreadable places, and where its end is missing.

    Raises:
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        text = _Text(file)
        damage: list[Damage] = []
        for number, (event, at) in enumerate(_forms(text, damage), 1):
            try:
                recorder.take(event, number)
            except ValueError as error:
                damage.append(text.damage(at, str(error)))
    return damage, text.cut


def read_console(path: Path, recorder: Recorder) -> tuple[list[Damage], Damage | None]:
    """Read the events among the lines of a console log; return as `read_edn` does.

    A last line without its newline may lack the end of a number, so it counts as truncated.

    Raises:
        OSError: the file cannot be read.
    """
    values = ValueCache()
    damage: list[Damage] = []
    at = 0
    with path.open("rb") as file:
        for number, raw in enumerate(file, 1):
            if not raw.endswith(b"\n"):
                return damage, Damage(number, at, "the last line has no end")
            line = raw.decode(errors=FOREIGN).removeprefix(MARK if number == 1 else "")
            match = CONSOLE_LINE.match(line)
            if match is None and _LOOKS_LIKE_EVENT.search(line):
                damage.append(Damage(number, at, "a damaged event, or one in another format"))
            elif match is not None and _FOREIGN_BYTES.search(line):
                damage.append(Damage(number, at, NOT_UTF8))
            elif match is not None:
                try:
                    recorder.take(_console_event(match, values), number)
                except ValueError as error:
                    damage.append(Damage(number, at, str(error)))
            at += len(raw)
    return damage, None


def _console_event(match: re.Match[str], values: ValueCache) -> dict[str, Any]:
    process, kind, f, text = match.groups()
    event = {"process": values[process], "type": kind, "f": f}
    if text is None:
        return event
    try:
        event["value"] = values[text]
    except EdnError:  # a value, followed by an error
        event["value"], at = edn.parse(text)
        event["error"] = text[at:].strip()
    return event


class _Text:
    """A file's text, chunk by chunk: whole lines, if it has lines."""

    def __init__(self, file: BinaryIO) -> None:
        self.text = ""
        self.is_all = False
        self.cut: Damage | None = None
        self._file = file
        self._decode = codecs.getincrementaldecoder("utf-8")(FOREIGN).decode
        self._line = 1
        self._byte = 0
        self._is_utf8 = True

    def more(self, at: int) -> bool:
        """Drop what is before `at` and read on; False at the end of the file."""
        if self.is_all:
            return False
        data = self._file.read(max(CHUNK_BYTES, len(self.text) - at))
        if data:
            data += self._file.readline(CHUNK_BYTES)
        self._line += self.text.count("\n", 0, at)
        self._byte += len(self.text[:at].encode(errors=FOREIGN))
        fresh = self._decode(data, not data)
        self._is_utf8 &= _FOREIGN_BYTES.search(fresh) is None
        self.text = self.text[at:] + fresh
        self.is_all = not data
        return True

    def require_utf8(self, at: int, end: int) -> None:
        """Refuse a value with invalid UTF-8, since two different ones might compare equal.

        Raises:
            EdnError: it has some.
        """
        if not self._is_utf8 and (match := _FOREIGN_BYTES.search(self.text, at, end)):
            raise EdnError(NOT_UTF8, match.start())

    def damage(self, at: int, why: str) -> Damage:
        """Return the damage at index `at` of the current chunk."""
        return Damage(
            self._line + self.text.count("\n", 0, at),
            self._byte + len(self.text[:at].encode(errors=FOREIGN)),
            why,
        )


def _forms(text: _Text, damage: list[Damage]) -> Iterator[tuple[Any, int]]:
    """Yield the events with their start in the current chunk; collect damage on the way."""
    values = ValueCache()
    at, closing, begin = 0, "", None
    text.more(0)
    at = len(MARK) if text.text.startswith(MARK) else 0
    while True:
        at = edn.skip(text.text, at)
        if at >= len(text.text):
            if text.more(at):
                at = 0
                continue
            break
        character = text.text[at]
        if begin is None and character in "[(":
            closing, begin = "]" if character == "[" else ")", at
            at += 1
            continue
        begin = at if begin is None else begin
        if closing and character == closing:
            at, closing = at + 1, ""
            continue
        try:
            event, end = _form(text.text, at, values)
            text.require_utf8(at, end)
        except CutError as error:
            too_long = len(text.text) - at > EVENT_CHARACTERS_MAX
            if not too_long and text.more(at):
                at = 0
                continue
            what = (
                f"an event of more than {EVENT_CHARACTERS_MAX:,} characters" if too_long else "cut"
            )
            text.cut = text.damage(at, f"{what}: {error.why}")
            return
        except EdnError as error:
            damage.append(text.damage(max(error.at, at), error.why))
            at = _resume(text, at)
            continue
        yield event, at
        at = end
    if closing:
        text.cut = text.damage(at, f"cut: nothing closes the history with {closing!r}")


def _form(text: str, at: int, values: ValueCache) -> tuple[Any, int]:
    if text.startswith(_RECORD, at):
        at += len(_RECORD)
    match = _FLAT.match(text, at)
    if match is None:
        event, end = edn.parse(text, at)
        if isinstance(event, (dict, Keyword)):
            return event, end
        raise EdnError(f"no event: {show(event)}", at)
    return {name: values[value] for name, value in _PAIR.findall(match[0])}, match.end()


def _resume(text: _Text, at: int) -> int:
    """Return the start of the next event after a damaged one."""
    while True:
        match = _NEXT_EVENT.search(text.text, at + 1)
        if match is not None:
            return match.end()
        if not text.more(max(at, len(text.text) - 1)):
            return len(text.text)
        at = 0
