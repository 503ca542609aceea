"""The general linearizability search: is there an order that explains a history?

Source: Lowe 2017, Testing for linearizability (just-in-time linearization); Wing & Gong 1993.
"""

from __future__ import annotations

from collections.abc import Callable

from shaketable.checkers.kernels.search_arrays import REFUTED, THROUGH
from shaketable.checkers.search.attempt import Attempt, Setting
from shaketable.checkers.search.budget import MemorySpentError, TimeSpentError
from shaketable.checkers.search.found import Found, Part, Witness
from shaketable.checkers.search.pace import Pace
from shaketable.checkers.search.parts import open_part, search_part, window_part
from shaketable.checkers.search.problem import Family, Problem
from shaketable.checkers.search.replay import replay
from shaketable.checkers.search.windows import Windows
from shaketable.harness.verdict import Outcome

ORDERED_ANYWAY_MAX = 200_000
"""Operations that are put in order though the time is over, so that the open part can be named."""


def search(problem: Problem, *, is_over: Callable[[], bool], memory_bytes_max: int) -> Found:
    """Decide whether the problem's history is linearizable.

    The same problem gets the same answer, unless a budget ends the search.

    Args:
        problem: the history of one object.
        is_over: asked some times a second; True ends the search as UNKNOWN ("time").
        memory_bytes_max: the search ends as UNKNOWN ("memory") before it holds more.

    Raises:
        ModelError: the model raised, or does not keep its promises.
        WitnessError: the order that was found explains nothing: a bug in the search.
    """
    if problem.kind.size > ORDERED_ANYWAY_MAX and is_over():
        return Found(Outcome.UNKNOWN, 0, 0, why="time")
    try:
        setting = Setting(problem, is_over, memory_bytes_max)
        attempt = Attempt(setting, problem.initial if problem.family is Family.VALUE else 0)
    except MemorySpentError:
        return Found(Outcome.UNKNOWN, 0, memory_bytes_max, why="memory")
    try:
        proof = _decide(setting, attempt)
    except (MemorySpentError, TimeSpentError) as spent:
        why = "memory" if isinstance(spent, MemorySpentError) else "time"
        part = open_part(attempt)
        bytes_max = setting.memory.bytes_max
        return Found(Outcome.UNKNOWN, setting.nodes, bytes_max, part=part, why=why)
    if isinstance(proof, Witness):
        return Found(Outcome.VALID, setting.nodes, setting.memory.bytes_max, witness=proof)
    setting.table.require_same()
    return Found(Outcome.INVALID, setting.nodes, setting.memory.bytes_max, part=proof)


def _decide(setting: Setting, attempt: Attempt) -> Witness | Part:
    """Search, and where the search stalls try to refute; return the proof of the answer."""
    windows = Windows(setting)
    refuting = windows.never_produced()
    if refuting is not None:
        return window_part(refuting)
    pace = Pace()
    while True:
        status = attempt.run(pace.stall)
        if status == THROUGH:
            return replay(setting.problem, attempt.run_found())
        try:
            # Where everything was tried a window makes the counterexample shorter.
            if pace.stuck(attempt.deepest) or status == REFUTED:
                refuting = windows.around(attempt.deepest, pace.stall)
                if refuting is not None:
                    return window_part(refuting)
        except (MemorySpentError, TimeSpentError):
            if status != REFUTED:
                raise
        if status == REFUTED:
            return search_part(attempt)
        attempt.turn(pace.back)
