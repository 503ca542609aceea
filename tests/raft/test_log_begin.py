"""Logs that do not begin at nothing: compacted, replaced by a snapshot, or upgraded."""

from __future__ import annotations

import pytest
from raft_group import ENTRY_BYTES, Group, Storage, batch_of

from shaketable.system.raft.ledger import LogView
from shaketable.system.raft.membership import Membership, MembershipLog
from shaketable.system.raft.protocol import (
    Batch,
    CompactedError,
    InvariantError,
    LogEnd,
    PushRequest,
    PushResponse,
    RaftConfig,
    Role,
    Snapshot,
)

TERMS = (1, 1, 2, 2, 2, 5)


def view(*, tail_bytes_max: int = 16 << 20) -> LogView:
    """Six entries of terms 1, 2 and 5, on a disk that has them, too."""
    disk = Storage()
    log = LogView(disk, tail_bytes_max=tail_bytes_max)
    for index, term in enumerate(TERMS):
        batch = batch_of(index, 1, term, index * ENTRY_BYTES, index)
        disk.image.entries.append(batch.data)
        disk.lose_unsynced()
        log.append(batch)
        log.stored(index)
    return log


@pytest.mark.parametrize("tail_bytes_max", [1, 16 << 20])
@pytest.mark.parametrize("begin", range(len(TERMS)))
def test_a_compacted_log_knows_what_it_kept_and_refuses_the_rest(
    begin: int, tail_bytes_max: int
) -> None:
    log = view(tail_bytes_max=tail_bytes_max)
    place = LogEnd(begin, TERMS[begin], (begin + 1) * ENTRY_BYTES)
    log.compact(place)
    assert [log.term_at(index) for index in range(begin, 6)] == list(TERMS[begin:])
    assert (log.start, log.end_index, log.end_term) == (place, 5, 5)
    for index in range(begin + 1):
        with pytest.raises(CompactedError):
            log.batches_from(index, 1 << 20)
    with pytest.raises(AssertionError):
        log.term_at(begin - 1)
    for index in range(begin + 1, 6):
        assert log.batches_from(index, 1 << 20)[0].first_index == index
    assert log.last_at_most(5, 0) == begin - 1, "no entry that is kept is of a term so old"
    starts = [i for i in range(1, 6) if TERMS[i] != TERMS[i - 1]]
    assert log.term_starts_after(begin) == [start for start in starts if start > begin]


def test_a_compacted_log_can_be_cut_back_to_its_begin() -> None:
    log = view()
    log.compact(LogEnd(2, 2, 3 * ENTRY_BYTES))
    log.truncate(2)
    assert (log.end_index, log.end_term, log.end_position) == (2, 2, 3 * ENTRY_BYTES)
    assert log.end() == log.start
    log.append(batch_of(3, 2, 7, 3 * ENTRY_BYTES))
    assert [log.term_at(index) for index in (2, 3, 4)] == [2, 7, 7]
    with pytest.raises(AssertionError):
        log.truncate(1)


class StaleFile:
    """A file that still holds what was truncated."""

    data = b"".join(batch_of(index, 1, 1, index * ENTRY_BYTES).data for index in range(8))

    def read(self, position: int, size: int) -> bytes:
        return self.data[position : position + size]

    def read_entries(self, first_index: int, _bytes_max: int) -> Batch:
        return batch_of(first_index, 1, 1, first_index * ENTRY_BYTES)


@pytest.mark.parametrize("is_dropped", [False, True], ids=["in memory", "read back"])
def test_where_the_next_file_begins_nothing_truncated_is_read(is_dropped: bool) -> None:
    log = LogView(StaleFile(), [(0, 1)], 7, 8 * ENTRY_BYTES, tail_bytes_max=1)
    log.truncate(2)
    end = log.end_position
    if is_dropped:
        log.append(batch_of(3, 1, 2, end))
        log.stored(3)
        end = log.end_position
    next_file = 16 * ENTRY_BYTES
    log.append(batch_of(log.end_index + 1, 1, 2, next_file))
    assert log.read_some(end - ENTRY_BYTES, ENTRY_BYTES), "the entry before it is there"
    assert len(log.read_some(end - 8, ENTRY_BYTES)) == 8
    assert log.read_some(end, ENTRY_BYTES) == b""
    assert log.read_some(next_file - 8, ENTRY_BYTES) == b""
    assert len(log.read_some(next_file, ENTRY_BYTES)) == ENTRY_BYTES


def test_a_log_begins_anew_where_a_snapshot_ends() -> None:
    log = view()
    end = LogEnd(90, 8, 12_345, 77)
    log.reset(end)
    assert (log.end(), log.end_index, log.end_term, log.end_position) == (end, 90, 8, 12_345)
    assert (log.term_starts_after(90), log.term_at(90)) == ([], 8)
    with pytest.raises(InvariantError):
        log.append(batch_of(6, 1, 8, 12_345))
    log.append(batch_of(91, 2, 8, 12_345))
    assert log.term_starts_after(90) == [], "term 8 began below"
    log.append(batch_of(93, 1, 9, 12_345 + 2 * ENTRY_BYTES))
    assert [log.term_starts_after(index) for index in (90, 92, 93)] == [[93], [93], []]


def test_a_recovered_log_takes_over_the_begins_term() -> None:
    begin = LogEnd(9, 3, 640)
    log = LogView(Storage(), [(10, 3), (12, 4)], 13, 1000, start=begin)
    assert [log.term_at(index) for index in range(9, 14)] == [3, 3, 3, 4, 4]
    assert log.term_starts_after(9) == [12]


def test_memberships_revert_and_are_compacted_to_the_one_in_force() -> None:
    first, second, third = (Membership(tuple("abc"[:n])) for n in (1, 2, 3))
    log = MembershipLog(first, -1, [(3, second), (7, third)])
    assert (log.current, log.current_index) == (third, 7)
    assert [log.at(index)[0] for index in (-1, 2, 3, 6, 7, 9)] == [-1, -1, 3, 3, 7, 7]
    log.compact(5)
    assert log.at(5) == (3, second)
    log.truncate(6)
    assert (log.current, log.current_index) == (second, 3)
    log.truncate(5)
    log.compact(9)
    assert log.at(9) == (3, second), "the last one is never forgotten"


def upgraded_group(*, positions: tuple[int, int, int]) -> Group:
    """Members whose logs begin behind commit logs of their own, so many bytes long."""
    group = Group(3, config=RaftConfig())
    for name, position in zip(group.names, positions, strict=True):
        if position:
            end = LogEnd(position=position)
            snapshot = Snapshot(end, group.bootstrap, -1, b"%d bytes" % position)
            group.disks[name] = Storage(snapshot)
            group.start(name)
    return group


def led_group() -> Group:
    group = Group(3)
    group.now_ms = 600.0
    group.tick("n0")
    settle(group)
    return group


def settle(group: Group) -> None:
    for _ in range(200):
        if not group.network:
            return
        group.deliver()
    raise AssertionError("the members never stop talking")


def test_a_log_that_began_elsewhere_is_given_the_snapshot() -> None:
    """The leader was upgraded from a commit log; the others are new (dividedCommitlogOffset)."""
    group = upgraded_group(positions=(1000, 0, 300))
    group.now_ms = 600.0
    group.tick("n0")
    settle(group)
    assert group.cores["n0"].role is Role.LEADER
    assert [(name, snapshot.state) for name, snapshot in group.installed] == [
        ("n1", b"1000 bytes"),
        ("n2", b"1000 bytes"),
    ]
    for name in group.names:
        assert group.disks[name].image.start == LogEnd(position=1000)
        assert group.cores[name].log.end_position == 1000 + ENTRY_BYTES
    assert group.cores["n0"].ledger.commit_index == 0


def test_a_commit_log_is_not_thrown_away_for_a_leader_that_has_none() -> None:
    group = upgraded_group(positions=(0, 0, 300))
    group.now_ms = 600.0
    group.tick("n0")
    settle(group)
    for _ in range(5):
        group.now_ms += 60.0
        group.tick("n0")
        settle(group)
    assert group.cores["n0"].ledger.commit_index == 0
    assert group.installed == []
    assert group.cores["n2"].log.end() == LogEnd(position=300)


def test_a_snapshot_never_removes_what_is_committed() -> None:
    group = led_group()
    group.append("n0", 3)
    settle(group)
    group.now_ms += 60.0
    group.tick("n0")
    settle(group)
    ledger = group.cores["n1"].ledger
    assert ledger.commit_index == 3
    with pytest.raises(InvariantError):
        ledger.install(Snapshot(LogEnd(2, 9, 999), group.bootstrap, -1, b""))
    with pytest.raises(InvariantError):
        ledger.agrees_at(2, 9)
    group.append("n0", 1)
    with pytest.raises(AssertionError, match="only what is committed"):
        group.compact("n0", 4)


@pytest.mark.parametrize("first", range(5))
@pytest.mark.parametrize("count", range(1, 6))
def test_entries_that_come_late_for_a_compacted_follower_change_nothing(
    first: int, count: int
) -> None:
    """A push that was delayed or repeated, wholly or partly below the follower's begin."""
    group = led_group()
    group.append("n0", 4)
    settle(group)
    group.now_ms += 60.0
    group.tick("n0")
    settle(group)
    group.compact("n1", 3)
    log = group.cores["n1"].log
    assert (log.start.index, log.end_index) == (3, 4)
    count = min(count, 5 - first)
    batches = (batch_of(first, count, 1, first * ENTRY_BYTES),)
    push = PushRequest(1, "n0", first - 1, 1 if first else -1, 4, 0, batches, -1)
    group.cores["n1"].receive(push, group.now_ms)
    group.pump("n1")
    assert (log.start.index, log.end_index) == (3, 4)
    answer = group.network.pop()[2]
    assert isinstance(answer, PushResponse)
    assert (answer.success, answer.match_index) == (True, 4)
