"""The interface of a sequential model, and which of its operations put and show values.

A model defines what one object may answer when calls come one at a time. It is a module with an
attribute PLUGIN, or several in PLUGINS: built-in models are in checkers/models, others are found
through the entry-point group shaketable.models.

Source: knossos.model (step and inconsistent); porcupine's Model.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, runtime_checkable

import msgspec
import numpy as np
import pyarrow as pa

from shaketable.checkers.search.problem import Does, Problem, State, Vectors


class _Unknown:
    """The output of an indeterminate operation: any answer is possible."""

    def __repr__(self) -> str:
        return "?"


UNKNOWN = _Unknown()
"""The output of a call whose answer is not known."""


class Call(msgspec.Struct, frozen=True, gc=False):
    """One operation as a model sees it: a call and its answer.

    `f` is the operation's name. `input` and `output` are the columns' values, or those of `extra`
    instead: whole numbers, texts, None, or tuples of these. `output` is UNKNOWN if the outcome
    is. `expected` is what a cas compares with, `offset` the column's value.
    """

    f: str
    input: Any = None
    output: Any = None
    expected: Any = None
    offset: int | None = None


class Model(Protocol):
    """A sequential model of one object.

    Attributes:
        name: its name for `--model`: "cas-register".
        fs: the operations that it knows.
        observers: those of `fs` that never change the state.
        overwriters: those of `fs` that are possible in every state and lead to a state that
            depends on their input alone (blind writes).
    """

    name: str
    fs: frozenset[str]
    observers: frozenset[str]
    overwriters: frozenset[str]

    def initial(self, text: str | None) -> State:
        """Return the first state; `text` is what `--initial` gave, None for the default.

        Raises:
            UsageError: the text names no state of this model.
        """
        ...

    def step(self, state: State, call: Call) -> State | None:
        """Return the state after `call`, None where it cannot happen in `state`."""
        ...

    def encode(self, operations: pa.Table, initial: State) -> Problem:
        """Encode one partition of OPERATIONS as a problem for the search.

        Raises:
            UsageError: an operation is not in `fs`, or lacks what it needs; one line names it.
        """
        ...

    def describe_state(self, state: State) -> str:
        """Describe what the object holds, briefly: "3", "the queue 1, 2 (2 messages)"."""
        ...

    def describe_call(self, call: Call) -> str:
        """Describe a call and its answer, briefly: "cas 1 -> 2: no"."""
        ...

    def why_not(self, state: State, call: Call) -> str:
        """Explain why `call` cannot happen in `state`: "it read 3, the register holds 1"."""
        ...


# Which operations of an object put values, and which show them.
#
# For a model that implements `ValuesModel`, indeterminate operations are resolved by evidence
# before the search (checkers.evidence).


@dataclass(frozen=True, slots=True)
class Values:
    """Which operations of an object put their input, and which show what was put.

    An operation that shows a value proves that it was put before: no operation that is not in
    `puts` may produce it. A cas that swapped also shows the value that it expected.

    `initial` are the values that the object holds at first. `is_log`: values have offsets, and
    the nodes' logs hold them.
    """

    puts: frozenset[str]
    shows: frozenset[str]
    initial: frozenset[int] = frozenset()
    is_log: bool = False


LOG: Final = Values(frozenset(("append", "send")), frozenset(("read", "poll")), is_log=True)
QUEUE: Final = Values(frozenset(("enqueue",)), frozenset(("dequeue", "drain", "peek")))
STACK: Final = Values(frozenset(("push",)), frozenset(("pop", "peek")))
DEQUE: Final = Values(
    frozenset(("push-front", "push-back")),
    frozenset(("pop-front", "pop-back", "peek-front", "peek-back")),
)
PRIORITY_QUEUE: Final = Values(frozenset(("insert",)), frozenset(("poll", "peek")))
SET: Final = Values(frozenset(("add",)), frozenset(("read",)))
REGISTER: Final = Values(frozenset(("write", "cas")), frozenset(("read", "cas")))


@runtime_checkable
class ValuesModel(Protocol):
    """A model with operations that put values and others that show them."""

    def values(self, initial: State) -> Values:
        """Return which operations put and show values, given the first state."""
        ...


def values_of(model: object, initial: State) -> Values | None:
    """Return the model's `Values`, None if it does not define them."""
    return model.values(initial) if isinstance(model, ValuesModel) else None


def whole_numbers(values: Iterable[Any]) -> frozenset[int]:
    """Return the whole numbers among values: what `Values.initial` takes."""
    return frozenset(value for value in values if isinstance(value, int))


# Models whose states are vectors of whole numbers: counts, sums, and registers by name.
#
# Such a model says what a call does to entries of its vector. The search then steps through states
# in compiled code (Family.VECTOR), and asks the model for a description alone.

Change = tuple[Does, Hashable, Any]
"""What is done, to which entry, with which value; of DRAIN the value is an entry, of WHOLE the
entries that are not 0."""
Entries = Mapping[Hashable, int]
"""The entries of a vector that are not 0."""
VALUE_MAX = 2**31 - 1
"""The largest value of an entry."""


class VectorForm(Protocol):
    """A model's states and calls in terms of entries, which may have any names."""

    def entries(self, state: State) -> Entries:
        """Return the vector that a state is."""
        ...

    def state(self, entries: Entries) -> State:
        """Return the state that a vector is."""
        ...

    def changes(self, call: Call) -> Sequence[Change]:
        """Return what a call does; where it needs something, no change may come before that."""
        ...


def vectors_of_calls(form: VectorForm, calls: Iterable[Call], start: State) -> Vectors:
    """Number the entries of a form, and what calls do to them."""
    changes: list[tuple[int, int, int]] = []
    first = [0]
    number: dict[Hashable, int] = {}
    seen: list[Entries] = [form.entries(start)]
    for entry in seen[0]:
        number.setdefault(entry, len(number))
    for call in calls:
        for does, entry, value in form.changes(call):
            place = 0
            if does is Does.WHOLE:
                seen.append(value)
                value = len(seen) - 1  # noqa: PLW2901 - its place from here on
            elif does is not Does.NEVER:
                place = number.setdefault(entry, len(number))
                if does is Does.DRAIN:
                    value = number.setdefault(value, len(number))  # noqa: PLW2901 - likewise
            changes.append((does, place, value))
        first.append(len(changes))
    change = np.array(changes, np.int64).reshape(-1, 3)
    rows, start_of = _seen_rows(seen, number, change)
    # An operation that needs more than an entry can be is not possible.
    change[np.abs(change[:, 2]) > VALUE_MAX] = (Does.NEVER, 0, 0)
    names = tuple(number)
    return Vectors(
        change=change.astype(np.int32),
        first=np.array(first, np.int64),
        seen_start=np.array(start_of, np.int64),
        seen=np.array(rows, np.int32).reshape(-1, 2),
        entries=len(number),
        state_of=lambda held: form.state({names[entry]: value for entry, value in held.items()}),
    )


def _seen_rows(
    seen: Sequence[Entries], number: Mapping[Hashable, int], change: np.ndarray[Any, Any]
) -> tuple[list[tuple[int, int]], list[int]]:
    """Return the rows of the vectors that were seen, and where those of each start.

    A vector with an entry that no operation changes is never seen: its operations are made NEVER.
    """
    rows: list[tuple[int, int]] = []
    start_of = [0]
    strange = []
    for place, entries in enumerate(seen):
        if number.keys() >= entries.keys():
            rows += sorted((number[entry], value) for entry, value in entries.items())
        else:
            strange.append(place)
        start_of.append(len(rows))
    if strange:
        is_strange = (change[:, 0] == Does.WHOLE) & np.isin(change[:, 2], strange)
        change[is_strange] = (Does.NEVER, 0, 0)
    return rows, start_of


# Forms that several models share.


class Elements:
    """Counts by element: of a set each is 0 or 1."""

    def entries(self, state: Any) -> Entries:
        """Return the vector that a set of elements is."""
        return dict.fromkeys(state, 1)

    def state(self, entries: Entries) -> State:
        """Return the set of elements that a vector is."""
        return frozenset(entries)


def whole(entries: Entries) -> Sequence[Change]:
    """Return the change of an operation that saw all entries."""
    return ((Does.WHOLE, None, entries),)
