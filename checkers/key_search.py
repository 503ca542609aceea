"""The search of one object, event by event: what it may hold, and who made it so. Pure.

A configuration is a state that the object may be in, and which open operations have taken effect to
get there. When an operation returns, open operations are linearized only as far as it needs. What
has returned is forgotten: configurations are all that is kept of it.

A configuration stands for many. An open overwriter may have taken effect right before another one,
where nothing saw it; so each configuration also has a set of overwriters of which any may have
taken effect, or none. Without it 20 clients that write to one register at once need a million.

Sets of open operations are whole numbers, a bit each.

Source: Lowe, "Testing for linearizability" (just-in-time linearization); knossos.linear.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from shaketable.checkers.models.model import UNKNOWN, Call, Model
from shaketable.checkers.models.register import REFUSED

REFUSABLE: Final = frozenset(("cas", "acquire"))
"""Operations that change nothing if their answer is REFUSED."""
CONFIGURATIONS_MAX: Final = 4_096
"""Configurations of one object; with more it is unknown."""
UNKNOWN_OUTCOMES_MAX: Final = 256
"""Operations of unknown outcome that one object keeps; with more it is unknown."""
HELD_MAX: Final = 4_096
"""Events of one object that wait for the answer of a read or cas; with more it is unknown."""

Configuration = tuple[Any, int, int]
"""State, operations that took effect, overwriters that may have."""


class _Kept:
    """Configurations of which none makes another one redundant.

    One is redundant beside another of the same state that has seen as much or more, spent no more
    operations of unknown outcome, and leaves open whatever it leaves open.
    """

    __slots__ = ("_by_state", "_not_observing", "_not_unknown", "size")

    def __init__(self, observing: int, unknown: int) -> None:
        self._not_observing = ~observing
        self._not_unknown = ~unknown
        self._by_state: dict[Any, list[tuple[int, int]]] = {}
        self.size = 0

    def keep(self, state: Any, used: int, maybe: int) -> bool:
        """Add one, unless it is redundant; return whether it was added."""
        group = self._by_state.get(state)
        if group is None:
            self._by_state[state] = [(used, maybe)]
            self.size += 1
            return True
        not_observing, not_unknown = self._not_observing, self._not_unknown
        spare_less, spare_more = ~used & not_observing, (used | maybe) & not_unknown
        for other_used, other_maybe in group:
            if not (other_used & spare_less or spare_more & ~(other_used | other_maybe)):
                return False
        less, more = used & not_observing, ~(used | maybe) & not_unknown
        kept = [
            (other_used, other_maybe)
            for other_used, other_maybe in group
            if less & ~other_used or (other_used | other_maybe) & more
        ]
        self.size += 1 - (len(group) - len(kept))
        kept.append((used, maybe))
        self._by_state[state] = kept
        return True

    def all(self) -> list[Configuration]:
        """Return them."""
        return [
            (state, used, maybe) for state, group in self._by_state.items() for used, maybe in group
        ]


class _Open:
    """The open operations of an object, each with a bit of its own.

    Attributes:
        calls: of each operation.
        bits: of each operation.
        at: the operation of each bit.
        entered: those that may take effect: the call is not held.
        observing: of these, those that change nothing, and whose answer is known.
        overwriting: of these, those that overwrite, except of unknown outcome.
        unknown: those of unknown outcome.
    """

    __slots__ = (
        "_free", "at", "bits", "calls", "entered", "model", "observing", "overwriting", "step",
        "unknown",
    )  # fmt: skip

    def __init__(self, model: Model) -> None:
        self.model = model
        self.step: Callable[[Any, Call], Any | None] = model.step
        self.calls: dict[int, Call] = {}
        self.bits: dict[int, int] = {}
        self.at: dict[int, int] = {}
        self._free: list[int] = []
        self.entered = self.observing = self.overwriting = self.unknown = 0

    def add(self, op: int, call: Call) -> None:
        """Take an operation that was called."""
        bit = self._free.pop() if self._free else 1 << len(self.bits)
        self.calls[op] = call
        self.bits[op] = bit
        self.at[bit] = op

    def enter(self, op: int) -> None:
        """Let an operation take effect from now on."""
        call, bit = self.calls[op], self.bits[op]
        self.entered |= bit
        if call.f in self.model.overwriters:
            self.overwriting |= bit & ~self.unknown
        elif call.output is not UNKNOWN and (
            call.f in self.model.observers or (call.f in REFUSABLE and call.output == REFUSED)
        ):
            self.observing |= bit

    def doubt(self, op: int) -> int:
        """Take that an outcome is unknown; return the operation's bit."""
        bit = self.bits[op]
        self.unknown |= bit
        self.overwriting &= ~bit
        return bit

    def forget(self, op: int) -> None:
        """Take an operation that no configuration needs any more."""
        del self.calls[op]
        bit = self.bits.pop(op)
        del self.at[bit]
        others = ~bit
        self.entered &= others
        self.observing &= others
        self.overwriting &= others
        self.unknown &= others
        if self.bits:
            self._free.append(bit)
        else:
            self._free.clear()

    def ops(self, of: int) -> list[int]:
        """Return the operations of a set."""
        return sorted(self.at[bit] for bit in bits_of(of))

    def set_of(self, ops: Iterable[int]) -> int:
        """Return a set of operations."""
        return sum(self.bits[op] for op in ops)

    def seen_in(self) -> Callable[[Any], int]:
        """Return what gives those that change nothing and whose answer fits, in a state."""
        known = [(bit, self.calls[self.at[bit]]) for bit in bits_of(self.observing)]
        step, by_state = self.step, dict[Any, int]()

        def seen(state: Any) -> int:
            fitting = by_state.get(state)
            if fitting is None:
                fitting = sum(bit for bit, call in known if step(state, call) is not None)
                by_state[state] = fitting
            return fitting

        return seen if known else lambda _state: 0

    def changes(self, but: int) -> list[_Change]:
        """Return what the others can change.

        Of operations of unknown outcome that are the same call, each is used only after those
        before it: which of them it was makes no difference.
        """
        made: list[_Change] = []
        alike: dict[tuple[str, Any, Any], int] = {}
        for bit in bits_of(self.entered & ~self.observing & ~but):
            call = self.calls[self.at[bit]]
            before = 0
            if self.unknown & bit:
                same = (call.f, call.input, call.expected)
                before = alike.get(same, 0)
                alike[same] = before | bit
            made.append((bit, call, call.f in self.model.overwriters, before))
        return made


_Change = tuple[int, Call, bool, int]
"""A bit, its call, whether it overwrites, and which others have to be used before it."""


class _Linearizing:
    """Finds the configurations in which an operation has taken effect, from those where it has not.

    Four rules keep them few. An operation of unknown outcome need not take effect. A read, or a cas
    that was refused, is answered in the first state that its answer fits: it has to be, and nothing
    is lost by it. All open overwriters may have taken effect right before one that does. So one is
    tried by itself only where something sees it, or needs it: the operation, a read, a cas.
    """

    __slots__ = (
        "_bit", "_call", "_changes", "_is_blind", "_kept", "_open", "_reached", "_seen", "_todo",
    )  # fmt: skip

    def __init__(self, open_: _Open, op: int, found: _Kept) -> None:
        self._open = open_
        self._call = open_.calls[op]
        self._bit = open_.bits[op]
        self._is_blind = self._call.f in open_.model.overwriters
        self._kept = found
        self._seen = open_.seen_in()
        self._changes = self._that_matter()
        self._reached = _Kept(open_.observing, open_.unknown)
        self._todo: deque[tuple[Any, int, int, bool]] = deque()

    def run(self, begin: list[Configuration]) -> bool:
        """Add to what is found what can be reached from these; return False if it is too much."""
        for state, used, maybe in sorted(begin, key=lambda each: each[1].bit_count()):
            self._reach(state, used, maybe, overwrote=False)
        step, call, is_blind = self._open.step, self._call, self._is_blind
        overwriting, todo = self._open.overwriting & ~self._bit, self._todo
        while todo:
            state, used, maybe, is_in_vain = todo.popleft()
            after = None if is_in_vain and is_blind else step(state, call)
            if after is not None:
                left = overwriting if is_blind else maybe
                used_then = used | self._seen(after)
                self._kept.keep(after, used_then, left & ~used_then)
            for bit, made, overwrites, before in self._changes:
                if used & bit or before & ~used or (is_in_vain and overwrites):
                    continue
                moved = step(state, made)
                if moved is not None:
                    left = overwriting if overwrites else maybe
                    self._reach(moved, used | bit, left, overwrote=overwrites)
            if self._reached.size > CONFIGURATIONS_MAX:
                return False
        return True

    def _that_matter(self) -> list[_Change]:
        """Return the changes, of overwriters only those that something can see or need."""
        step, changes = self._open.step, self._open.changes(self._bit)
        needing = [made for _, made, overwrites, _ in changes if not overwrites]
        if not self._is_blind:
            needing.append(self._call)

        def matters(change: _Change) -> bool:
            _, made, overwrites, _ = change
            if not overwrites:
                return True
            state = step(None, made)
            return bool(self._seen(state)) or any(step(state, one) is not None for one in needing)

        return [each for each in changes if matters(each)]

    def _reach(self, state: Any, used: int, maybe: int, *, overwrote: bool) -> None:
        more = used | self._seen(state)
        if more & self._bit:
            self._kept.keep(state, more ^ self._bit, maybe & ~more)
        elif self._reached.keep(state, more, maybe & ~more):
            # Where nothing saw what an overwriter wrote, another one need not come after it.
            self._todo.append((state, more, maybe & ~more, overwrote and more == used))


class KeySearch:
    """What is known of one object after the events so far.

    Attributes:
        violated_by: the operation that no order lets return; None if there is none.
        why_unknown: which limit was passed; None if none was.
        configurations: those that are possible.
    """

    __slots__ = (
        "_answers_matter", "_held", "_open", "_postpones_unknown", "_waiting",
        "configurations", "violated_by", "why_unknown",
    )  # fmt: skip

    def __init__(self, model: Model, initial: Any) -> None:
        self._open = _Open(model)
        self._answers_matter = model.observers | REFUSABLE
        self._postpones_unknown = model.observers | model.overwriters
        self._held: deque[tuple[bool, int]] = deque()  # (is a return, operation)
        self._waiting: set[int] = set()  # open ones whose answer is to be known first
        self.configurations: list[Configuration] = [(initial, 0, 0)]
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
        if len(self.configurations) != 1 or self._held:
            return None
        if len(self._open.calls) != self._open.unknown.bit_count():
            return None
        state, used, maybe = self.configurations[0]
        return None if used or maybe else state

    def is_open(self, op: int | None) -> bool:
        """Whether an operation may still take effect."""
        return op in self._open.calls

    def invoke(self, op: int, call: Call) -> None:
        """Take a call; its output is UNKNOWN as yet."""
        if self.violated_by is not None or self.why_unknown is not None:
            return
        self._open.add(op, call)
        if call.f in self._answers_matter:
            self._waiting.add(op)
        if self._waiting:
            self._hold(is_return=False, op=op)
        else:
            self._open.enter(op)

    def ok(self, op: int, call: Call) -> None:
        """Take an answer; `call` has the output."""
        if op not in self._open.calls:
            return
        self._open.calls[op] = call
        self._waiting.discard(op)
        if self._held:
            self._hold(is_return=True, op=op)
            self._release()
        else:
            self._return(op)

    def fail(self, op: int) -> None:
        """Take that an operation did not happen."""
        if op not in self._open.calls:
            return
        bit = self._open.bits[op]
        if self._open.entered & bit:
            without = [
                (state, used, maybe & ~bit)
                for state, used, maybe in self.configurations
                if not used & bit
            ]
            self.configurations = self._needed(without)
        self._forget(op)
        if self.configurations:
            self._release()
        else:
            self._violate(op)

    def info(self, op: int) -> None:
        """Take that an outcome is unknown: it may take effect at any later time, or never."""
        if op not in self._open.calls:
            return
        if self._open.calls[op].f in self._open.model.observers:
            self._forget(op)
        else:
            self._waiting.discard(op)
            bit = self._open.doubt(op)
            if self._open.entered & bit:
                # That it took effect where nothing saw it is no more than that it did not.
                self.configurations = self._needed(
                    [(state, used, maybe & ~bit) for state, used, maybe in self.configurations]
                )
            if self._open.unknown.bit_count() > UNKNOWN_OUTCOMES_MAX:
                self._give_up(f"more than {UNKNOWN_OUTCOMES_MAX} operations of unknown outcome")
        self._release()

    def finish(self) -> None:
        """Take the end of the history: what is open has an unknown outcome."""
        returned = {op for is_return, op in self._held if is_return}
        for op in sorted(self._open.calls.keys() - returned):
            if op in self._open.calls and not self._open.unknown & self._open.bits[op]:
                self.info(op)

    def _hold(self, *, is_return: bool, op: int) -> None:
        self._held.append((is_return, op))
        if len(self._held) > HELD_MAX:
            self._give_up(f"more than {HELD_MAX:,} events since the call of a read without answer")

    def _release(self) -> None:
        """Take what was held, up to the next call whose answer is not known."""
        held = self._held
        while held:
            is_return, op = held[0]
            if not is_return and op in self._waiting:
                return
            held.popleft()
            if is_return:
                self._return(op)
            elif op in self._open.calls:
                self._open.enter(op)

    def _return(self, op: int) -> None:
        """Keep the configurations in which `op` took effect before it returned."""
        bit = self._open.bits[op]
        after = self._after_alone(self._open.calls[op], bit)
        if after is not None:
            self._forget(op)
            self.configurations = [(after, 0, 0)]
            return
        found = _Kept(self._open.observing & ~bit, self._open.unknown)
        begin: list[Configuration] = []
        for state, used, maybe in self.configurations:
            if used & bit:
                found.keep(state, used ^ bit, maybe)
                continue
            if maybe & bit:
                found.keep(state, used, maybe ^ bit)
            begin.append((state, used, maybe & ~bit))
        if begin and not _Linearizing(self._open, op, found).run(begin):
            self._give_up(f"more than {CONFIGURATIONS_MAX:,} configurations")
            return
        self._forget(op)
        self.configurations = self._without_certain(found.all())
        if not self.configurations:
            self._violate(op)

    def _after_alone(self, call: Call, bit: int) -> Any | None:
        """Return the state after an operation where no order but one has to be tried.

        That is the common case. Nothing else is open but operations of unknown outcome; they may as
        well take effect after what observes, and before what overwrites they may as well not.
        """
        if len(self.configurations) > 1 or self._open.entered & ~self._open.unknown != bit:
            return None
        state, used, maybe = self.configurations[0]
        if maybe:
            return None
        if used:
            return state if used == bit else None
        if self._open.unknown and call.f not in self._postpones_unknown:
            return None
        return self._open.step(state, call)

    def _needed(self, configurations: Iterable[Configuration]) -> list[Configuration]:
        """Leave out those that others make redundant."""
        kept = _Kept(self._open.observing, self._open.unknown)
        for each in configurations:
            kept.keep(*each)
        return self._without_certain(kept.all())

    def _without_certain(self, kept: list[Configuration]) -> list[Configuration]:
        """Forget the operations of unknown outcome that have taken effect in all of these."""
        certain = self._open.unknown if kept else 0
        for _, used, _ in kept:
            certain &= used
        if not certain:
            return kept
        for op in self._open.ops(certain):
            self._forget(op)
        return [(state, used & ~certain, maybe) for state, used, maybe in kept]

    def _forget(self, op: int) -> None:
        self._open.forget(op)
        self._waiting.discard(op)

    def _violate(self, op: int) -> None:
        self.violated_by = op
        self._clear()

    def _give_up(self, why: str) -> None:
        self.why_unknown = why
        self._clear()

    def _clear(self) -> None:
        self._held.clear()
        self._waiting.clear()
        self._open = _Open(self._open.model)
        self.configurations = []

    def to_plain(self) -> list[Any]:
        """Return all of it as lists, numbers and texts, for a checkpoint."""
        calls = [
            [op, call.f, call.input, call.expected, call.output is not UNKNOWN,
             None if call.output is UNKNOWN else call.output]
            for op, call in self._open.calls.items()
        ]  # fmt: skip
        ops = self._open.ops
        configurations = [
            [state, ops(used), ops(maybe)] for state, used, maybe in self.configurations
        ]
        return [
            calls, configurations, [list(each) for each in self._held], sorted(self._waiting),
            ops(self._open.entered), ops(self._open.unknown), self.violated_by, self.why_unknown,
        ]  # fmt: skip

    def restore(self, plain: list[Any]) -> None:
        """Take what `to_plain` returned, also after lists and tuples became lists."""
        calls, configurations, held, waiting, entered, unknown, violated_by, why_unknown = plain
        self.violated_by, self.why_unknown = violated_by, why_unknown
        for op, f, given, expected, is_known, output in calls:
            self._open.add(op, Call(f, given, output if is_known else UNKNOWN, expected))
        for op in unknown:
            self._open.doubt(op)
        for op in entered:
            self._open.enter(op)
        set_of = self._open.set_of
        self.configurations = [
            (tuple(state) if isinstance(state, list) else state, set_of(used), set_of(maybe))
            for state, used, maybe in configurations
        ]
        self._held = deque((bool(is_return), op) for is_return, op in held)
        self._waiting = set(waiting)


def bits_of(of: int) -> Iterator[int]:
    """Generate the bits of a set, each as a number."""
    while of:
        bit = of & -of
        yield bit
        of ^= bit
