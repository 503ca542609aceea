"""What is judged event by event agrees with trying every order, and as soon as it can be known."""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec
import pytest

from shaketable.checkers import online
from shaketable.checkers.linearizability.model_choice import model_named
from shaketable.checkers.online import MODELS, HistoryJudge
from shaketable.harness.contracts.verdict import Outcome
from shaketable.harness.history.foreign.jsonl import EventLine
from tests.support.brute_force import as_call, is_linearizable
from tests.support.random_objects import random_history
from tests.support.volume import volume

HISTORIES = volume(400)

Row = dict[str, Any]


def events_of(rows: list[Row]) -> list[EventLine]:
    """The calls and answers of operations in time order; at equal times calls come first."""
    moments = []
    latest_ns = max((row["return_ns"] or row["call_ns"] for row in rows), default=0)
    for row in rows:
        made = as_call(row)
        given = {"input": made.input, "expected": made.expected}
        call = EventLine("invoke", row["op"], row["f"], "k", given, row["call_ns"])
        moments.append((row["call_ns"], 0, call))
        at_ns = row["return_ns"]
        if row["outcome"] != "info" or at_ns is not None:
            output = {"output": made.output} if row["outcome"] == "ok" else None
            at_ns = latest_ns if at_ns is None else at_ns
            end = EventLine(row["outcome"], row["op"], row["f"], "k", output, at_ns)
            moments.append((at_ns, 1, end))
    return [event for _, _, event in sorted(moments, key=lambda each: each[:2])]


def judge_of(model: str, kept: bytes | None = None) -> HistoryJudge:
    judge = HistoryJudge(model_named(model), None, splits_keys=False)
    if kept is not None:
        plain = msgspec.json.decode(kept)
        judge.restore(plain, lambda each: msgspec.convert(each, EventLine))
    return judge


@pytest.mark.parametrize("model", MODELS)
def test_every_order_is_tried(model: str) -> None:
    counts = dict.fromkeys(Outcome, 0)
    for seed in range(HISTORIES):
        rng = Random(f"online {model} {seed}")
        unknown = rng.choice([0.1, 0.4])
        rows = random_history(model, rng, unknown=unknown, lies=0.6, size_max=11)
        events = events_of(rows)
        if not events:
            continue
        judge, cut = judge_of(model), rng.randrange(len(events))
        for number, event in enumerate(events):
            if number == cut:
                judge = judge_of(model, msgspec.json.encode(judge.to_plain()))
            judge.take(event)
        judge.finish()
        outcome = judge.outcome()
        counts[outcome] += 1
        if outcome is not Outcome.UNKNOWN:
            right = is_linearizable(judge.model, judge.model.initial(None), rows)
            assert outcome is (Outcome.VALID if right else Outcome.INVALID), f"seed {seed}"
    assert min(counts[Outcome.VALID], counts[Outcome.INVALID]) > HISTORIES / 20, counts
    assert counts[Outcome.UNKNOWN] < HISTORIES / 50, "texts that many clients append to at once"


@pytest.mark.parametrize("model", MODELS)
def test_operations_are_told_apart_whatever_ids_they_bear(model: str) -> None:
    for seed in range(HISTORIES // 4):
        rng = Random(f"ids {model} {seed}")
        rows = random_history(model, rng, unknown=0.1, lies=0.5, size_max=9)
        outcomes = set()
        for indexes in (None, 3, 1):  # none, few, all the same
            judge = judge_of(model)
            for event in events_of(rows):
                event.index = None if indexes is None else rng.randrange(indexes)
                judge.take(event)
            judge.finish()
            outcomes.add(judge.outcome())
        assert len(outcomes) == 1, f"seed {seed}"


def test_of_a_missing_event_at_the_time_of_an_answer_nothing_is_concluded() -> None:
    read = {"process": 1, "f": "read", "key": "x"}
    for miss in (lambda judge: judge.miss("cut"), lambda judge: judge.take(ORPHAN)):
        judge = judge_of("register")
        judge.take(EventLine("invoke", **read, time=4))
        judge.take(EventLine("ok", **read, value=7, time=5))
        assert not miss(judge)
        judge.finish()
        assert judge.outcome() is Outcome.UNKNOWN


ORPHAN = EventLine("ok", 2, "write", "x", 7, time=5)


def test_keys_beyond_the_limit_are_left_out_and_the_others_judged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(online, "KEYS_MAX", 1)
    judge, found, at = judge_of("register"), [], 0
    for key, f, value in [("a", "write", 1), ("b", "write", 1), ("b", "read", 2), ("a", "read", 2)]:
        for kind in ("invoke", "ok"):
            at += 1
            shown = None if (f, kind) == ("read", "invoke") else value
            found += judge.take(EventLine(kind, 0, f, key, shown, time=at))
    found += judge.finish()
    assert [each.key for each in found] == ["a"]
    assert judge.lacks() == ["more than 1 keys: the others were not judged"]
