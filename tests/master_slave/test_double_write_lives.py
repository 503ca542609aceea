"""Masters and slaves that die and meet again: an answered double write is on both."""

from __future__ import annotations

import pytest
from broker_group import send
from hypothesis import given, settings
from hypothesis import strategies as st
from master_slave_brokers import HALink, MasterSlaveBroker

from shaketable.system.master_slave.core import MasterSlaveCore
from shaketable.system.raft.protocol import InvariantError
from shaketable.system.remoting.codes import ResponseCode

DEATHS = [("master dies",), ("slave dies",)]
STEPS = st.lists(
    st.tuples(st.just("send"), st.integers(1, 5), st.sampled_from((1, 300)))
    | st.sampled_from(
        [("connect",), ("connect",), ("settle",), ("settle",), ("cut",), ("late",), *DEATHS]
    ),
    max_size=25,
)


class Pair:
    """A master that waits for its slave, and a connection now and then.

    Both have the messages from the start on: an empty slave would begin with the last file.
    """

    def __init__(self) -> None:
        self.master = MasterSlaveBroker("SYNC_MASTER")
        self.slave = MasterSlaveBroker("SLAVE")
        self.link: HALink | None = None
        self.sent: dict[int, bytes] = {}
        self.number = 0

    def do(self, step: tuple) -> None:
        match step:
            case ("send", count, size):
                for _ in range(count):
                    self.number += 1
                    self.sent[self.number] = b"<%d>" % self.number * size
                    body = self.sent[self.number]
                    self.answered(self.master.ask(send("t", 0, body, opaque=self.number)))
            case ("connect",):
                self.cut()
                self.link = HALink(self.master, self.slave)
            case ("settle",) if self.link is not None:
                self.link.settle()
            case ("cut",):
                self.cut()
            case ("late",):
                self.master.pass_time(3000)
                self.slave.pass_time(3000)
            case ("master dies",):
                self.cut()
                self.master = self.master.restarted(loses_unsynced=False)
            case ("slave dies",):
                self.cut()
                self.slave = self.slave.restarted(loses_unsynced=False)
        self.answered(self.master.take_replies())

    def cut(self) -> None:
        if self.link is not None:
            self.link.to_slave.closed()
            self.link = None

    def answered(self, replies: list) -> None:
        """What is answered with SEND_OK stands in both logs, as a crash of either would find it."""
        for reply in replies:
            assert reply.code in (
                ResponseCode.SUCCESS,
                ResponseCode.SLAVE_NOT_AVAILABLE,
                ResponseCode.FLUSH_SLAVE_TIMEOUT,
            )
            for one in (self.master, self.slave)[: 2 if reply.code == 0 else 1]:
                assert self.sent[reply.opaque] in stored(one)


def live(steps: list[tuple]) -> None:
    pair = Pair()
    for step in [("connect",), ("send", 1, 1), ("settle",), *steps]:
        pair.do(step)
    for step in [("connect",), ("settle",)]:
        pair.do(step)
    assert pair.slave.held() == pair.master.held()
    assert pair.master.broker.queues.max_offset((b"t", 0)) == pair.number, "what it took, it keeps"


def stored(broker: MasterSlaveBroker) -> bytes:
    """All that stands in a broker's files."""
    at, parts = 0, []
    while at <= broker.log.end.index:
        batch = broker.log.read_entries(at, 1 << 20)
        parts.append(batch.data)
        at = batch.last_index + 1
    return b"".join(parts)


@settings(max_examples=80)
@given(STEPS)
def test_a_double_write_that_is_answered_is_on_both(steps) -> None:
    live(steps)


def test_a_master_that_counts_what_it_sent_is_found(monkeypatch) -> None:
    """The slave's word is what counts."""
    monkeypatch.setattr(
        MasterSlaveCore, "slaves_position", property(lambda core: core.written_position)
    )
    with pytest.raises(InvariantError, match="acknowledged-is-copied"):
        live([("connect",), ("settle",), ("send", 2, 300)])
