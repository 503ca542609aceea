"""What an answer says beside its verdict: witnesses, failing parts, open parts, budgets."""

from dataclasses import replace
from itertools import combinations
from random import Random

import numpy as np
import pytest
from search_problems import as_table, is_linearizable, never, random_register, register_problem

from shaketable.checkers.search import attempt, driver, replay
from shaketable.checkers.search.driver import search
from shaketable.checkers.search.problem import NEVER, Access
from shaketable.harness.contracts.verdict import Outcome

BYTES_MAX = 1 << 28
READ, NOT, WRITE, CAS = (int(access) for access in Access)


def _found(problem):
    return search(problem, is_over=never, memory_bytes_max=BYTES_MAX)


def test_a_witness_names_each_operation_and_the_state_after_it():
    problem = register_problem(
        [((WRITE, -1, 1), 0, 9), ((WRITE, -1, 2), 0, 9), ((READ, 1, -1), 3, 5),
         ((READ, 2, -1), 6, 8), ((CAS, 2, 3), 1, NEVER), ((READ, 3, -1), 10, 11)], 4
    )  # fmt: skip
    witness = _found(problem).witness
    steps = list(witness.steps())
    assert steps == [(7, 1), (27, 1), (17, 2), (37, 2), (47, 3), (57, 3)]
    assert list(witness.steps(last=2)) == steps[-2:]


def test_what_another_write_hides_stands_in_the_witness():
    problem = register_problem(
        [((WRITE, -1, 1), 0, 5), ((WRITE, -1, 2), 0, 5), ((WRITE, -1, 3), 0, 5),
         ((READ, 2, -1), 6, 7)], 4
    )  # fmt: skip
    witness = _found(problem).witness
    assert sorted(witness.op.tolist()) == [7, 17, 27, 37]
    assert witness.op.tolist()[-2:] == [17, 37]


@pytest.mark.parametrize("spoil", ["twice", "missing", "late", "impossible"])
def test_a_wrong_witness_is_never_called_valid(monkeypatch, spoil):
    problem = register_problem([((WRITE, -1, 1), 0, 1), ((READ, 1, -1), 2, 3)], 2)
    truth = attempt.Attempt.run_found

    def lie(self):
        run = truth(self)
        place = {"twice": [0, 0], "missing": [0], "late": [1, 0], "impossible": [0, 1]}[spoil]
        state = np.zeros(len(place), np.int32) if spoil == "impossible" else run.state
        return attempt.Run(run.first, np.array(place), state[: len(place)])

    monkeypatch.setattr(attempt.Attempt, "run_found", lie)
    with pytest.raises(replay.WitnessError):
        _found(problem)


def test_a_failing_part_cannot_be_passed_by_itself(monkeypatch):
    """Checked by the other algorithm: its operations alone, from each state that it names."""
    monkeypatch.setattr(driver, "STALL_NODES", 2)
    monkeypatch.setattr(driver, "EVENTS_FIRST", 2)
    checked = 0
    for seed in range(500_000, 501_500):
        operations, values = random_register(Random(seed), 16)
        problem = register_problem(operations, values)
        found = _found(problem)
        if found.outcome is not Outcome.INVALID:
            continue
        part = found.part
        assert part.stuck in part.operations
        assert part.prefix_start in part.states
        assert set(part.prefix.op.tolist()) <= set(part.operations.tolist() + part.unknown.tolist())
        if part.method == "window" and not part.unknown.size:
            checked += 1
            for state in part.states:
                for each in _alone(problem, part, state):
                    assert not is_linearizable(each), f"seed {seed}"
    assert checked > 30


def _alone(problem, part, state):
    """The part's operations: with each choice of those before it that may have happened already."""
    inside = np.flatnonzero(np.isin(problem.op, part.operations))
    end = problem.return_ns.copy()
    # At the time at which it begins, calls come before returns.
    before = inside[problem.call_ns[inside] <= part.first_ns]
    watches = problem.kinds.observes[problem.kind]
    later = inside[end[inside] > part.last_ns]
    end[later] = NEVER
    never_done = np.concatenate((before[watches[before]], later[watches[later]]))
    choices = before[~watches[before]].tolist()
    for count in range(len(choices) + 1):
        for gone in combinations(choices, count):
            rows = np.setdiff1d(inside, np.concatenate((never_done, gone)).astype(int))
            yield replace(
                problem, kind=problem.kind[rows], call_ns=problem.call_ns[rows],
                return_ns=end[rows], op=problem.op[rows], start=state,
            )  # fmt: skip


@pytest.mark.parametrize("is_wrong", [False, True])
@pytest.mark.parametrize("is_family_known", [False, True])
def test_any_number_of_operations_may_be_open(is_wrong, is_family_known):
    """200 writes at once, half of them of unknown outcome; reads see some of both kinds."""
    writes = [((WRITE, -1, n + 1), 0, NEVER if n % 2 else 10_000) for n in range(200)]
    seen = [5, 6, 180, 181, 77, 5 if is_wrong else 78]
    reads = [((READ, value, -1), 10 * n + 1, 10 * n + 2) for n, value in enumerate(seen)]
    problem = register_problem(writes + reads, 201)
    found = _found(problem if is_family_known else as_table(problem))
    assert found.outcome is (Outcome.INVALID if is_wrong else Outcome.VALID)


def test_time_that_is_over_leaves_the_open_part(monkeypatch):
    monkeypatch.setattr(attempt, "SLICE_NODES", 5)
    problem = register_problem([((WRITE, -1, n % 3), n, n + 5) for n in range(100)], 3)
    found = search(problem, is_over=lambda: True, memory_bytes_max=BYTES_MAX)
    assert found.outcome is Outcome.UNKNOWN
    assert found.why == "time"
    assert found.part.stuck in found.part.operations
    assert 0 < found.part.last_ns < 100


def test_memory_is_never_exceeded():
    """Ever less memory for a search that needs some: UNKNOWN, and no byte more than allowed."""
    problem = register_problem(
        [((CAS, n % 4, (n + 1) % 4), 0, 1000 + n) for n in range(23)]
        + [((READ, 3, -1), 2000, 2001), ((READ, 0, -1), 2000, 2001), ((READ, 1, -1), 2002, 2003)],
        4,
    )
    outcomes = set()
    for kilobytes in (20, 100, 200, 400, 1000, 100_000):
        found = search(as_table(problem), is_over=never, memory_bytes_max=kilobytes * 1000)
        assert found.bytes_max <= kilobytes * 1000
        assert (found.why == "memory") == (found.outcome is Outcome.UNKNOWN)
        outcomes.add(found.outcome)
    assert outcomes == {Outcome.UNKNOWN, Outcome.INVALID}


def test_the_same_problem_gets_the_same_answer():
    for seed in range(50):
        operations, values = random_register(Random(seed), 30)
        once, again = (_found(register_problem(operations, values)) for _ in range(2))
        assert repr(once) == repr(again)


def test_nothing_is_linearizable():
    problem = register_problem([], 1)
    assert _found(problem).outcome is Outcome.VALID
    assert len(_found(as_table(problem)).witness) == 0
