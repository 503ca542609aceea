"""Recordings of one small broker: what is in them, and what a replay makes of other code."""

from __future__ import annotations

import errno
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import msgspec
import pytest

from shaketable.system import mutants
from shaketable.system.broker.broker import Broker
from shaketable.system.broker.effects import BrokerEffects
from shaketable.system.broker.limits import BrokerConfig
from shaketable.system.node import recorder as recorder_module
from shaketable.system.node.broker_start import BrokerStart, Readers, build_broker
from shaketable.system.node.recorder import (
    INPUTS,
    MAGIC,
    BadRecording,
    CannotRecord,
    Recorder,
    digest_of,
    frame,
    read_records,
)
from shaketable.system.raft.membership import Membership
from shaketable.system.raft.protocol import (
    Batch,
    Compact,
    Install,
    InvariantError,
    LeadershipTransfer,
    LogEnd,
    PushRequest,
    RaftConfig,
    Role,
    RoleChange,
    SaveState,
    Snapshot,
)
from shaketable.system.remoting.requests import SendMessageV2, SendRequest
from shaketable.system.sim.recording import replay
from shaketable.system.store.consume_queue_files import Queue
from shaketable.system.store.segment_files import OutsideLog


class NothingStored:
    """A disk with nothing on it: whoever reads is told so."""

    def read_entries(self, first_index: int, bytes_max: int) -> Batch:
        raise OutsideLog(f"entry {first_index}")

    def read(self, position: int, size: int) -> bytes:
        raise OutsideLog(f"byte {position}")

    def read_units(self, queue: Queue, offset: int, count: int) -> bytes:
        raise OutsideLog(f"offset {offset}")

    def candidates(self, topic: bytes, key: bytes, begin_ms: int, end_ms: int) -> Iterator[int]:
        raise OutsideLog(f"key {key!r}")


def start(mutant: str = "") -> BrokerStart:
    """A single voter with an empty log."""
    return BrokerStart(
        member="n0",
        raft=RaftConfig(),
        limits=BrokerConfig(data_file_bytes=65_536),
        bootstrap=Membership(("n0",)),
        memberships=(),
        snapshot=None,
        term=0,
        voted_for=None,
        spans=(),
        begin=LogEnd(),
        end_index=-1,
        end_position=0,
        applied_to=-1,
        checkpoint=None,
        is_key_indexed=False,
        now_ms=1000.0,
        mutant=mutant,
    )


@dataclass
class Recorded:
    """A broker that is recorded, and its recorder."""

    broker: Broker
    recorder: Recorder

    def turn(self, now_ms: float) -> BrokerEffects:
        return self.broker.take(now_ms, 1_700_000_000_000 + int(now_ms))


def record(path: Path, draws: tuple[float, ...] = (300.0, 310.0, 320.0, 330.0)) -> Recorded:
    begun = start()
    recorder = Recorder(path, begun)
    stored = NothingStored()
    drawn = iter(draws)
    broker = build_broker(
        begun,
        mutants.HEALTHY,
        recorder.readers(Readers(stored, stored, stored)),
        recorder.uniform_ms(lambda low, high: next(drawn)),
    )
    recorder.attach(broker)
    return Recorded(broker, recorder)


def send(number: int) -> SendRequest:
    return SendRequest(number, 0, SendMessageV2("p", "t", 0), memoryview(b"body %d" % number), 0)


def record_an_append(path: Path) -> bytes:
    """A member elects itself, takes an append and answers it; return the answer."""
    recorded = record(path)
    recorded.broker.tick(1400.0)
    seq = recorded.turn(1400.0).write_seq
    recorded.broker.synced(seq, 1401.0)
    seq = recorded.turn(1401.0).write_seq
    recorded.broker.synced(seq, 1402.0)
    recorded.turn(1402.0)
    recorded.broker.handle(7, bytes(8), [send(1)], 1403.0, 1_700_000_001_403)
    effects = recorded.turn(1403.0)
    assert not effects.replies, "it is not durable yet"
    recorded.broker.synced(effects.write_seq, 1404.0)
    replies = recorded.turn(1404.0).replies
    recorded.recorder.close()
    (answer,) = replies[7]
    return answer


def differences(path: Path) -> list[str]:
    return [step.difference for step in replay(path) if step.difference]


def rewrite_start(path: Path, changed: BrokerStart) -> None:
    """Put another start in front of the same inputs."""
    records = list(read_records(path))
    records[0] = ["start", changed]
    path.write_bytes(MAGIC + b"".join(frame(msgspec.msgpack.encode(r)) for r in records))


def test_the_same_code_gives_the_same(tmp_path: Path) -> None:
    path = tmp_path / "n0.recording"
    record_an_append(path)
    steps = list(replay(path))
    assert [str(step) for step in steps if step.difference] == []
    lines = [str(step) for step in steps]
    assert lines[0].startswith("step 0 at 0.0 ms: n0 starts at term 0 with a log up to -1")
    assert any("1 requests of connection 7" in line for line in lines)
    assert lines[-1] == "step 10 at 404.0 ms: take -> 1 replies to connection 7"


def test_other_code_is_found_out_at_its_first_other_step(tmp_path: Path) -> None:
    path = tmp_path / "n0.recording"
    record_an_append(path)
    rewrite_start(path, start(mutant="ack-before-quorum"))
    steps = list(replay(path))
    assert "digest" in steps[-1].difference
    assert "DIFFERS" in str(steps[-1])
    assert len(steps) <= 10, "it stops there"


def test_another_draw_or_read_is_a_difference(tmp_path: Path) -> None:
    path = tmp_path / "n0.recording"
    record_an_append(path)
    records = list(read_records(path))
    del records[next(n for n, r in enumerate(records) if r[0] == "draw" and n > 2)]
    path.write_bytes(MAGIC + b"".join(frame(msgspec.msgpack.encode(r)) for r in records))
    assert differences(path) == ["it draws from 250.0 to 500.0, the node did not"]


def test_a_torn_end_replays_up_to_there(tmp_path: Path) -> None:
    path = tmp_path / "n0.recording"
    record_an_append(path)
    whole = path.read_bytes()
    first = len(MAGIC) + len(frame(msgspec.msgpack.encode(["start", start()])))
    for size in range(first + 40, len(whole), 7):
        path.write_bytes(whole[:size])
        assert differences(path) == []


def test_what_is_no_recording_is_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "n0.recording"
    with pytest.raises(BadRecording, match="cannot be read"):
        list(replay(path))
    path.write_bytes(b"something else, long enough to be looked at")
    with pytest.raises(BadRecording, match="is no recording"):
        list(replay(path))
    path.write_bytes(MAGIC.replace(b"2", b"1") + b"of the first format")
    with pytest.raises(BadRecording, match="another version"):
        list(replay(path))
    path.write_bytes(MAGIC)
    with pytest.raises(BadRecording, match="cut off"):
        list(replay(path))
    path.write_bytes(MAGIC + frame(msgspec.msgpack.encode(["start", {"member": 3}])))
    with pytest.raises(BadRecording, match="recorded by other code"):
        list(replay(path))


def test_an_error_of_the_node_is_an_error_of_the_replay(tmp_path: Path) -> None:
    path = tmp_path / "n0.recording"
    recorded = record(path)
    recorded.broker.tick(1400.0)
    recorded.broker.synced(recorded.turn(1400.0).write_seq, 1401.0)
    recorded.turn(1401.0)
    with pytest.raises(InvariantError):
        recorded.broker.receive(PushRequest(1, "n1", -1, -1, -1, 0), 1402.0)
    recorded.recorder.close()
    text = [step.text for step in replay(path)]
    assert text[-1].endswith("ended with InvariantError: n1 and n0 both lead term 1")
    assert differences(path) == []


def test_every_incarnation_has_a_file_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "n0.recording"
    for _ in range(3):
        record(path).recorder.close()
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "n0.recording",
        "n0.recording.1",
        "n0.recording.2",
    ]
    with pytest.raises(CannotRecord, match="cannot record into"):
        record(tmp_path / "nowhere" / "n0.recording")


def test_a_recording_ends_at_its_limit_and_the_node_runs_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder_module, "BUFFER_BYTES_MAX", 100)
    record(start := tmp_path / "start.recording").recorder.close()
    limit = start.stat().st_size + 300
    monkeypatch.setattr(recorder_module, "RECORDING_BYTES_MAX", limit)
    path = tmp_path / "n0.recording"
    record_an_append(path)
    assert limit <= path.stat().st_size < limit + 200
    assert differences(path) == []


def test_a_recording_ends_before_a_record_that_is_too_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    record_an_append(whole := tmp_path / "whole.recording")
    records = list(read_records(whole))
    sizes = [len(msgspec.msgpack.encode(one)) for one in records]
    largest = max(sizes[1:])
    path = tmp_path / "n0.recording"
    with monkeypatch.context() as limited:
        limited.setattr(recorder_module, "RECORD_BYTES_MAX", largest - 1)
        record_an_append(path)
    assert list(read_records(path)) == records[: sizes.index(largest, 1)]
    assert differences(path) == []
    (line,) = [record.message for record in caplog.records]
    assert line == (
        f"event=recording_ended path={path} why=a record has {largest} bytes, at most {largest - 1}"
    )


@dataclass
class ShortFile:
    """A file that takes few bytes a write; at `full_at` bytes one write fails."""

    file: BinaryIO
    full_at: int = 1 << 60
    size: int = 0

    def write(self, data: bytes) -> int:
        if self.size == self.full_at:
            self.full_at = 1 << 60  # somebody deletes something
            raise OSError(errno.ENOSPC, "No space left on device")
        written = self.file.write(data[: min(97, self.full_at - self.size)])
        self.size += written
        return written

    def close(self) -> None:
        self.file.close()
        raise OSError(errno.EDQUOT, "Disk quota exceeded")  # as NFS reports it


@pytest.mark.parametrize("full_at", [1 << 60, 0, 50, 97, 200])
def test_short_writes_tear_no_record_but_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full_at: int
) -> None:
    record_an_append(whole := tmp_path / "whole.recording")
    starts_at = len(MAGIC) + len(frame(msgspec.msgpack.encode(["start", start()])))
    short: list[ShortFile] = []

    def attach(self: Recorder, broker: Broker) -> None:
        short.append(ShortFile(self._file, full_at))
        self._file = short[0]
        plain_attach(self, broker)

    plain_attach = Recorder.attach
    monkeypatch.setattr(recorder_module, "BUFFER_BYTES_MAX", 100)
    monkeypatch.setattr(Recorder, "attach", attach)
    record_an_append(path := tmp_path / "n0.recording")
    expected = whole.read_bytes()[: starts_at + full_at]
    assert path.read_bytes() == expected
    assert differences(path) == []


def test_a_write_of_nothing_ends_the_recording(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class TakesNothing(ShortFile):
        def write(self, data: bytes) -> int:
            assert self.size == 0, "it is tried again"
            self.size = 1
            return 0

    plain_attach = Recorder.attach

    def attach(self: Recorder, broker: Broker) -> None:
        self._file = TakesNothing(self._file)
        plain_attach(self, broker)

    monkeypatch.setattr(recorder_module, "BUFFER_BYTES_MAX", 100)
    monkeypatch.setattr(Recorder, "attach", attach)
    record_an_append(tmp_path / "n0.recording")
    (ended,) = [each for each in caplog.messages if "recording_ended" in each]
    assert ended.endswith("why=nothing was written")


def test_a_start_that_is_too_large_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder_module, "START_BYTES_MAX", 10)
    with pytest.raises(CannotRecord, match="at most 10"):
        record(tmp_path / "n0.recording")


def test_every_input_of_the_broker_is_recorded() -> None:
    methods = {
        name
        for name, _ in inspect.getmembers(Broker, inspect.isfunction)
        if not name.startswith("_")
    }
    assert methods == set(INPUTS)


def test_the_digest_is_of_everything_that_a_broker_gives() -> None:
    same = digest_of(BrokerEffects())
    snapshot = Snapshot(LogEnd(), Membership(("n0",)), -1, b"")
    others: dict[str, object] = {
        "writes": [SaveState(1, None)],
        "messages": [("n1", LeadershipTransfer(1, "n0"))],
        "replies": {1: [b""]},
        "role_changes": [RoleChange(Role.LEADER, 1, "n0")],
        "membership": Membership(("n0",)),
        "installed": snapshot,
    }
    for field in msgspec.structs.fields(BrokerEffects):
        value = getattr(BrokerEffects(), field.name)
        other = not value if isinstance(value, bool) else others.get(field.name, 7)
        changed = msgspec.structs.replace(BrokerEffects(), **{field.name: other})
        assert digest_of(changed) != same, field.name
    compact, install = (
        digest_of(BrokerEffects(writes=[kind(snapshot)])) for kind in (Compact, Install)
    )
    assert compact != install, "two kinds of writes with the same fields"
