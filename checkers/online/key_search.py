"""The just-in-time search of one object, kept from one event to the next. Pure.

A configuration is a state that the object may be in, and which open operations have taken effect to
get there. When an operation returns, open operations are linearized only as far as it needs. What
has returned is forgotten: configurations are all that is kept of it.

Source: Lowe, "Testing for linearizability" (just-in-time linearization); knossos.linear.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final

from shaketable.checkers.models.model import UNKNOWN, Call

CONFIGURATIONS_MAX: Final = 4_096
"""Configurations of one object; with more it is unknown."""
UNKNOWN_OUTCOMES_MAX: Final = 32
"""Operations of unknown outcome that one object keeps; with more it is unknown."""
HELD_MAX: Final = 4_096
"""Events of one object that wait for the answer of a read or cas; with more it is unknown."""

Configuration = tuple[Any, frozenset[int]]
Step = Callable[[Any, Call], Any]


class KeySearch:
    """What is known of one object after the events so far.

    Attributes:
        violated_by: the operation that no order lets return; None if there is none.
        why_unknown: which limit was passed; None if none was.
    """

    __slots__ = (
        "_answers_matter", "_entered", "_held", "_observers", "_step", "calls",
        "configurations", "unknown_outcomes", "violated_by", "waiting", "why_unknown",
    )  # fmt: skip

    def __init__(self, step: Step, observers: frozenset[str], initial: Any) -> None:
        self._step = step
        self._observers = observers
        self._answers_matter = observers | {"cas"}
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
        """The only state that the object can be in where nothing is open; None elsewhere."""
        if self.calls or self._held or len(self.configurations) != 1:
            return None
        return next(iter(self.configurations))[0]

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
        if len(self._entered) == len(configurations) == 1:  # nothing else is open: the common case
            ((state, used),) = configurations
            after = state if used else self._step(state, call)
            self._forget(op)
            if after is None:
                self._violate(op)
            else:
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

    def _linearize(
        self, op: int, call: Call, seen: set[Configuration], found: set[Configuration]
    ) -> None:
        """Add to `found` what can be reached from `seen` by open operations and then `op`."""
        stack = list(seen)
        others = [(each, self.calls[each]) for each in self._entered if each != op]
        while stack:
            state, used = stack.pop()
            after = self._step(state, call)
            if after is not None:
                found.add((after, used))
            for other, made in others:
                moved = None if other in used else self._step(state, made)
                if moved is None:
                    continue
                reached = (moved, used | {other})
                if reached not in seen:
                    seen.add(reached)
                    stack.append(reached)
            if len(seen) > CONFIGURATIONS_MAX:
                self._give_up(f"more than {CONFIGURATIONS_MAX:,} configurations")
                return

    def _smallest(self, found: set[Configuration]) -> set[Configuration]:
        """Leave out those that used more operations of unknown outcome for the same state."""
        unknown = self.unknown_outcomes
        if not unknown or len(found) == 1:
            return found
        kept: dict[tuple[Any, frozenset[int]], list[frozenset[int]]] = {}
        for state, used in sorted(found, key=lambda each: len(each[1])):
            spent = used & unknown
            group = kept.setdefault((state, used - unknown), [])
            if not any(less <= spent for less in group):
                group.append(spent)
        return {(state, rest | spent) for (state, rest), group in kept.items() for spent in group}

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
