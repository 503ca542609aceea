"""Recordings that grow: their events come in the order of the export, none late, none too soon."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from random import Random

import pytest

from shaketable.harness.history import segments as recordings
from shaketable.harness.history.export import export
from shaketable.harness.history.run_folder import RunFolder
from shaketable.harness.history.segments import Event, GrowingSegments, Recorder, SegmentWriter

NAMES = ("nemesis.seg", "worker-0.seg", "worker-1.seg", "worker-2.seg")


def recorded(rng: Random, number: int) -> list[Event]:
    """Return the events of one recording: strictly rising times, close to those of the others."""
    at_ns, events = 0, []
    for _ in range(rng.randrange(40)):
        at_ns += rng.randint(1, 4)
        kind = rng.choice(("invoke", "ok"))
        text = "x" * rng.choice((0, 10, 900))
        process = number - 1
        f = f"f{rng.randrange(3)}"
        events.append(Event(at_ns, process, kind, f, "k", input=at_ns, extra=text or None))
    return events


def in_order(recordings: Mapping[str, list[Event]]) -> list[Event]:
    keyed = [
        ((event.time_ns, event.type != "invoke", number), event)
        for number, name in enumerate(sorted(recordings))
        for event in recordings[name]
    ]
    return [event for _, event in sorted(keyed, key=lambda each: each[0])]


class Growing:
    """Recordings of which a reader sees more and more bytes."""

    def __init__(self, folder: Path, events: Mapping[str, list[Event]]) -> None:
        self.events = events
        self.folder = folder
        self.whole: dict[str, bytes] = {}
        self.ends: dict[str, list[int]] = {}
        self.shown = dict.fromkeys(events, 0)
        for name, each in events.items():
            path = folder / f"{name}.whole"
            writer = SegmentWriter(path)
            self.ends[name] = []
            for event in each:
                writer.write_one(event)
                self.ends[name].append(path.stat().st_size)
            writer.close()
            self.whole[name] = path.read_bytes()
            (folder / name).write_bytes(b"")

    def show(self, name: str, size: int) -> None:
        with (self.folder / name).open("ab") as file:
            file.write(self.whole[name][self.shown[name] : size])
        self.shown[name] = max(self.shown[name], size)

    def watermark(self, name: str, rng: Random) -> int | None:
        """Return a time before which all is visible: at most that of the first invisible event."""
        seen = sum(end <= self.shown[name] for end in self.ends[name])
        if self.shown[name] == len(self.whole[name]):
            return None
        if seen == len(self.ends[name]):
            return 10**6
        next_ns = self.events[name][seen].time_ns
        return next_ns - rng.choice((0, 0, 1, 2))


@pytest.mark.parametrize("seed", range(30))
def test_in_whatever_pieces_they_are_seen_the_order_is_that_of_the_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    rng = Random(seed)
    monkeypatch.setattr(recordings, "STEP_BYTES", rng.choice((64, 300, 1 << 18)))
    events = {name: recorded(rng, number) for number, name in enumerate(NAMES)}
    growing = Growing(tmp_path, events)
    got: list[Event] = []
    with GrowingSegments(tmp_path) as segments:
        for _ in range(5_000):
            for name in NAMES:
                if rng.random() < 0.5:
                    grown = growing.shown[name] + rng.choice((0, 1, 7, 40, 3_000))
                    growing.show(name, min(grown, len(growing.whole[name])))
            noted = {name: growing.watermark(name, rng) for name in NAMES}
            segments.note(dict.fromkeys(NAMES, -1) if not segments._sources else noted)
            new = segments.take()
            assert [number for number, _ in new] == list(range(len(got), len(got) + len(new)))
            got += [event for _, event in new]
            if segments.is_over:
                break
    assert segments.hole is None
    assert segments.is_over
    assert got == in_order(events)


def test_the_numbers_are_those_of_the_export(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.segments.mkdir(parents=True)
    rng, noted = Random(5), {}
    for number, name in enumerate(NAMES[1:], 1):
        writer = SegmentWriter(folder.segments / name)
        process, at_ns = number, 0
        for _ in range(200):
            at_ns += rng.randint(1, 3)
            writer.write_one(Event(at_ns, process, "invoke", "read", "k"))
            at_ns += rng.randint(1, 3)
            writer.write_one(Event(at_ns, process, "ok", "read", "k", output=at_ns))
        writer.close()
        noted[name] = None
    with GrowingSegments(folder.segments) as segments:
        segments.note(noted)
        got = [(number, event.time_ns, event.process) for number, event in segments.take()]
    table = export(folder).events
    columns = [table[name].to_pylist() for name in ("index", "time_ns", "process")]
    assert got == list(zip(*columns, strict=True))


def test_nothing_comes_before_every_recording_has_said_how_far_it_is(tmp_path: Path) -> None:
    for name in ("worker-0.seg", "worker-1.seg"):
        SegmentWriter(tmp_path / name).write_one(Event(5, 0, "invoke", "read", "k"))
    with GrowingSegments(tmp_path) as segments:
        assert segments.take() == []
        segments.note({"worker-0.seg": 100, "worker-1.seg": -1})
        assert [number for number, _ in segments.take()] == [0, 1], "each bounds the other"
        segments.note({"worker-0.seg": 1_000})
        writer = SegmentWriter(tmp_path / "late.whole")
        writer.write_one(Event(50, 0, "ok", "read", "k"))
        frame = (tmp_path / "late.whole").read_bytes()[8:]
        with (tmp_path / "worker-1.seg").open("ab") as file:
            file.write(frame)
        assert [event.time_ns for _, event in segments.take()] == [50]
        with (tmp_path / "worker-1.seg").open("ab") as file:
            file.write(frame[:10])
        assert segments.take() == []
        assert not segments.is_over


def test_what_a_killed_worker_left_half_written_is_no_event_and_no_damage(tmp_path: Path) -> None:
    path = tmp_path / "worker-0.seg"
    writer = SegmentWriter(path)
    writer.write_one(Event(5, 0, "invoke", "write", "k", input=1))
    writer.write_one(Event(6, 0, "ok", "write", "k"))
    os.truncate(path, path.stat().st_size - 3)
    with GrowingSegments(tmp_path) as segments:
        segments.note({path.name: None, "worker-1.seg": None})  # the other one never began
        assert [event.time_ns for _, event in segments.take()] == [5]
        assert segments.is_over
        assert segments.hole is None


def test_nothing_is_given_after_damage(tmp_path: Path) -> None:
    path = tmp_path / "worker-0.seg"
    writer = SegmentWriter(path)
    for at_ns in (5, 6, 7):
        writer.write_one(Event(at_ns, 0, "invoke", "write", "k", input=1))
    whole = path.read_bytes()
    size = (len(whole) - 8) // 3
    path.write_bytes(whole[: 8 + size] + bytes(size) + whole[8 + 2 * size :])
    with GrowingSegments(tmp_path) as segments:
        segments.note({path.name: 1_000})
        assert [event.time_ns for _, event in segments.take()] == [5]
        assert segments.hole is None, "it may be that it is being written"
        segments.note({path.name: None})
        assert segments.take() == []
        assert segments.hole == f"worker-0.seg cannot be read after byte {8 + size}"
        assert segments.take() == []


def test_a_recorder_says_how_far_it_has_recorded(tmp_path: Path) -> None:
    clock = iter([100, 100, 100, 150, 150])
    recorder = Recorder(tmp_path / "worker-0.seg", 40, lambda: next(clock))
    recorder.invoke(0, "read", "k")  # at 60
    recorder.invoke(1, "read", "k")  # at 61, by the order: the clock stands
    assert recorder.recorded_ns() == 62
    assert recorder.recorded_ns() == 110
    recorder.close()
