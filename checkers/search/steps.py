"""Numbers the states of a model, and remembers its steps for the kernels (Family.TABLE)."""

from __future__ import annotations

import sys

import numpy as np

from shaketable.checkers.kernels.search_arrays import (
    FILLED,
    IMPOSSIBLE,
    MISSING_COUNT,
    MISSING_MAX,
    STEPS_FACTS,
    Steps,
)
from shaketable.checkers.kernels.search_steps import remember
from shaketable.checkers.search.budget import Memory
from shaketable.checkers.search.problem import Family, ModelError, Problem, State, said, shown

STEPS_FIRST = 1024
ASKED_AGAIN_MAX = 1000
"""So many steps are asked for once more before a history is refuted."""
ALL_KINDS_MAX = 16
"""With so many kinds or fewer, all steps of a state are asked for at once."""
STATE_BYTES = 200
"""What a state costs besides its own object: its places in a dictionary and a list."""


class StepTable:
    """Asks the model for steps, each one once."""

    def __init__(self, problem: Problem, memory: Memory) -> None:
        self._step = problem.step
        self._kinds = problem.kinds.code.size
        self._memory = memory
        self._observes = problem.kinds.observes.tolist()
        self._overwrites = problem.kinds.overwrites.tolist()
        self._left: dict[int, int] = {}
        self.states: list[State] = []
        self._number: dict[State, int] = {}
        rows, missing = (STEPS_FIRST, MISSING_MAX) if problem.family is Family.TABLE else (1, 1)
        self.arrays = Steps(
            key=np.full(rows, -1, np.int64),
            after=np.empty(rows, np.int32),
            missing=np.empty((missing, 2), np.int32),
            facts=np.zeros(STEPS_FACTS, np.int64),
        )
        memory.take_all(self.arrays)
        self.number(problem.start)

    def number(self, state: State) -> int:
        """Return the number of a state, a new one for a new state."""
        try:
            number = self._number.get(state)
        except Exception as error:
            raise ModelError(f"the model has a state that cannot be kept: {said(error)}") from error
        if number is None:
            number = self._number[state] = len(self.states)
            self.states.append(state)
            self._memory.take(sys.getsizeof(state) + STATE_BYTES)
        return number

    def fill(self) -> None:
        """Find the steps that a kernel missed.

        Raises:
            MemorySpentError: they do not fit the budget.
        """
        pairs = self.arrays.missing[: self.arrays.facts[MISSING_COUNT]]
        if self._kinds <= ALL_KINDS_MAX:
            states = np.unique(pairs[:, 0])
            keys = (states[:, None] * np.int64(self._kinds) + np.arange(self._kinds)).ravel()
        else:
            keys = np.unique(pairs[:, 0] * np.int64(self._kinds) + pairs[:, 1])
        self.add(keys)
        self.arrays.facts[MISSING_COUNT] = 0

    def add(self, keys: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> None:
        """Ask for the steps of these keys (state * kinds + kind)."""
        after = np.empty(keys.size, np.int32)
        for n, key in enumerate(keys.tolist()):
            state, kind = divmod(key, self._kinds)
            reached = self._step(self.states[state], kind)
            after[n] = IMPOSSIBLE if reached is None else self.number(reached)
            self._require_promise(state, kind, int(after[n]))
        while 2 * (self.arrays.facts[FILLED] + keys.size) > self.arrays.key.size:
            self._grow()
        remember(self.arrays.key, self.arrays.after, self.arrays.facts, keys, after)

    def _require_promise(self, state: int, kind: int, after: int) -> None:
        """Hold the model to what it says of operations that observe or overwrite.

        Raises:
            ModelError: they do something else; the search leaves work out because of them.
        """
        if self._observes[kind] and after not in (state, IMPOSSIBLE):
            broken = "that an observer changes nothing"
        elif self._overwrites[kind] and after == IMPOSSIBLE:
            broken = "that an overwriter is always possible"
        elif self._overwrites[kind] and after != self._left.setdefault(kind, after):
            broken = "that an overwriter leads to one state from all"
        else:
            return
        reached = "nothing" if after == IMPOSSIBLE else shown(self.states[after])
        raise ModelError(
            f"the model does not keep its promise {broken}:"
            f" it went from {shown(self.states[state])} to {reached}"
        )

    def require_same(self) -> None:
        """Ask again for some of the steps that are known: a refutation rests on all of them.

        Raises:
            ModelError: an answer differs.
        """
        known = np.flatnonzero(self.arrays.key >= 0)
        known = known[np.argsort(self.arrays.key[known])][:ASKED_AGAIN_MAX]
        for key, after in zip(
            self.arrays.key[known].tolist(), self.arrays.after[known].tolist(), strict=True
        ):
            state, kind = divmod(key, self._kinds)
            reached = self._step(self.states[state], kind)
            told = None if after == IMPOSSIBLE else self.states[after]
            if (reached is None) != (told is None) or reached != told:
                raise ModelError(
                    "the model does not answer the same when asked again:"
                    f" from {shown(self.states[state])} it went to {shown(told)},"
                    f" then to {shown(reached)}"
                )

    def _grow(self) -> None:
        old = self.arrays
        size = 2 * old.key.size
        key, after = np.full(size, -1, np.int64), np.empty(size, np.int32)
        self._memory.take_all([key, after])
        filled = old.key >= 0
        old.facts[FILLED] = 0
        remember(key, after, old.facts, old.key[filled], old.after[filled])
        self._memory.give_back([old.key, old.after])
        self.arrays = old._replace(key=key, after=after)
