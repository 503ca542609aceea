"""Models whose states are vectors of whole numbers: counts, sums, and registers by name.

Such a model says what a call does to entries of its vector. The search then steps through states
in compiled code (Family.VECTOR), and asks the model for a description alone.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from shaketable.checkers.models.model import Call
from shaketable.checkers.search.problem import Does, State, Vectors

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
