"""What recording a node's inputs costs: run by hand, prints the ratio. Not a test.

One broker, alone in its group, takes and answers appends as fast as it can, with and without a
recording; disk and sockets are left out, so a node's own share is smaller. Seconds are of the
processor, since other work on the machine is no cost of the recording.
"""

import sys
import tempfile
import time
from pathlib import Path

from shaketable.system import mutants
from shaketable.system.broker.broker import Broker
from shaketable.system.broker.limits import BrokerConfig
from shaketable.system.node.broker_start import BrokerStart, Readers, build_broker
from shaketable.system.node.recorder import Recorder
from shaketable.system.raft.membership import Membership
from shaketable.system.raft.protocol import Batch, LogEnd, RaftConfig
from shaketable.system.remoting.requests import SendMessageV2, SendRequest
from shaketable.system.sim.recording import replay
from shaketable.system.store.consume_queue_files import Queue

TURNS = 4_000
REQUESTS_A_TURN = 10
BODY_BYTES = 256
ROUNDS = 3
ELECTION_MS = 300.0


class NothingRead:
    """All that the broker reads stays in memory here."""

    def read_entries(self, first_index: int, bytes_max: int) -> Batch:
        raise AssertionError("the tail holds everything")

    def read(self, position: int, size: int) -> bytes:
        raise AssertionError("the tail holds everything")

    def read_units(self, queue: Queue, offset: int, count: int) -> bytes:
        raise AssertionError("nothing was saved")

    def candidates(self, topic: bytes, key: bytes, begin_ms: int, end_ms: int):
        raise AssertionError("there is no key index")


def start() -> BrokerStart:
    return BrokerStart(
        member="n0",
        raft=RaftConfig(),
        limits=BrokerConfig(data_file_bytes=1 << 30),
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
        now_ms=0.0,
    )


def drive(broker: Broker) -> float:
    """Elect it, let it serve, and return the seconds that serving took."""
    now_ms = 1000.0
    broker.tick(now_ms)
    for _ in range(3):
        broker.synced(broker.take(now_ms, 0).write_seq, now_ms)
    body = memoryview(bytes(BODY_BYTES))
    fields = SendMessageV2("p", "t", 0)
    answered = 0
    began = time.process_time()
    for turn in range(TURNS):
        now_ms += 1.0
        requests = [SendRequest(turn + n, 0, fields, body, 0) for n in range(REQUESTS_A_TURN)]
        broker.handle(1, bytes(8), requests, now_ms, 0)
        broker.synced(broker.take(now_ms, 0).write_seq, now_ms)
        answered += len(broker.take(now_ms, 0).replies[1])
    took_s = time.process_time() - began
    assert answered == TURNS * REQUESTS_A_TURN
    return took_s


def bare() -> float:
    readers = Readers(NothingRead(), NothingRead(), NothingRead())
    return drive(build_broker(start(), mutants.HEALTHY, readers, lambda low, high: ELECTION_MS))


def recorded(path: Path) -> float:
    begun = start()
    recorder = Recorder(path, begun)
    readers = recorder.readers(Readers(NothingRead(), NothingRead(), NothingRead()))
    dice = recorder.uniform_ms(lambda low, high: ELECTION_MS)
    broker = build_broker(begun, mutants.HEALTHY, readers, dice)
    recorder.attach(broker)
    took_s = drive(broker)
    recorder.close()
    return took_s


def main() -> None:
    appends = TURNS * REQUESTS_A_TURN
    with tempfile.TemporaryDirectory() as folder:
        bare_s = min(bare() for _ in range(ROUNDS))
        paths = [Path(folder) / f"{n}.recording" for n in range(ROUNDS)]
        recorded_s = min(map(recorded, paths))
        size = paths[0].stat().st_size
        began = time.process_time()
        steps = list(replay(paths[0]))
        replay_s = time.process_time() - began
    assert not any(step.difference for step in steps)
    sys.stdout.write(
        f"bare {appends / bare_s:,.0f} appends/s, recorded {appends / recorded_s:,.0f}: "
        f"{recorded_s / bare_s:.2f} x the time, {(recorded_s - bare_s) / appends * 1e6:.1f} us "
        f"and {size / appends:.0f} bytes an append; replayed {len(steps) / replay_s:,.0f} steps/s\n"
    )


if __name__ == "__main__":
    main()
