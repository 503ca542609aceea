"""A group of brokers on a table, each on a real log and a simulated disk.

Time stands still unless the test moves it; messages are delivered by `settle` until nothing is
under way, but for those of members that are cut off.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from random import Random

from shaketable.system.broker.broker import BrokerEffects
from shaketable.system.broker.broker_state import ranges_of
from shaketable.system.broker.limits import BrokerConfig
from shaketable.system.broker.mode import DLEDGER
from shaketable.system.broker.reput import Dispatch
from shaketable.system.broker.topic_tables.taken_over import plain_dispatches, upgraded_snapshot
from shaketable.system.mutants import HEALTHY, Mutant
from shaketable.system.raft.ledger import LogView
from shaketable.system.raft.membership import Membership
from shaketable.system.raft.protocol import Message, RaftConfig, Role, RoleChange, Snapshot, Write
from shaketable.system.remoting.codes import RequestCode
from shaketable.system.remoting.command import (
    Command,
    Frame,
    FrameBuffer,
    decode_command,
    encode_command,
)
from shaketable.system.remoting.requests import (
    MemberRequest,
    PullMessage,
    QueueOffsetRequest,
    SendMessageV2,
    decode_request,
)
from shaketable.system.sim.disk import SimDisk
from shaketable.system.store.broker_checkpoint import CheckpointFiles

ROOT = "/store"
HOST = bytes([127, 0, 0, 1, 0, 0, 0x2A, 0x9F])
WALL_MS = 1_700_000_000_000
FILE_BYTES = 4096
STEPS_MAX = 10_000
STEP_MS = 10


class Member:
    """One broker with its core, log and disk."""

    def __init__(self, group: BrokerGroup, name: str, disk: SimDisk, *, is_joining: bool) -> None:
        self.group = group
        self.name = name
        self.disk = disk
        self.is_joining = is_joining
        self.is_slow_disk = False
        self.replies: dict[int, list[Command]] = {}
        self.roles: list[RoleChange] = []
        self.installed: list[Snapshot] = []
        self.start()

    def start(self) -> None:
        group = self.group
        self.log = log = group.mutant.commit_log.open(
            self.disk, ROOT, self.name, FILE_BYTES, 4096, f"{ROOT}/commitlog"
        )
        self.writer = group.mutant.log_writer(self.log)
        self.files = CheckpointFiles(
            self.disk, ROOT, f"{ROOT}/dledger-{self.name}", ranges_of, queue_file_bytes=200
        )
        checkpoint = self.files.load(self.log)
        upgraded = None
        if log.plain_log is not None:
            plain_log = log.plain_log

            def upgraded() -> Iterator[Dispatch]:
                return plain_dispatches(plain_log.messages())

        membership = Membership(() if self.is_joining else group.bootstrap)
        snapshot = log.snapshot
        if snapshot is None and upgraded is not None:
            snapshot = upgraded_snapshot(
                log.start, membership, upgraded, checkpoint, self.files.queues
            )
        view = LogView(
            self.log,
            self.log.spans,
            self.log.end.index,
            self.log.end.position,
            group.tail_bytes_max,
            start=self.log.start,
        )
        ordinal = int(self.name[1:])
        self.core = group.mutant.core(
            self.name,
            (),
            view,
            term=self.log.state.term,
            voted_for=self.log.state.voted_for,
            uniform_ms=lambda low, high: low + (high - low) * ordinal / 10,
            now_ms=group.now_ms,
            config=group.raft,
            membership=membership,
            memberships=self.log.memberships,
            snapshot=snapshot,
        )
        self.broker = group.mutant.broker(
            self.core,
            group.config,
            applied_to=self.log.committed_index,
            checkpoint=checkpoint,
            reader=self.files.queues,
            key_reader=self.files.keys,
            plain_log=upgraded,
            mode=replace(DLEDGER, to_migrate=group.to_migrate.get(self.name, ())),
        )
        self._writes: list[Write] = []
        self.write_seq = 0

    def pump(self, *, to_quiet: bool = True) -> None:
        """Carry out effects; sync at once unless the disk is slow."""
        for _ in range(STEPS_MAX):
            effects = self.broker.take(self.group.now_ms, self.group.wall_ms)
            self._take(effects)
            is_written = self._write() if not self.is_slow_disk else False
            if not to_quiet or not (is_written or effects.has_more):
                return
        raise AssertionError("the broker never gets quiet")

    def sync(self) -> None:
        """Let a slow disk do what waits for it."""
        self._write()
        self.pump()

    def save_checkpoint(self) -> bool:
        """Save what is applied, as the shell does now and then."""
        checkpoint = self.broker.take_checkpoint()
        if checkpoint is None:
            return False
        self.files.save(checkpoint)
        self.log.save_checkpoint(checkpoint.committed_index)
        self.broker.checkpointed(checkpoint)
        return True

    def ask(self, *commands: Command, connection: int = 1) -> None:
        """Let requests arrive in one piece."""
        data = b"".join(encode_command(command) for command in commands)
        requests = [decode_request(frame) for frame in frames_of(data)]
        self.broker.handle(connection, HOST, requests, self.group.now_ms, self.group.wall_ms)

    def answer(self, *commands: Command) -> list[Command]:
        """Return the replies to requests, once the group has done what it can."""
        self.ask(*commands)
        self.pump()
        self.group.settle()
        return self.replies.pop(1, [])

    def _take(self, effects: BrokerEffects) -> None:
        self._writes += effects.writes
        self.write_seq = effects.write_seq
        self.roles += effects.role_changes
        if effects.installed is not None:
            self.installed.append(effects.installed)
        self.group.network += [(self.name, to, message) for to, message in effects.messages]
        for connection, frames in effects.replies.items():
            self.replies.setdefault(connection, []).extend(decoded(b"".join(frames)))

    def _write(self) -> bool:
        if not self._writes:
            return False
        writes, self._writes = self._writes, []
        self._writes = list(self.writer.carry_out(writes))
        if self._writes:
            self.broker.disk_full(True, self.group.now_ms)
            return False
        self.broker.synced(self.write_seq, self.group.now_ms)
        return True


class BrokerGroup:
    """Members n0.. of one group, and the network between them.

    `plain_log` is the plain commit log that each of them starts with: bytes by position;
    `to_migrate` what a member found of topics and offsets from before the group; `mutant` the
    bug that is planted in all of them.
    """

    def __init__(
        self,
        size: int,
        *,
        config: BrokerConfig | None = None,
        raft: RaftConfig | None = None,
        plain_log: Mapping[int, bytes] | None = None,
        tail_bytes_max: int = 2000,
        to_migrate: Mapping[str, tuple[bytes, ...]] | None = None,
        mutant: Mutant = HEALTHY,
    ) -> None:
        self.mutant = mutant
        self.to_migrate = to_migrate or {}
        self.bootstrap = tuple(f"n{i}" for i in range(size))
        self.config = config or BrokerConfig(data_file_bytes=FILE_BYTES, store_host=HOST)
        self.raft = raft or RaftConfig()
        self.tail_bytes_max = tail_bytes_max
        self.now_ms = 0.0
        self.wall_ms = WALL_MS
        self.network: list[tuple[str, str, Message]] = []
        self.cut: set[str] = set()
        self.paused: set[str] = set()
        self.members: dict[str, Member] = {}
        for name in self.bootstrap:
            disk = SimDisk()
            write_plain_log(disk, plain_log or {})
            self.members[name] = Member(self, name, disk, is_joining=False)

    def join(self, name: str) -> Member:
        """Start a new member that waits to be added."""
        member = self.members[name] = Member(self, name, SimDisk(), is_joining=True)
        return member

    def restart(self, name: str, *, loses_unsynced: bool = True) -> Member:
        """Crash a member and start it again on its disk."""
        old = self.members[name]
        disk = old.disk.restart(loses_unsynced=loses_unsynced, rng=Random(0))
        self.network = [mail for mail in self.network if name not in mail[:2]]
        member = self.members[name] = Member(self, name, disk, is_joining=old.is_joining)
        member.pump()
        return member

    def settle(self) -> None:
        """Deliver everything that is under way, and what comes of it."""
        for _ in range(STEPS_MAX):
            if not self.network:
                return
            source, target, message = self.network.pop(0)
            if source in self.cut or target in self.cut or target not in self.members:
                continue
            self.members[target].broker.receive(message, self.now_ms)
            self.members[target].pump()
        raise AssertionError("the group never gets quiet")

    def pass_time(self, ms: float) -> None:
        """Let time pass, in steps smaller than what tells the election timeouts apart."""
        until_ms = self.now_ms + ms
        while self.now_ms < until_ms:
            self.now_ms += STEP_MS
            self.wall_ms += STEP_MS
            for member in list(self.members.values()):
                if member.name in self.paused:
                    continue
                member.broker.tick(self.now_ms)
                member.pump()
            self.settle()

    def lead(self, name: str = "n0") -> Member:
        """Have a member lead; with equal logs that is n0, whose timeout is the shortest."""
        for _ in range(1000):
            member = self.members[name]
            if member.core.role is Role.LEADER and member.broker.is_ready:
                return member
            self.pass_time(STEP_MS)
        raise AssertionError(f"{name} does not lead")


def write_plain_log(disk: SimDisk, messages: Mapping[int, bytes]) -> None:
    """Lay down files of a plain commit log, as long as the log's own data files."""
    disk.make_dirs(f"{ROOT}/commitlog")
    for position, data in messages.items():
        start = position // FILE_BYTES * FILE_BYTES
        path = f"{ROOT}/commitlog/{start:020d}"
        file = disk.open(path) if disk.exists(path) else disk.create(path, FILE_BYTES)
        file.pwrite([data], position - start)
        file.sync()
        file.close()
    disk.sync_dir(f"{ROOT}/commitlog")


def frames_of(data: bytes) -> list[Frame]:
    """Cut bytes into frames."""
    buffer = FrameBuffer(header_bytes_max=1 << 20)
    found: list[Frame] = []
    while data:
        view = buffer.writable()
        part, data = data[: len(view)], data[len(view) :]
        view[: len(part)] = part
        buffer.received(len(part))
        found += [
            Frame(
                frame.serialize_type,
                memoryview(bytes(frame.header)),
                memoryview(bytes(frame.body)),
            )
            for frame in buffer.frames()
        ]
    return found


def decoded(data: bytes) -> list[Command]:
    """Decode frames as commands."""
    return [decode_command(frame) for frame in frames_of(data)]


def send(topic: str, queue: int, body: bytes, opaque: int = 1, flag: int = 0) -> Command:
    """Ask to store one message."""
    ext = SendMessageV2("g", topic, queue, properties=f"KEYS\x01k{opaque}\x02").to_ext()
    return Command(RequestCode.SEND_MESSAGE_V2, opaque, flag, ext=ext, body=body)


def pull(topic: str, queue: int, offset: int, *, committed: bool = False) -> Command:
    """Ask for messages: linearizably, or for what the member knows to be committed."""
    code = RequestCode.PULL_COMMITTED if committed else RequestCode.PULL_MESSAGE
    return Command(code, 7, ext=PullMessage("g", topic, queue, offset).to_ext())


def max_offset(topic: str, queue: int) -> Command:
    """Ask for a queue's end."""
    return Command(RequestCode.GET_MAX_OFFSET, 8, ext=QueueOffsetRequest(topic, queue).to_ext())


def min_offset(topic: str, queue: int) -> Command:
    """Ask for a queue's begin."""
    return Command(RequestCode.GET_MIN_OFFSET, 9, ext=QueueOffsetRequest(topic, queue).to_ext())


def about(code: RequestCode, member: str, address: str | None = None, opaque: int = 5) -> Command:
    """Ask for a transfer or a change of the membership."""
    return Command(code, opaque, ext=MemberRequest(member, address).to_ext())


def metadata(member: Member) -> dict[str, str]:
    """Return what a member says of itself."""
    (reply,) = member.answer(Command(RequestCode.DLEDGER_METADATA, 3))
    return reply.ext
