"""A hypothesis state machine over the core: whatever is delayed, lost, repeated or crashes.

Small on purpose: three members, few steps, so that the search reaches the odd corners.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from hypothesis.stateful import run_state_machine_as_test as run_machine
from raft_group import ENTRY_BYTES, Group, Storage

from system.mutants.ack_before_quorum import AckBeforeQuorum
from system.raft.batch import Batch
from system.raft.core import RaftCore
from system.raft.ledger import Ledger
from system.raft.protocol import InvariantError, NotLeaderError, RaftConfig, Role, SaveState, Write

MEMBERS = st.sampled_from(("n0", "n1", "n2"))


class GroupMachine(RuleBasedStateMachine):
    """Safety of Raft (figure 3): election safety is asserted by the group itself."""

    core_type: type[RaftCore] = RaftCore

    @initialize(tail=st.sampled_from((1, 16 << 20)))
    def begin(self, tail: int) -> None:
        self.group = Group(0, core=self.core_type, config=RaftConfig(tail_bytes_max=tail))
        self.group.names = ["n0", "n1", "n2"]
        for name in self.group.names:
            self.group.disks[name] = Storage()
            self.group.start(name)
        self.committed: list[bytes] = []
        self.promised: dict[object, int] = {}  # read token -> what it must see
        self.reads = 0

    def entries(self, name: str) -> list[bytes]:
        log = self.group.cores[name].log
        out: list[bytes] = []
        while len(out) <= log.end_index:
            for batch in log.batches_from(len(out), 1 << 20):
                out += [
                    batch.data[at : at + ENTRY_BYTES]
                    for at in range(0, len(batch.data), ENTRY_BYTES)
                ]
        return out

    @rule(name=MEMBERS)
    def time_out(self, name: str) -> None:
        """Time passes until something is due at that member, and only that happens."""
        if core := self.group.cores.get(name):
            self.group.now_ms = max(self.group.now_ms, core.deadline_ms)
            self.group.tick(name)

    @rule(data=st.data(), repeat=st.booleans())
    def deliver(self, data: st.DataObject, repeat: bool) -> None:
        if self.group.network:
            last = len(self.group.network) - 1
            position = data.draw(st.integers(0, last))
            if repeat:
                self.group.network.append(self.group.network[position])
            self.group.deliver(position)

    @rule(count=st.integers(1, 12))
    def deliver_in_order(self, count: int) -> None:
        for _ in range(count):
            if self.group.network:
                self.group.deliver()

    @rule(name=MEMBERS, one_way=st.booleans())
    def cut_off(self, name: str, one_way: bool) -> None:
        for peer in self.group.names:
            self.group.cut.add((name, peer))
            if not one_way:
                self.group.cut.add((peer, name))

    @rule()
    def mend(self) -> None:
        self.group.cut.clear()

    @rule(name=MEMBERS)
    def elect(self, name: str) -> None:
        """The usual course of an election, so that most steps happen around a leader."""
        self.time_out(name)
        for _ in range(30):
            if self.group.network:
                self.group.deliver()

    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        if self.group.network:
            self.group.network.pop(data.draw(st.integers(0, len(self.group.network) - 1)))

    @rule(name=MEMBERS, count=st.integers(1, 3))
    def append(self, name: str, count: int) -> None:
        core = self.group.cores.get(name)
        if core and core.role is Role.LEADER:
            self.group.append(name, count)

    @rule(name=MEMBERS)
    def read(self, name: str) -> None:
        if name in self.group.cores:
            self.reads += 1
            token = f"r{self.reads}"
            self.promised[token] = len(self.committed)
            try:
                self.group.read(name, token)
            except NotLeaderError:
                del self.promised[token]

    @rule(name=MEMBERS, slow=st.booleans())
    def disk(self, name: str, slow: bool) -> None:
        if slow:
            self.group.slow_disks.add(name)
        elif name in self.group.cores:
            self.group.slow_disks.discard(name)
            self.group.sync(name)

    @rule(name=MEMBERS)
    def crash_and_start(self, name: str) -> None:
        if name in self.group.cores:
            self.group.crash(name)
        self.group.start(name)

    @invariant()
    def acknowledged_stands(self) -> None:
        """What was acknowledged stays, in order; every committed prefix is the same."""
        if not hasattr(self, "committed"):
            return
        for name, core in self.group.cores.items():
            seen = max(core.ledger.commit_index, self.group.acknowledged[name]) + 1
            entries = self.entries(name)[:seen]
            known = min(seen, len(self.committed))
            assert entries[:known] == self.committed[:known], f"{name} lost what was acknowledged"
            if core.role is Role.LEADER:
                self.committed += entries[known:]
        for name, token, outcome in self.group.reads:
            must_see = self.promised.pop(token)
            if outcome == "ready":
                commit = self.group.cores[name].ledger.commit_index
                assert commit + 1 >= must_see, f"read {token} at {name} misses entries"
        self.group.reads.clear()

    @invariant()
    def log_matching(self) -> None:
        """Two logs that agree on index and term agree on everything up to there."""
        if not hasattr(self, "committed"):
            return
        logs = [self.entries(name) for name in self.group.cores]
        for one in logs:
            for other in logs:
                shared = min(len(one), len(other))
                same = [one[i][8:24] == other[i][8:24] for i in range(shared)]
                last = max((i for i in range(shared) if same[i]), default=-1)
                assert one[: last + 1] == other[: last + 1]

    @invariant()
    def bounded(self) -> None:
        if hasattr(self, "committed"):
            for core in self.group.cores.values():
                assert core.ledger.durable_index <= core.log.end_index
                assert core.ledger.commit_index <= core.log.end_index


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
    steps.begin(1)
    steps.elect("n0")
    steps.elect("n0")
    steps.acknowledged_stands()
    return steps


def followers_crash_before_they_sync(core: type[RaftCore]) -> None:
    steps = story(core)
    for name in ("n1", "n2"):
        steps.disk(name, slow=True)
    steps.append("n0", 2)
    steps.deliver_in_order(12)
    steps.acknowledged_stands()
    for name in ("n0", "n1", "n2"):
        steps.crash_and_start(name)
    for name in ("n1", "n2"):
        steps.disk(name, slow=False)
    steps.cut_off("n0", one_way=False)
    steps.elect("n1")
    steps.elect("n1")
    steps.acknowledged_stands()


def a_deposed_leader_is_read(core: type[RaftCore]) -> None:
    steps = story(core)
    steps.cut_off("n0", one_way=False)
    steps.elect("n1")
    steps.append("n1", 1)
    steps.deliver_in_order(12)
    steps.acknowledged_stands()
    steps.read("n0")
    steps.acknowledged_stands()


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
    for _ in range(4):  # both canvasses, both answers
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
