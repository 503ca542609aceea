"""The just-in-time search of one object, kept from one event to the next. Pure.

A configuration is a state that the object may be in, and which open operations have taken effect to
get there. When an operation returns, open operations are linearized only as far as it needs. What
has returned is forgotten: configurations are all that is kept of it.

Source: Lowe, "Testing for linearizability" (just-in-time linearization); knossos.linear.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

from shaketable.checkers.models.model import UNKNOWN, Call, Model
from shaketable.checkers.models.register import REFUSED

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
