"""The judge of a run that goes on: what it is fed, what it tells, and when it gives up."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import multiprocess
import pytest
import trio

from shaketable.harness.campaigns.campaign import Campaign, resolve
from shaketable.harness.history.run_folder import RunFolder
from shaketable.harness.history.segments import Event, SegmentWriter
from shaketable.harness.judging import online
from shaketable.harness.runtime import online as online_run
from shaketable.harness.runtime.online import OnlineJudge, OnlinePlan, coverage_of

KEY = "r/0"
TWO = ("worker-0.seg", "worker-1.seg")


def write(at: int, process: int, value: int, key: str = KEY) -> list[Event]:
    ok = Event(at + 5, process, "ok", "write", key)
    return [Event(at, process, "invoke", "write", key, input=value), ok]


def read(at: int, process: int, value: int | None, key: str = KEY) -> list[Event]:
    ok = Event(at + 5, process, "ok", "read", key, output=value)
    return [Event(at, process, "invoke", "read", key), ok]


def folder_of(path: Path, recordings: dict[str, list[Event]], *, close: bool = True) -> RunFolder:
    folder = RunFolder(path)
    folder.segments.mkdir(parents=True)
    for name, events in recordings.items():
        writer = SegmentWriter(folder.segments / name)
        writer.write(events)
        if close:
            writer.close()
    return folder


def plan_of(folder: RunFolder, topics: frozenset[str] | None = None) -> OnlinePlan:
    return OnlinePlan("linearizable-register", "cas-register", topics, folder.path, os.getpid())


def told_of(
    folder: RunFolder, noted: list[dict[str, int | None]], topics: frozenset[str] | None = None
) -> list[tuple[Any, ...]]:
    """Return what the judge says if it is told how far the recordings are, note by note."""
    ours, theirs = multiprocess.Pipe()
    for each in noted:
        ours.send(("recorded", each))
    judge = online._Judge(plan_of(folder, topics), folder, theirs)
    online._follow(judge, folder, theirs)
    said = []
    while ours.poll():
        said.append(ours.recv())
    ours.close()
    theirs.close()
    return said


OVER: dict[str, int | None] = dict.fromkeys(TWO)


def test_events_of_several_workers_are_judged_in_order_of_time(tmp_path: Path) -> None:
    stale = {TWO[0]: write(0, 0, 1) + write(20, 0, 2), TWO[1]: read(10, 1, 1) + read(30, 1, 1)}
    folder = folder_of(tmp_path, stale)
    said = told_of(folder, [dict.fromkeys(TWO, -1), {TWO[0]: 100, TWO[1]: 15}, OVER])
    assert [word for word, *_ in said[:2]] == ["ready", "judged"]
    seen, violation, finished = [each for each in said[2:] if each[0] != "judged"]
    assert seen == ("seen", KEY, 6)
    assert violation[0] == "violation"
    assert "read 1 by process 1 (op 6)" in violation[2]
    assert finished == ("finished", 4, "INVALID")
    lines = [msgspec.json.decode(line) for line in folder.online_jsonl.read_bytes().splitlines()]
    assert [line["type"] for line in lines] == ["violation", "finished"]
    assert lines[0]["finding"]["operations"][0] == 6
    assert "read 1" in folder.online_html.read_text()


def test_a_worker_that_died_leaves_open_operations_and_no_accusation(tmp_path: Path) -> None:
    recordings = {TWO[0]: [*write(0, 0, 1), *write(10, 0, 2)], TWO[1]: read(20, 1, 1)}
    folder = folder_of(tmp_path, recordings, close=False)
    torn = folder.segments / TWO[0]
    os.truncate(torn, torn.stat().st_size - 3)  # the answer to the second write
    assert told_of(folder, [OVER])[-1] == ("finished", 3, "VALID")


def test_topics_that_another_checker_judges_are_left_out(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, {TWO[0]: write(0, 0, 1, "log/0") + read(10, 0, 7, "log/0")})
    noted: list[dict[str, int | None]] = [{TWO[0]: None}]
    assert told_of(folder, noted, frozenset({"r"}))[-1] == ("finished", 0, "UNKNOWN")


def test_a_judge_that_falls_behind_says_so_and_what_it_found_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(online, "UNREAD_BYTES_MAX", 200)
    events = write(0, 0, 1) + read(10, 0, 7)
    held = {TWO[0]: events, TWO[1]: [e for n in range(20, 500, 10) for e in write(n, 1, n)]}
    folder = folder_of(tmp_path, held)
    monkeypatch.setattr("shaketable.harness.history.segments.STEP_BYTES", 400)
    said = told_of(folder, [{TWO[0]: None, TWO[1]: -1}])
    assert said[-1][0] == "left"
    assert "behind the recordings" in said[-1][1]
    assert [each[1] for each in said if each[0] == "seen"] == [KEY]


def test_an_operation_that_the_model_does_not_know_ends_it_in_one_line(tmp_path: Path) -> None:
    strange = [Event(5, 0, "invoke", "append", KEY, input=1)]
    said = told_of(folder_of(tmp_path, {TWO[0]: strange}), [{TWO[0]: None}])
    assert said[-1] == (
        "left", "event 0 cannot be judged: append is no operation of the model cas-register",
    )  # fmt: skip


def waits_for_ever(plan: OnlinePlan, pipe: Any) -> None:
    pipe.send(("ready",))
    pipe.recv()
    pipe.recv()  # no second message comes before the first is answered


def ends_at_once(plan: OnlinePlan, pipe: Any) -> None:
    pipe.close()


@pytest.mark.parametrize(
    ("program", "why"),
    [(waits_for_ever, "it was not through within"), (ends_at_once, "it ended by itself")],
)
def test_a_judge_that_hangs_or_ends_holds_nothing_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: Any, why: str
) -> None:
    monkeypatch.setattr(online_run, "FINISH_TIMEOUT_S", 0.5)
    started: list[tuple[str, int]] = []
    plan = plan_of(RunFolder(tmp_path))
    judge = OnlineJudge(program, plan, lambda name, pid: started.append((name, pid)))

    async def run() -> None:
        judge.start()
        try:
            await judge.ready()
            for _ in range(5):
                assert judge.look(OVER) == []
            await judge.finish(OVER)
        finally:
            await judge.kill()

    trio.run(run)
    assert judge.why_left is not None
    assert why in judge.why_left
    assert started == [(online.NAME, judge.pids[online.NAME])]
    assert not judge._process.is_alive()


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"workload": "register"}, "linearizable-register is judged as operations come"),
        ({"workload": "combined"}, "is judged, and linearizable-log is watched"),
        ({"workload": "log"}, "linearizable-log is watched for contradictions as operations come"),
        ({"workload": "set"}, "nothing is judged before the end: set is judged by set-full"),
        ({"workload": "register", "world": "sim"}, "in world sim all is over before it could"),
        (
            {"workload": "register", "faults": ("kill", "rollback")},
            "can find no broken promise: the target promises no durability under rollback",
        ),
    ],
)  # fmt: skip
def test_what_is_judged_when_is_said_before_the_run(changed: dict[str, Any], said: str) -> None:
    usual: dict[str, Any] = {"seed": "1", "faults": ("kill",), "concurrency": "6n"}
    line = coverage_of(resolve(Campaign(**{**usual, **changed}))).line
    assert line.startswith("online: ")
    assert said in line
