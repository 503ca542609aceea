"""Locks of queues for ordered consumption."""

from __future__ import annotations

import msgspec
import pytest
from broker_group import FILE_BYTES, HOST, BrokerGroup, Member, about, send
from group_requests import lock
from hypothesis import given
from hypothesis import strategies as st

from shaketable.system.broker.groups.consumer_groups import LEASE_MS, LockedQueue, QueueLocks
from shaketable.system.broker.limits import BrokerConfig
from shaketable.system.raft.protocol import PushResponse
from shaketable.system.remoting.codes import RequestCode, ResponseCode
from shaketable.system.remoting.command import Command

LOCK, UNLOCK = RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ


def queue(number: int) -> LockedQueue:
    return ("t", "b", number)


def locked(member: Member, client_id: str, *queues: int) -> list[int]:
    """Lock queues for a client; return which of them it holds then."""
    (reply,) = member.answer(lock(LOCK, "g", client_id, *queues))
    assert reply.code == 0
    held = msgspec.json.decode(reply.body)["lockOKMQSet"]
    assert all(one["topic"] == "t" and one["brokerName"] == "b" for one in held)
    return [one["queueId"] for one in held]


def test_one_client_of_a_group_holds_a_queue_until_it_gives_it_up() -> None:
    leader = BrokerGroup(1).lead()
    assert locked(leader, "a", 0, 1) == [0, 1]
    assert locked(leader, "b", 0, 1, 2) == [2]
    assert locked(leader, "a", 0, 1) == [0, 1], "it renews its own"
    assert leader.answer(lock(UNLOCK, "g", "b", 0))[0].code == 0
    assert locked(leader, "b", 0) == [], "nobody gives up another one's lock"
    assert leader.answer(lock(UNLOCK, "g", "a", 0))[0].code == 0
    assert locked(leader, "b", 0) == [0]


def test_groups_do_not_hinder_each_other() -> None:
    leader = BrokerGroup(1).lead()
    assert locked(leader, "a", 0) == [0]
    (reply,) = leader.answer(lock(LOCK, "other", "b", 0))
    assert msgspec.json.decode(reply.body)["lockOKMQSet"] != []


def test_a_lock_that_is_not_renewed_is_free_after_its_lease() -> None:
    group = BrokerGroup(1)
    leader = group.lead()
    assert locked(leader, "a", 0, 1) == [0, 1]
    group.pass_time(LEASE_MS / 2)
    assert locked(leader, "a", 1) == [1]
    group.pass_time(LEASE_MS / 2 - 100)
    assert locked(leader, "b", 0, 1) == []
    group.pass_time(200)
    assert locked(leader, "b", 0, 1) == [0]


def test_only_a_leader_that_still_leads_locks() -> None:
    group = BrokerGroup(3)
    leader = group.lead()
    (reply,) = group.members["n1"].answer(lock(LOCK, "g", "a", 0))
    assert (reply.code, reply.ext["leaderId"]) == (ResponseCode.SERVICE_NOT_AVAILABLE, "n0")
    (reply,) = group.members["n1"].answer(lock(UNLOCK, "g", "a", 0))
    assert reply.code == ResponseCode.SERVICE_NOT_AVAILABLE
    group.cut = {"n0"}
    heir = group.lead("n1")
    replies = leader.answer(lock(LOCK, "g", "a", 0))
    assert locked(heir, "b", 0) == [0]
    group.pass_time(3000)
    replies += leader.replies.pop(1, [])
    assert [reply.code for reply in replies] == [ResponseCode.SERVICE_NOT_AVAILABLE]


def test_a_lock_that_is_given_up_while_it_is_being_renewed_is_free() -> None:
    """The renewal waits for the group's word, and what comes behind it must not overtake it."""
    leader = BrokerGroup(3).lead()
    assert locked(leader, "a", 0) == [0]
    replies = leader.answer(lock(LOCK, "g", "a", 0, opaque=1), lock(UNLOCK, "g", "a", 0, opaque=2))
    assert [(reply.opaque, reply.code) for reply in replies] == [(1, 0), (2, 0)]
    assert locked(leader, "b", 0) == [0]


def test_who_leads_no_more_when_all_is_applied_locks_nothing() -> None:
    config = BrokerConfig(data_file_bytes=FILE_BYTES, store_host=HOST, apply_bytes_max=1)
    group = BrokerGroup(1, config=config)
    leader = group.lead()
    leader.is_slow_disk = True
    for number in range(5):
        leader.ask(send("t", 0, b"x", number))
        leader.pump()
    leader._write()  # all of it is committed, and applied step by step
    leader.ask(lock(LOCK, "g", "a", 0, opaque=9))
    leader.pump(to_quiet=False)
    leader.pump(to_quiet=False)
    assert leader.core.ledger.commit_index > leader.broker.applied_index
    assert all(reply.opaque != 9 for reply in leader.replies[1])
    higher = PushResponse(leader.core.term + 1, "n1", False, -1, 0)
    leader.broker.receive(higher, group.now_ms)
    leader.pump()
    (code,) = [reply.code for reply in leader.replies[1] if reply.opaque == 9]
    assert code == ResponseCode.SERVICE_NOT_AVAILABLE


def test_what_was_locked_in_an_older_term_is_forgotten() -> None:
    group = BrokerGroup(3)
    leader = group.lead()
    assert locked(leader, "a", 0) == [0]
    group.cut = {"n0"}
    heir = group.lead("n1")
    assert locked(heir, "b", 0) == [0]
    group.cut = set()
    group.pass_time(3000)
    heir.ask(about(RequestCode.TRANSFER_LEADERSHIP, "n0"))
    heir.pump()
    again = group.lead("n0")
    assert locked(again, "c", 0) == [0], "what the old leader granted was overtaken"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b'{"consumerGroup": "g"}',
        b'{"consumerGroup": "g", "clientId": ""}',
        b'{"consumerGroup": "@", "clientId": "a"}',
        b'{"consumerGroup": "g", "clientId": "a", "mqSet": [{}]}',
        b'{"consumerGroup": "g", "clientId": "a", "mqSet": [{"topic": "t", "queueId": "x"}]}',
        b'{"consumerGroup": "g", "clientId": "a", "mqSet": ['
        + b'{"topic": "t"},' * 10_000
        + b'{"topic": "t"}]}',
    ],
)
@pytest.mark.parametrize("code", [LOCK, UNLOCK])
def test_a_request_that_is_no_good_is_refused(code: RequestCode, body: bytes) -> None:
    leader = BrokerGroup(1).lead()
    (reply,) = leader.answer(Command(code, 1, body=body))
    assert reply.code == ResponseCode.MESSAGE_ILLEGAL


def test_so_many_locks_are_kept_and_those_that_ended_make_room() -> None:
    locks = QueueLocks(lease_ms=10, locks_max=2)
    assert locks.lock("g", "a", [queue(0), queue(1), queue(2)], 0.0) == [queue(0), queue(1)]
    assert locks.lock("g", "a", [queue(0)], 5.0) == [queue(0)]
    assert locks.lock("g", "b", [queue(2)], 10.0) == [queue(2)], "of queue 1 the lease is over"
    assert len(locks) == 2


STEPS = st.lists(
    st.tuples(
        st.sampled_from(("lock", "unlock")),
        st.sampled_from("abc"),
        st.integers(0, 2),
        st.integers(0, 40),
    ),
    max_size=40,
)


@given(STEPS)
def test_two_clients_never_hold_a_queue_at_once(steps: list[tuple[str, str, int, int]]) -> None:
    locks = QueueLocks(lease_ms=60)
    holders: dict[int, tuple[str, float]] = {}  # who was told so, and until when
    now_ms = 0.0
    for what, client, number, later_ms in steps:
        now_ms += later_ms
        holder, until_ms = holders.get(number, ("", 0.0))
        is_held = now_ms < until_ms
        if what == "unlock":
            locks.unlock("g", client, [queue(number)])
            if holder == client:
                del holders[number]
        elif locks.lock("g", client, [queue(number)], now_ms):
            assert not is_held or holder == client
            holders[number] = (client, now_ms + 60)
        else:
            assert is_held, "a free queue is refused"
            assert holder != client
