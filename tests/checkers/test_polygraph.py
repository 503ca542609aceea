"""Choices of versions: against all orders, and with proofs that do not need the solver."""

from __future__ import annotations

import random
from itertools import permutations
from typing import Any

import numpy as np
import pytest

from shaketable.checkers.transactions import polygraph
from shaketable.checkers.transactions.forbidden_cycles import WeakLevels, anti_edges
from shaketable.checkers.transactions.graph import Edges
from shaketable.checkers.transactions.history import load_transactions
from shaketable.checkers.transactions.observed import observe
from shaketable.checkers.transactions.polygraph import (
    Lemma,
    Order,
    Solved,
    UndecidedError,
    choices_of,
    first_reads,
    is_refuted,
    literals,
    solve,
)
from tests.soaks.isolation_levels import table
from tests.support.isolation_brute_force import Txn
from tests.support.volume import volume

HISTORIES = volume(400)


def blind(seed: int, count: int) -> list[Txn]:
    """Draw transactions, of a session each, that write blindly and read one of the values."""
    rng = random.Random(seed)
    keys = "xyz"[: rng.randint(1, 3)]
    written = {
        n: {key: 10 * n + at for at, key in enumerate(keys) if rng.random() < 0.6}
        for n in range(count)
    }
    txns = []
    for n in range(count):
        steps: list[tuple[str, str, Any]] = []
        for key in keys:
            others = [written[m][key] for m in written if m != n and key in written[m]]
            if rng.random() < 0.5:
                steps.append(("r", key, rng.choice([*others, *others, None])))
        steps += [("w", key, value) for key, value in written[n].items()]
        txns.append(Txn(n, 1, 100, "ok", tuple(steps)))
    return txns


def is_serial(txns: list[Txn]) -> bool:
    for order in permutations(txns):
        state: dict[str, Any] = {}
        for txn in order:
            if any(f == "r" and state.get(key) != given for f, key, given in txn.steps):
                break
            state.update({key: given for f, key, given in txn.steps if f == "w"})
        else:
            return True
    return False


def solved(txns: list[Txn], order: Order = Order.SERIAL) -> Solved:
    observed = observe(load_transactions(table(txns)), {})
    weak = WeakLevels(observed)
    return solve(
        choices_of(observed),
        Edges.joined(weak.ww, weak.wr, anti_edges(observed), first_reads(observed)),
        order,
        lambda: False,
    )


def test_serializability_of_blind_writes_is_that_of_some_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rounds = []
    told = polygraph._Solver._closed_cycles

    def counted(self: Any, still: Any, model: Any) -> list[Lemma]:
        rounds.append(told(self, still, model))
        return rounds[-1]

    monkeypatch.setattr(polygraph._Solver, "_closed_cycles", counted)
    seen = {True: 0, False: 0}
    for seed in range(HISTORIES):
        txns = blind(seed, 5)
        found = solved(txns)
        assert found.is_possible is is_serial(txns), seed
        assert bool(found.lemmas) is (not found.is_possible)
        seen[bool(found.is_possible)] += 1
    assert min(seen.values()) > HISTORIES / 20
    assert any(rounds), "the solver was never told of a cycle"


def test_each_lemma_closes_a_cycle_of_its_alternatives() -> None:
    looked_at = 0
    for seed in range(200):
        for lemma in solved(blind(seed, 5)).lemmas:
            ends = [(edge.source, edge.target) for edge in lemma.cycle]
            assert all(a[1] == b[0] for a, b in zip(ends, [*ends[1:], ends[0]], strict=True))
            looked_at += len(lemma.taken) > 1
    assert looked_at > 10


def lemma(*taken: int) -> Lemma:
    return Lemma(frozenset((abs(each) - 1, each < 0) for each in taken), ())


def test_a_proof_needs_all_of_its_lemmas() -> None:
    four = [lemma(1, 2), lemma(1, -2), lemma(-1, 2), lemma(-1, -2)]
    assert literals(four[1]) == [1, -2]
    assert is_refuted(four)
    for left_out in four:
        assert not is_refuted([each for each in four if each is not left_out])
    assert is_refuted([lemma()])
    assert not is_refuted([])


def test_limits_leave_it_undecided(monkeypatch: pytest.MonkeyPatch) -> None:
    txns = next(each for each in (blind(n, 5) for n in range(99)) if not is_serial(each))
    monkeypatch.setattr(polygraph, "PROOF_STEPS_MAX", 0)
    assert solved(txns).is_possible is None
    assert "too large to be proven" in solved(txns).why
    monkeypatch.setattr(polygraph, "CHOICES_MAX", 0)
    with pytest.raises(UndecidedError, match="pairs of transactions"):
        solved(txns)
    monkeypatch.undo()
    monkeypatch.setattr(polygraph, "NODES_MAX", 4)
    free = [Txn(n, 1, 9, "ok", (("w", "x", n),)) for n in range(5)]
    assert "starts and commits" in solved(free).why


def test_time_is_asked_for() -> None:
    txns = [Txn(n, 1, 9, "ok", (("w", "x", n), ("w", "y", n))) for n in range(4)]
    observed = observe(load_transactions(table(txns)), {})
    none = WeakLevels(observed).wr
    found = solve(choices_of(observed), none, Order.SNAPSHOT, lambda: True)
    assert found.is_possible is None
    assert "time budget" in found.why
    assert np.count_nonzero(observed.committed) == 4
