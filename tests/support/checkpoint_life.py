"""A broker's dispatch and checkpoints on a simulated disk, through crashes and restarts."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from random import Random

from shaketable.system.broker.broker_state import BrokerState, decode_state, encode_state, ranges_of
from shaketable.system.broker.consume_queue import ConsumeQueues
from shaketable.system.broker.reading.key_items import KeyItems
from shaketable.system.raft.protocol import LogEnd
from shaketable.system.sim.disk import PowerLoss, SimDisk
from shaketable.system.store.broker_checkpoint import BrokerCheckpoint, CheckpointFiles
from shaketable.system.store.key_index import Sizes
from shaketable.system.store.segment_files import OutsideLog

ROOT, FOLDER = "/store", "/store/dledger-n0"
QUEUES, KEYS = 3, 4
ENTRY_BYTES = 100
T0_MS = 1_700_000_000_000
Step = tuple[str, int]


class Log:
    """Entries `begin` to `end` of a committed log; entry i is message i // 3 of queue i % 3."""

    def __init__(self) -> None:
        self.begin = self.end = 0

    def log_end_at(self, index: int) -> LogEnd:
        if not self.begin - 1 <= index < self.end:
            raise OutsideLog(f"entry {index} of a log {self.begin}..{self.end}")
        return LogEnd(index, 1, (index + 1) * ENTRY_BYTES, 0)

    def ranges_at(self, entries: int) -> dict[tuple[bytes, int], tuple[int, int]]:
        """Return what a snapshot behind so many entries says of the queues."""
        offsets = {number: len(range(number, entries, QUEUES)) for number in range(QUEUES)}
        return {(b"t", number): (at, at) for number, at in offsets.items() if at}


class Node:
    """The shell of a broker, as far as dispatch and checkpoints go."""

    def __init__(self, disk: SimDisk, log: Log, *, root: str = ROOT) -> None:
        self.log = log
        self.disk = disk
        disk.make_dirs(f"{root}/dledger-n0")
        self.files = files_on(disk, root)
        self.loaded = loaded = self.files.load(log)
        ranges = decode_state(loaded.state).ranges if loaded else log.ranges_at(log.begin)
        self.applied = loaded.applied_index + 1 if loaded else log.begin
        self.queues = ConsumeQueues(ranges, self.files.queues, tail_units_max=2)
        self.queues.forget_below(log.begin * ENTRY_BYTES)
        self.keys = KeyItems(self.files.keys)
        self.apply(log.end - self.applied)

    def apply(self, count: int) -> None:
        """Dispatch entries that have been committed."""
        for index in range(self.applied, self.applied + count):
            position = index * ENTRY_BYTES + 48
            self.queues.append((b"t", index % QUEUES), index // QUEUES, position, 52, index)
            properties = b"UNIQ_KEY\x01u%d\x02KEYS\x01k%d\x02" % (index, index % KEYS)
            self.keys.append((b"t", properties, position, T0_MS + index))
        self.applied += count
        self.log.end = max(self.log.end, self.applied)

    def expire(self, count: int) -> None:
        """Let the log begin later."""
        self.log.begin = min(self.log.begin + count, self.applied)
        self.queues.forget_below(self.log.begin * ENTRY_BYTES)

    def checkpoint(self) -> BrokerCheckpoint:
        return BrokerCheckpoint(
            self.applied - 1,
            self.applied * ENTRY_BYTES,
            self.applied - 1,
            encode_state(BrokerState(self.queues.ranges())),
            self.queues.units_since_checkpoint(),
            self.keys.since_checkpoint(),
            self.log.begin * ENTRY_BYTES,
            T0_MS + self.applied,
        )

    def save(self, checkpoint: BrokerCheckpoint) -> None:
        self.files.save(checkpoint)
        self.queues.checkpointed(checkpoint.units)
        self.keys.checkpointed(checkpoint.keys)

    def check(self) -> None:
        """Compare all that can be asked with the log."""
        begin, end = self.log.begin, self.applied
        for number in range(QUEUES):
            queue = (b"t", number)
            first, behind = len(range(number, begin, QUEUES)), len(range(number, end, QUEUES))
            assert (self.queues.min_offset(queue), self.queues.max_offset(queue)) == (first, behind)
            for offset in range(first, behind):
                found = self.queues.find(queue, offset, 3, 1 << 20)
                offsets = range(offset, min(offset + 3, behind))
                assert found == [((at * QUEUES + number) * ENTRY_BYTES + 48, 52) for at in offsets]
        for key in range(KEYS):
            found = self.messages_of(b"k%d" % key)
            assert found == [at for at in range(begin, end) if at % KEYS == key][::-1]
        for index in range(begin, end):
            assert self.messages_of(b"u%d" % index) == [index]

    def messages_of(self, key: bytes) -> list[int]:
        """Return which retained messages have a key, after a look at each candidate."""
        candidates = self.keys.candidates(b"t", key, 0, 1 << 62)
        found = [position // ENTRY_BYTES for position in candidates]
        return [
            at
            for at in found
            if at >= self.log.begin and key in (b"u%d" % at, b"k%d" % (at % KEYS))
        ]


def files_on(disk: SimDisk, root: str) -> CheckpointFiles:
    folder = f"{root}/dledger-n0"
    return CheckpointFiles(
        disk, root, folder, ranges_of, queue_file_bytes=3 * 20, key_sizes=Sizes(3, 6)
    )


class Life:
    """Runs steps on one disk through crashes, and knows which checkpoints may be found."""

    def __init__(self) -> None:
        self.log = Log()
        self.node = Node(SimDisk(), self.log)
        self.saved = -1
        self.saving = -1

    def run(self, steps: Sequence[Step]) -> None:
        for what, count in steps:
            if what == "apply":
                self.node.apply(count)
            elif what == "expire":
                self.node.expire(count)
            else:
                checkpoint = self.node.checkpoint()
                self.saving = checkpoint.applied_index
                self.node.save(checkpoint)
                self.saved = self.saving

    def restart(self, *, loses_unsynced: bool, seed: int) -> None:
        """Start again, and again if that is told to stop in the middle too."""
        disk = self.node.disk.restart(loses_unsynced=loses_unsynced, rng=Random(seed))
        self.node = Node(disk, self.log)
        loaded = self.node.loaded
        if loaded is not None:
            assert loaded.applied_index in (self.saved, self.saving)
            self.saved = loaded.applied_index
        else:
            assert self.saved < max(0, self.log.begin - 1), "a checkpoint that was saved is lost"
            self.saved = -1
        self.saving = self.saved
        self.node.check()


SCRIPT: tuple[Step, ...] = (
    ("apply", 7),
    ("save", 0),
    ("apply", 11),
    ("save", 0),
    ("expire", 9),
    ("apply", 5),
    ("save", 0),
    ("expire", 13),
    ("apply", 1),
    ("save", 0),
)
ENDS = [(False, 0), *((True, seed) for seed in range(3))]
"""Death of the process alone, and losses of power."""


def crash_points() -> Iterator[tuple[int, bool, int]]:
    """Each operation that SCRIPT does on the disk, with each way to end there."""
    life = Life()
    first = life.node.disk.platter.operations
    life.run(SCRIPT)
    for operation in range(first + 1, life.node.disk.platter.operations + 2):
        for loses_unsynced, seed in ENDS:
            yield operation, loses_unsynced, seed


def crash_at(operation: int, *, loses_unsynced: bool, seed: int) -> None:
    """Run SCRIPT up to an operation, restart, check; go on, save, restart, check again."""
    life = Life()
    life.node.disk.platter.stop_at = operation
    with contextlib.suppress(PowerLoss):
        life.run(SCRIPT)
    life.restart(loses_unsynced=loses_unsynced, seed=seed)
    life.run([("apply", 4)])
    life.node.check()
    life.run([("save", 0), ("apply", 2)])
    life.node.check()
    life.restart(loses_unsynced=True, seed=seed)


def crash_at_all(points: Iterable[tuple[int, bool, int]]) -> None:
    """Crash at each of these."""
    for operation, loses_unsynced, seed in points:
        crash_at(operation, loses_unsynced=loses_unsynced, seed=seed)
