"""What Spark's source reads of a growing history, and what the judges of its buckets make of it."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pandas as pd
import pytest

from shaketable.checkers.linearizability.model_choice import model_named
from shaketable.checkers.online import HistoryJudge, Progress, Violation, sliced, take_slice
from shaketable.checkers.spark import streaming
from shaketable.checkers.spark.streaming import (
    BUCKETS,
    BucketJudge,
    HistoryReader,
    StreamPlan,
    whole_lines,
)
from shaketable.harness.contracts.verdict import Outcome
from shaketable.harness.history.foreign.jsonl import EventLine


def history(seed: int, operations: int, keys: int) -> list[dict[str, Any]]:
    """Return events of atomic registers, some of unknown outcome, perhaps a read that is wrong."""
    rng = random.Random(seed)
    state: dict[str, int | None] = {}
    busy: dict[int, dict[str, Any]] = {}
    events: list[dict[str, Any]] = []
    process = list(range(6))
    wrong_at = rng.choice([None, operations * 2 // 3])
    for at in range(operations * 2):
        client = rng.randrange(6)
        if client not in busy:
            f = rng.choice(("read", "write"))
            event = {"process": process[client], "f": f, "key": f"k{rng.randrange(keys)}"}
            event["value"] = rng.randrange(3) if f == "write" else None
            busy[client] = event
            events.append(event | {"type": "invoke", "time": at // 2})
            continue
        event = busy.pop(client)
        kind, key = "ok", event["key"]
        if event["f"] == "write":
            state[key] = event["value"]
            if rng.random() < 0.02:
                kind, process[client] = "info", process[client] + 6
        else:
            event["value"] = state.get(key)
            if wrong_at is not None and at >= wrong_at:
                event["value"], wrong_at = 99, None
        events.append(event | {"type": kind, "time": at // 2})
    return events


def write(path: Path, events: list[dict[str, Any]], mode: str = "w") -> None:
    with path.open(mode) as file:
        file.writelines(json.dumps(event) + "\n" for event in events)


class State:
    """A bucket's state, as Spark gives it to a function."""

    def __init__(self) -> None:
        self.exists = False
        self.get: tuple[Any, ...] = ()

    def update(self, value: tuple[Any, ...]) -> None:
        self.exists, self.get = True, value


class Query:
    """Runs batches as Spark would: those that were not committed are run again."""

    def __init__(self, path: Path, *, splits_keys: bool = False) -> None:
        self.end_file = path.with_suffix(".ended")
        options = {"path": str(path), "end_file": str(self.end_file)}
        self.reader = HistoryReader(options | {"splits_keys": str(splits_keys).lower()})
        plan = StreamPlan(
            path=path, model="register", initial=None, splits_keys=splits_keys,
            checkpoint=path.with_suffix(".kept"), end_file=self.end_file,
        )  # fmt: skip
        self.judge: Callable[..., Any] = BucketJudge(plan)
        self.states = {bucket: State() for bucket in range(BUCKETS)}
        self.offset = self.reader.initialOffset()
        self.found: list[Violation] = []
        self.known: dict[int, Progress] = {}

    def batch(self, *, is_lost: bool = False) -> bool:
        """Run a batch; return whether there was anything. `is_lost`: it is not committed."""
        end = self.reader.latestOffset(self.offset, None)
        bodies: dict[int, list[bytes]] = {}
        for part in reversed(self.reader.partitions(self.offset, end)):  # they come in any order
            for rows in self.reader.read(part):
                for row in rows.to_pylist():
                    bodies.setdefault(row["bucket"], []).append(row["body"])
        for bucket, of_bucket in bodies.items():
            state = State()
            state.exists, state.get = self.states[bucket].exists, self.states[bucket].get
            frames = [pd.DataFrame({"body": of_bucket})]
            [frame] = self.judge((bucket,), iter(frames), state)
            if not is_lost:
                self.states[bucket] = state
                self.known[bucket] = msgspec.json.decode(frame["body"][0], type=Progress)
                self.found += self.known[bucket].violations
        if not is_lost:
            self.offset = end
        return bool(bodies)

    def ask(self, token: str) -> None:
        """Ask for the end of what is there."""
        size = self.end_file.with_suffix(".jsonl").stat().st_size
        self.end_file.write_text(f"{token} {size}")

    def outcome(self) -> Outcome:
        """End the history, and return the verdict of all buckets."""
        while self.batch():
            pass
        self.ask("over")
        assert self.batch()
        assert not self.batch(), "the end is asked for once"
        outcomes = [
            Outcome(each.outcome)
            for each in self.known.values()
            if each.outcome is not None and (each.operations or each.lacks)
        ]
        return max(outcomes, key=[Outcome.VALID, Outcome.UNKNOWN, Outcome.INVALID].index)


def locally(path: Path) -> tuple[Outcome, set[tuple[str | None, int]], int]:
    """Judge a file in one go."""
    judge, found = HistoryJudge(model_named("register"), None, splits_keys=False), []
    for line in path.read_bytes().splitlines():
        found += judge.take(msgspec.json.decode(line, type=EventLine))
    found += judge.finish()
    return judge.outcome(), {(each.key, each.op) for each in found}, judge.operations


@pytest.mark.parametrize("seed", range(20))
def test_buckets_judge_as_one_judge_does_whatever_is_lost_on_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    rng = random.Random(seed)
    monkeypatch.setattr(streaming, "BATCH_BYTES", 9_000)
    monkeypatch.setattr(streaming, "PART_BYTES", 2_000)
    path, events = tmp_path / "h.jsonl", history(seed, 400, keys=rng.choice([1, 5, 60]))
    path.touch()
    query = Query(path)
    while events:
        count = rng.randrange(1, 60)
        write(path, events[:count], "a")
        events = events[count:]
        query.batch(is_lost=rng.random() < 0.3)
        if rng.random() < 0.2:
            streaming._JUDGES.clear()  # another process goes on
    outcome, found, operations = locally(path)
    assert query.outcome() is outcome
    assert {(each.key, each.op) for each in query.found} == found
    assert sum(each.operations for each in query.known.values()) == operations
    assert all(each.window for each in query.found), "each can be shown"


def test_a_history_goes_on_after_it_was_asked_for_its_end(tmp_path: Path) -> None:
    path, events = tmp_path / "h.jsonl", history(1, 200, keys=3)
    write(path, events[:100])
    query = Query(path)
    assert query.outcome() is locally(path)[0]
    write(path, events[100:], "a")
    query.end_file.unlink()
    while query.batch():
        pass
    query.ask("again")
    assert query.batch()
    assert {each.ended for each in query.known.values()} == {"again"}
    assert {(each.key, each.op) for each in query.found} == locally(path)[1]


def test_nothing_is_judged_after_a_line_that_cannot_be_read(tmp_path: Path) -> None:
    path, before = tmp_path / "h.jsonl", history(2, 50, keys=9)
    write(path, before)
    with path.open("a") as file:
        file.write("{broken\n")
    write(path, history(3, 50, keys=9), "a")
    query = Query(path)
    assert query.outcome() is Outcome.UNKNOWN
    [lack] = {lack for each in query.known.values() for lack in each.lacks}
    assert lack.startswith(f"line {len(before) + 1} cannot be judged: JSON is malformed")
    called = sum(event["type"] == "invoke" for event in before)
    assert sum(each.operations for each in query.known.values()) == called


@pytest.mark.parametrize(
    ("value", "hole"),
    [(["k1", 1], None), (1, "no [key value] to split by, which several judges need in each event")],
)
def test_keys_in_values_are_told_apart(value: object, hole: str | None) -> None:
    line = json.dumps({"process": 1, "type": "ok", "f": "write", "value": value, "time": 7})
    slices = sliced([line.encode()], 4, 8, splits_keys=True)
    if hole is None:
        [mine] = [each for each in slices if each.numbers]
        assert (mine.numbers, mine.lines) == ([4], [line.encode()])
        assert {each.until_ns for each in slices} == {7}
    else:
        assert {each.hole for each in slices} == {f"line 5 cannot be judged: {hole}"}
    assert {each.through for each in slices} == {5}


def test_only_whole_lines_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "h.jsonl"
    path.write_bytes(b"one\ntwo\nthree")
    assert whole_lines(path, 0, 100) == (8, 2)
    assert whole_lines(path, 0, 5) == (4, 1)
    assert whole_lines(path, 0, 2) == (4, 1), "a longer line is taken whole"
    assert whole_lines(path, 8, 100) == (8, 0)
    with pytest.raises(ValueError, match=r"^it was cut: it has 13 bytes, and 20 were read$"):
        whole_lines(path, 20, 100)
    monkeypatch.setattr(streaming, "LINE_BYTES_MAX", 4)
    with pytest.raises(ValueError, match=r"^a line of more than 4 bytes$"):
        whole_lines(path, 8, 3)


def test_only_what_was_there_when_the_end_was_asked_for_is_judged(tmp_path: Path) -> None:
    path, events = tmp_path / "h.jsonl", history(4, 100, keys=3)
    write(path, events[:60])
    query = Query(path)
    query.ask("over")
    write(path, events[60:], "a")  # and on and on: the end comes all the same
    assert query.batch()
    assert query.batch()
    assert {each.ended for each in query.known.values()} == {"over"}
    assert {each.through for each in query.known.values()} == {60}
    assert query.batch()
    assert {each.through for each in query.known.values()} == {len(events)}


def test_a_file_that_is_cut_while_a_batch_is_planned_is_told(tmp_path: Path) -> None:
    path = tmp_path / "h.jsonl"
    write(path, history(5, 50, keys=2))
    query = Query(path)
    end = query.reader.latestOffset(query.offset, None)
    [part] = query.reader.partitions(query.offset, end)
    with path.open("r+b") as file:
        file.truncate(20)
    with pytest.raises(ValueError, match=r"^it was cut: "):
        next(query.reader.read(part))
    with pytest.raises(ValueError, match=r"^it was cut: "):
        query.reader.partitions(query.offset, end)


EVENT = {"process": 1, "type": "ok", "f": "read", "key": "x", "value": 7, "time": 5}


@pytest.mark.parametrize("other", [{"time": 9}, {}, {"time": 9, "process": None}])
def test_the_time_of_events_of_no_client_is_not_taken(other: dict[str, Any]) -> None:
    """A write that is called at the time of an answer may explain it."""
    judge = HistoryJudge(model_named("register"), None, splits_keys=False)
    nemesis = {"process": "nemesis", "type": "info", "f": "kill", **other}
    invoke = EVENT | {"type": "invoke", "value": None, "time": 4}
    write_7 = EVENT | {"process": 2, "f": "write"}
    first = [invoke, EVENT, nemesis]
    second = [write_7 | {"type": "invoke"}, write_7 | {"time": 6}]
    number = 0
    for part in (first, second):
        [given] = sliced([json.dumps(each).encode() for each in part], number, 1, splits_keys=False)
        assert not take_slice(judge, given, msgspec.json.Decoder(EventLine).decode)
        number += len(part)
    judge.finish()
    assert judge.outcome() is Outcome.VALID
