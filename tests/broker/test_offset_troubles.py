"""Random troubles of a group whose clients commit offsets: an acknowledged one never goes back.

One seed decides everything. Offsets only rise here, so whoever leads has to know at least the
highest that was acknowledged, and no more than was ever asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
from broker_group import FILE_BYTES, HOST, BrokerGroup, Member, about, send
from group_requests import commit, create_topic, query

from shaketable.system.broker.broker_state import BrokerState
from shaketable.system.broker.consume_queue import Ranges
from shaketable.system.broker.event_log import EventLog
from shaketable.system.broker.groups.group_offsets import OffsetTable
from shaketable.system.broker.limits import BrokerConfig, DataFile, ExpiryConfig
from shaketable.system.broker.reput import BrokerTables
from shaketable.system.raft.protocol import LogEnd, Role
from shaketable.system.remoting.codes import RequestCode
from shaketable.system.remoting.command import Command

RESERVED_MS = 1000
STEPS = 60
SEEDS = range(12)
NAMES = ("n0", "n1", "n2")
QUEUES = 3
ASKER = 9


class Troubles:
    """A group, what its clients were told, and what happens to it."""

    def __init__(self, seed: int) -> None:
        self.draw = Random(seed)
        config = BrokerConfig(
            data_file_bytes=FILE_BYTES,
            store_host=HOST,
            expiry=ExpiryConfig(reserved_ms=RESERVED_MS),
        )
        self.group = BrokerGroup(3, config=config)
        self.group.lead()
        self.asked = dict.fromkeys(range(QUEUES), 0)
        self.acknowledged = dict.fromkeys(range(QUEUES), 0)
        self.opaque = 0
        self.asked_by: dict[int, tuple[int, int]] = {}
        self.queried: dict[int, tuple[int, int]] = {}
        self.snapshots = 0
        self.answers = 0

    def run(self) -> None:
        steps = (self.commit, self.commit, self.commit, self.ask, self.cut, self.heal)
        steps += (self.restart, self.save, self.fill, self.expire, self.transfer)
        for _ in range(STEPS):
            self.draw.choice(steps)()
            self.collect()
            self.group.pass_time(self.draw.choice((0, 20, 200, 1500)))
            self.collect()
        self.heal()
        self.group.pass_time(4000)
        self.collect()
        for queue in range(QUEUES):
            self.ask(queue)
        self.group.pass_time(1000)
        before = self.answers
        self.collect()
        assert self.answers == before + QUEUES, "the healed group answers"

    def collect(self) -> None:
        """Take the clients' answers."""
        for member in self.group.members.values():
            for reply in member.replies.pop(ASKER, []):
                if reply.opaque in self.asked_by and reply.code == 0:
                    queue, offset = self.asked_by.pop(reply.opaque)
                    self.acknowledged[queue] = max(offset, self.acknowledged[queue])
                elif reply.opaque in self.queried and reply.code in (0, 22):
                    queue, least = self.queried.pop(reply.opaque)
                    known = int(reply.ext.get("offset", 0))
                    self.answers += 1
                    assert least <= known <= self.asked[queue], "an acknowledged offset went back"

    def leader(self) -> Member | None:
        leaders = [one for one in self.group.members.values() if one.core.role is Role.LEADER]
        return self.draw.choice(leaders) if leaders else None

    def send(self, member: Member, command: Command) -> None:
        member.ask(command, connection=ASKER)
        member.pump()

    def commit(self) -> None:
        member, queue = self.leader(), self.draw.randrange(QUEUES)
        if member is not None:
            self.opaque += 1
            self.asked[queue] += self.draw.randrange(1, 4)
            self.asked_by[self.opaque] = (queue, self.asked[queue])
            self.send(member, commit("g", "t", queue, self.asked[queue], self.opaque))

    def ask(self, queue: int | None = None) -> None:
        """Ask whoever believes to lead; what was acknowledged before has to be in the answer."""
        member = self.leader()
        if member is not None:
            queue = self.draw.randrange(QUEUES) if queue is None else queue
            self.opaque += 1
            self.queried[self.opaque] = (queue, self.acknowledged[queue])
            self.send(member, query("g", "t", queue, self.opaque, zero=False))

    def cut(self) -> None:
        self.group.cut = {self.draw.choice(NAMES)}

    def heal(self) -> None:
        self.group.cut = set()

    def restart(self) -> None:
        self.group.restart(self.draw.choice(NAMES))

    def save(self) -> None:
        self.group.members[self.draw.choice(NAMES)].save_checkpoint()

    def fill(self) -> None:
        member = self.leader()
        if member is not None:
            self.opaque += 1
            member.ask(create_topic("filler", opaque=self.opaque), connection=ASKER)
            for _ in range(8):
                member.ask(send("filler", 0, bytes(600)), connection=ASKER)
            member.pump()

    def expire(self) -> None:
        """Let all data files go that hold nothing but what is applied and committed."""
        member = self.group.members[self.draw.choice(NAMES)]
        log, last = member.log, LogEnd()
        for index in range(log.first_index, log.end.index + 1):
            end = log.log_end_at(index)
            is_ours = index <= member.broker._compactable_index()
            if is_ours and end.position <= log.end.position // FILE_BYTES * FILE_BYTES:
                last = end
        if last.index > log.start.index:
            files = [DataFile(last, self.group.wall_ms - RESERVED_MS)]
            member.broker.disk_usage(0.1, files, self.group.now_ms, self.group.wall_ms)
            member.pump()
            self.snapshots += log.start == last

    def transfer(self) -> None:
        member = self.leader()
        if member is not None:
            target = about(RequestCode.TRANSFER_LEADERSHIP, self.draw.choice(NAMES))
            member.ask(target, connection=ASKER + 1)
            member.pump()
            self.group.settle()


def run_all() -> None:
    for seed in SEEDS:
        Troubles(seed).run()


@pytest.mark.parametrize("seed", SEEDS)
def test_an_acknowledged_offset_never_goes_back(seed: int) -> None:
    troubles = Troubles(seed)
    troubles.run()
    assert sum(troubles.acknowledged.values()) > 0


def test_the_troubles_are_what_they_should_be() -> None:
    installed = snapshots = answers = 0
    terms = set()
    for seed in SEEDS:
        troubles = Troubles(seed)
        troubles.run()
        members = troubles.group.members.values()
        snapshots += troubles.snapshots
        answers += troubles.answers - QUEUES
        installed += sum(len(member.installed) for member in members)
        terms.update(member.core.term for member in members)
    assert snapshots > len(SEEDS)
    assert installed > 0
    assert answers > len(SEEDS)
    assert max(terms) > 3


def _without_offsets(tables: BrokerTables, ranges: Ranges) -> BrokerState:
    return BrokerState(dict(ranges), tables.topics.state(), {})


def _topics_alone(tables: BrokerTables, state: BrokerState) -> None:
    tables.topics.restore(state.topics)


def _at_once(events: EventLog, connection: int, asked: Command, now_ms: float) -> None:
    del now_ms
    events._outbox.answer(connection, asked)


def _first_of_each(table: OffsetTable, body: bytes) -> None:
    before = table.state()
    _apply(table, body)
    for key, offsets in before.items():
        table._offsets[key].update(offsets)


_apply = OffsetTable.apply


@pytest.mark.parametrize(
    ("owner", "name", "bug"),
    [
        (BrokerTables, "state", _without_offsets),
        (BrokerTables, "restore", _topics_alone),
        (EventLog, "answer_when_acknowledged", _at_once),
        (OffsetTable, "apply", _first_of_each),
    ],
    ids=["not in states", "not taken from states", "answered too early", "later ones passed over"],
)
def test_planted_bugs_are_found(
    monkeypatch: pytest.MonkeyPatch, owner: type, name: str, bug: Callable[..., object]
) -> None:
    monkeypatch.setattr(owner, name, bug)
    with pytest.raises(AssertionError, match="an acknowledged offset went back"):
        run_all()
