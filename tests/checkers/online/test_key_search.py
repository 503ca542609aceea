"""The rules that keep the configurations of a key few leave out no order that was needed."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from shaketable.checkers.linearizability.model_choice import model_named
from shaketable.checkers.online import HistoryJudge
from shaketable.harness.contracts.verdict import Outcome
from shaketable.harness.history.foreign.jsonl import EventLine

Step = tuple[int, str, str, int | None]
"""Process, type, f, value; each is a moment later than the one before."""
BEGIN: list[Step] = [(0, "invoke", "write", 1), (0, "ok", "write", 1)]


def outcome_of(steps: list[Step]) -> Outcome:
    judge = HistoryJudge(model_named("cas-register"), None, splits_keys=False)
    for at, (process, kind, f, value) in enumerate([*BEGIN, *steps]):
        judge.take(EventLine(kind, process, f, "k", value, time=at))
    judge.finish()
    return judge.outcome()


@pytest.mark.parametrize(("last", "right"), [(1, Outcome.VALID), (3, Outcome.INVALID)])
def test_a_write_of_what_is_there_may_be_needed_later(last: int, right: Outcome) -> None:
    steps: list[Step] = [
        (1, "invoke", "read", None),
        (2, "invoke", "write", 2),
        (3, "invoke", "write", 1),
        (2, "ok", "write", 2),
        (3, "ok", "write", 1),
        (1, "ok", "read", 2),
        (4, "invoke", "read", None),
        (4, "ok", "read", last),
    ]
    assert outcome_of(steps) is right


@pytest.mark.parametrize(("last", "right"), [(3, Outcome.VALID), (1, Outcome.INVALID)])
def test_a_write_of_unknown_outcome_is_not_in_vain_where_it_was_read(
    last: int, right: Outcome
) -> None:
    steps: list[Step] = [
        (1, "invoke", "write", 2),
        (1, "info", "write", None),
        (2, "invoke", "read", None),
        (3, "invoke", "write", 3),
        (3, "ok", "write", 3),
        (2, "ok", "read", 2),
        (4, "invoke", "read", None),
        (4, "ok", "read", last),
    ]
    assert outcome_of(steps) is right


def test_many_writes_of_unknown_outcome_and_readers_leave_few_configurations() -> None:
    judge = HistoryJudge(model_named("cas-register"), None, splits_keys=False)
    steps: list[Step] = [*BEGIN]
    for process in range(10, 60):
        steps += [(process, "invoke", "write", process), (process, "info", "write", None)]
    for number in range(100):
        readers = range(100 + 8 * number, 108 + 8 * number)
        steps += [(reader, "invoke", "read", None) for reader in readers]
        steps += [(reader, "ok", "read", 1) for reader in readers]
    most = 0
    for at, (process, kind, f, value) in enumerate(steps):
        judge.take(EventLine(kind, process, f, "k", value, time=at))
        most = max(most, *(len(key.search.configurations) for key in judge._keys.values()))
    judge.finish()
    assert judge.outcome() is Outcome.VALID
    assert most <= 2


def busy_register(clients: int, seed: int) -> Iterator[EventLine]:
    """Clients that use one register without a pause; each operation takes effect in between."""
    rng = random.Random(seed)
    held: int | None = None
    busy: dict[int, tuple[str, int | None]] = {}
    took_effect: set[int] = set()
    for at in range(3_000):
        client = rng.randrange(clients)
        if client not in busy:
            f = rng.choice(("read", "write"))
            busy[client] = (f, None if f == "read" else rng.randrange(4))
            yield EventLine("invoke", client, f, "k", busy[client][1], time=at)
        elif client not in took_effect:
            f, value = busy[client]
            held = held if f == "read" else value
            busy[client] = (f, held)
            took_effect.add(client)
        else:
            took_effect.remove(client)
            f, value = busy.pop(client)
            yield EventLine("ok", client, f, "k", value, time=at)


@pytest.mark.parametrize("clients", [8, 16, 24])
def test_many_clients_that_write_to_one_register_leave_few_configurations(clients: int) -> None:
    """The overwriters that may have taken effect where nothing saw them are a set, not subsets."""
    for seed in range(4):
        judge, most = HistoryJudge(model_named("cas-register"), None, splits_keys=False), 0
        for event in busy_register(clients, seed):
            judge.take(event)
            [key] = judge._keys.values()
            most = max(most, len(key.search.configurations))
        assert judge.outcome() is Outcome.VALID, judge.doubts()
        assert most <= 100
        for at, (f, value) in enumerate((("write", 10), ("write", 11), ("read", 10)), 1_500):
            asked = None if f == "read" else value
            judge.take(EventLine("invoke", 99, f, "k", asked, time=2 * at))
            judge.take(EventLine("ok", 99, f, "k", value, time=2 * at + 1))
        judge.finish()
        assert judge.outcome() is Outcome.INVALID, "it is stale, whatever others write"
