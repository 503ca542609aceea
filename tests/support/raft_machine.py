"""A hypothesis state machine over a group of cores, and the promises it looks after.

Small on purpose: three members and one that joins, few steps, so that the search reaches
the odd corners. Election safety is asserted by the group itself.
"""

from __future__ import annotations

import hashlib

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from raft_group import CHANGES, ENTRY_BYTES, Group

from shaketable.system.raft.core import RaftCore
from shaketable.system.raft.membership import MembershipError
from shaketable.system.raft.protocol import (
    DiskFullError,
    LogEnd,
    NotLeaderError,
    RaftConfig,
    Role,
    TransferError,
)

NAMES = ("n0", "n1", "n2", "n3")
MEMBERS = st.sampled_from(NAMES)
JOINER = "n3"


class GroupMachine(RuleBasedStateMachine):
    """Safety of Raft (figure 3), of snapshots and of membership changes."""

    core_type: type[RaftCore] = RaftCore

    @initialize(
        tail=st.sampled_from((1, 16 << 20)),
        lease=st.sampled_from((0.0, 200.0)),
        is_led=st.booleans(),
    )
    def begin(
        self, tail: int = 1, lease: float = 0.0, *, is_led: bool = True, size: int = 3
    ) -> None:
        config = RaftConfig(tail_bytes_max=tail, lease_ms=lease, promote_lag_entries_max=3)
        self.group = Group(size, core=self.core_type, config=config)
        self.committed: list[bytes] = []
        self.chain = [b""]  # what a snapshot behind so many entries must say
        self.committed_term = 0
        self.promised: dict[object, int] = {}  # read token -> what it must see
        self.reads = 0
        if is_led:
            self.elect("n0")

    def leader(self) -> str | None:
        leading = [(c.term, name) for name, c in self.group.cores.items() if c.role is Role.LEADER]
        return max(leading, default=(0, None))[1]

    def entries(self, name: str) -> list[bytes]:
        """A member's entries behind its log's begin."""
        log = self.group.cores[name].log
        out: list[bytes] = []
        while (index := log.start.index + 1 + len(out)) <= log.end_index:
            for batch in log.batches_from(index, 1 << 20):
                data = batch.data
                out += [data[at : at + ENTRY_BYTES] for at in range(0, len(data), ENTRY_BYTES)]
        return out

    # ---- what may happen ---------------------------------------------------------------

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
    def heal(self) -> None:
        self.group.cut.clear()

    @rule(name=MEMBERS)
    def elect(self, name: str) -> None:
        """The usual course of an election, so that most steps happen around a leader."""
        self.time_out(name)
        self.deliver_in_order(30)

    @rule(beats=st.integers(1, 4))
    def calm(self, beats: int) -> None:
        """Some heartbeats of the leader, all of them heard and answered; or an election."""
        for _ in range(beats):
            self.time_out(self.leader() or "n0")
            self.deliver_in_order(40)

    @rule(name=MEMBERS)
    def fall_behind(self, name: str) -> None:
        """One member misses entries that the leader then compacts."""
        leader = self.leader()
        if leader is None or leader == name:
            return
        self.cut_off(name, one_way=False)
        self.append(leader, 2)
        self.calm(2)
        self.compact(leader, 0)
        self.heal()

    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        if self.group.network:
            self.group.network.pop(data.draw(st.integers(0, len(self.group.network) - 1)))

    @rule(name=MEMBERS, count=st.integers(1, 3))
    def append(self, name: str, count: int) -> None:
        core = self.group.cores.get(name)
        if core and core.role is Role.LEADER:
            try:
                self.group.append(name, count)
            except (DiskFullError, TransferError):
                self.group.pump(name)

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

    @rule(name=MEMBERS, is_full=st.booleans())
    def disk_full(self, name: str, is_full: bool) -> None:
        if name in self.group.cores:
            self.group.disk_full(name, is_full=is_full)

    @rule(name=MEMBERS)
    def crash_and_start(self, name: str) -> None:
        if name not in self.group.names:
            return
        if name in self.group.cores:
            self.group.crash(name)
        self.group.start(name)

    @rule(kind=st.sampled_from(tuple(CHANGES)), member=MEMBERS)
    def change(self, kind: str, member: str) -> None:
        """The leader is asked for a membership change; a member is started before it joins."""
        leader = self.leader()
        if leader is None:
            return
        if kind == "add" and member not in self.group.names:
            self.group.join(member)
        try:
            self.group.change(leader, CHANGES[kind](member))
        except (MembershipError, NotLeaderError, TransferError, DiskFullError):
            self.group.pump(leader)

    @rule()
    def promote(self) -> None:
        leader = self.leader()
        if leader and (learner := self.group.cores[leader].learner_to_promote):
            self.change("promote", learner)

    @rule(member=MEMBERS)
    def transfer(self, member: str) -> None:
        leader = self.leader()
        if leader is not None:
            try:
                self.group.transfer(leader, member)
            except (NotLeaderError, TransferError):
                self.group.pump(leader)

    @rule(name=MEMBERS, keep=st.integers(0, 2))
    def compact(self, name: str, keep: int) -> None:
        """A member lets a snapshot stand for all but its last committed entries."""
        core = self.group.cores.get(name)
        if core is None:
            return
        self.committed_stands()  # before it is out of sight
        index = core.ledger.commit_index - keep
        begin = core.log.start.index
        if index > begin:
            kept = self.entries(name)[: index - begin]
            state = core.ledger.snapshot.state if core.ledger.snapshot else b""
            for entry in kept:
                state = link(state, entry)
            self.group.compact(name, index, state)

    # ---- what must hold ----------------------------------------------------------------

    @invariant()
    def committed_stands(self) -> None:
        """What was acknowledged or committed stays, in order; each prefix is the same."""
        if not hasattr(self, "committed"):
            return
        for name, core in self.group.cores.items():
            seen = max(core.ledger.commit_index, self.group.acknowledged[name]) + 1
            begin = core.log.start.index + 1
            entries = self.entries(name)[: seen - begin]
            known = min(seen, len(self.committed))
            assert begin <= len(self.committed), f"{name} compacted what nobody committed"
            assert entries[: known - begin] == self.committed[begin:known], (
                f"{name} lost what was acknowledged"
            )
            for entry in entries[known - begin :]:
                self.committed.append(entry)
                self.chain.append(link(self.chain[-1], entry))
                self.committed_term = max(self.committed_term, core.term)
        self._reads_are_fresh()

    def _reads_are_fresh(self) -> None:
        for name, token, outcome in self.group.reads:
            must_see = self.promised.pop(token)
            if outcome == "ready":
                commit = self.group.cores[name].ledger.commit_index
                assert commit + 1 >= must_see, f"read {token} at {name} misses entries"
        self.group.reads.clear()

    @invariant()
    def leaders_are_complete(self) -> None:
        """A leader of a later term has everything that was committed (Raft section 5.4.3)."""
        if not hasattr(self, "committed"):
            return
        for name, core in self.group.cores.items():
            if core.role is Role.LEADER and core.term > self.committed_term:
                begin = core.log.start.index + 1
                entries = self.entries(name)[: len(self.committed) - begin]
                assert entries == self.committed[begin:], f"{name} leads without all entries"

    @invariant()
    def snapshots_are_true(self) -> None:
        """A snapshot stands for exactly the committed entries in front of it."""
        if not hasattr(self, "committed"):
            return
        for name, core in self.group.cores.items():
            snapshot, begin = core.ledger.snapshot, core.log.start
            assert (snapshot.end if snapshot else LogEnd()) == begin, f"{name} has no {begin}"
            if snapshot is not None:
                assert snapshot.state == self.chain[begin.index + 1]

    @invariant()
    def log_matching(self) -> None:
        """Two logs that agree on index and term agree on everything up to there."""
        if not hasattr(self, "committed"):
            return
        logs = [(c.log.start.index + 1, self.entries(n)) for n, c in self.group.cores.items()]
        for one_begin, one in logs:
            for other_begin, other in logs:
                begin = max(one_begin, other_begin)
                here, there = one[begin - one_begin :], other[begin - other_begin :]
                shared = min(len(here), len(there))
                same = [here[i][8:24] == there[i][8:24] for i in range(shared)]
                last = max((i for i in range(shared) if same[i]), default=-1)
                assert here[: last + 1] == there[: last + 1]

    @invariant()
    def bounded(self) -> None:
        if hasattr(self, "committed"):
            for core in self.group.cores.values():
                ledger = core.ledger
                assert ledger.durable_index <= core.log.end_index
                assert core.log.start.index <= ledger.commit_index <= core.log.end_index
                assert ledger.memberships.current_index <= core.log.end_index


def link(before: bytes, entry: bytes) -> bytes:
    """What a snapshot says behind one entry more."""
    return hashlib.sha1(before + entry, usedforsecurity=False).digest()
