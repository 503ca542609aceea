"""What a member knows of a leader is known of one term; what it wrote counts once durable."""

from __future__ import annotations

from raft_group import Storage, batch_of

from shaketable.system.raft.core import RaftCore
from shaketable.system.raft.ledger import HELD_MAX, LogView, PendingWrites
from shaketable.system.raft.protocol import (
    Effects,
    PushRequest,
    PushResponse,
    SaveState,
    VoteRequest,
    VoteResponse,
)


def follower(members: int = 3) -> RaftCore:
    names = [f"n{i}" for i in range(members)]
    return RaftCore(
        "n2",
        [name for name in names if name != "n2"],
        LogView(Storage()),
        term=0,
        voted_for=None,
        uniform_ms=lambda _, high: high,
        now_ms=0.0,
    )


def push(term: int, leader: str, prev: tuple[int, int], **more: object) -> PushRequest:
    fields = {"commit_index": -1, "read_round": 0, "batches": (), **more}
    return PushRequest(term, leader, prev[0], prev[1], **fields)  # type: ignore[arg-type]


def settle(core: RaftCore) -> list[PushResponse]:
    """Carry out what is to be written; return what is answered then."""
    said: list[PushResponse] = []
    for _ in range(3):
        effects = core.take()
        said += [m for _, m in effects.messages if isinstance(m, PushResponse)]
        core.synced(effects.write_seq)
    return said


def test_the_same_leader_in_a_new_term_is_met_anew() -> None:
    """n0 led term 2, lost entry 10 in a crash, and leads term 4 with its own entry 10 to come."""
    core = follower()
    entries = (batch_of(0, 11, 2, 0),)
    core.receive(push(2, "n0", (-1, -1), batches=entries, read_round=500), 10)
    assert settle(core)[-1] == PushResponse(2, "n2", True, 10, 500)
    core.receive(push(4, "n0", (9, 2), commit_index=10, read_round=1), 20)
    answers = settle(core)
    assert {(a.term, a.match_index, a.read_round) for a in answers if a.term == 4} == {(4, 9, 1)}
    assert core.ledger.commit_index == 9, "entry 10 of term 2 is nobody's word"


def test_an_append_that_was_cut_back_does_not_make_its_successor_durable() -> None:
    """Appended, truncated, appended again: durable with the last of these writes only."""
    core = follower(5)
    core.receive(push(2, "n0", (-1, -1), batches=(batch_of(0, 11, 2, 0),)), 10)
    first: Effects = core.take()
    core.receive(push(3, "n1", (5, 2), batches=(batch_of(6, 1, 3, 6 * 64),)), 400)
    core.take()
    core.receive(push(4, "n0", (5, 2), batches=(batch_of(6, 5, 2, 6 * 64),)), 800)
    last = core.take()
    core.synced(first.write_seq)
    assert core.ledger.durable_index == 5, "the disk will still be cut back to 5"
    core.synced(last.write_seq)
    assert core.ledger.durable_index == 10


def test_a_checkpoint_never_names_what_the_disk_may_not_hold() -> None:
    core = follower()
    core.receive(push(2, "n0", (-1, -1), batches=(batch_of(0, 3, 2, 0),)), 10)
    settle(core)
    core.receive(push(2, "n0", (2, 2), commit_index=5, batches=(batch_of(3, 3, 2, 3 * 64),)), 20)
    assert (core.ledger.commit_index, core.ledger.checkpoint_index) == (5, 2)
    settle(core)
    assert core.ledger.checkpoint_index == 5


def test_what_a_stuck_write_holds_back_stays_bounded() -> None:
    """A full disk takes no vote for long, and everybody goes on asking."""
    pending = PendingWrites()
    pending.add(SaveState(3, None))
    for term in range(4, 1000):
        for is_pre_vote in (True, False):
            pending.hold(1, "n0", VoteResponse(term, "n2", True, is_pre_vote))
            pending.hold(1, "n0", VoteRequest(term, "n2", 0, 0, is_pre_vote))
        pending.hold(1, f"stranger{term}", VoteResponse(term, "n2", False, False))
        if term == 100:
            pending.hold(1, "n1", PushResponse(100, "n2", True, 7, 0))
    assert len(pending._held) == HELD_MAX
    pending.synced(1)
    said = pending.release(999)
    assert [message for peer, message in said if peer == "n0"] == [
        message
        for is_pre_vote in (True, False)
        for message in (
            VoteResponse(999, "n2", True, is_pre_vote),
            VoteRequest(999, "n2", 0, 0, is_pre_vote),
        )
    ]
    assert said[-1][0] == "stranger999"
    assert not pending.release(999)


def test_a_vote_that_waits_is_not_replaced_by_a_pre_vote() -> None:
    pending = PendingWrites()
    pending.add(SaveState(3, "n0"))
    vote, no = VoteResponse(3, "n2", True, False), VoteResponse(3, "n2", False, True)
    pending.hold(1, "n0", vote)
    pending.hold(1, "n0", no)
    pending.synced(1)
    assert pending.release(3) == [("n0", vote), ("n0", no)]
