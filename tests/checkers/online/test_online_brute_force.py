"""What is judged event by event agrees with trying every order, and as soon as it can be known."""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec
import pytest

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
