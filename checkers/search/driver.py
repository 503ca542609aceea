"""The general linearizability search: is there an order that explains a history?

Source: Lowe 2017, Testing for linearizability (just-in-time linearization); Wing & Gong 1993.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from checkers.search.found import Found, Part, Witness
from checkers.search.problem import NEVER, Problem, State
from harness.verdict import Outcome

NODES_BETWEEN_LOOKS = 1000


def search(problem: Problem, *, is_over: Callable[[], bool], memory_bytes_max: int) -> Found:
    """Decide whether the problem's history is linearizable.

    Args:
        problem: the history of one object.
        is_over: asked now and then; True ends the search as UNKNOWN ("time").
        memory_bytes_max: the search ends as UNKNOWN ("memory") before it holds more.
    """
    return _Plain(problem, is_over, memory_bytes_max).run()


class _Plain:
    """Exact depth-first search over return events, in Python."""

    def __init__(self, problem: Problem, is_over: Callable[[], bool], bytes_max: int) -> None:
        self.problem, self.is_over, self.bytes_max = problem, is_over, bytes_max
        known = np.flatnonzero(problem.return_ns != NEVER)
        events = [(int(problem.call_ns[i]), 0, int(i)) for i in range(problem.kind.size)]
        events += [(int(problem.return_ns[i]), 1, int(i)) for i in known]
        self.events = sorted(events)
        self.open_at: list[tuple[int, ...]] = []
        unused: list[int] = []
        for _time, end, i in self.events:
            if not end:
                unused.append(i)
            self.open_at.append(tuple(unused))
            if end:
                unused.remove(i)

    def run(self) -> Found:
        nodes = 0
        deepest: tuple[int, Any] = (0, ())
        seen: set[tuple[int, State, frozenset[int]]] = set()
        # An item: next event, state, used operations that may be open, the order so far.
        stack: list[tuple[int, State, frozenset[int], Any]] = [
            (0, self.problem.start, frozenset(), ())
        ]
        while stack:
            at, state, used, order = stack.pop()
            while at < len(self.events) and (not self.events[at][1] or self.events[at][2] in used):
                used = used - {self.events[at][2]} if self.events[at][1] else used
                at += 1
            if at == len(self.events):
                return self._found(Outcome.VALID, nodes, order)
            if (at, state, used) in seen:
                continue
            seen.add((at, state, used))
            if at > deepest[0] or not nodes:
                deepest = (at, order)
            nodes += 1
            over = nodes % NODES_BETWEEN_LOOKS == 0 and self.is_over()
            if over or nodes * 1000 > self.bytes_max:
                why = "time" if over else "memory"
                return self._found(Outcome.UNKNOWN, nodes, deepest[1], deepest[0], why)
            for i in reversed(self.open_at[at]):
                if i not in used:
                    after = self.problem.step(state, int(self.problem.kind[i]))
                    if after is not None:
                        stack.append((at, after, used | {i}, ((i, after), order)))
        return self._found(Outcome.INVALID, nodes, deepest[1], deepest[0])

    def _found(self, outcome: Outcome, nodes: int, order: Any, at: int = 0, why: str = "") -> Found:
        p = self.problem
        steps = []
        while order:
            step, order = order
            steps.append(step)
        steps.reverse()
        witness = Witness(
            p.op[[i for i, _ in steps]] if steps else np.empty(0, np.int64),
            np.arange(len(steps)),
            tuple(state for _, state in steps),
        )
        if outcome is Outcome.VALID:
            return Found(outcome, nodes, nodes * 1000, witness)
        last = self.events[at][0]
        inside = np.flatnonzero((p.call_ns <= last) & (p.return_ns != NEVER))
        unknown = np.flatnonzero((p.call_ns <= last) & (p.return_ns == NEVER))
        part = Part(
            "search", self.events[0][0], last,
            p.op[inside[np.argsort(p.call_ns[inside], kind="stable")]], p.op[unknown],
            witness, p.start, int(p.op[self.events[at][2]]), 0, (p.start,),
        )  # fmt: skip
        return Found(outcome, nodes, nodes * 1000, None, part, why)
