"""Segments: what is kept is an exact prefix, wherever a file is cut and whatever stands in it."""

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shaketable.harness.contracts.errors import HarnessError
from shaketable.harness.history.schema import NEMESIS_PROCESS
from shaketable.harness.history.segments import (
    ERROR_CHARS_MAX,
    MAGIC,
    NEMESIS,
    Event,
    Recorder,
    SegmentWriter,
    next_process,
    read_segment,
)

INTEGERS = st.none() | st.integers(-(2**63), 2**63 - 1)
TEXTS = st.none() | st.text(max_size=20)
EVENTS = st.builds(
    Event,
    time_ns=st.integers(0, 2**62),
    process=st.integers(-1, 2**40),
    type=st.sampled_from(("invoke", "ok", "fail", "info")),
    f=st.sampled_from(("append", "read", "end")),
    key=TEXTS,
    input=INTEGERS,
    output=INTEGERS,
    offset=INTEGERS,
    error=TEXTS,
    node=TEXTS,
    extra=TEXTS,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("segments")


def write(path: Path, events: list[Event], *, close: bool) -> list[int]:
    """Write a segment afresh; return the file's size before and after each event."""
    path.unlink(missing_ok=True)
    writer = SegmentWriter(path)
    ends = [path.stat().st_size]
    for event in events:
        writer.write_one(event)
        ends.append(path.stat().st_size)
    if close:
        writer.close()
    else:
        os.close(writer._file)
    return ends


@given(events=st.lists(EVENTS, max_size=8), close=st.booleans())
def test_what_was_written_is_read(folder: Path, events: list[Event], close: bool) -> None:
    path = folder / "whole.seg"
    write(path, events, close=close)
    segment = read_segment(path)
    assert segment.events == tuple(events)
    assert (segment.torn, segment.damaged, segment.closed) == (None, False, close)
    assert segment.events_expected == (len(events) if close else None)


@given(events=st.lists(EVENTS, min_size=1, max_size=6), close=st.booleans(), data=st.data())
def test_a_cut_keeps_the_exact_prefix(
    folder: Path, events: list[Event], close: bool, data: st.DataObject
) -> None:
    path = folder / "cut.seg"
    ends = write(path, events, close=close)
    cut = data.draw(st.integers(0, path.stat().st_size - 1))
    os.truncate(path, cut)
    segment = read_segment(path)
    kept = max(0, sum(end <= cut for end in ends) - 1)
    assert segment.events == tuple(events[:kept])
    assert not segment.closed
    assert not segment.damaged, "a cut tail alone is what SIGKILL leaves"
    if cut in ends:
        assert segment.torn is None
    else:
        place = ends[kept] if cut >= len(MAGIC) else 0
        assert f"cut.seg: cut or damaged at byte {place}: " in segment.torn
        assert segment.torn.endswith(f"; {kept} events kept")


@given(
    events=st.lists(EVENTS, min_size=2, max_size=6),
    close=st.booleans(),
    bit=st.integers(0, 7),
    data=st.data(),
)
def test_a_flipped_bit_before_the_last_record_is_damage(
    folder: Path, events: list[Event], close: bool, bit: int, data: st.DataObject
) -> None:
    path = folder / "flipped.seg"
    ends = write(path, events, close=close)
    at = data.draw(st.integers(len(MAGIC), ends[-2] - 1))
    content = bytearray(path.read_bytes())
    content[at] ^= 1 << bit
    path.write_bytes(content)
    segment = read_segment(path)
    kept = sum(end <= at for end in ends) - 1
    assert segment.events == tuple(events[:kept])
    assert segment.damaged
    assert segment.torn is not None


@given(garbage=st.binary(max_size=300), has_magic=st.booleans())
def test_garbage_is_never_taken_for_events(folder: Path, garbage: bytes, has_magic: bool) -> None:
    path = folder / "garbage.seg"
    path.write_bytes(MAGIC + garbage if has_magic else garbage)
    segment = read_segment(path)
    assert segment.events == ()
    if garbage and not MAGIC.startswith(garbage):
        assert segment.torn is not None


def test_a_closed_segment_that_lost_its_middle_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "excised.seg"
    events = [Event(time, 0, "invoke", "end", "q") for time in range(5)]
    ends = write(path, events, close=True)
    content = path.read_bytes()
    path.write_bytes(content[: ends[2]] + content[ends[3] :])
    segment = read_segment(path)
    assert segment.closed
    assert segment.damaged
    assert "5 were written; 4 events kept" in segment.torn


def test_bytes_behind_the_closing_record_are_damage(tmp_path: Path) -> None:
    path = tmp_path / "longer.seg"
    write(path, [Event(1, 0, "invoke", "end")], close=True)
    with path.open("ab") as file:
        file.write(b"more")
    segment = read_segment(path)
    assert segment.damaged
    assert "bytes follow the closing record" in segment.torn


def test_a_batch_goes_out_in_one_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = SegmentWriter(tmp_path / "batch.seg")
    writes = []
    real = os.write
    monkeypatch.setattr(os, "write", lambda file, data: writes.append(data) or real(file, data))
    events = [Event(time, time, "invoke", "end", "q") for time in range(50)]
    writer.write(events)
    assert len(writes) == 1
    assert writer.close() == 50
    assert writer.close() == 50, "closing twice writes one closing record"
    assert len(writes) == 2
    assert read_segment(writer.path).events == tuple(events)


def test_a_short_write_is_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = SegmentWriter(tmp_path / "short.seg")
    real = os.write
    monkeypatch.setattr(os, "write", lambda file, data: real(file, data[:7]))
    writer.write_one(Event(1, 2, "invoke", "append", "q", 3))
    writer.close()
    assert read_segment(writer.path).events == (Event(1, 2, "invoke", "append", "q", 3),)


def test_a_write_of_nothing_is_not_tried_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = SegmentWriter(tmp_path / "a.seg")
    written = iter([7, 0])  # a third write fails the test
    monkeypatch.setattr(os, "write", lambda file, data: next(written))
    with pytest.raises(HarnessError, match=r"cannot record into .*a\.seg: nothing was written"):
        writer.write_one(Event(1, 0, "invoke", "end"))


def test_errors_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.seg"
    writer = SegmentWriter(path)
    with pytest.raises(HarnessError, match=r"cannot create the recording .*a\.seg: File exists"):
        SegmentWriter(path)
    with pytest.raises(HarnessError, match=r"cannot read the recording .*b\.seg: No such file"):
        read_segment(tmp_path / "b.seg")

    def full(file: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(HarnessError, match=r"cannot record into .*a\.seg: No space left"):
        writer.write_one(Event(1, 0, "invoke", "end"))


# ---- the recorder ------------------------------------------------------------------------


def test_the_invoke_is_in_the_file_before_the_call_returns(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "r.seg", start_ns=100, clock_ns=lambda: 150)
    recorder.invoke(3, "append", "shaketable/0", value=7)
    assert read_segment(tmp_path / "r.seg").events == (
        Event(50, 3, "invoke", "append", "shaketable/0", 7),
    )


def test_recorded_times_rise_though_the_clock_stands(tmp_path: Path) -> None:
    ticks = iter([10, 10, 10, 9, 50])
    recorder = Recorder(tmp_path / "r.seg", start_ns=0, clock_ns=lambda: next(ticks))
    for process in range(5):
        recorder.invoke(process, "end", "q")
    times = [event.time_ns for event in read_segment(tmp_path / "r.seg").events]
    assert times == [10, 11, 12, 13, 50]


@settings(max_examples=30)
@given(error=st.text(st.characters(codec=None), max_size=2 * ERROR_CHARS_MAX))
def test_any_error_text_can_be_recorded(folder: Path, error: str) -> None:
    path = folder / "error.seg"
    path.unlink(missing_ok=True)
    recorder = Recorder(path, start_ns=0)
    recorder.complete(0, "info", "end", "q", error=error)
    recorder.close()
    (event,) = read_segment(path).events
    assert len(event.error) <= ERROR_CHARS_MAX


def test_an_answer_that_no_reader_would_take_is_refused_in_one_line(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "r.seg", start_ns=0, clock_ns=lambda: 1)
    recorder.invoke(0, "read", "set")
    with pytest.raises(HarnessError) as caught:
        recorder.complete(0, "ok", "read", "set", output=[10**6] * 200_000)
    assert str(caught.value).startswith(
        f"cannot record into {tmp_path}/r.seg: the ok of read has 16000"
    )
    assert "\n" not in str(caught.value)
    recorder.complete(0, "info", "read", "set")
    recorder.close()
    assert [event.type for event in read_segment(tmp_path / "r.seg").events] == ["invoke", "info"]


def test_the_nemesis_is_recorded_as_jepsen_does(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "nemesis.seg", start_ns=0, clock_ns=lambda: 5)
    recorder.nemesis("kill", {"fault": 0, "phase": "start"})
    (event,) = read_segment(tmp_path / "nemesis.seg").events
    assert (event.process, event.type, event.f) == (NEMESIS_PROCESS, "info", "kill")
    assert event.extra == '{"fault":0,"phase":"start"}'
    assert NEMESIS == NEMESIS_PROCESS


def test_a_process_that_crashed_goes_on_under_a_fresh_id() -> None:
    clients = 5
    seen = set()
    for slot in range(clients):
        process = slot
        for _ in range(4):
            assert process not in seen
            assert process % clients == slot
            seen.add(process)
            process = next_process(process, clients)
