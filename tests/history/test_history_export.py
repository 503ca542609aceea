"""Pairing and export: from segments to the two tables, also of runs that were cut short."""

import json
import os
from itertools import accumulate
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shaketable.harness.contracts.errors import HarnessError
from shaketable.harness.history import segments
from shaketable.harness.history.export import export, fault_windows, load_events, load_operations
from shaketable.harness.history.operation_files import file_ranges
from shaketable.harness.history.run_folder import RunFolder
from shaketable.harness.history.schema import EVENTS, OPERATIONS, request_of
from shaketable.harness.history.segments import Event, Recorder
from tests.support.paired_events import merge


def event(time: int, process: int, kind: str, f: str = "end", **fields) -> Event:
    return Event(time, process, kind, f, fields.pop("key", "q"), **fields)


# ---- pairing -----------------------------------------------------------------------------


def test_invokes_come_before_ends_at_equal_times() -> None:
    merged = merge([[event(5, 0, "invoke"), event(7, 0, "ok")], [event(7, 1, "invoke")]])
    assert [(e.process, e.type) for e in merged.events] == [
        (0, "invoke"),
        (1, "invoke"),
        (0, "ok"),
    ]
    assert [(o.op, o.completion is not None) for o in merged.operations] == [(0, True), (1, False)]


def test_equal_times_of_one_process_do_not_mix_its_operations() -> None:
    recording = [event(7, 0, "invoke", "a"), event(7, 0, "ok", "a")]
    recording += [event(7, 0, "invoke", "b"), event(7, 0, "fail", "b")]
    merged = merge([recording])
    assert [(o.invoke.f, o.completion.f) for o in merged.operations] == [("a", "a"), ("b", "b")]
    assert merged.problems == ()


def test_what_fits_no_pair_is_told() -> None:
    merged = merge([[event(1, 0, "ok"), event(2, 0, "invoke"), event(3, 0, "invoke")]])
    assert merged.problems == (
        "1 completions have no invoke",
        "1 operations have no end, though their process went on",
    )
    assert [(o.op, o.completion) for o in merged.operations] == [(1, None), (2, None)]


@st.composite
def recordings(draw: st.DrawFn) -> list[list[Event]]:
    """Draw well-formed recordings; `input` of an invoke and `output` of its end are its name."""
    workers, name = [], 0
    for worker in range(draw(st.integers(1, 3))):
        processes = [worker, worker + 3]
        pending: dict[int, int] = {}
        time, events = 0, []
        for _ in range(draw(st.integers(0, 12))):
            time += draw(st.integers(0, 2))
            process = draw(st.sampled_from(processes))
            if process in pending:
                kind = draw(st.sampled_from(("ok", "fail", "info")))
                events.append(event(time, process, kind, output=pending.pop(process)))
            else:
                pending[process] = name
                events.append(event(time, process, "invoke", input=name))
                name += 1
        workers.append(events)
    return workers


@given(recordings())
def test_pairs_are_right_and_complete(workers: list[list[Event]]) -> None:
    merged = merge(workers)
    assert merged.problems == ()
    assert sorted(map(id, merged.events)) == sorted(id(e) for events in workers for e in events)
    order = [(e.time_ns, e.type != "invoke") for e in merged.events]
    assert order == sorted(order)
    for operation in merged.operations:
        assert merged.events[operation.op] is operation.invoke
        if operation.completion is not None:
            assert operation.completion.output == operation.invoke.input
    ends = [e for e in merged.events if e.type != "invoke"]
    assert len(ends) == sum(o.completion is not None for o in merged.operations)
    assert len(merged.operations) + len(ends) == len(merged.events)


# ---- export ------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    folder = RunFolder(tmp_path / "run")
    folder.segments.mkdir(parents=True)
    return folder


class Clock:
    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        self.now += 10
        return self.now


def record_run(folder: RunFolder) -> dict[str, int]:
    """Record two workers and a nemesis on one clock; return the counts for run.json."""
    clock = Clock()
    nemesis = Recorder(folder.segment("nemesis"), 0, clock)
    first = Recorder(folder.segment("worker-0"), 0, clock)
    second = Recorder(folder.segment("worker-1"), 0, clock)
    first.invoke(0, "append", "t/1", value=8)  # 10
    second.invoke(1, "append", "t/0", value=1)  # 20
    nemesis.nemesis("kill", {"fault": 0, "phase": "start", "description": "kill n1"})  # 30
    first.complete(0, "ok", "append", "t/1", offset=4, node="n0")  # 40
    second.complete(1, "info", "append", "t/0", error="timeout")  # 50
    second.invoke(3, "read", "t/0", offset=9)  # 60
    second.complete(3, "ok", "read", "t/0", offset=9)  # 70
    stop = {
        "fault": 0,
        "phase": "stop",
        "description": "kill n1",
        "took_effect": True,
        "evidence": "gone",
    }
    nemesis.nemesis("kill", stop)  # 80
    first.invoke(0, "append", "t/0", value=2)  # 90
    first.complete(0, "fail", "append", "t/0", error="not leader")  # 100
    first.invoke(0, "end", "t/1")  # 110
    return {
        "nemesis.seg": nemesis.close(),
        "worker-0.seg": first.close(),
        "worker-1.seg": second.close(),
    }


def write_facts(folder: RunFolder, segments: dict[str, int | None]) -> None:
    phases = [{"name": "chaos", "start_ns": 0, "stop_ns": 500}]
    folder.run_json.write_text(json.dumps({"segments": segments, "phases": phases}))


def test_both_tables_hold_what_was_recorded(folder: RunFolder) -> None:
    write_facts(folder, record_run(folder))
    exported = export(folder)
    assert exported.incomplete is None
    assert exported.end_ns == 500
    assert exported.events.schema == EVENTS
    assert exported.events["index"].to_pylist() == list(range(11))
    assert exported.events["time_ns"].to_pylist() == list(range(10, 120, 10))
    assert exported.operations.schema == OPERATIONS
    names = ["op", "process", "f", "key", "input", "output", "offset", "call_ns", "return_ns"]
    names += ["outcome", "error", "node"]
    rows = [tuple(row[name] for name in names) for row in exported.operations.to_pylist()]
    assert rows == [
        (1, 1, "append", "t/0", 1, None, None, 20, None, "info", "timeout", None),
        (5, 3, "read", "t/0", None, None, 9, 60, 70, "ok", None, None),
        (8, 0, "append", "t/0", 2, None, None, 90, 100, "fail", "not leader", None),
        (0, 0, "append", "t/1", 8, None, 4, 10, 40, "ok", None, "n0"),
        (10, 0, "end", "t/1", None, None, None, 110, None, "info", None, None),
    ]
    (window,) = exported.windows
    assert (window.fault, window.name, window.start_ns, window.stop_ns) == (0, "kill", 30, 80)
    assert (window.took_effect, window.evidence, window.description) == (True, "gone", "kill n1")


def test_a_request_in_words_stays_with_its_operation(folder: RunFolder) -> None:
    worker = Recorder(folder.segment("worker-0"), 0, Clock())
    for process, outcome in enumerate(("ok", "fail", "info", None)):
        worker.invoke(process, "misrequest", "t", value=16, expected=16, request='add the "leader"')
        if outcome:
            code = 16 if outcome == "ok" else None
            worker.complete(process, outcome, "misrequest", "t", output=code)
    write_facts(folder, {"worker-0.seg": worker.close()})
    operations = export(folder).operations
    assert [request_of(extra) for extra in operations["extra"].to_pylist()] == [
        'add the "leader"'
    ] * 4
    assert operations["input"].to_pylist() == [16] * 4
    assert operations["output"].to_pylist() == [16, None, None, None]
    assert request_of(None) == request_of('{"request": 7}') == request_of("[") == ""


def test_files_hold_the_same_and_appear_whole(folder: RunFolder) -> None:
    record_run(folder)
    for _ in range(2):  # a second export replaces the first
        exported = export(folder)
        assert load_operations(folder) == exported.operations
        assert load_events(folder) == exported.events
        lines = [json.loads(line) for line in folder.history_jsonl.read_text().splitlines()]
        columns = exported.events.to_pylist()
        for line, row in zip(lines, columns, strict=True):
            value = None if row["value"] is None else json.loads(row["value"])
            assert line == {**row, "value": value}
    left = {path.name for path in folder.path.rglob("*") if path.is_file()}
    assert left == {
        "events.parquet",
        "part-00000.parquet",
        "history.jsonl",
        "nemesis.seg",
        "worker-0.seg",
        "worker-1.seg",
    }


def test_a_killed_run_is_exported_without_complaint(folder: RunFolder) -> None:
    clock = Clock()
    worker = Recorder(folder.segment("worker-0"), 0, clock)
    nemesis = Recorder(folder.segment("nemesis"), 0, clock)
    worker.invoke(0, "append", "t/0", value=1)
    nemesis.nemesis("pause", {"fault": 0, "phase": "start", "description": "pause n2"})
    worker.invoke(1, "append", "t/0", value=2)
    path = folder.segment("worker-0")
    os.truncate(path, path.stat().st_size - 3)  # killed inside write(2)
    assert "before it noted" in (export(folder).incomplete or "")
    segments.note_sizes(folder)
    exported = export(folder)
    assert exported.incomplete is None
    assert exported.operations["input"].to_pylist() == [1]
    (window,) = exported.windows
    assert (window.start_ns, window.stop_ns, window.took_effect) == (20, 20, False)
    assert window.evidence == "not undone: the run was cut short"


@pytest.mark.parametrize("counts", [{}, {"worker-0.seg": 1, "worker-1.seg": None}])
def test_what_was_noted_before_the_kill_and_is_gone_is_told(
    folder: RunFolder, counts: dict[str, int | None]
) -> None:
    """A cut or lost recording of a killed run must not read as if its clients had been idle."""
    full = record_run(folder)
    segments.note_sizes(folder)
    if counts:
        write_facts(folder, {**full, "worker-1.seg": None})
    else:
        folder.run_json.write_text('{"status": "running"}')
    assert export(folder).incomplete is None
    path = folder.segment("worker-1")
    size = path.stat().st_size
    os.truncate(path, size // 2)
    assert f"it had {size} before the kill" in (export(folder).incomplete or "")
    path.unlink()
    assert "worker-1.seg: the recording is gone" in (export(folder).incomplete or "")


def test_a_worker_that_died_leaves_a_sound_history(folder: RunFolder) -> None:
    counts: dict[str, int | None] = dict(record_run(folder))
    path = folder.segment("worker-1")
    os.truncate(path, path.stat().st_size - 30)
    write_facts(folder, {**counts, "worker-1.seg": None})
    assert export(folder).incomplete is None


def test_missing_events_are_told(folder: RunFolder) -> None:
    counts = record_run(folder)
    path = folder.segment("worker-1")
    os.truncate(path, path.stat().st_size // 2)
    write_facts(folder, counts)
    told = export(folder).incomplete
    assert told.startswith("worker-1.seg: cut or damaged at byte ")
    assert told.endswith("events kept, but the run had recorded 4")
    path.unlink()
    assert export(folder).incomplete == "worker-1.seg: the recording is gone"


def test_damage_is_told_without_run_json(folder: RunFolder) -> None:
    record_run(folder)
    path = folder.segment("worker-0")
    content = bytearray(path.read_bytes())
    content[20] ^= 1
    path.write_bytes(content)
    assert "worker-0.seg: cut or damaged at byte 8" in export(folder).incomplete


def test_a_cut_at_a_record_is_told_by_the_count(folder: RunFolder) -> None:
    recorder = Recorder(folder.segment("worker-0"), 0, Clock())
    recorder.invoke(0, "end", "t/0")
    whole = folder.segment("worker-0").stat().st_size
    recorder.complete(0, "ok", "end", "t/0", output=0)
    write_facts(folder, {"worker-0.seg": recorder.close()})
    os.truncate(folder.segment("worker-0"), whole)
    told = "worker-0.seg: 1 events kept, but the run had recorded 2"
    assert export(folder).incomplete == told


def test_a_run_without_operations_has_empty_tables(folder: RunFolder) -> None:
    Recorder(folder.segment("worker-0"), 0).close()
    assert export(folder).operations.num_rows == 0
    assert load_operations(folder).schema == OPERATIONS


def test_bad_folders_are_told_in_one_line(folder: RunFolder) -> None:
    with pytest.raises(HarnessError, match="holds no recordings"):
        export(folder)
    with pytest.raises(HarnessError, match="holds no Parquet files: analyze the run first"):
        load_operations(folder)
    with pytest.raises(HarnessError, match="not there: analyze the run first"):
        load_events(folder)
    record_run(folder)
    export(folder)
    os.truncate(folder.events_parquet, folder.events_parquet.stat().st_size // 2)
    with pytest.raises(HarnessError, match=r"events\.parquet: cut or damaged") as told:
        load_events(folder)
    assert "\n" not in str(told.value)
    folder.run_json.write_text('{"segments": {')
    with pytest.raises(HarnessError, match=r"cannot read .*run\.json"):
        export(folder)


@given(
    counts=st.lists(st.integers(1, 30), max_size=12),
    rows_max=st.integers(1, 20),
)
def test_keys_share_files_only_as_a_whole(counts: list[int], rows_max: int) -> None:
    keys = [str(key) for key, count in enumerate(counts) for _ in range(count)]
    ranges = file_ranges([0, *accumulate(counts)] if counts else [0, 0], rows_max)
    covered = [row for start, length in ranges for row in range(start, start + length)]
    assert covered == list(range(len(keys)))
    assert all(length <= rows_max for _, length in ranges)
    for key, count in enumerate(counts):
        rows = [i for i, name in enumerate(keys) if name == str(key)]
        files = {n for n, (s, length) in enumerate(ranges) for r in rows if s <= r < s + length}
        if count <= rows_max:
            assert len(files) == 1


def nemesis_table(*events: tuple[int, str, dict]) -> pa.Table:
    columns = {name: [None] * len(events) for name in EVENTS.names}
    columns["time_ns"] = [time for time, _, _ in events]
    columns["process"] = [-1] * len(events)
    columns["f"] = [f for _, f, _ in events]
    columns["value"] = [json.dumps(value) for _, _, value in events]
    return pa.table(columns, schema=EVENTS)


def test_windows_of_overlapping_faults_pair_by_number() -> None:
    table = nemesis_table(
        (10, "kill", {"fault": 1, "phase": "start", "description": "a"}),
        (20, "pause", {"fault": 0, "phase": "start", "description": "b"}),
        (30, "kill", {"fault": 1, "phase": "stop", "took_effect": False, "evidence": "x"}),
        (40, "pause", {"fault": 0, "phase": "stop", "took_effect": True, "evidence": "y"}),
        (50, "kill", {"fault": 2, "phase": "start"}),
        (60, "partition", {"fault": 3, "phase": "stop", "took_effect": True, "evidence": "z"}),
    )
    windows = fault_windows(table, run_end_ns=99)
    told = [(w.fault, w.name, w.start_ns, w.stop_ns, w.took_effect, w.evidence) for w in windows]
    assert told == [
        (1, "kill", 10, 30, False, "x"),
        (0, "pause", 20, 40, True, "y"),
        (2, "kill", 50, 99, False, "not undone: the run was cut short"),
        (3, "partition", 60, 60, True, "z (its start is missing in the history)"),
    ]


def test_a_window_says_when_its_fault_began_to_be_applied() -> None:
    table = nemesis_table(
        (10, "kill", {"fault": 0, "phase": "start", "began_ns": 7}),
        (20, "kill", {"fault": 0, "phase": "stop", "began_ns": 7, "took_effect": True}),
        (30, "kill", {"fault": 1, "phase": "start", "began_ns": 31}),
        (40, "kill", {"fault": 2, "phase": "start"}),
    )
    windows = fault_windows(table, run_end_ns=99)
    assert [(w.start_ns, w.began_ns, w.from_ns) for w in windows] == [
        (10, 7, 7),
        (30, None, 30),  # a time after its effect makes no sense
        (40, None, 40),
    ]
