"""The promises of the core under a hypothesis state machine, and bugs that break them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test as run_machine
from msgspec.structs import replace
from raft_group import Group, Storage
from raft_machine import GroupMachine

from shaketable.system.mutants.consensus.replication import AckBeforeQuorum
from shaketable.system.raft.core import RaftCore
from shaketable.system.raft.ledger import Ledger
from shaketable.system.raft.protocol import (
    Batch,
    InvariantError,
    NotLeaderError,
    Role,
    SaveState,
    Write,
)


class ReadsAtOnce(RaftCore):
    """Planted bug: a leader serves reads without asking whether it still leads (E19)."""

    def read(self, token: object, now_ms: float) -> None:
        if self.role is not Role.LEADER or not self.is_ready:
            raise NotLeaderError(self.leader)
        self._effects.reads_ready.append(token)


class LyingLedger(Ledger):
    """Counts entries as durable that the disk may still lose."""

    def append(self, batch: Batch) -> None:
        super().append(batch)
        self.durable_index = self.log.end_index


class AcknowledgesUnsynced(RaftCore):
    """Planted bug: copies count before they are synced (DLEDGER.md E18)."""

    ledger_type = LyingLedger


def machine(core: type[RaftCore]) -> type[GroupMachine]:
    class Machine(GroupMachine):
        core_type = core

    return Machine


QUICK = settings(
    max_examples=500,
    stateful_step_count=50,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
HUNT = settings(QUICK, max_examples=5000, phases=[Phase.generate])


def test_the_core_keeps_its_promises() -> None:
    run_machine(machine(RaftCore), settings=QUICK)


def test_a_planted_bug_is_found() -> None:
    with pytest.raises((AssertionError, InvariantError)):
        run_machine(machine(AckBeforeQuorum), settings=HUNT)


def story(core: type[RaftCore]) -> GroupMachine:
    steps = machine(core)()
    steps.begin()
    steps.elect("n0")
    steps.committed_stands()
    return steps


def followers_crash_before_they_sync(core: type[RaftCore]) -> None:
    steps = story(core)
    for name in ("n1", "n2"):
        steps.disk(name, slow=True)
    steps.append("n0", 2)
    steps.deliver_in_order(12)
    steps.committed_stands()
    for name in ("n0", "n1", "n2"):
        steps.crash_and_start(name)
    for name in ("n1", "n2"):
        steps.disk(name, slow=False)
    steps.cut_off("n0", one_way=False)
    steps.elect("n1")
    steps.elect("n1")
    steps.committed_stands()


def a_deposed_leader_is_read(core: type[RaftCore]) -> None:
    steps = story(core)
    steps.cut_off("n0", one_way=False)
    steps.elect("n1")
    steps.append("n1", 1)
    steps.deliver_in_order(12)
    steps.committed_stands()
    steps.read("n0")
    steps.committed_stands()


@pytest.mark.parametrize(
    ("tell", "planted"),
    [
        (followers_crash_before_they_sync, AcknowledgesUnsynced),
        (a_deposed_leader_is_read, ReadsAtOnce),
    ],
)
def test_a_story_that_only_the_planted_bug_fails(
    tell: Callable[[type[RaftCore]], None], planted: type[RaftCore]
) -> None:
    tell(RaftCore)
    with pytest.raises(AssertionError):
        tell(planted)


class ForgetfulDisk(Storage):
    """Planted bug: the vote is not written (DLEDGER.md E16)."""

    def write(self, seq: int, write: Write) -> None:
        super().write(
            seq, replace(write, voted_for=None) if isinstance(write, SaveState) else write
        )


def two_candidates_ask_one_voter(storage: type[Storage]) -> Group:
    """n0 and n2 campaign for term 1; n1 votes for n0, crashes, starts, and is asked by n2."""
    group = Group(3)
    for name in group.names:
        group.disks[name] = storage()
        group.start(name)
    group.now_ms = 500.0
    group.tick("n0")
    group.tick("n2")
    group.network = [m for m in group.network if m[1] == "n1"]
    for _ in range(4):  # both pre-votes, both answers
        group.deliver()
    asked = [m for m in group.network if m[1] == "n1"]
    assert [m[0] for m in asked] == ["n0", "n2"]
    group.network = [asked[0]]
    group.deliver()  # n1 votes for n0 ...
    group.deliver()  # ... which leads
    assert group.cores["n0"].role is Role.LEADER
    group.crash("n1")
    group.start("n1")
    group.network = [asked[1]]
    while group.network:
        group.deliver()
    return group


def test_a_vote_survives_a_crash() -> None:
    group = two_candidates_ask_one_voter(Storage)
    assert group.cores["n2"].role is not Role.LEADER


def test_a_forgotten_vote_makes_two_leaders() -> None:
    with pytest.raises(AssertionError, match="both lead term 1"):
        two_candidates_ask_one_voter(ForgetfulDisk)
