"""Expiry, snapshots and restarts: what a broker makes of a log whose begin has moved."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest
from broker_group import (
    FILE_BYTES,
    HOST,
    BrokerGroup,
    Member,
    about,
    max_offset,
    metadata,
    min_offset,
    pull,
    send,
)

from shaketable.system.broker.broker import Broker
from shaketable.system.broker.broker_state import decode_state
from shaketable.system.broker.limits import BrokerConfig, DataFile, ExpiryConfig, expired_end
from shaketable.system.raft.protocol import LogEnd, RaftConfig, SnapshotRequest
from shaketable.system.remoting.codes import RequestCode, ResponseCode
from shaketable.system.store.broker_checkpoint import BrokerCheckpoint
from shaketable.system.store.message import walk_messages

RESERVED_MS = 1000


def expiring(**limits: object) -> BrokerConfig:
    return BrokerConfig(
        data_file_bytes=FILE_BYTES,
        store_host=HOST,
        expiry=ExpiryConfig(reserved_ms=RESERVED_MS),
        **limits,  # type: ignore[arg-type]
    )


def fill(leader: Member, topic: str, count: int) -> None:
    for number in range(count):
        (reply,) = leader.answer(send(topic, 0, b"%03d" % number + bytes(500)))
        assert reply.code == 0


def full_files(member: Member) -> list[DataFile]:
    """The data files but the last: what the shell would find."""
    files: list[DataFile] = []
    last: LogEnd | None = None
    for index in range(member.log.first_index, member.log.end.index + 1):
        end = member.log.log_end_at(index)
        if last and (end.position - 1) // FILE_BYTES != (last.position - 1) // FILE_BYTES:
            files.append(DataFile(last, member.group.wall_ms - RESERVED_MS))
        last = end
    return files


def expire(member: Member, count: int, *, used_ratio: float = 0.1) -> None:
    group = member.group
    member.broker.disk_usage(used_ratio, full_files(member)[:count], group.now_ms, group.wall_ms)
    member.pump()


def bodies(member: Member, topic: str, offset: int, *, committed: bool = False) -> list[bytes]:
    (reply,) = member.answer(pull(topic, 0, offset, committed=committed))
    return [message.body[:3] for message in walk_messages(reply.body)]


def test_a_pull_below_the_begin_is_told_where_the_queue_begins() -> None:
    group = BrokerGroup(1, config=expiring())
    leader = group.lead()
    fill(leader, "t", 30)
    expire(leader, 2)
    begin = int(leader.answer(min_offset("t", 0))[0].ext["offset"])
    assert 8 <= begin <= 14
    (reply,) = leader.answer(pull("t", 0, begin - 1))
    assert reply.code == ResponseCode.PULL_OFFSET_MOVED
    assert reply.ext["nextBeginOffset"] == reply.ext["minOffset"] == str(begin)
    assert reply.ext["maxOffset"] == "30"
    assert bodies(leader, "t", begin)[0] == b"%03d" % begin
    assert metadata(leader)["beginIndex"] == str(leader.log.start.index + 1)
    assert metadata(leader)["snapshotIndex"] == str(leader.log.start.index)


def test_a_fully_expired_queue_goes_on_at_its_next_offset_after_a_snapshot() -> None:
    group = BrokerGroup(3, config=expiring())
    leader = group.lead()
    group.cut = {"n2"}
    fill(leader, "old", 7)
    fill(leader, "new", 25)
    expire(leader, 3)
    assert leader.answer(min_offset("old", 0))[0].ext["offset"] == "7"
    (got,) = leader.answer(pull("old", 0, 3))
    assert (got.code, got.ext["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, "7")
    group.cut = set()
    group.pass_time(3000)
    follower = group.members["n2"]
    assert [snapshot.end for snapshot in follower.installed] == [leader.log.start]
    assert follower.broker.queues.ranges() == leader.broker.queues.ranges()
    group.cut = {"n0"}
    heir = group.lead("n1")
    (reply,) = heir.answer(send("old", 0, b"next"))
    assert (reply.code, reply.ext["queueOffset"]) == (0, "7")
    group.pass_time(100)
    assert bodies(follower, "old", 7, committed=True) == [b"nex"]


def test_an_installed_snapshot_replaces_what_was_applied_and_survives_a_restart() -> None:
    group = BrokerGroup(3, config=expiring())
    leader = group.lead()
    fill(leader, "t", 5)
    group.pass_time(100)
    assert group.members["n2"].save_checkpoint()
    group.cut = {"n2"}
    fill(leader, "t", 30)
    expire(leader, 3)
    group.cut = set()
    group.pass_time(3000)
    follower = group.members["n2"]
    assert len(follower.installed) == 1
    ranges = leader.broker.queues.ranges()
    assert follower.broker.queues.ranges() == ranges
    for has_checkpoint in (False, True):
        follower = group.restart("n2")
        group.pass_time(500)
        assert follower.broker.queues.ranges() == ranges, has_checkpoint
        assert bodies(follower, "t", 30, committed=True) == bodies(leader, "t", 30)
        follower.save_checkpoint()


def test_the_snapshots_state_is_that_of_its_place_whatever_came_later() -> None:
    group = BrokerGroup(1, config=expiring())
    leader = group.lead()
    fill(leader, "a", 9)
    fill(leader, "b", 20)
    files = full_files(leader)
    expire(leader, 1)
    snapshot = leader.log.snapshot
    assert snapshot is not None
    assert snapshot.end == files[0].end
    state = decode_state(snapshot.state)
    events = b"RMQ_SYS_DLEDGER_EVENT"
    # Entry 0 is the term start, entry 1 brings topic "a"; then the first file holds messages of
    # "a" alone.
    held = snapshot.end.index - 1
    assert state.ranges == {(events, 0): (1, 1), (events, 2): (1, 1), (b"a", 0): (held, held)}


def test_nothing_expires_that_is_not_applied_committed_and_durable() -> None:
    group = BrokerGroup(1, config=expiring())
    leader = group.lead()
    fill(leader, "t", 20)
    leader.is_slow_disk = True
    leader.ask(*(send("t", 0, bytes(600), opaque) for opaque in range(20)))
    leader.pump()
    file = DataFile(LogEnd(25, leader.core.term, 99, 0), 0)
    leader.broker.disk_usage(0.99, [file], group.now_ms, group.wall_ms)
    assert leader.core.log.start.index == -1
    leader.sync()


@pytest.mark.parametrize("has_checkpoint", [True, False])
def test_a_broker_goes_on_from_its_checkpoint_or_from_the_begin(*, has_checkpoint: bool) -> None:
    group = BrokerGroup(1, config=expiring(key_items_max=1000))
    leader = group.lead()
    fill(leader, "t", 20)
    if has_checkpoint:
        assert leader.save_checkpoint()
        assert not leader.save_checkpoint(), "nothing is new"
    else:
        leader.log.save_checkpoint(leader.core.ledger.checkpoint_index)
    fill(leader, "t", 4)
    ranges = leader.broker.queues.ranges()
    again = group.restart("n0")
    assert again.broker.applied_index == 21  # behind a term start and a new topic
    group.lead()
    assert again.broker.queues.ranges()[b"t", 0] == ranges[b"t", 0] == (0, 24)
    assert bodies(again, "t", 0)[:2] == [b"000", b"001"]
    (reply,) = again.answer(send("t", 0, b"new"))
    assert reply.ext["queueOffset"] == "24"


def test_a_checkpoint_below_a_later_begin_is_passed_over() -> None:
    group = BrokerGroup(1, config=expiring())
    leader = group.lead()
    fill(leader, "t", 3)
    assert leader.save_checkpoint()
    fill(leader, "t", 30)
    expire(leader, 3)
    ranges = leader.broker.queues.ranges()
    again = group.restart("n0")
    again = group.lead()
    assert again.broker.queues.ranges()[b"t", 0] == ranges[b"t", 0]


def test_a_broker_passes_over_a_checkpoint_of_entries_that_are_gone() -> None:
    group = BrokerGroup(1, config=expiring())
    leader = group.lead()
    fill(leader, "t", 30)
    expire(leader, 3)
    broker = Broker(leader.core, group.config, checkpoint=BrokerCheckpoint(1, 300, 1, b""))
    assert broker.applied_index == leader.log.start.index
    assert broker.queues.min_offset((b"t", 0)) == leader.broker.queues.min_offset((b"t", 0)) > 0


def test_of_a_checkpoint_that_a_later_one_replaced_no_note_is_taken() -> None:
    group = BrokerGroup(1, config=expiring())
    leader = group.lead()
    fill(leader, "t", 2)
    first = leader.broker.take_checkpoint()
    fill(leader, "t", 2)
    second = leader.broker.take_checkpoint()
    assert first is not None
    assert second is not None
    leader.broker.checkpointed(first)
    again = leader.broker.take_checkpoint()
    assert again == second
    assert {queue: offset for queue, (offset, _) in again.units.items()}[b"t", 0] == 0


def test_of_a_checkpoint_that_a_snapshot_replaced_no_note_is_taken() -> None:
    group = BrokerGroup(3, config=expiring(key_items_max=1000))
    leader = group.lead()
    fill(leader, "t", 2)
    fill(leader, "u", 2)
    group.pass_time(100)
    follower = group.members["n2"]
    old = follower.broker.take_checkpoint()
    assert old is not None
    assert len(old.keys) == 4
    group.cut = {"n2"}
    fill(leader, "t", 30)
    expire(leader, 3)
    group.cut = set()
    group.pass_time(3000)
    assert len(follower.installed) == 1
    follower.broker.checkpointed(old)
    new = follower.broker.take_checkpoint()
    assert new is not None
    first, units = new.units[b"t", 0]
    assert first == leader.broker.queues.min_offset((b"t", 0))
    assert len(new.keys) == len(units) // 20 == 32 - first


def test_a_checkpoint_above_a_later_begin_forgets_what_is_gone() -> None:
    group = BrokerGroup(1, config=expiring())
    leader = group.lead()
    fill(leader, "t", 30)
    assert leader.save_checkpoint()
    expire(leader, 3)
    ranges = leader.broker.queues.ranges()
    group.restart("n0")
    again = group.lead()
    assert again.broker.queues.ranges()[b"t", 0] == ranges[b"t", 0]
    assert ranges[b"t", 0][0] > 0


def test_a_long_replay_is_done_in_steps_and_readiness_waits_for_it() -> None:
    config = expiring(apply_bytes_max=2000)
    group = BrokerGroup(1, config=config)
    leader = group.lead()
    fill(leader, "t", 40)
    group.members.clear()
    old = leader.disk.restart(loses_unsynced=False, rng=Random(0))
    member = group.members["n0"] = Member(group, "n0", old, is_joining=False)
    steps = []
    group.now_ms += 1000
    member.broker.tick(group.now_ms)
    for _ in range(5):
        member.pump(to_quiet=False)
        steps.append(member.broker.applied_index)
    assert member.core.is_ready
    assert not member.broker.is_ready
    assert steps[-1] < 40
    assert all(later - earlier <= 5 for earlier, later in pairwise(steps))
    change = about(RequestCode.REMOVE_MEMBER, "n9", opaque=3)
    member.ask(send("t", 0, b"early"), max_offset("t", 0), change)
    effects = member.broker.take(group.now_ms, group.wall_ms)
    assert effects.has_more
    member._take(effects)
    replies = {reply.opaque: reply for reply in member.replies.pop(1)}
    assert replies[1].code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "505" in (replies[1].remark or "")
    assert replies[3].code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert 8 not in replies, "the read waits"
    member.pump()
    assert [(reply.opaque, reply.ext["offset"]) for reply in member.replies.pop(1)] == [(8, "40")]
    (reply,) = member.answer(send("t", 0, b"later"))
    assert reply.ext["queueOffset"] == "40"


def test_key_items_wait_for_a_checkpoint_once_they_fill_their_bound() -> None:
    group = BrokerGroup(1, config=expiring(key_items_max=10))
    leader = group.lead()
    leader.answer(*(send("u", 0, b"", opaque) for opaque in range(1, 5)))
    assert not leader.broker.take(group.now_ms, group.wall_ms).is_checkpoint_due
    leader.answer(send("u", 0, b""))
    assert leader.broker.take(group.now_ms, group.wall_ms).is_checkpoint_due
    assert leader.save_checkpoint()
    leader.ask(*(send("t", 0, bytes(10), opaque) for opaque in range(1, 13)))
    leader.pump()
    assert [reply.code for reply in leader.replies.pop(1)] == [0] * 12
    assert leader.answer(max_offset("t", 0))[0].ext["offset"] == "12"
    assert leader.answer(send("t", 0, b"held"))[0].code == 0
    assert leader.answer(max_offset("t", 0)) == [], "it is committed, but not applied"
    assert leader.save_checkpoint()
    leader.pump()
    assert [reply.ext["offset"] for reply in leader.replies.pop(1)] == ["13"]
    assert len(list(leader.files.keys.candidates(b"t", b"k3", 0, 1 << 60))) == 1


def test_only_so_many_reads_wait_for_what_is_to_be_applied() -> None:
    group = BrokerGroup(1, config=expiring(key_items_max=1, reads_held_max=2))
    leader = group.lead()
    for body in (b"fills the bound", b"held up"):
        assert leader.answer(send("t", 0, body))[0].code == 0
    assert leader.answer(pull("t", 0, 1), max_offset("t", 0)) == []
    (refused,) = leader.answer(min_offset("t", 0))
    assert refused.code == ResponseCode.SYSTEM_BUSY
    (here,) = leader.answer(pull("t", 0, 0, committed=True))
    assert here.ext["maxOffset"] == "1", "what is not applied is not seen"
    assert leader.save_checkpoint()
    leader.pump()
    pulled, end = leader.replies.pop(1)
    assert [message.body for message in walk_messages(pulled.body)] == [b"held up"]
    assert end.ext["offset"] == "2"


@pytest.mark.parametrize(
    ("used_ratio", "ages_ms", "hours", "expected"),
    [
        (0.1, [RESERVED_MS, RESERVED_MS - 1], (), 0),
        (0.1, [RESERVED_MS - 1, RESERVED_MS], (), None),
        (0.1, [RESERVED_MS, RESERVED_MS, 0], (), 1),
        (0.1, [RESERVED_MS], (4,), None),
        (0.1, [RESERVED_MS], (22,), 0),
        (0.76, [RESERVED_MS], (4,), 0),
        (0.76, [0], (4,), None),
        (0.86, [0, 0], (4,), 0),
        (0.86, [RESERVED_MS, RESERVED_MS, 0], (4,), 1),
    ],
    ids=[
        "old enough",
        "never behind a younger one",
        "several",
        "not the hour",
        "the hour",
        "any hour when the disk fills",
        "young ones stay all the same",
        "forced: the oldest, one at a time",
        "forced: as many as have expired",
    ],
)
def test_what_expires(
    used_ratio: float, ages_ms: list[int], hours: tuple[int, ...], expected: int | None
) -> None:
    wall_ms = 1_700_000_000_000  # 22:13 UTC
    files = [
        DataFile(LogEnd(10 * (number + 1), 1, 100 * (number + 1)), wall_ms - age_ms)
        for number, age_ms in enumerate(ages_ms)
    ]
    config = ExpiryConfig(reserved_ms=RESERVED_MS, delete_when_hours=hours)
    begin = expired_end(
        files, config, used_ratio=used_ratio, wall_ms=wall_ms, compactable_index=999
    )
    assert begin == (None if expected is None else files[expected].end)


def test_no_more_files_expire_than_are_applied_and_durable() -> None:
    files = [DataFile(LogEnd(10 * number, 1, 100 * number), 0) for number in (1, 2, 3)]
    begin = expired_end(
        files, ExpiryConfig(), used_ratio=0.99, wall_ms=1 << 50, compactable_index=25
    )
    assert begin == files[1].end


def test_only_so_many_files_expire_at_once() -> None:
    files = [DataFile(LogEnd(number, 1, 100 * number), 0) for number in range(1, 13)]
    begin = expired_end(
        files, ExpiryConfig(), used_ratio=0.1, wall_ms=1 << 50, compactable_index=99
    )
    assert begin == files[9].end


@pytest.mark.parametrize(
    ("from_index", "expected"), [(-1, 0), (1, 0), (2, 1), (5, 4), (12, 11), (13, None)]
)
def test_files_before_the_first_known_membership_go_with_the_next_one(
    from_index: int, expected: int | None
) -> None:
    files = [DataFile(LogEnd(number, 1, 100 * number), 0) for number in range(1, 13)]
    for used_ratio in (0.1, 0.99):
        end = expired_end(
            files,
            ExpiryConfig(
                files_a_step_max=1, forced_files_a_step_max=1,
                reserved_ms=0 if used_ratio < 0.5 else 1 << 50,
            ),
            used_ratio=used_ratio,
            wall_ms=1 << 49,
            compactable_index=99,
            snapshot_from=from_index,
        )  # fmt: skip
        assert end == (None if expected is None else files[expected].end)


@pytest.mark.parametrize(("force", "full"), [(0.85, 0.9), (0.93, 0.95)])
def test_the_full_ratio_stands_above_the_force_clean_ratio(force: float, full: float) -> None:
    assert ExpiryConfig(force_clean_ratio=force).full_ratio == pytest.approx(full)


def test_a_disk_above_the_full_ratio_refuses_sends_definitely_until_it_has_room() -> None:
    group = BrokerGroup(1, config=expiring(), raft=RaftConfig())
    leader = group.lead()
    end = leader.core.log.end_index
    leader.broker.disk_usage(0.91, [], group.now_ms, group.wall_ms)
    replies = leader.answer(send("t", 0, b"a"), send("t", 1, b"b", 2))
    assert [reply.code for reply in replies] == [ResponseCode.SYSTEM_BUSY] * 2
    assert all("[415]" in (reply.remark or "") for reply in replies)
    assert leader.core.log.end_index == end
    leader.broker.disk_full(False, group.now_ms)
    assert leader.answer(send("t", 0, b"a"))[0].code == ResponseCode.SYSTEM_BUSY
    leader.broker.disk_usage(0.89, [], group.now_ms, group.wall_ms)
    (reply,) = leader.answer(send("t", 0, b"a"))
    assert (reply.code, reply.ext["queueOffset"]) == (0, "0")


def test_a_pull_between_a_snapshots_arrival_and_its_use_is_told_to_come_again() -> None:
    at_once = RaftConfig(full_push_bytes=1)  # a disk that is slow answers nothing
    group = BrokerGroup(3, config=expiring(), raft=at_once)
    leader, follower = group.lead(), group.members["n2"]
    follower.is_slow_disk = True
    fill(leader, "t", 3)
    group.pass_time(100)
    assert bodies(follower, "t", 0, committed=True) == [b"000", b"001", b"002"]
    group.cut = {"n2"}
    fill(leader, "t", 30)
    expire(leader, 3)
    core = leader.broker.core
    assert core.ledger.snapshot is not None
    request = SnapshotRequest(core.term, "n0", core.ledger.snapshot, 0)
    follower.broker.receive(request, group.now_ms)
    asked = pull("t", 0, 0, committed=True)
    follower.broker.handle(1, bytes(8), [asked], group.now_ms, group.wall_ms)
    follower.pump()
    (reply,) = follower.replies.pop(1)
    assert reply.code == ResponseCode.SYSTEM_BUSY
    (got,) = follower.answer(asked)
    assert got.code == ResponseCode.PULL_OFFSET_MOVED
