"""Messages between members survive the wire; damaged ones never get in."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from shaketable.system.node.connections import wire
from shaketable.system.raft.membership import Membership
from shaketable.system.raft.protocol import (
    Batch,
    LeadershipTransfer,
    LogEnd,
    Message,
    PushRequest,
    PushResponse,
    Snapshot,
    SnapshotRequest,
    VoteRequest,
    VoteResponse,
)
from shaketable.system.remoting.command import CommandError, Frame, FrameBuffer, decode_command
from shaketable.system.sim.disk import SimDisk
from shaketable.system.store.entry import EntryBuilder
from shaketable.system.store.state_files import HardState, save_hard_state

NUMBERS = st.integers(0, 2**62)
INDICES = st.integers(-1, 2**62)
NAMES = st.sampled_from(("n0", "n1", "N_3.a-2"))


def batches(bodies: list[bytes], end: LogEnd, term: int) -> list[Batch]:
    builder = EntryBuilder(end, term, 1 << 20, bytes(8))
    for offset, body in enumerate(bodies):
        builder.add(b"topic", 1, offset, body)
    return builder.take()


MEMBERSHIPS = st.builds(
    Membership,
    st.just(("n0", "n1")),
    st.sampled_from(((), ("n7",))),
    st.sampled_from(((), (("n7", "127.0.0.1:40917"),))),
)
SNAPSHOTS = st.builds(
    Snapshot,
    st.builds(LogEnd, INDICES, INDICES, NUMBERS, st.integers(0, 2**32 - 1)),
    MEMBERSHIPS,
    INDICES,
    st.binary(max_size=50),
)
MESSAGES: st.SearchStrategy[Message] = st.one_of(
    st.builds(VoteRequest, NUMBERS, NAMES, INDICES, INDICES, st.booleans(), st.booleans()),
    st.builds(SnapshotRequest, NUMBERS, NAMES, SNAPSHOTS, NUMBERS),
    st.builds(LeadershipTransfer, NUMBERS, NAMES),
    st.builds(VoteResponse, NUMBERS, NAMES, st.booleans(), st.booleans()),
    st.builds(
        PushRequest, NUMBERS, NAMES, INDICES, INDICES, INDICES, NUMBERS, st.just(()), INDICES
    ),
    st.builds(
        PushResponse, NUMBERS, NAMES, st.booleans(), INDICES, NUMBERS, INDICES, INDICES, INDICES
    ),
)


def through(data: bytes) -> Message:
    buffer = FrameBuffer()
    view = buffer.writable()
    view[: len(data)] = data
    buffer.received(len(data))
    (frame,) = buffer.frames()
    return wire.decode(decode_command(frame), "g")


@given(MESSAGES)
def test_round_trip(message: Message) -> None:
    assert through(wire.encode(message, "g")) == message


@settings(max_examples=50)
@given(st.lists(st.binary(max_size=100), min_size=1, max_size=5), st.integers(1, 4))
def test_entries_round_trip_joined(bodies: list[bytes], split: int) -> None:
    (whole,) = batches(bodies, LogEnd(), 3)
    parts: tuple[Batch, ...] = (whole,)
    if split < whole.count:
        parts = (whole.until(split - 1), whole.after(split - 1))
    push = PushRequest(3, "n0", -1, -1, -1, 9, parts)
    got = through(wire.encode(push, "g"))
    assert isinstance(got, PushRequest)
    assert got.batches == (whole,)


def test_a_membership_entry_is_found_in_what_arrives() -> None:
    builder = EntryBuilder(LogEnd(), 3, 1 << 20, bytes(8))
    builder.add(b"topic", 1, 0, b"one")
    membership = Membership(("n0", "n1", "n2"), ("n3",), (("n3", "127.0.0.1:40914"),))
    builder.add_membership(membership, 0, 5)
    (batch,) = builder.take()
    assert batch.memberships == ((1, membership),)
    got = through(wire.encode(PushRequest(3, "n0", -1, -1, -1, 9, (batch,)), "g"))
    assert isinstance(got, PushRequest)
    assert got.batches == (batch,)


@settings(max_examples=100)
@given(st.data())
def test_a_flipped_bit_in_the_entries_is_refused(data: st.DataObject) -> None:
    (whole,) = batches([b"one", b"two"], LogEnd(), 3)
    frame = bytearray(wire.encode(PushRequest(3, "n0", -1, -1, -1, 9, (whole,)), "g"))
    at = len(frame) - len(whole.data) + data.draw(st.integers(0, len(whole.data) - 1))
    frame[at] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(CommandError, match="damaged entries from n0"):
        through(bytes(frame))


def test_another_groups_message_is_refused() -> None:
    frame = wire.encode(VoteRequest(1, "n0", 0, 0, pre_vote=True), "other")
    with pytest.raises(CommandError, match="group 'other'"):
        through(frame)


@pytest.mark.parametrize(
    "message",
    [
        PushRequest(1, "n0", -5, -1, -1, 0),
        PushRequest(-1, "n0", -1, -1, -1, 0),
        PushResponse(1, "n0", True, -2, 0),
    ],
)
def test_numbers_that_cannot_be_are_refused(message: Message) -> None:
    with pytest.raises(CommandError, match="bad _Push"):
        through(wire.encode(message, "g"))


HIGH = 2**63 - 1


@pytest.mark.parametrize(
    "message",
    [
        VoteRequest(HIGH, "n0", 0, 0, pre_vote=False),
        VoteResponse(HIGH, "n0", False, pre_vote=False),
        PushRequest(HIGH, "n0", -1, -1, -1, 0),
        PushResponse(HIGH, "n0", False, -1, 0),
        LeadershipTransfer(HIGH, "n0"),
        VoteRequest(7 + wire.TERM_JUMP_MAX + 1, "n0", 0, 0, pre_vote=True),
    ],
)
def test_a_term_behind_which_there_is_no_next_is_refused(message: Message) -> None:
    """Else the next campaign would ask for a term that the wire does not carry."""
    with pytest.raises(CommandError, match=r"term \d+ from n0 lies more than \d+ above 7"):
        wire.check_terms(through(wire.encode(message, "g")), 7)


@pytest.mark.parametrize(
    "message",
    [
        VoteRequest(7, "n0", 8, 0, pre_vote=False),
        PushRequest(7, "n0", 0, 8, -1, 0),
        PushRequest(7, "n0", -1, -1, -1, 0, tuple(batches([b"a"], LogEnd(), 8))),
        PushResponse(7, "n0", False, -1, 0, 5, 4, 8),
        SnapshotRequest(7, "n0", Snapshot(LogEnd(3, 8, 99, 0), Membership(("n0",)), -1, b""), 0),
    ],
)
def test_entries_of_a_later_term_than_their_owner_is_in_are_refused(message: Message) -> None:
    with pytest.raises(CommandError, match="entry of term 8 from n0, which is in term 7"):
        wire.check_terms(through(wire.encode(message, "g")), 7)


def test_terms_of_a_working_group_are_taken() -> None:
    """Whoever is far behind, or ahead, is in a working group as well."""
    for term in (0, 6, 7, 8, 7 + wire.TERM_JUMP_MAX):
        wire.check_terms(VoteRequest(term, "n0", -1, -1, pre_vote=True), 7)
        wire.check_terms(PushResponse(term, "n0", False, -1, 0), 7)
    (batch,) = batches([b"a"], LogEnd(), 7)
    wire.check_terms(PushRequest(7, "n0", 4, 7, -1, 0, (batch,)), 0)


@pytest.mark.parametrize("name", ["", "n 1", "n1\n", "ñ-2"])
def test_a_name_that_no_vote_could_be_written_for_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="node id"):
        save_hard_state(SimDisk(), "/store", HardState(7, name))
    for message in (VoteRequest(7, name, 6, 9, pre_vote=False), LeadershipTransfer(7, name)):
        with pytest.raises(CommandError, match="bad _"):
            through(wire.encode(message, "g"))


@pytest.mark.parametrize(
    ("address", "read"),
    [
        ("10.0.0.7:40911", ("10.0.0.7", 40911)),
        ("", None),
        ("40911", None),
        ("host:99999", None),
        ("host:" + "9" * 5000, None),
        ("host:port", None),
    ],
)
def test_a_request_says_where_its_sender_listens(
    address: str, read: tuple[str, int] | None
) -> None:
    request = VoteRequest(3, "n7", 2, 9, True)
    command = decode_command(frame_of(wire.encode(request, "g", address)))
    assert wire.address_of(command) == read
    assert wire.decode(command, "g") == request


def test_an_answer_says_no_address() -> None:
    data = wire.encode(VoteResponse(3, "n7", True, True), "g", "10.0.0.7:40911")
    assert wire.address_of(decode_command(frame_of(data))) is None


def frame_of(data: bytes) -> Frame:
    buffer = FrameBuffer()
    view = buffer.writable()
    view[: len(data)] = data
    buffer.received(len(data))
    (frame,) = buffer.frames()
    return frame
