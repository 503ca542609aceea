"""The check while clients work: never accuses a log that is one, and sees what is none."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shaketable.harness.campaigns.campaign import Campaign
from shaketable.harness.history.segments import Event, SegmentWriter
from shaketable.harness.runtime.clients import online_check
from shaketable.harness.runtime.clients.online_check import OnlineCheck, Sighting
from shaketable.harness.runtime.supervisor import STEP_BYTES, Watch, watch_for

KEY = "shaketable/0"


class History:
    """Writes events, an operation at a time, on a clock of its own."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.now = 0

    def call(
        self, process: int, f: str, value: int | None = None, offset: int | None = None
    ) -> None:
        self.now += 1
        self.events.append(Event(self.now, process, "invoke", f, KEY, value, None, offset))

    def end(
        self, process: int, f: str, output: int | None = None, offset: int | None = None,
        outcome: str = "ok",
    ) -> None:  # fmt: skip
        self.now += 1
        self.events.append(Event(self.now, process, outcome, f, KEY, None, output, offset))

    def append(self, process: int, value: int, offset: int) -> None:
        self.call(process, "append", value)
        self.end(process, "append", offset=offset)

    def read(self, process: int, offset: int, output: int | None) -> None:
        self.call(process, "read", offset=offset)
        self.end(process, "read", output, offset)


def seen(events: Sequence[Event], rounds: int = 3) -> list[Sighting]:
    """Show all events in one round, then let the check settle."""
    check = OnlineCheck()
    found = check.see(events, is_all=True)
    for _ in range(rounds):
        found += check.see((), is_all=True)
    return found


def kinds(history: History) -> list[str]:
    return [one.kind for one in seen(history.events)]


def test_two_values_acknowledged_for_one_offset() -> None:
    history = History()
    history.append(0, 7, 3)
    history.append(1, 8, 3)
    [one] = seen(history.events)
    assert one.kind == "offset-given-twice"
    assert one.text == f"{KEY} offset 3: 7 was acknowledged there, and 8 was acknowledged too"


def test_another_value_read_than_was_acknowledged_and_than_was_read() -> None:
    history = History()
    history.append(0, 7, 3)
    history.call(1, "append", 8)
    history.read(2, 3, 8)
    assert kinds(history) == ["inconsistent-read"]
    history = History()
    history.call(0, "append", 7)
    history.call(1, "append", 8)
    history.read(2, 3, 7)
    history.read(3, 3, 8)
    assert kinds(history) == ["inconsistent-read"]


@pytest.mark.parametrize("last_first", [False, True])
def test_a_queue_that_ends_before_what_was_acknowledged(last_first: bool) -> None:
    history = History()
    history.append(0, 7, 3)
    history.read(1, 3, None)
    history.call(1, "end")
    history.end(1, "end", 2)
    events = history.events
    if last_first:  # the recording of the reader is read before that of the writer
        check = OnlineCheck()
        found = check.see(events[2:], is_all=False) + check.see(events[:2], is_all=True)
    else:
        found = seen(events)
    assert [one.kind for one in found] == ["stale-read", "stale-read"]


def test_what_was_asked_for_before_the_acknowledgement_may_miss_it() -> None:
    history = History()
    history.call(0, "append", 7)
    history.call(1, "read", offset=3)
    history.call(2, "end")
    history.end(0, "append", offset=3)
    history.end(1, "read", None, 3)
    history.end(2, "end", 3)
    history.read(1, 4, None)
    assert kinds(history) == []


def test_a_value_that_nobody_appended_is_certain_once_all_is_read() -> None:
    history = History()
    history.read(0, 3, 99)
    check = OnlineCheck()
    assert check.see(history.events, is_all=True) == []
    assert check.see((), is_all=False) == []
    [one] = check.see((), is_all=True)
    assert one.kind == "phantom-read"
    check = OnlineCheck()
    check.see(history.events, is_all=True)
    late = History()  # its invoke stood in a recording that was read later
    late.call(1, "append", 99)
    assert check.see(late.events, is_all=True) == []
    assert check.see((), is_all=True) == []


def test_a_value_whose_append_had_failed() -> None:
    history = History()
    history.call(0, "append", 7)
    history.end(0, "append", outcome="fail")
    history.read(1, 3, 7)
    assert kinds(history) == ["aborted-read"]
    history = History()
    history.call(0, "append", 7)
    history.end(0, "append", outcome="info")
    history.read(1, 3, 7)
    assert kinds(history) == []


def real_log(seed: int, steps: int = 400, clients: int = 5) -> list[list[Event]]:
    """Play a linearizable log: operations take effect at one moment inside their interval."""
    rng = Random(seed)
    log: list[int] = []
    files: list[list[Event]] = [[], []]
    open_: dict[int, tuple[str, int | None, int | None, bool, int | None, int | None]] = {}
    now, value = 0, 0
    for _ in range(steps):
        now += 1
        client = rng.randrange(clients)
        record = files[client % 2].append
        if client not in open_:
            f = rng.choice(("append", "append", "read", "end"))
            value += f == "append"
            offset = rng.randrange(len(log) + 2) if f == "read" else None
            given = value if f == "append" else None
            record(Event(now, client, "invoke", f, KEY, given, None, offset))
            open_[client] = (f, given, offset, False, None, None)
            continue
        f, given, offset, is_done, output, at = open_[client]
        if not is_done and rng.random() < 0.7:  # it takes effect
            if f == "append" and given is not None:
                log.append(given)
                at = len(log) - 1
            elif f == "read" and offset is not None:
                output, at = (log[offset] if offset < len(log) else None), offset
            else:
                output = len(log)
            open_[client] = (f, given, offset, True, output, at)
            continue
        outcome = "ok" if is_done and rng.random() < 0.8 else "info" if is_done else "fail"
        told = (output, at) if outcome == "ok" else (None, None)
        record(Event(now, client, outcome, f, KEY, None, told[0], told[1]))
        del open_[client]
    return files


@given(st.integers(0, 10_000), st.lists(st.integers(1, 40), max_size=30), st.booleans())
def test_a_log_that_is_one_is_never_accused(seed: int, cuts: list[int], sort: bool) -> None:
    files = real_log(seed)
    check = OnlineCheck()
    found: list[Sighting] = []
    rng = Random(seed)
    sizes = [*cuts, *([60] * 20)]
    for size in sizes:  # of each file some, in whatever steps and order
        shown: list[Event] = []
        for events in files:
            take = size if rng.random() < 0.7 else 0
            shown += events[:take]
            del events[:take]
        if sort:
            shown.sort(key=lambda event: event.time_ns)
        # All is read only if nothing that was recorded by then is left.
        found += check.see(shown, is_all=not any(files))
    assert found == []


@given(st.integers(0, 10_000))
def test_bounds_forget_and_accuse_nobody(seed: int) -> None:
    with pytest.MonkeyPatch.context() as patched:
        for name in ("PLACES_MAX", "VALUES_MAX", "ENDS_MAX", "OPEN_MAX"):
            patched.setattr(online_check, name, 3)
        check = OnlineCheck()
        events = sorted(chain(*real_log(seed)), key=lambda event: event.time_ns)
        for at in range(0, len(events), 7):
            assert check.see(events[at : at + 7], is_all=True) == []
        assert len(check._places) <= 3
        assert len(check._appended) <= 3


@given(st.integers(0, 10_000))
def test_a_log_that_lost_its_end_is_seen(seed: int) -> None:
    events = sorted(chain(*real_log(seed)), key=lambda event: event.time_ns)
    acked = [e for e in events if e.type == "ok" and e.f == "append" and e.offset is not None]
    if not acked:
        return
    history = History()
    history.events, history.now = events, events[-1].time_ns + 1
    history.append(70, 10_000, acked[-1].offset or 0)
    # By what is said depends on whether the value before was read or acknowledged first.
    [one] = seen(history.events)
    assert one.kind in ("offset-given-twice", "inconsistent-read")
    assert "10000 was acknowledged too" in one.text


def test_recordings_are_followed_as_they_grow_and_told(tmp_path: Path) -> None:
    told: list[str] = []
    watch = Watch(tmp_path, told.append)
    watch.look()  # there is nothing yet
    writers = [SegmentWriter(tmp_path / f"worker-{n}.seg") for n in range(2)]
    history = History()
    history.append(0, 7, 3)
    writers[0].write(history.events)
    watch.look()
    rest = History()
    rest.now = history.now
    rest.append(1, 8, 3)
    writers[1].write(rest.events)
    watch.look()
    assert told == [
        f"violation seen: {KEY} offset 3: 7 was acknowledged there, and 8 was acknowledged too"
        " (offset-given-twice)"
    ]
    for n in range(20):
        again = History()
        again.now = 100 + 2 * n
        again.append(1, 9 + n, 3)
        writers[1].write(again.events)
        watch.look()
    assert (watch.count, len(told)) == (21, 6)
    for writer in writers:
        writer.close()
    watch.look()
    watch.look()


def test_a_step_is_bounded_and_a_damaged_recording_is_not_read_on(tmp_path: Path) -> None:
    watch = Watch(tmp_path, pytest.fail)
    with_damage = tmp_path / "worker-0.seg"
    writer = SegmentWriter(with_damage)
    history = History()
    for n in range(4000):
        history.append(0, n, n)
    writer.write(history.events)
    assert with_damage.stat().st_size > 2 * STEP_BYTES
    watch.look()
    first = watch._tails["worker-0.seg"].place
    assert 0 < first <= STEP_BYTES + 8
    data = bytearray(with_damage.read_bytes())
    data[first + 12] ^= 0xFF
    with_damage.write_bytes(data)
    watch.look()
    watch.look()
    assert watch._tails["worker-0.seg"].place == first
    reader = SegmentWriter(tmp_path / "worker-1.seg")
    phantom = History()
    phantom.read(1, 10**5, 10**6)
    reader.write(phantom.events)
    for _ in range(4):  # not all was read: it may have been appended behind the damage
        watch.look()
    assert watch.seen == []
    writer.close()
    reader.close()


@pytest.mark.parametrize(
    ("changed", "is_watched"),
    [
        ({}, True),
        ({"faults": ("kill", "rollback")}, False),
        ({"faults": ("rollback",)}, False),
        ({"workload": "combined"}, True),
        ({"workload": "register"}, False),
        ({"workload": "queue"}, False),
        ({"target": "async-replication"}, False),
        ({"faults": ()}, True),
    ],
)
def test_only_what_is_promised_is_watched(
    tmp_path: Path, changed: dict[str, object], is_watched: bool
) -> None:
    campaign = Campaign(**{"workload": "log", **changed})  # type: ignore[arg-type]  # as the table says
    assert (watch_for(campaign, tmp_path, print) is not None) == is_watched


def test_a_hint_that_fails_is_told_once_and_ends_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    watch = Watch(tmp_path, told.append)

    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError("a bug of ours")

    monkeypatch.setattr(OnlineCheck, "see", fail)
    watch.look()
    watch.look()
    assert told == ["violations are not looked for any more: ZeroDivisionError: a bug of ours"]
