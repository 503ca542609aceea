"""What is judged event by event gets the verdict that `check` gives the whole history."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import msgspec
import pytest

from shaketable.checkers.linearizability.model_choice import model_named
from shaketable.checkers.online import MODELS, HistoryJudge
from shaketable.harness.contracts.verdict import Outcome
from shaketable.harness.history.foreign.jsonl import EventLine
from shaketable.harness.judging import engines
from shaketable.harness.judging.checking import CheckSettings, check_path

INITIAL = {"register": "0", "cas-register": "0", "kv": None, "counter": None, "mutex": None}


def call_of(model: str, rng: random.Random) -> tuple[str, Any]:
    if model == "counter":
        return rng.choice([("read", None), ("add", rng.randint(1, 2))])
    if model == "kv":
        return rng.choice([("get", None), ("put", rng.choice("ab")), ("append", "c")])
    if model == "mutex":
        return rng.choice([("acquire", None), ("release", None)])
    fs: list[tuple[str, Any]] = [("read", None), ("write", rng.randint(1, 2))]
    if model == "cas-register":
        fs.append(("cas", [rng.randint(0, 2), rng.randint(1, 2)]))
    return rng.choice(fs)


def answer(model: str, f: str, value: Any, state: Any) -> tuple[Any, str, Any]:
    """Return the state after an operation that takes effect, how it ends, and its answer."""
    if f in ("read", "get"):
        return state, "ok", state
    if model == "mutex":
        can = state == (1 if f == "release" else 0)
        return (1 - state, "ok", None) if can else (state, "fail", None)
    if f == "cas":
        return (value[1], "ok", value) if state == value[0] else (state, "fail", value)
    if f in ("write", "put"):
        return value, "ok", value
    return state + value, "ok", value


def history(model: str, seed: int) -> list[EventLine]:
    """Return random events of an atomic object, some answers of which are lost or wrong."""
    rng = random.Random(seed)
    states: dict[str, Any] = dict.fromkeys("xy", "" if model == "kv" else 0)
    events: list[EventLine] = []
    busy: dict[int, list[Any]] = {}
    clock = 0
    process_of = list(range(4))
    for _ in range(rng.randint(6, 50)):
        clock += rng.randint(0, 2)
        slot = rng.randrange(4)
        process = process_of[slot]
        if slot not in busy:
            f, value = call_of(model, rng)
            key = rng.choice("xy")
            events.append(EventLine("invoke", process, f, key, value, clock))
            busy[slot] = [f, value, key, None]
            continue
        f, value, key, done = busy[slot]
        if done is None:
            states[key], kind, out = answer(model, f, value, states[key])
            busy[slot][3] = (kind, out)
            continue
        del busy[slot]
        kind, out = done
        if rng.random() < 0.1:
            kind, process_of[slot] = "info", process + 4
        elif f in ("read", "get") and rng.random() < 0.25:
            out = rng.choice([0, 1, 2]) if model != "kv" else rng.choice(["", "a", "bc"])
        elif f not in ("read", "get") and rng.random() < (0.1 if model == "mutex" else 0.03):
            kind = "fail"
        events.append(EventLine(kind, process, f, key, out if kind == "ok" else value, clock))
    return events


def judged(model: str, events: list[EventLine], stop_at: int | None = None) -> Outcome:
    """Judge event by event; at `stop_at` go on from a checkpoint in another judge."""
    judge = HistoryJudge(model_named(model), INITIAL[model], splits_keys=False)
    for number, event in enumerate(sorted(events, key=lambda each: each.time_ns or 0)):
        if number == stop_at:
            stored = msgspec.json.encode(judge.to_plain())
            judge = HistoryJudge(model_named(model), INITIAL[model], splits_keys=False)
            judge.restore(
                msgspec.json.decode(stored), lambda each: msgspec.convert(each, EventLine)
            )
        judge.take(msgspec.convert(msgspec.to_builtins(event), EventLine))
    judge.finish()
    return judge.outcome()


@pytest.mark.parametrize("model", MODELS)
def test_random_histories_get_the_verdict_of_check(model: str, tmp_path: Path) -> None:
    engine = engines.Engine("local", "local[*]")
    counts = dict.fromkeys(Outcome, 0)
    settings = CheckSettings(model=model, initial=INITIAL[model], engine="local")
    try:
        for seed in range(30):
            events = history(model, seed)
            path = tmp_path / f"{seed}.jsonl"
            path.write_bytes(b"".join(msgspec.json.encode(event) + b"\n" for event in events))
            expected = check_path(path, settings, lambda _: engine, lambda _: None).outcome
            assert judged(model, events) is expected, f"seed {seed}"
            assert judged(model, events, stop_at=len(events) // 2) is expected, f"seed {seed}"
            counts[expected] += 1
    finally:
        engine.stop()
    assert counts[Outcome.VALID] > 2
    assert counts[Outcome.INVALID] > 2
