"""Which replies have to follow a read index: those of a leader, each to its own request."""

from __future__ import annotations

import pytest

from shaketable.system.invariants.confirmed_reads import ConfirmedReads
from shaketable.system.invariants.violated import Violated
from shaketable.system.remoting.codes import RequestCode, ResponseCode
from shaketable.system.remoting.command import Command, response

ASKED = Command(RequestCode.GET_MAX_OFFSET, 7)


def reply(opaque: int, code: int = ResponseCode.SUCCESS, **ext: str) -> dict[int, list[bytes]]:
    return {1: [response(opaque, code, None, ext)]}


@pytest.fixture
def reads() -> ConfirmedReads:
    made = ConfirmedReads("n0")
    made.begun("before")
    made.asked(1, [ASKED], others_serve=False)
    return made


def test_a_read_that_began_before_is_not_enough(reads: ConfirmedReads) -> None:
    reads.settled(["before"], [])
    with pytest.raises(Violated, match="answers-come-from-leaders: it answered GET_MAX_OFFSET"):
        reads.check(reply(7))


def test_any_read_that_began_since_is_enough(reads: ConfirmedReads) -> None:
    reads.begun("of another")
    reads.settled(["of another"], ["before"])
    reads.check(reply(7))


def test_a_refusal_needs_no_leader(reads: ConfirmedReads) -> None:
    reads.check(reply(7, ResponseCode.SYSTEM_BUSY))
    reads.asked(1, [Command(RequestCode.PULL_MESSAGE, 8)], others_serve=False)
    reads.check(reply(8, ResponseCode.PULL_RETRY_IMMEDIATELY, leaderId="n1"))


def test_any_member_may_serve_pulls_where_that_is_set(reads: ConfirmedReads) -> None:
    reads.asked(1, [Command(RequestCode.PULL_MESSAGE, 8)], others_serve=True)
    reads.check(reply(8))


def test_a_number_that_is_used_twice_is_not_judged(reads: ConfirmedReads) -> None:
    reads.asked(1, [Command(RequestCode.HEART_BEAT, 7)], others_serve=False)
    reads.check(reply(7))


def test_a_connection_that_closed_is_forgotten(reads: ConfirmedReads) -> None:
    reads.closed(1)
    reads.check(reply(7))
