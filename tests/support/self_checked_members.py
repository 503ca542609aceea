"""Members of a group that check their own steps, driven input by input, without a node around them.

A real member handles all that has arrived before it carries out what follows; here a test decides
what that is, what is written meanwhile, and which messages come late, twice or never.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from shaketable.system.broker.effects import BrokerEffects
from shaketable.system.broker.limits import BrokerConfig
from shaketable.system.mutants import HEALTHY, Mutant
from shaketable.system.node.self_checks import SelfWatch
from shaketable.system.node.watched_broker import watched
from shaketable.system.raft.ledger import LogView
from shaketable.system.raft.membership import Membership
from shaketable.system.raft.protocol import (
    Append,
    Batch,
    Message,
    PushResponse,
    RaftConfig,
    Role,
    SaveState,
    Truncate,
    VoteResponse,
    Write,
)
from shaketable.system.remoting.codes import RequestCode
from shaketable.system.remoting.command import Command, FrameBuffer, encode_command
from shaketable.system.remoting.requests import QueueOffsetRequest, SendMessageV2, decode_request
from shaketable.system.store.state_files import HardState

WALL_MS = 1_700_000_000_000
NAMES = ("n0", "n1", "n2")


class NoReader:
    """The log is short: all of it is in memory."""

    def read_entries(self, *_: object) -> bytes:
        raise AssertionError


class Disk:
    """What a member has written: its log, its term and vote."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.state = HardState()

    def carry_out(self, write: Write) -> None:
        if isinstance(write, Append):
            self.batches.append(write.batch)
        elif isinstance(write, SaveState):
            self.state = HardState(write.term, write.voted_for)
        elif isinstance(write, Truncate):
            while self.batches and self.batches[-1].last_index > write.end_index:
                batch = self.batches.pop()
                if batch.first_index <= write.end_index:
                    self.batches.append(batch.until(write.end_index))


class CheckedMember:
    """One member, which checks itself, and its disk."""

    def __init__(
        self,
        name: str = "n0",
        parts: Mutant = HEALTHY,
        *,
        names: Sequence[str] = NAMES,
        voters: Sequence[str] = NAMES,
        uniform_ms: Callable[[float, float], float] = lambda low, high: low,
        config: RaftConfig | None = None,
    ) -> None:
        self.name = name
        self.now_ms = 0.0
        self.disk = Disk()
        self._parts, self._names, self._voters = parts, names, Membership(tuple(voters))
        self._uniform_ms, self._config = uniform_ms, config
        self.restart()

    def restart(self) -> None:
        """Begin anew with what is on the disk."""
        self._unsynced: list[tuple[int, tuple[Write, ...]]] = []
        self._watch = SelfWatch(self.name, self.now_ms)
        parts = watched(self._parts, self._watch)
        log, memberships, disk = LogView(NoReader()), [], self.disk
        for batch in disk.batches:
            log.append(batch)
            memberships += batch.memberships
        self.core = parts.core(
            self.name, tuple(each for each in self._names if each != self.name), log,
            term=disk.state.term, voted_for=disk.state.voted_for, uniform_ms=self._uniform_ms,
            now_ms=self.now_ms, membership=self._voters, memberships=memberships,
            config=self._config,
        )  # fmt: skip
        self.broker = parts.broker(self.core, BrokerConfig())
        self._watch.started(self.core, disk.state)

    @property
    def waits_for_the_disk(self) -> int:
        """How many steps wait for it."""
        return len(self._unsynced)

    def take(self) -> BrokerEffects:
        effects = self.broker.take(self.now_ms, WALL_MS)
        if effects.writes:
            self._unsynced.append((effects.write_seq, tuple(effects.writes)))
        return effects

    def sync(self, steps: int | None = None) -> None:
        """Carry out what the first steps wrote; all by default."""
        count = len(self._unsynced) if steps is None else steps
        done, self._unsynced = self._unsynced[:count], self._unsynced[count:]
        for _, writes in done:
            for write in writes:
                self.disk.carry_out(write)
            self._watch.carried_out(len(writes))
        if done:
            self.broker.synced(done[-1][0], self.now_ms)

    def settle(self) -> None:
        for _ in range(4):
            self.take()
            self.sync()

    def campaign(self) -> None:
        """Let the election timeout pass; the others would vote."""
        self.now_ms += 1_000
        self.broker.tick(self.now_ms)
        self.settle()
        self.voted("n1", self.core.term + 1, pre_vote=True)

    def lead(self) -> None:
        self.campaign()
        self.settle()
        self.voted("n1", self.core.term)
        self.settle()
        assert self.core.role is Role.LEADER

    def receive(self, message: Message) -> None:
        self.broker.receive(message, self.now_ms)

    def voted(self, by: str, term: int, *, pre_vote: bool = False) -> None:
        self.receive(VoteResponse(term, by, True, pre_vote))

    def acknowledged(self, by: str, index: int) -> None:
        round_ = self.core._leadership.reads.round  # type: ignore[union-attr]
        self.receive(PushResponse(self.core.term, by, True, index, round_))

    def send(self, opaque: int) -> None:
        ext = SendMessageV2("g", "t", 0).to_ext()
        self.handle(Command(RequestCode.SEND_MESSAGE_V2, opaque, ext=ext, body=b"x"))

    def read(self, opaque: int) -> None:
        self.handle(
            Command(RequestCode.GET_MAX_OFFSET, opaque, ext=QueueOffsetRequest("t", 0).to_ext())
        )

    def ask(self, code: RequestCode, member: str, opaque: int = 9) -> None:
        """An operator asks for something about a member."""
        ext = {"member": member, "address": "127.0.0.1:9"}
        self.handle(Command(code, opaque, ext=ext))

    def handle(self, command: Command) -> None:
        sent = encode_command(command)
        buffer = FrameBuffer()
        buffer.writable()[: len(sent)] = sent
        buffer.received(len(sent))
        requests = [decode_request(frame) for frame in buffer.frames()]
        self.broker.handle(1, bytes(8), requests, self.now_ms, WALL_MS)


class ShakenGroup:
    """Members with a random network, random disks and operators; each step has several inputs."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = Random(seed)
        names = (*NAMES, "n3") if rng.random() < 0.5 else NAMES
        config = RaftConfig(lease_ms=rng.choice((0.0, 200.0)))
        self.members = {
            name: CheckedMember(
                name,
                names=names,
                voters=NAMES if name in NAMES else (),
                uniform_ms=rng.uniform,
                config=config,
            )
            for name in names
        }
        self.now_ms = 0.0
        self._loss, self._twice = rng.choice((0.0, 0.02, 0.2)), rng.choice((0.0, 0.05))
        self._latency_ms = rng.choice((1, 10, 60))
        self._cut: set[str] = set()
        self._slow: set[str] = set()
        self._paused_until_ms = dict.fromkeys(names, 0.0)
        self._under_way: list[tuple[float, str, Message]] = []
        self._opaque = 0

    def run(self, steps: int) -> None:
        """Let that many moments pass. Raises InvariantError: a member accuses itself."""
        for _ in range(steps):
            self.now_ms += self.rng.choice((1, 5, 10, 25))
            self._disturb()
            for name, member in self.members.items():
                if self._paused_until_ms[name] <= self.now_ms and self.rng.random() < 0.7:
                    self._step(member)

    def _disturb(self) -> None:
        rng, names = self.rng, sorted(self.members)
        if rng.random() < 0.01:
            self._cut = set(rng.sample(names, rng.randint(0, 1)))
        if rng.random() < 0.01:
            self._slow = {name for name in names if rng.random() < 0.3}
        if rng.random() < 0.01:
            paused_ms = rng.choice((50, 200, 700, 1500))
            self._paused_until_ms[rng.choice(names)] = self.now_ms + paused_ms
        if rng.random() < 0.003:
            self.members[rng.choice(names)].restart()

    def _step(self, member: CheckedMember) -> None:
        """Handle, in one step or several, what has arrived, the time, the disk and requests."""
        rng = self.rng
        member.now_ms = self.now_ms
        inputs: list[Callable[[], None]] = [
            lambda message=message: member.receive(message)  # type: ignore[misc]
            for message in self._arrived(member.name)
        ]
        others: list[Callable[[], None]] = []
        if self.now_ms >= member.core.deadline_ms:
            others.append(lambda: member.broker.tick(self.now_ms))
        if member.waits_for_the_disk and rng.random() < (
            0.02 if member.name in self._slow else 0.6
        ):
            others.append(lambda: member.sync(rng.randint(0, member.waits_for_the_disk)))
        if rng.random() < 0.3:
            others.append(lambda: self._ask(member))
        if rng.random() < 0.003:
            others.append(lambda: member.broker.disk_full(rng.random() < 0.3, self.now_ms))
        for each in others:
            inputs.insert(rng.randint(0, len(inputs)), each)
        takes_each = rng.random() < 0.3
        for each in inputs:
            each()
            if takes_each:
                self._take(member)
        for _ in range(3):
            if not self._take(member):
                break

    def _take(self, member: CheckedMember) -> bool:
        effects, rng = member.take(), self.rng
        for peer, message in effects.messages:
            for late in (1, 5)[: 1 + (rng.random() < self._twice)]:
                if rng.random() >= self._loss and not self._cut.intersection((member.name, peer)):
                    at_ms = self.now_ms + rng.expovariate(1 / (late * self._latency_ms))
                    self._under_way.append((at_ms, peer, message))
        return effects.has_more

    def _arrived(self, name: str) -> list[Message]:
        arrived = sorted(
            (each for each in self._under_way if each[1] == name and each[0] <= self.now_ms),
            key=lambda each: each[0],
        )
        self._under_way = [
            each for each in self._under_way if each[1] != name or each[0] > self.now_ms
        ]
        return [message for _, _, message in arrived]

    def _ask(self, member: CheckedMember) -> None:
        """Clients send to a leader, and now and then an operator asks for a change."""
        rng = self.rng
        self._opaque += 1
        if member.core.role is not Role.LEADER:
            return
        choice, whom = rng.random(), rng.choice(sorted(self.members))
        if choice < 0.03:
            member.ask(RequestCode.TRANSFER_LEADERSHIP, whom, self._opaque)
        elif choice < 0.05:
            member.ask(RequestCode.ADD_MEMBER, whom, self._opaque)
        elif choice < 0.07 and len(member.core.membership.voters) > 2:
            member.ask(RequestCode.REMOVE_MEMBER, whom, self._opaque)
        else:
            member.send(self._opaque)
