"""The compiled export agrees with one that pairs event objects, whatever a segment holds."""

from __future__ import annotations

import contextlib
import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shaketable.harness.contracts.errors import HarnessError
from shaketable.harness.history import operation_files, rounds, segments
from shaketable.harness.history.event_kernels import HistoryTexts
from shaketable.harness.history.export import export, export_events, load_operations
from shaketable.harness.history.operation_files import read_keys
from shaketable.harness.history.rounds import SegmentStream
from shaketable.harness.history.run_folder import RunFolder
from shaketable.harness.history.segments import Event, SegmentWriter, read_segment
from tests.support.paired_events import events_table, merge, operations_table, value_json

INTEGERS = st.none() | st.integers(-(2**63), 2**63 - 1) | st.integers(-40, 300)
TEXTS = st.none() | st.text(max_size=8) | st.sampled_from(("q", "t/1", "", 'a"b\\c\n', "é"))
JSON = st.none() | st.sampled_from(("", '{"a":1}', "[1,2]"))


def events(times: st.SearchStrategy[int]) -> st.SearchStrategy[Event]:
    return st.builds(
        Event,
        time_ns=times,
        process=st.integers(-1, 3),
        type=st.sampled_from(("invoke", "invoke", "ok", "fail", "info")),
        f=st.sampled_from(("append", "read")),
        key=TEXTS, input=INTEGERS, output=INTEGERS, offset=INTEGERS,
        error=TEXTS, node=TEXTS, extra=JSON, expected=INTEGERS,
    )  # fmt: skip


ANY_ORDER = st.lists(st.lists(events(st.integers(0, 30)), max_size=12), min_size=1, max_size=4)
IN_ORDER = st.lists(
    st.lists(events(st.integers(0, 40)), max_size=25, unique_by=lambda event: event.time_ns).map(
        lambda some: sorted(some, key=lambda event: event.time_ns)
    ),
    min_size=1,
    max_size=4,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    folder = RunFolder(tmp_path_factory.mktemp("run"))
    folder.segments.mkdir(parents=True)
    return folder


def record(folder: RunFolder, recordings: list[list[Event]]) -> None:
    for path in folder.segments.glob("*.seg"):
        path.unlink()
    for number, recording in enumerate(recordings):
        writer = SegmentWriter(folder.segment(f"worker-{number}"))
        writer.write(recording)
        writer.close()


def sound(recordings: list[list[Event]]) -> list[list[Event]]:
    """Leave out what makes no JSON: an empty `extra` of a value or a fault."""
    return [
        [msgspec.structs.replace(e, extra=None) if e.extra == "" else e for e in recording]
        for recording in recordings
    ]


def assert_exported_as_paired(folder: RunFolder, recordings: list[list[Event]]) -> None:
    merged = merge(recordings)
    exported = export(folder)
    values = [value_json(event) for event in merged.events]
    assert exported.events.equals(events_table(merged.events, values))
    expected = operations_table(merged.operations).to_pylist()
    expected.sort(key=lambda row: (row["key"] is not None, row["key"] or "", row["op"]))
    assert exported.operations.to_pylist() == expected
    lines = [json.loads(line) for line in folder.history_jsonl.read_text().split("\n")[:-1]]
    for index, (line, event, value) in enumerate(zip(lines, merged.events, values, strict=True)):
        assert line["index"] == index
        assert line["value"] == (None if value is None else json.loads(value))
        for name in ("time_ns", "process", "type", "f", "key", "error", "node"):
            assert line[name] == getattr(event, name)
    told = [problem for problem in merged.problems if problem not in (exported.incomplete or "")]
    assert told == []


@settings(max_examples=60)
@given(recordings=IN_ORDER | ANY_ORDER)
def test_the_export_agrees_with_pairing_one_by_one(
    folder: RunFolder, recordings: list[list[Event]]
) -> None:
    recordings = [
        [e if e.process >= 0 else msgspec.structs.replace(e, extra=None) for e in recording]
        for recording in sound(recordings)
    ]
    record(folder, recordings)
    assert_exported_as_paired(folder, recordings)


def long_recordings(count: int, rng: np.random.Generator) -> list[list[Event]]:
    """Several segments of very different pace, with clients that never answer."""
    recordings = []
    for worker, pace in enumerate((1, 3, 50)):
        time, recording, is_open = 0, [], {}
        for n in range(count // pace):
            time += int(rng.integers(1, 3)) * pace
            process = worker + 3 * int(rng.integers(0, 400))
            key = f"q/{int(rng.integers(0, 40)):02d}"
            if process in is_open:
                kind = ("ok", "ok", "fail", "info")[int(rng.integers(0, 4))]
                key = is_open.pop(process)
                recording.append(Event(time, process, kind, "read", key, output=n, error=f"e{n}"))
            else:
                is_open[process] = key
                recording.append(Event(time, process, "invoke", "read", key, input=n))
        recordings.append(recording)
    return recordings


@pytest.mark.parametrize("held_bytes", [1 << 30, 1 << 14])
def test_many_rounds_parts_and_spilled_rows_give_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held_bytes: int
) -> None:
    monkeypatch.setattr(rounds, "ROUND_BYTES", 1 << 14)
    monkeypatch.setattr(rounds, "CHUNK_BYTES_MIN", 1 << 10)
    monkeypatch.setattr(operation_files, "OPERATIONS_PER_FILE_MAX", 500)
    monkeypatch.setattr(operation_files, "HELD_BYTES_MAX", held_bytes)
    folder = RunFolder(tmp_path / "run")
    folder.segments.mkdir(parents=True)
    recordings = long_recordings(6000, np.random.default_rng(5))
    record(folder, recordings)
    assert_exported_as_paired(folder, recordings)
    files = sorted(folder.operations.iterdir())
    assert len(files) > 5
    last = None
    for path in files:
        with pq.ParquetFile(path) as file:
            said, keys = read_keys(file.metadata), file.read(["key"])["key"].to_pylist()
        assert said is not None
        assert keys == sorted(keys)
        assert (said.first, said.last, said.keys) == (keys[0], keys[-1], len(set(keys)))
        assert last is None or keys[0] > last, "a key of few rows stands in one file"
        assert not said.is_begun
        assert not said.is_cut
        last = keys[-1]
    assert not list(folder.history.glob(".*")), "nothing is left of the work"


def test_a_huge_key_fills_files_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operation_files.file_ranges, "__defaults__", (100,))
    folder = RunFolder(tmp_path / "run")
    folder.segments.mkdir(parents=True)
    recording = [
        Event(n + 1, 0, "ok" if n % 2 else "invoke", "read", "big" if n < 700 else "small")
        for n in range(720)
    ]
    record(folder, [recording])
    assert_exported_as_paired(folder, [recording])
    said = [
        read_keys(pq.read_metadata(path)) for path in sorted(folder.operations.glob("*.parquet"))
    ]
    told = [(keys.first, keys.last, keys.is_begun, keys.is_cut) for keys in said]
    assert told == [
        ("big", "big", False, True),
        ("big", "big", True, True),
        ("big", "big", True, True),
        ("big", "small", True, False),
    ]


def test_events_can_be_written_later(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.segments.mkdir(parents=True)
    record(folder, [[Event(1, 0, "invoke", "read", "q"), Event(2, 0, "ok", "read", "q")]])
    exported = export(folder, with_events=False)
    assert load_operations(folder).num_rows == 1
    assert not folder.events_parquet.exists()
    export_events(folder)
    assert exported.events.num_rows == 2
    assert len(folder.history_jsonl.read_text().splitlines()) == 2


# ---- one segment -------------------------------------------------------------------------


def streamed(path: Path, chunk_bytes: int) -> tuple[list[tuple], object]:
    stream, texts = SegmentStream(path, chunk_bytes), HistoryTexts()
    with contextlib.closing(stream):
        while not stream.is_done:
            stream.decode()
        rows = stream.take(None, texts)
    return [(row["time_ns"], row["process"], texts.texts[row["f"]]) for row in rows], stream.end


@settings(max_examples=150)
@given(
    recording=st.lists(events(st.integers(0, 99)), min_size=1, max_size=8),
    close=st.booleans(),
    chunk=st.sampled_from((1, 7, 64, 1 << 20)),
    data=st.data(),
)
def test_a_stream_tells_of_cuts_and_damage_what_the_reader_tells(
    folder: RunFolder, recording: list[Event], close: bool, chunk: int, data: st.DataObject
) -> None:
    path = folder.path / "one.seg"
    path.unlink(missing_ok=True)
    writer = SegmentWriter(path)
    writer.write(recording)
    if close:
        writer.close()
    else:
        os.close(writer._file)
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(0, 2))):
        content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    content = content[: data.draw(st.just(len(content)) | st.integers(0, len(content)))]
    content += data.draw(st.just(b"") | st.binary(max_size=30))
    path.write_bytes(content)
    segment = read_segment(path)
    rows, end = streamed(path, chunk)
    assert rows == [(event.time_ns, event.process, event.f) for event in segment.events]
    for name in ("torn", "closed", "events_expected", "damaged"):
        assert getattr(end, name) == getattr(segment, name), name


PAYLOADS = (
    [1, 2, "invoke", "read"],
    [1, 2, "invoke", "read", "q", None, None, None, None, None, None, None, "more", [1, {}]],
    [1.0, 2, "invoke", "read"],
    [1, 2, "other", "read"],
    [1, 2, "invoke"],
    [1, None, "invoke", "read"],
    [1, 2, "invoke", "read", 7],
    {"time_ns": 1},
    [1, 2, "invoke", "lesen", "ключ", 2**63 - 1],
    "text",
)


@pytest.mark.parametrize("payload", PAYLOADS)
def test_odd_payloads_are_what_msgspec_says(tmp_path: Path, payload: object) -> None:
    path = tmp_path / "odd.seg"
    before = segments._frame(1, msgspec.msgpack.encode(Event(0, 1, "invoke", "read")))
    path.write_bytes(segments.MAGIC + before + segments._frame(1, msgspec.msgpack.encode(payload)))
    segment = read_segment(path)
    rows, end = streamed(path, 1 << 20)
    assert rows == [(event.time_ns, event.process, event.f) for event in segment.events]
    assert (end.torn, end.damaged) == (segment.torn, segment.damaged)


def test_broken_utf8_is_no_event(tmp_path: Path) -> None:
    path = tmp_path / "utf8.seg"
    payload = msgspec.msgpack.encode([1, 2, "invoke", "read", "xy"])[:-2] + b"\xff\xfe"
    path.write_bytes(segments.MAGIC + segments._frame(1, payload))
    rows, end = streamed(path, 64)
    assert rows == list(read_segment(path).events) == []
    assert "the next record is no event" in end.torn


def test_a_number_beyond_64_bits_is_told(tmp_path: Path) -> None:
    path = tmp_path / "large.seg"
    payload = msgspec.msgpack.encode([1, 2, "invoke", "read", "q", 2**63])
    path.write_bytes(segments.MAGIC + segments._frame(1, payload))
    with pytest.raises(HarnessError, match=r"large\.seg: a number at byte 8 has more than 64 bits"):
        streamed(path, 64)


def test_many_and_long_texts(tmp_path: Path) -> None:
    path = tmp_path / "texts.seg"
    writer = SegmentWriter(path)
    recording = [
        Event(n, 0, "info", "read", key=f"key {n}", error="é" * (n % 300)) for n in range(5000)
    ]
    writer.write(recording)
    writer.close()
    stream, texts = SegmentStream(path, 5000), HistoryTexts()
    found = []
    while not stream.is_done:
        stream.decode()
        found += [
            (texts.texts[r["key"]], texts.texts[r["error"]]) for r in stream.take(None, texts)
        ]
    stream.close()
    assert found == [(event.key, event.error) for event in recording]


def test_a_segment_that_is_not_there(tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as pool, pytest.raises(HarnessError, match="No such file"):
        rounds.Recordings([tmp_path / "none.seg"], pool)


@pytest.mark.parametrize("most", [50, 1 << 50])
def test_rows_are_ordered_by_key_and_operation_however_large_the_numbers(most: int) -> None:
    rng = np.random.default_rng(2)
    ranks, ops = rng.integers(0, 9, 400), rng.permutation(np.arange(400)) * (most // 50)
    order = operation_files._order(ranks, ops)
    assert order.tolist() == np.lexsort((ops, ranks)).tolist()
