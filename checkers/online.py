"""Judges registers, texts, counters and mutexes event by event, each key by itself. Pure.

Models: register, cas-register, kv, counter, mutex. Of each key the latest events are kept from a
cut on, where nothing was open and one state was possible, so that a violation can be shown.

The just-in-time search of a key (`checkers.key_search`) is kept from one event to the next.

A growing history may be shared among several judges: each gets the lines of its keys. Lines are
dealt out by key, so each judge sees all that happened to an object, in order. It also gets the time
of the last line, for it judges answers once no call at the same time can come.
"""

from __future__ import annotations

import json
import zlib
from collections import Counter as Counts
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from shaketable.checkers.key_search import KeySearch
from shaketable.checkers.models.model import UNKNOWN, Call, Model
from shaketable.harness.contracts.errors import UsageError
from shaketable.harness.contracts.verdict import Outcome
from shaketable.harness.history.foreign.columns import (
    is_columns,
    key_text,
    ok_output,
    parse_invoke,
    split_key,
)
from shaketable.harness.history.foreign.jsonl import EventLine

MODELS: Final = ("register", "cas-register", "kv", "counter", "mutex")
"""Models whose histories are judged while they grow."""
KEYS_MAX: Final = 100_000
"""Keys that are told apart; events of further ones are not judged."""
KINDS: Final = frozenset(("invoke", "ok", "fail", "info"))
NEMESIS: Final = ("nemesis", -1)
"""Processes whose events are of no client."""
CALLS_MAX: Final = 10_000
"""Calls that are made once for all operations that are alike."""
NOT_JUDGED: Final = "\0"
"""In place of the key of an operation on one key too many."""
OPEN_MAX: Final = 100_000
"""Clients with an open operation."""
CONTEXT_EVENTS: Final = 64
"""Events of a key that are kept at least, if it has so many."""
WINDOW_EVENTS_MAX: Final = 4_096
"""Events of a key that are kept at most; with more a violation is told without a page."""


_Opened = tuple[int, str, Any, str | None, Call]


@dataclass(slots=True)
class _Key:
    search: KeySearch
    first: str | None
    window: list[EventLine] = field(default_factory=list)
    is_whole: bool = True
    was_cut: bool = False

    def calls_kept(self) -> list[EventLine]:
        """Return the calls in the window of operations that may take effect after it."""
        is_open = self.search.is_open
        return [each for each in self.window if each.type == "invoke" and is_open(each.index)]


@dataclass(frozen=True, slots=True)
class Violation:
    """A key that is not linearizable.

    `first` is the state at the window's start, as `--initial` takes it (None: the model's own). The
    window has its events from there on; it is empty where it would have been too large. `is_part`:
    there were others before.
    """

    key: str | None
    op: int
    first: str | None
    window: tuple[EventLine, ...]
    is_part: bool


class HistoryJudge:
    """Takes events in time order; at equal times calls come first, as in `check`.

    Attributes:
        model: what each key has to behave like.
        events: how many were taken.
        operations: how many were called.
        hole: why events are known to be missing from some place on; None if they are not. What
            comes after it is not judged, for what is missing may explain it.
        why_lacking: why some keys are not judged; None if all are.
    """

    def __init__(self, model: Model, initial: str | None, *, splits_keys: bool) -> None:
        if model.name not in MODELS:
            raise UsageError(
                f"the model {model.name} is not judged while a history grows, only"
                f" {', '.join(MODELS)}; use check"
            )
        self.model = model
        self.events = 0
        self.operations = 0
        self.why_lacking: str | None = None
        self.hole: str | None = None
        self._initial = initial
        self._first = model.initial(initial)
        self._splits_keys = splits_keys
        self._keys: dict[str | None, _Key] = {}
        # process -> operation, f, value, key, call
        self._open: dict[str, _Opened] = {}
        self._calls: dict[tuple[str, int | None], Call] = {}
        self._latest_ns: int | None = None
        self._latest_index = -1
        self._is_timed = True
        self._is_settled = False
        # of the latest time: calls at that time come first
        self._returns: list[tuple[_Opened, EventLine]] = []
        self._found: list[Violation] = []

    @property
    def keys(self) -> int:
        """How many keys there are."""
        return len(self._keys)

    @property
    def open(self) -> int:
        """How many operations have no end as yet."""
        return len(self._open)

    def take(self, event: EventLine) -> list[Violation]:
        """Take the next event; return what it shows.

        Raises:
            ValueError: it is no event, or does not fit; without the place.
        """
        if self.hole is not None:
            return []
        number = self.events
        self.events = number + 1
        # An operation is told from others by its index: one that others had before is not taken.
        if event.index is None or event.index <= self._latest_index:
            event.index = max(number, self._latest_index + 1)
        self._latest_index = event.index
        process, kind = event.process, event.type
        if process is None or process in NEMESIS:
            return []
        if kind not in KINDS or event.f is None:
            raise ValueError("no event (it needs process, type and f)")
        time_ns = event.time_ns if event.time_ns is not None else event.time
        if self._latest_ns is None:
            self._is_timed = time_ns is not None
        if (time_ns is None) is self._is_timed:
            raise ValueError("some events have a time and some have none")
        self._advance(number if time_ns is None else time_ns, kind)
        if kind == "invoke":
            self._invoke(event)
        else:
            self._end(event)
        if not self._found:
            return []
        found, self._found = self._found, []
        return found

    def _advance(self, time_ns: int, kind: str) -> None:
        """Take an event's time: answers at earlier ones can be judged."""
        latest_ns = self._latest_ns
        if latest_ns is None or time_ns > latest_ns:
            if self._returns:
                self._take_returns()
            self._latest_ns, self._is_settled = time_ns, False
        elif time_ns < latest_ns:
            raise ValueError("its time is before that of an earlier event; use check")
        elif self._is_settled and kind == "invoke":
            raise ValueError("its time is that of answers which were judged already")

    def clock(self, time_ns: int | None) -> list[Violation]:
        """Take that no event before this time will come; return what that shows.

        For a part of a history whose other events another judge takes. None: its events have no
        times, and their order is all that there is.
        """
        if time_ns is None or self._latest_ns is None or time_ns > self._latest_ns:
            self._take_returns()
            if time_ns is not None:
                self._latest_ns, self._is_settled = time_ns, False
        found, self._found = self._found, []
        return found

    def settle(self) -> list[Violation]:
        """Judge the answers of the latest time, too; return what they show.

        They wait for calls at the same time, which count as before them. To be called when none
        will come: the clock has gone on.
        """
        self._take_returns()
        self._is_settled = True
        found, self._found = self._found, []
        return found

    def miss(self, why: str) -> list[Violation]:
        """Take that events are missing here; return what those before it show.

        Answers at the latest time show nothing: what is missing may be a call at that time.
        """
        if self.hole is None:
            self._returns.clear()
            self.hole = why
        found, self._found = self._found, []
        return found

    def finish(self) -> list[Violation]:
        """Take the end of the history."""
        self._take_returns()
        for name, key in self._keys.items():
            was_decided = key.search.is_decided
            key.search.finish()
            if not was_decided:
                self._note(name, key)
        found, self._found = self._found, []
        return found

    def outcome(self) -> Outcome:
        """Return the verdict so far."""
        searches = [key.search for key in self._keys.values()]
        if any(search.violated_by is not None for search in searches):
            return Outcome.INVALID
        is_unknown = any(search.why_unknown for search in searches)
        lacks = self.hole is not None or self.why_lacking is not None or not self.operations
        return Outcome.UNKNOWN if is_unknown or lacks else Outcome.VALID

    def doubts(self) -> list[str]:
        """Return why keys are unknown, each reason once."""
        return [*doubt_lines(self.unknown_keys()), *self.lacks()]

    def unknown_keys(self) -> Counts[str]:
        """Return how many keys are unknown, for each reason."""
        return Counts(
            key.search.why_unknown for key in self._keys.values() if key.search.why_unknown
        )

    def lacks(self) -> list[str]:
        """Return why something was not judged at all."""
        return [each for each in (self.why_lacking, self.hole) if each]

    def _take_returns(self) -> None:
        returns, self._returns = self._returns, []
        for opened, event in returns:
            self._close(opened, event.type, event)

    def _invoke(self, event: EventLine) -> None:
        assert event.f is not None
        if event.f not in self.model.fs:
            raise ValueError(f"{event.f} is no operation of the model {self.model.name}")
        process = str(event.process)
        if process in self._open:
            self._close(self._open.pop(process), "info", None)
        if len(self._open) >= OPEN_MAX:
            raise ValueError(f"more than {OPEN_MAX:,} clients have an open operation")
        name, value = self._key_and_value(event, event.value)
        if value is None or type(value) is int:
            call = self._call_of(event.f, value)
        elif is_columns(value):
            call = Call(event.f, value.get("input"), UNKNOWN, value.get("expected"))
        else:
            given = parse_invoke(event.f, value)
            call = Call(event.f, given.input, UNKNOWN, given.expected)
        self._require_input(call)
        key = self._keys.get(name)
        if key is None:
            if len(self._keys) >= KEYS_MAX:
                self.why_lacking = f"more than {KEYS_MAX:,} keys: the others were not judged"
                self._open[process] = (event.index or 0, event.f, value, NOT_JUDGED, call)
                return
            search = KeySearch(self.model, self._first)
            key = self._keys[name] = _Key(search, self._initial)
        op = event.index if event.index is not None else self.events - 1
        self.operations += 1
        self._open[process] = (op, event.f, value, name, call)
        self._keep(key, event, value)
        key.search.invoke(op, call)

    def _call_of(self, f: str, value: int | None) -> Call:
        """Return the call of an operation; many are the same."""
        call = self._calls.get((f, value))
        if call is None:
            given = parse_invoke(f, value)
            call = Call(f, given.input, UNKNOWN, given.expected)
            if len(self._calls) < CALLS_MAX:
                self._calls[f, value] = call
        return call

    def _require_input(self, call: Call) -> None:
        if call.f == "add" and type(call.input) is not int:
            raise ValueError("add takes a whole number")
        if isinstance(call.input, (list, dict)) or isinstance(call.expected, (list, dict)):
            raise ValueError(  # noqa: TRY004 - see `take`
                "its value is a list or an object; for pairs [key value] say --partition-by key"
            )

    def _end(self, event: EventLine) -> None:
        process = str(event.process)
        opened = self._open.get(process)
        if opened is None or opened[1] != event.f:
            self._returns.clear()  # see `miss`
            self.hole = f"a {event.type} of {event.f} by process {process} has no invoke"
            return
        self._returns.append((self._open.pop(process), event))

    def _close(self, opened: _Opened, kind: str, event: EventLine | None) -> None:
        op, f, called, name, call = opened
        value = None if event is None else self._key_and_value(event, event.value)[1]
        key = self._keys.get(name)
        if key is None or key.search.is_decided:
            return
        if event is not None:
            self._keep(key, event, value)
        if kind == "ok":
            if isinstance(value, dict) and is_columns(value):
                output = value.get("output")
            else:
                output = ok_output(f, called, value)
            key.search.ok(op, Call(f, call.input, output, call.expected))
        elif kind == "fail":
            key.search.fail(op)
        else:
            key.search.info(op)
        self._note(name, key)

    def _key_and_value(self, event: EventLine, value: Any) -> tuple[str | None, Any]:
        if event.key is not None:
            return key_text(event.key), value
        if not self._splits_keys or (value is None and event.type != "invoke"):
            return None, value
        pair = split_key(value)
        if pair is None:
            if event.type == "invoke":
                raise ValueError("no [key value] to split by")
            return None, value
        return pair

    def _keep(self, key: _Key, event: EventLine, value: Any) -> None:
        if len(key.window) >= WINDOW_EVENTS_MAX:
            key.window, key.is_whole = key.calls_kept(), False
        if key.is_whole or event.type == "invoke":  # one may take effect in a later window
            key.window.append(event)
            if self._splits_keys:
                event.value = value

    def _note(self, name: str | None, key: _Key) -> None:
        """Report a violation; forget the window at a cut."""
        search = key.search
        if search.violated_by is not None:
            window, key.window = tuple(key.window) if key.is_whole else (), []
            self._found.append(Violation(name, search.violated_by, key.first, window, key.was_cut))
        elif search.is_decided:
            key.window = []
        elif len(key.window) >= CONTEXT_EVENTS or not key.is_whole:
            state = search.cut_state
            if state is not None:
                key.first, key.window = _text(state), key.calls_kept()
                key.is_whole = key.was_cut = True

    def to_plain(self) -> dict[str, Any]:
        """Return all of it as plain values, for a checkpoint."""
        return {
            "numbers": [self.events, self.operations, self._latest_ns, self._latest_index],
            "missing": [self.hole, self.why_lacking],
            "is_timed": [self._is_timed, self._is_settled],
            "open": [[process, _plain(opened)] for process, opened in self._open.items()],
            "returns": [[_plain(opened), event] for opened, event in self._returns],
            "keys": [
                [name, key.first, key.window, key.is_whole, key.was_cut, key.search.to_plain()]
                for name, key in self._keys.items()
            ],
        }

    def restore(self, plain: dict[str, Any], event_of: Callable[[Any], EventLine]) -> None:
        """Take what `to_plain` returned; `event_of` makes an event of its plain form."""
        self.events, self.operations, self._latest_ns, self._latest_index = plain["numbers"]
        self.hole, self.why_lacking = plain["missing"]
        self._is_timed, self._is_settled = plain["is_timed"]
        self._open = {process: _opened(each) for process, each in plain["open"]}
        self._returns = [(_opened(each), event_of(event)) for each, event in plain["returns"]]
        for name, first, window, is_whole, was_cut, search_plain in plain["keys"]:
            search = KeySearch(self.model, self._first)
            search.restore(search_plain)
            events = [event_of(each) for each in window]
            self._keys[name] = _Key(search, first, events, is_whole, was_cut)


def doubt_lines(unknown_keys: Counts[str]) -> list[str]:
    """Return a line for each reason why keys are unknown."""
    return [
        f"{count} {'key' if count == 1 else 'keys'}: {why}" for why, count in unknown_keys.items()
    ]


def _plain(opened: _Opened) -> list[Any]:
    op, f, value, name, call = opened
    return [op, f, value, name, call.input, call.expected]


def _opened(plain: list[Any]) -> _Opened:
    op, f, value, name, given, expected = plain
    return op, f, value, name, Call(f, given, UNKNOWN, expected)


def _text(state: Any) -> str:
    """Return a state as `--initial` takes it: of a register, of texts, of a counter."""
    return json.dumps(state[0]) if isinstance(state, tuple) else str(state)


# A history that is shared among several judges.


class Slice(msgspec.Struct, kw_only=True):
    """The lines of one judge in a part of the file.

    `numbers` are those of the lines, from 0. `through` is the number after the part's last line,
    `byte` the place after it, `until_ns` the time of the last event of a client, if it has one
    (`is_later`: there was such an event). `hole` says why nothing after these is judged.
    `is_settled`: for some time there was nothing new. `ended`: all of the history is there, and the
    judge is to say what it knows.
    """

    numbers: list[int]
    lines: list[bytes]
    through: int
    byte: int = 0
    until_ns: int | None = None
    is_later: bool = False
    hole: str | None = None
    is_settled: bool = False
    ended: str | None = None


class Progress(msgspec.Struct, kw_only=True):
    """What a judge knows after a slice.

    `lacks` says why something was not judged. At the end alone (`ended`) its `outcome` is given,
    and how many keys are unknown for each reason (`doubts`).
    """

    bucket: int
    operations: int
    keys: int
    open: int
    through: int
    byte: int
    violations: list[Violation]
    ended: str | None = None
    outcome: int | None = None
    doubts: dict[str, int] = msgspec.field(default_factory=dict)
    lacks: list[str] = msgspec.field(default_factory=list)


class _Routed(msgspec.Struct, gc=False):
    """What of an event says whose it is."""

    type: str
    process: int | str | None = None
    key: str | int | None = None
    value: Any = None
    time_ns: int | None = None
    time: int | None = None


class _RoutedByKey(msgspec.Struct, gc=False):
    type: str
    process: int | str | None = None
    key: str | int | None = None
    time_ns: int | None = None
    time: int | None = None


def sliced(lines: Sequence[bytes], first: int, buckets: int, *, splits_keys: bool) -> list[Slice]:
    """Give each of so many judges its lines of a part, whose first line has the number `first`.

    Nothing is given after a line that cannot be read, or whose key is not known.
    """
    kind: type[_Routed | _RoutedByKey] = _Routed if splits_keys else _RoutedByKey
    decode = msgspec.json.Decoder(kind).decode
    through = first + len(lines)
    slices = [Slice(numbers=[], lines=[], through=through) for _ in range(buckets)]
    until_ns: int | None = None
    is_any = False
    for number, line in enumerate(lines, first):
        if not line or line.isspace():
            continue
        try:
            event = decode(line)
            if event.process is None or event.process in NEMESIS:
                continue  # a judge does not take its time, either
            bucket = _bucket_of(event, buckets)
        except (msgspec.DecodeError, ValueError) as error:
            hole = f"line {number + 1:,} cannot be judged: {error}"
            for each in slices:
                each.hole = hole
            break
        until_ns = event.time_ns if event.time_ns is not None else event.time
        slices[bucket].numbers.append(number)
        slices[bucket].lines.append(line)
        is_any = True
    for each in slices:
        each.until_ns, each.is_later = until_ns, is_any
    return slices


def _bucket_of(event: _Routed | _RoutedByKey, buckets: int) -> int:
    """Return whose an event is; events without a key are of one object.

    Raises:
        ValueError: the key should be in the value, and is not.
    """
    if event.key is not None:
        key = key_text(event.key)
    elif isinstance(event, _RoutedByKey):
        return 0
    else:
        pair = split_key(event.value)
        if pair is None:
            raise ValueError("no [key value] to split by, which several judges need in each event")
        key = pair[0]
    return zlib.crc32(key.encode()) % buckets


def take_slice(
    judge: HistoryJudge, given: Slice, decode: Callable[[bytes], EventLine]
) -> list[Violation]:
    """Judge the lines of a slice; return what they show."""
    found: list[Violation] = []
    for number, line in zip(given.numbers, given.lines, strict=True):
        try:
            event = decode(line)
            if event.index is None:
                event.index = number
            found += judge.take(event)
        except (msgspec.DecodeError, ValueError) as error:
            found += judge.miss(f"line {number + 1:,} cannot be judged: {error}")
    if given.hole is not None:
        found += judge.miss(given.hole)
    if given.is_later:
        found += judge.clock(given.until_ns)
    return found + judge.settle() if given.is_settled else found


def progress_of(judge: HistoryJudge, bucket: int, last: Slice, found: list[Violation]) -> Progress:
    """Return what a judge knows after its latest slice, and what the slices have shown."""
    return Progress(
        bucket=bucket, operations=judge.operations, keys=judge.keys, open=judge.open,
        through=last.through, byte=last.byte, violations=found, lacks=judge.lacks(),
    )  # fmt: skip


def conclude(judge: HistoryJudge, known: Progress, ended: str) -> None:
    """Take the end of the history, and say what it shows. The judge is of no use then."""
    known.violations = [*known.violations, *judge.finish()]
    known.ended, known.outcome = ended, judge.outcome().value
    known.doubts, known.lacks = dict(judge.unknown_keys()), judge.lacks()
