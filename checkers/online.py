"""Judges registers, texts and counters event by event, each key by a search of its own. Pure.

Models: register, cas-register, kv, counter. Of each key the latest events are kept from a cut on,
where nothing was open and one state was possible, so that a violation can be shown.

The just-in-time search of a key is kept from one event to the next. A configuration is a state that
the object may be in, and which open operations have taken effect to get there. When an operation
returns, open operations are linearized only as far as it needs. What has returned is forgotten:
configurations are all that is kept of it.

Source: Lowe, "Testing for linearizability" (just-in-time linearization); knossos.linear.
"""

from __future__ import annotations

import json
from collections import Counter as Counts
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from shaketable.checkers.models.model import UNKNOWN, Call, Model
from shaketable.checkers.models.register import REFUSED
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

MODELS: Final = ("register", "cas-register", "kv", "counter")
"""Models whose histories are judged while they grow."""
KEYS_MAX: Final = 100_000
"""Keys that are told apart; events of further ones are not judged."""
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
        calls = self.search.calls
        return [each for each in self.window if each.type == "invoke" and each.index in calls]


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
        self._latest_ns: int | None = None
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
        number, self.events = self.events, self.events + 1
        if event.index is None:
            event.index = number  # as `check` numbers operations
        if event.process is None or event.process in ("nemesis", -1):
            return []
        if event.type not in ("invoke", "ok", "fail", "info") or event.f is None:
            raise ValueError("no event (it needs process, type and f)")
        time_ns = event.time_ns if event.time_ns is not None else event.time
        if self._latest_ns is None:
            self._is_timed = time_ns is not None
        if (time_ns is not None) != self._is_timed:
            raise ValueError("some events have a time and some have none")
        if time_ns is None:
            time_ns = number
        if self._latest_ns is not None and time_ns < self._latest_ns:
            raise ValueError("its time is before that of an earlier event; use check")
        if time_ns != self._latest_ns:
            self._take_returns()
            self._latest_ns, self._is_settled = time_ns, False
        elif self._is_settled and event.type == "invoke":
            raise ValueError("its time is that of answers which were judged already")
        if event.type == "invoke":
            self._invoke(event)
        else:
            self._end(event)
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
        """Take that events are missing here; return what those before it show."""
        if self.hole is None:
            self._take_returns()
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
        whys = Counts(
            key.search.why_unknown for key in self._keys.values() if key.search.why_unknown
        )
        lines = [f"{count} {'key' if count == 1 else 'keys'}: {why}" for why, count in whys.items()]
        return [*lines, *(each for each in (self.why_lacking, self.hole) if each)]

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
        if is_columns(value):
            call = Call(event.f, value.get("input"), UNKNOWN, value.get("expected"))
        else:
            given = parse_invoke(event.f, value)
            call = Call(event.f, given.input, UNKNOWN, given.expected)
        self._require_input(call)
        key = self._keys.get(name)
        if key is None:
            if len(self._keys) >= KEYS_MAX:
                self.why_lacking = f"more than {KEYS_MAX:,} keys: the others were not judged"
                return
            search = KeySearch(self.model, self._first)
            key = self._keys[name] = _Key(search, self._initial)
        op = event.index if event.index is not None else self.events - 1
        self.operations += 1
        self._open[process] = (op, event.f, value, name, call)
        self._keep(key, event, value)
        key.search.invoke(op, call)

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
            self._take_returns()
            self.hole = f"a {event.type} of {event.f} by process {process} has no invoke"
            return
        self._returns.append((self._open.pop(process), event))

    def _close(self, opened: _Opened, kind: str, event: EventLine | None) -> None:
        op, f, called, name, call = opened
        value = None if event is None else self._key_and_value(event, event.value)[1]
        key = self._keys[name]
        if key.search.is_decided:
            return
        if event is not None:
            self._keep(key, event, value)
        if kind == "ok":
            is_split = is_columns(value)
            output = dict(value or {}).get("output") if is_split else ok_output(f, called, value)
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
            "numbers": [self.events, self.operations, self._latest_ns],
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
        self.events, self.operations, self._latest_ns = plain["numbers"]
        self.hole, self.why_lacking = plain["missing"]
        self._is_timed, self._is_settled = plain["is_timed"]
        self._open = {process: _opened(each) for process, each in plain["open"]}
        self._returns = [(_opened(each), event_of(event)) for each, event in plain["returns"]]
        for name, first, window, is_whole, was_cut, search_plain in plain["keys"]:
            search = KeySearch(self.model, self._first)
            search.restore(search_plain)
            events = [event_of(each) for each in window]
            self._keys[name] = _Key(search, first, events, is_whole, was_cut)


def _plain(opened: _Opened) -> list[Any]:
    op, f, value, name, call = opened
    return [op, f, value, name, call.input, call.expected]


def _opened(plain: list[Any]) -> _Opened:
    op, f, value, name, given, expected = plain
    return op, f, value, name, Call(f, given, UNKNOWN, expected)


def _text(state: Any) -> str:
    """Return a state as `--initial` takes it: of a register, of texts, of a counter."""
    return json.dumps(state[0]) if isinstance(state, tuple) else str(state)


# The search of one key.

CONFIGURATIONS_MAX: Final = 4_096
"""Configurations of one object; with more it is unknown."""
UNKNOWN_OUTCOMES_MAX: Final = 256
"""Operations of unknown outcome that one object keeps; with more it is unknown."""
HELD_MAX: Final = 4_096
"""Events of one object that wait for the answer of a read or cas; with more it is unknown."""

Configuration = tuple[Any, frozenset[int]]


class _Smallest:
    """Configurations of which none has the state of another and used more of unknown outcome."""

    def __init__(self, unknown_outcomes: set[int]) -> None:
        self._unknown_outcomes = unknown_outcomes
        self._spent: dict[tuple[Any, frozenset[int]], list[frozenset[int]]] = {}
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def add(self, state: Any, used: frozenset[int]) -> bool:
        """Add one, unless there is one that makes it redundant; return whether it was added."""
        spent = used & self._unknown_outcomes
        group = self._spent.setdefault((state, used - spent if spent else used), [])
        if any(less <= spent for less in group):
            return False
        group.append(spent)
        self._size += 1
        return True


class _Settled:
    """Gives the answers that fit a state, of operations that change none: reads, refused cas."""

    def __init__(
        self,
        step: Callable[[Any, Call], Any | None],
        others: Sequence[tuple[int, Call]],
        observers: frozenset[str],
    ) -> None:
        self._step = step
        self._known = [
            (op, call)
            for op, call in others
            if call.output is not UNKNOWN
            and (call.f in observers or (call.f == "cas" and call.output == REFUSED))
        ]
        self._by_state: dict[Any, frozenset[int]] = {}

    def __call__(self, state: Any, used: frozenset[int]) -> frozenset[int]:
        """Return `used`, and those of known answer that fit."""
        if not self._known:
            return used
        fitting = self._by_state.get(state)
        if fitting is None:
            fitting = self._by_state[state] = frozenset(
                op for op, call in self._known if self._step(state, call) is not None
            )
        return used | fitting if fitting else used


class KeySearch:
    """What is known of one object after the events so far.

    Attributes:
        violated_by: the operation that no order lets return; None if there is none.
        why_unknown: which limit was passed; None if none was.
    """

    __slots__ = (
        "_answers_matter", "_entered", "_held", "_observers", "_overwriters",
        "_postpones_unknown", "_step",
        "calls", "configurations", "unknown_outcomes", "violated_by", "waiting", "why_unknown",
    )  # fmt: skip

    def __init__(self, model: Model, initial: Any) -> None:
        self._step = model.step
        self._observers = model.observers
        self._overwriters = model.overwriters
        self._answers_matter = model.observers | {"cas"}
        self._postpones_unknown = model.observers | model.overwriters
        self._held: deque[tuple[bool, int]] = deque()  # (is a return, operation)
        self._entered: set[int] = set()  # open ones whose call is not held
        self.waiting: set[int] = set()
        self.calls: dict[int, Call] = {}
        self.configurations: set[Configuration] = {(initial, frozenset())}
        self.unknown_outcomes: set[int] = set()
        self.violated_by: int | None = None
        self.why_unknown: str | None = None

    @property
    def is_decided(self) -> bool:
        """Whether no further event changes what is known."""
        return self.violated_by is not None or self.why_unknown is not None

    @property
    def cut_state(self) -> Any | None:
        """The only state that the object can be in, where no operation will return; else None.

        The operations of unknown outcome may still take effect after it.
        """
        if len(self.calls) > len(self.unknown_outcomes) or self._held:
            return None
        if len(self.configurations) != 1:
            return None
        ((state, used),) = self.configurations
        return None if used else state

    def invoke(self, op: int, call: Call) -> None:
        """Take a call; its output is UNKNOWN as yet."""
        if self.is_decided:
            return
        self.calls[op] = call
        if call.f in self._answers_matter:
            self.waiting.add(op)
        if self.waiting:
            self._hold(is_return=False, op=op)
        else:
            self._entered.add(op)

    def ok(self, op: int, call: Call) -> None:
        """Take an answer; `call` has the output."""
        if self.is_decided or op not in self.calls:
            return
        self.calls[op] = call
        self.waiting.discard(op)
        if self._held:
            self._hold(is_return=True, op=op)
            self._release()
        else:
            self._return(op)

    def fail(self, op: int) -> None:
        """Take that an operation did not happen."""
        if self.is_decided or op not in self.calls:
            return
        self._forget(op)
        self.configurations = {each for each in self.configurations if op not in each[1]}
        self._require_one(op)
        self._release()

    def info(self, op: int) -> None:
        """Take that an outcome is unknown: it may take effect at any later time, or never."""
        if self.is_decided or op not in self.calls:
            return
        if self.calls[op].f in self._observers:
            self._forget(op)
        else:
            self.waiting.discard(op)
            self.unknown_outcomes.add(op)
            if len(self.unknown_outcomes) > UNKNOWN_OUTCOMES_MAX:
                self._give_up(f"more than {UNKNOWN_OUTCOMES_MAX} operations of unknown outcome")
        self._release()

    def finish(self) -> None:
        """Take the end of the history: what is open has an unknown outcome."""
        for op in sorted(self.calls.keys() - self.unknown_outcomes):
            if not any(is_return and held == op for is_return, held in self._held):
                self.info(op)

    def _hold(self, *, is_return: bool, op: int) -> None:
        self._held.append((is_return, op))
        if len(self._held) > HELD_MAX:
            self._give_up(f"more than {HELD_MAX:,} events since the call of a read without answer")

    def _release(self) -> None:
        """Take what was held, up to the next call whose answer is not known."""
        held = self._held
        while held and not self.is_decided:
            is_return, op = held[0]
            if not is_return and op in self.waiting:
                return
            held.popleft()
            if is_return:
                self._return(op)
            elif op in self.calls:
                self._entered.add(op)

    def _return(self, op: int) -> None:
        """Keep the configurations in which `op` took effect before it returned."""
        call = self.calls[op]
        configurations = self.configurations
        after = self._after_alone(op, call)
        if after is not None:
            self._forget(op)
            self.configurations = {(after, frozenset())}
            return
        found: set[Configuration] = set()
        seen = {each for each in configurations if op not in each[1]}
        found.update((state, used - {op}) for state, used in configurations if op in used)
        self._linearize(op, call, seen, found)
        self._forget(op)
        if not self.is_decided:
            self.configurations = self._smallest(found)
            self._require_one(op)

    def _after_alone(self, op: int, call: Call) -> Any | None:
        """Return the state after `op` where no order but one has to be tried, the common case.

        Nothing else is open but operations of unknown outcome; they may as well take effect after
        what observes, and before what overwrites they may as well not.
        """
        if len(self.configurations) > 1 or len(self._entered) > len(self.unknown_outcomes) + 1:
            return None
        ((state, used),) = self.configurations
        if used:
            return state if len(used) == 1 and op in used else None
        if self.unknown_outcomes and call.f not in self._postpones_unknown:
            return None
        return self._step(state, call)

    def _linearize(
        self, op: int, call: Call, start: set[Configuration], found: set[Configuration]
    ) -> None:
        """Add to `found` what can be reached from `start` by open operations and then `op`.

        Three rules keep them few. An operation of unknown outcome need not take effect: what can be
        reached without it, in the same state, makes what was reached with it redundant. One that
        overwrites is tried only where what comes right after does not overwrite it. A read, or a
        cas that was refused, is answered in the first state that its answer fits: it has to be,
        and nothing is lost by it.
        """
        others = [(each, self.calls[each]) for each in self._entered if each != op]
        settled = _Settled(self._step, others, self._observers)
        reached = _Smallest(self.unknown_outcomes)
        # Those that used fewest come first: then the others are found redundant at once.
        queue: deque[tuple[Any, frozenset[int], bool]] = deque()
        for state, used in sorted(start, key=lambda each: len(each[1])):
            more = settled(state, used)
            if reached.add(state, more):
                queue.append((state, more, False))
        overwriters, unknown = self._overwriters, self.unknown_outcomes
        overwrites = call.f in overwriters
        steps = [(each, made, made.f in overwriters, each in unknown) for each, made in others]
        if overwrites and all(is_blind for _, _, is_blind, _ in steps):
            steps = [other for other in steps if not other[3]]
        while queue:
            state, used, is_in_vain = queue.popleft()
            after = None if is_in_vain and overwrites else self._step(state, call)
            if after is not None:
                found.add((after, settled(after, used)))
            for other, made, is_blind, is_unknown in steps:
                if other in used or (is_in_vain and is_blind):
                    continue
                moved = self._step(state, made)
                if moved is None:
                    continue
                with_other = used | {other}
                more = settled(moved, with_other)
                if reached.add(moved, more):
                    in_vain = is_blind and is_unknown and more == with_other
                    queue.append((moved, more, in_vain))
            if len(reached) > CONFIGURATIONS_MAX:
                self._give_up(f"more than {CONFIGURATIONS_MAX:,} configurations")
                return

    def _smallest(self, found: set[Configuration]) -> set[Configuration]:
        """Leave out those that used more operations of unknown outcome for the same state.

        What all of them used has taken effect, and is forgotten.
        """
        if not self.unknown_outcomes:
            return found
        smallest = _Smallest(self.unknown_outcomes)
        kept = {
            (state, used)
            for state, used in sorted(found, key=lambda each: len(each[1]))
            if smallest.add(state, used)
        }
        certain = frozenset(self.unknown_outcomes).intersection(*(used for _, used in kept))
        if not kept or not certain:
            return kept
        for op in certain:
            self._forget(op)
        return {(state, used - certain) for state, used in kept}

    def _forget(self, op: int) -> None:
        self.calls.pop(op, None)
        self._entered.discard(op)
        self.waiting.discard(op)
        self.unknown_outcomes.discard(op)

    def _require_one(self, op: int) -> None:
        if not self.configurations:
            self._violate(op)

    def _violate(self, op: int) -> None:
        self.violated_by = op
        self._clear()

    def _give_up(self, why: str) -> None:
        self.why_unknown = why
        self._clear()

    def _clear(self) -> None:
        self._held.clear()
        self._entered.clear()
        self.waiting.clear()
        self.calls.clear()
        self.unknown_outcomes.clear()
        self.configurations = set()

    def to_plain(self) -> list[Any]:
        """Return all of it as lists, numbers and texts, for a checkpoint."""
        calls = [
            [op, call.f, call.input, call.expected, call.output is not UNKNOWN,
             None if call.output is UNKNOWN else call.output]
            for op, call in self.calls.items()
        ]  # fmt: skip
        configurations = [[state, sorted(used)] for state, used in self.configurations]
        return [
            calls, configurations, [list(each) for each in self._held], sorted(self.waiting),
            sorted(self._entered), sorted(self.unknown_outcomes),
            self.violated_by, self.why_unknown,
        ]  # fmt: skip

    def restore(self, plain: list[Any]) -> None:
        """Take what `to_plain` returned, also after lists and tuples became lists."""
        calls, configurations, held, waiting, entered, unknown, violated_by, why_unknown = plain
        self.violated_by, self.why_unknown = violated_by, why_unknown
        self.calls = {
            op: Call(f, given, output if is_known else UNKNOWN, expected)
            for op, f, given, expected, is_known, output in calls
        }
        self.configurations = {
            (tuple(state) if isinstance(state, list) else state, frozenset(used))
            for state, used in configurations
        }
        self._held = deque((bool(is_return), op) for is_return, op in held)
        self.waiting, self.unknown_outcomes = set(waiting), set(unknown)
        self._entered = set(entered)
