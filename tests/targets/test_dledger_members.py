"""A member is taken out of a DLedger group: what its members say counts, not a lost answer."""

from __future__ import annotations

from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest
import trio
import trio.testing

from shaketable.harness.contracts.errors import DefiniteError
from shaketable.harness.targets import dledger_members
from shaketable.system.client import OutcomeUnknownError, RefusedError

LAYOUTS = {node: SimpleNamespace() for node in ("n0", "n1", "n2")}


class Group:
    """An admin's view of it: answers of removals are scripted."""

    def __init__(self, *answers: tuple[bool, Exception | None]) -> None:
        self.members = ["n0", "n1", "n2"]
        self.answers = list(answers)  # whether it happens, and what is said
        self.deaf = 0

    async def membership(self):
        await trio.lowlevel.checkpoint()
        if self.deaf:
            self.deaf -= 1
            raise OutcomeUnknownError("no node answers")
        return SimpleNamespace(voters=tuple(self.members), learners=())

    async def remove_member(self, member):
        await trio.lowlevel.checkpoint()
        happens, said = self.answers.pop(0)
        if happens:
            self.members.remove(member)
        if said is not None:
            raise said


def remove(monkeypatch, group: Group, node: str = "n1"):
    @asynccontextmanager
    async def admin(*_):
        yield group

    monkeypatch.setattr(dledger_members, "_admin", admin)

    async def run():
        return await dledger_members.remove(LAYOUTS, lambda layout: "", node, 5.0)

    return trio.run(run, clock=trio.testing.MockClock(autojump_threshold=0))


UNKNOWN = OutcomeUnknownError("no answer in time")


@pytest.mark.parametrize(
    "answers",
    [
        [(True, None)],
        [(True, UNKNOWN)],
        [(False, UNKNOWN), (True, None)],
        [(False, UNKNOWN), (False, RefusedError(1, "a change is under way")), (True, UNKNOWN)],
    ],
)
def test_who_is_out_was_taken_out_whatever_the_leader_answered(monkeypatch, answers):
    group = Group(*answers)
    assert remove(monkeypatch, group) == ("n0", "n2")
    assert not group.answers


def test_a_refusal_is_passed_on(monkeypatch):
    with pytest.raises(RefusedError):
        remove(monkeypatch, Group((False, RefusedError(1, "no leader"))))


def test_who_was_no_member_before_was_not_taken_out(monkeypatch):
    with pytest.raises(DefiniteError, match="n7 is no member"):
        remove(monkeypatch, Group(), "n7")


def test_where_nobody_answers_before_anything_was_asked_nothing_may_have_happened(monkeypatch):
    group = Group()
    group.deaf = 1
    with pytest.raises(OutcomeUnknownError):
        remove(monkeypatch, group)


def test_a_removal_that_never_shows_is_unknown(monkeypatch):
    with pytest.raises(OutcomeUnknownError):
        remove(monkeypatch, Group(*[(False, UNKNOWN)] * 100))
