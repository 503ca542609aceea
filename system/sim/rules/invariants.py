"""Invariants of every step of a simulated group, checked as it happens.

Each member has a `Shadow`: what it has written, made durable and reported committed. The group has
one committed sequence. An entry's chainCrc covers the entry and all before it, so equal chainCrcs
at an index mean equal logs up to it. Source: Raft figure 3 (election safety, log matching, leader
completeness, state machine safety).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from shaketable.system.broker.limits import DataFile, ExpiryConfig
from shaketable.system.invariants.durability import note_synced
from shaketable.system.invariants.elections import LeaderStickiness
from shaketable.system.invariants.violated import Violated
from shaketable.system.raft.core import RaftCore
from shaketable.system.raft.protocol import (
    ENTRY_HEADER_BYTES,
    Append,
    Batch,
    Compact,
    Install,
    LogEnd,
    Role,
    RoleChange,
    SaveState,
    Truncate,
    Write,
)
from shaketable.system.sim.disk import PowerLoss
from shaketable.system.sim.rules.shadow import Shadow
from shaketable.system.sim.run_trace import Counts
from shaketable.system.store.commit_log import CommitLog
from shaketable.system.store.disk import DiskFailed
from shaketable.system.store.entry import chain_crc, iter_messages
from shaketable.system.store.state_files import HardState

# Invariants of elections: who may be elected, vote, campaign and go on leading.
#
# Committed entries survive any election that could be held now. That is checked at each commit,
# with the members' current logs and memberships: whether such an election happens in the run is
# luck. Source: Raft sections 5.4.2 and 5.4.3 (leader completeness), where each candidate uses the
# membership in its own log.
#
# A member sends nothing that depends on writes not yet durable, and campaigns only after a pre-
# vote. That is checked when a message is sent, so that no crash is needed to show a wrong order.
# Source: Raft figure 2 ("updated on stable storage before responding to RPCs"); Ongaro's
# dissertation sections 3.10 and 9.6 (pre-vote; only a leadership transfer does without);
# DLEDGER.md E12, E15, E16, E18.

STALL_SLACK_MS = 500.0
"""A leader notices only at a heartbeat that its disk has stalled."""


class ElectedMember(Protocol):
    """A member that leads or may lead, and the clock that its lease runs by."""

    name: str
    is_up: bool
    core: RaftCore

    def local_ms(self) -> float:
        """Return its monotonic clock."""
        ...


def check_committed_survives(
    shadows: Iterable[Shadow], core: RaftCore, index: int, crc: int
) -> None:
    """Raise Violated where running members could elect one that lacks entry `index`.

    `core` has committed the entry; `crc` is its chainCrc.
    """
    term = core.log.term_at(index)
    running = [(shadow, shadow.core) for shadow in shadows if shadow.is_up and shadow.core]
    for shadow, other in running:
        log, membership = other.log, other.membership
        if log.end_term <= term and membership == core.membership:
            continue  # if it lacks the entry, each majority has a voter with a newer log
        if shadow.name not in membership.voters or shadow.holds(index, crc):
            continue
        # The up-to-date check of Raft section 5.4.1: a voter grants its vote unless its own log is
        # newer.
        place = log.end_term, log.end_index
        votes = sum(
            voter.name in membership.voters and (asked.log.end_term, asked.log.end_index) <= place
            for voter, asked in running
        )
        if votes >= membership.quorum:
            raise Violated(
                "committed-stays-committed",
                f"{index} is committed; {votes} members could elect {shadow.name} without it",
            )


def check_no_lease(members: Iterable[ElectedMember], elected: ElectedMember) -> None:
    """Raise Violated where a member is elected while an earlier leader's lease holds.

    That leader might serve stale reads from now on; whether a client reads just then is luck.
    Source: Ongaro's dissertation section 6.4.1.
    """
    for other in members:
        if other is elected or not other.is_up or other.core.term >= elected.core.term:
            continue
        if other.core.holds_lease(other.local_ms()):
            raise Violated(
                "lease-shuts-out",
                f"{elected.name} leads term {elected.core.term}, and {other.name} of term"
                f" {other.core.term} has a lease",
                elected.name,
            )


def check_caught_up(shadows: Mapping[str, Shadow], core: RaftCore, batch: Batch) -> None:
    """Raise Violated where a leader promotes a learner that lacks much of the log.

    Commits from then on wait for it. Source: Ongaro's dissertation section 4.2.1.
    """
    if core.role is not Role.LEADER or batch.term != core.term:
        return
    for index, membership in batch.memberships:
        before = core.membership_at(index - 1)[1]
        for member in set(before.learners).intersection(membership.voters):
            durable_index = shadows[member].durable_index if member in shadows else -1
            lag = core.ledger.commit_index - durable_index
            if lag > core.config.promote_lag_entries_max:
                raise Violated(
                    "voters-have-caught-up", f"{member} becomes a voter, {lag} entries behind"
                )


def check_campaign(shadow: Shadow, core: RaftCore, write: Write) -> None:
    """Raise Violated where a member campaigns without a majority of pre-votes.

    Only a transferred leadership needs none.
    """
    if not isinstance(write, SaveState) or write.voted_for != shadow.name:
        return
    asked = shadow.asked_term == write.term - 1
    if not asked and len(shadow.grants) + 1 < core.membership.quorum:
        raise Violated(
            "pre-vote-before-campaign",
            f"term {write.term} is opened with {len(shadow.grants)} of"
            f" {core.membership.quorum - 1} members asked for it",
            shadow.name,
        )
    shadow.grants.clear()


def check_stalled(shadow: Shadow, core: RaftCore, waiting_ms: float) -> None:
    """Raise Violated where a member still leads whose disk has stalled for too long."""
    limit_ms = core.config.disk_stall_max_ms + STALL_SLACK_MS
    if core.role is Role.LEADER and waiting_ms > limit_ms:
        raise Violated(
            "stalled-disk-leads-not", f"a write waits for {waiting_ms:.0f} ms", shadow.name
        )


# All invariants of a group, step by step.

_CHAIN_CRC_AT_36 = struct.Struct(">36xI").unpack_from
_BODY_AT = 88
_READ_BYTES = 1 << 20

Queue = tuple[bytes, int]


class Invariants:
    """All invariants of one run. Every method raises Violated."""

    def __init__(self, counts: Counts) -> None:
        self._counts = counts
        self.shadows: dict[str, Shadow] = {}
        self.leaders: dict[int, str] = {}
        self.committed_crcs: list[int] = []
        self.queues: dict[Queue, list[bytes]] = {}
        """Each queue's committed messages as they are stored, by offset."""
        self.older_index = -1
        """Last index of entries from before the run that a majority of disks holds."""
        self.expired_position = 0
        """Up to where the log has expired on some member, at some time."""
        self._committed_in: dict[int, int] = {}  # term -> the last index first committed in it
        self._ends: dict[tuple[int, int], tuple[Batch, int, int]] = {}

    @property
    def committed_index(self) -> int:
        """The last index that any member ever reported committed."""
        return len(self.committed_crcs) - 1

    # ---- start and recovery ------------------------------------------------------------

    def started(self, name: str, core: RaftCore, log: CommitLog, now_ms: float) -> Shadow:
        """A member recovered at its own `now_ms`: what was durable must be there."""
        shadow = self.shadows.get(name)
        if shadow is None:
            shadow = self.shadows[name] = Shadow(name)
        else:
            self._check_recovered(shadow, log)
        shadow.core, shadow.log, shadow.is_up = core, log, True
        shadow.in_flight, shadow.stickiness = (), LeaderStickiness(now_ms)
        shadow.reset_to(log.end.index, log.end.chain_crc)
        shadow.durable_index = log.end.index
        shadow.state = log.state
        shadow.commit_index = -1
        self.committed(shadow, core.ledger.commit_index)
        return shadow

    def _check_recovered(self, shadow: Shadow, log: CommitLog) -> None:
        states = [shadow.state]
        kept = shadow.durable_index
        for write in shadow.in_flight:
            if isinstance(write, SaveState):
                states.append(HardState(write.term, write.voted_for))
            elif isinstance(write, Truncate):
                kept = min(kept, write.end_index)
            elif isinstance(write, Install):
                kept = -1
        if log.state not in states:
            raise Violated(
                "vote-is-durable", f"{log.state} was recovered, {shadow.state} was durable"
            )
        if log.end.index < kept:
            raise Violated(
                "durable-survives", f"the log ends at {log.end.index}, {kept} was durable"
            )
        self._check_removed(shadow, log)
        if kept > log.start.index and kept >= 0:
            found = log.log_end_at(kept).chain_crc
            try:
                expected = shadow.crc_at(kept)
            except (DiskFailed, PowerLoss):
                # Only the old log knew entries from before its last start, and it died with its
                # process. Entries that this member reported committed, the group knows as well.
                expected = self.committed_crcs[kept] if kept <= shadow.commit_index else found
            if found != expected:
                raise Violated("durable-survives", f"entry {kept} is another one after recovery")

    def _check_removed(self, shadow: Shadow, log: CommitLog) -> None:
        """Durably removed entries do not come back, nor do entries that were never written."""
        is_cut = any(isinstance(write, Truncate | Install) for write in shadow.in_flight)
        if not is_cut and log.end.index > shadow.end_index:
            raise Violated(
                "removed-stays-removed",
                f"the log ends at {log.end.index}, it was written up to {shadow.end_index}",
            )

    def ordered(self, shadow: Shadow, writes: Sequence[Write]) -> None:
        """A member handed writes to its disk."""
        for write in writes:
            if isinstance(write, Append):
                self._appended(shadow, write.batch)
            elif isinstance(write, Truncate):
                self._counts.truncations += 1
                if write.end_index < shadow.commit_index:
                    raise Violated(
                        "committed-stays",
                        f"entries after {write.end_index} go, {shadow.commit_index} was committed",
                    )
                shadow.note_removed(write.end_index + 1)
                shadow.truncate(write.end_index)
                shadow.durable_index = min(shadow.durable_index, write.end_index)
            elif isinstance(write, Install):
                self._counts.snapshot_installs += 1
                end = write.snapshot.end
                self._check_crc(end.index, end.chain_crc, "snapshot")
                shadow.reset_to(end.index, end.chain_crc)
                shadow.durable_index = min(shadow.durable_index, end.index)
                self.expired_position = max(self.expired_position, end.position)
            elif isinstance(write, Compact):
                self._counts.compactions += 1
                end = write.snapshot.end
                self.expired_position = max(self.expired_position, end.position)
                self._check_crc(end.index, end.chain_crc, "compaction")
                if shadow.expirable_index is not None and end.index > shadow.expirable_index:
                    raise Violated(
                        "reserved-stays",
                        f"the log's files up to entry {end.index} go, those up to "
                        f"{shadow.expirable_index} were old enough",
                    )
                if shadow.expirable_index is not None and end.index > shadow.step_index:
                    raise Violated(
                        "expiry-goes-in-steps",
                        f"the log's files up to entry {end.index} go, a step ends at "
                        f"{shadow.step_index}",
                    )

    def measured(
        self,
        shadow: Shadow,
        files: Sequence[DataFile],
        *,
        used_ratio: float,
        wall_ms: int,
        expiry: ExpiryConfig,
        snapshot_from: int,
    ) -> None:
        """A member reported file ages and disk usage to its broker.

        A file that was once old enough stays so: the compaction may come later. Files before entry
        `snapshot_from` go with the first one after it (`system.raft.core`).
        """
        first_index = next((f.end.index for f in files if f.end.index >= snapshot_from), -1)
        may_go = -1 if shadow.expirable_index is None else shadow.expirable_index
        for file in files:
            if wall_ms - file.last_store_ms >= expiry.reserved_ms:
                may_go = max(may_go, file.end.index)
        if files and used_ratio > expiry.force_clean_ratio:
            may_go = max(
                may_go,
                first_index,
                *(file.end.index for file in files[: expiry.forced_files_a_step_max]),
            )
        shadow.expirable_index = may_go
        step = files[: expiry.files_a_step_max]
        ends = (file.end.index for file in step)
        shadow.step_index = max(shadow.step_index, first_index, *ends)

    def _appended(self, shadow: Shadow, batch: Batch) -> None:
        if batch.first_index != shadow.end_index + 1:
            raise Violated(
                "log-contiguous", f"entry {batch.first_index} is written after {shadow.end_index}"
            )
        key = (batch.last_index, batch.term)
        known = self._ends.get(key)
        if known is not None and known[0] is batch:
            _, before, crc = known
            if before != shadow.end_crc:
                raise Violated("log-matching", f"the entry before {batch.first_index} differs")
        else:
            data = batch.data
            crc = batch.last_chain_crc()
            stored = _CHAIN_CRC_AT_36(data)[0]
            # The first entry's chainCrc includes that of the entry before it. By induction equal
            # chainCrcs mean equal logs up to there (the log matching property).
            if stored != chain_crc(shadow.end_crc, data[:ENTRY_HEADER_BYTES]):
                raise Violated("log-matching", f"the entry before {batch.first_index} differs")
            if known is None:
                self._ends[key] = (batch, shadow.end_crc, crc)
            elif known[2] != crc:
                raise Violated("log-matching", f"two entries {key[0]} of term {key[1]}")
        self._check_removed_for_cause(shadow, batch)
        if batch.memberships and shadow.core is not None:
            check_caught_up(self.shadows, shadow.core, batch)
        shadow.batches.append(batch)
        shadow.lasts.append(batch.last_index)
        shadow.crcs.append(crc)
        shadow.end_index, shadow.end_crc = batch.last_index, crc

    def _check_removed_for_cause(self, shadow: Shadow, batch: Batch) -> None:
        """An entry is removed only where the leader has another (Raft figure 2, step 3)."""
        removed, shadow.removed = shadow.removed, None
        if removed == (batch.first_index, _CHAIN_CRC_AT_36(batch.data)[0]):
            raise Violated(
                "only-conflicts-are-removed",
                f"entry {batch.first_index} is removed, and written again as it was",
                shadow.name,
            )

    def synced(self, shadow: Shadow, writes: Sequence[Write]) -> None:
        """Writes were carried out, as durable as the ack policy requires."""
        note_synced(shadow, writes)
        for write in writes:
            if isinstance(write, Compact):
                self._check_gone(shadow, write.snapshot.end.index)

    def _check_gone(self, shadow: Shadow, index: int) -> None:
        """Entries that a snapshot replaces are removed from the log, or the disk fills up."""
        log = shadow.log
        if log is not None and log.start.index < index:
            raise Violated(
                "compacted-is-gone",
                f"a snapshot replaces the entries up to {index}, the log starts after"
                f" {log.start.index}",
                shadow.name,
            )

    # ---- elections --------------------------------------------------------------------

    def changed_role(self, shadow: Shadow, change: RoleChange) -> None:
        """One leader a term, and it has every committed entry."""
        if change.role is not Role.LEADER:
            return
        self._counts.elections += 1
        if shadow.asked_term == change.term - 1:
            self._counts.transfers += 1
        other = self.leaders.setdefault(change.term, shadow.name)
        if other != shadow.name:
            raise Violated(
                "one-leader-a-term", f"{other} and {shadow.name} both lead term {change.term}"
            )
        self._check_complete(shadow, change.term)

    def _check_complete(self, shadow: Shadow, term: int) -> None:
        """A leader has all entries committed in earlier terms; it cannot know of later terms.

        A member that was paused may count its votes of a term that is long over.
        """
        # The last of them stands for all: its chainCrc covers the entries before it.
        last = max((index for at, index in self._committed_in.items() if at < term), default=-1)
        if last >= 0 and not shadow.holds(last, self.committed_crcs[last]):
            raise Violated(
                "leader-completeness",
                f"{shadow.name} leads with a log up to {shadow.end_index} that lacks what was"
                f" committed up to {last}",
                shadow.name,
            )

    # ---- commitment -------------------------------------------------------------------

    def committed(self, shadow: Shadow, index: int) -> None:
        """A member reports entries as committed: the same ones as all other members do."""
        if index <= shadow.commit_index:
            if index < shadow.commit_index:
                raise Violated("commit-never-falls", f"from {shadow.commit_index} to {index}")
            return
        if index > shadow.end_index:
            raise Violated(
                "committed-is-held", f"{index} is committed, the log ends at {shadow.end_index}"
            )
        # State machine safety: comparing the last common entry compares all entries before it.
        known = min(index, self.committed_index)
        if known >= 0:
            self._check_crc(known, shadow.crc_at(known), shadow.name)
        if index > self.committed_index:
            self._extend(shadow, index)
        shadow.commit_index = index

    def _check_crc(self, index: int, crc: int, whose: str) -> None:
        if index < 0 and crc == 0:
            return  # a snapshot of a plain log covers no entry
        if not 0 <= index < len(self.committed_crcs) or self.committed_crcs[index] != crc:
            raise Violated(
                "committed-never-changes", f"entry {index} of {whose} is not what was committed"
            )

    def _extend(self, shadow: Shadow, index: int) -> None:
        core = shadow.core
        assert core is not None
        self._check_durable(shadow, core, index)
        check_committed_survives(self.shadows.values(), core, index, shadow.crc_at(index))
        self._committed_in[core.term] = index
        first = len(self.committed_crcs)
        while first <= index:
            for batch in core.log.batches_from(first, _READ_BYTES):
                part = batch if batch.last_index <= index else batch.until(index)
                self._extend_by(part)
                first = part.last_index + 1
                if first > index:
                    break
        for other in self.shadows.values():
            if other is not shadow and other.is_up and other.core is not None:
                leads = other.core.role is Role.LEADER
                if leads and other.core.term > core.term:
                    self._check_complete(other, other.core.term)

    def _extend_by(self, batch: Batch) -> None:
        data, start = batch.data, batch.position
        crcs, queues = self.committed_crcs, self.queues
        for _, _, position, size, topic, queue_id, offset in iter_messages(data, start):
            at = position - start
            crcs.append(_CHAIN_CRC_AT_36(data, at - ENTRY_HEADER_BYTES)[0])
            queue = queues.get((topic, queue_id))
            if queue is None:
                queue = queues[topic, queue_id] = []
            if offset != len(queue):
                raise Violated(
                    "offsets-gapless",
                    f"{topic.decode()}/{queue_id} goes on at {offset}, not {len(queue)}",
                )
            queue.append(data[at : at + size])

    def _check_durable(self, shadow: Shadow, core: RaftCore, index: int) -> None:
        """A committed entry is durable on a majority of the voters."""
        if index <= self.older_index:
            return  # some members that hold it may not have been started yet
        crc = shadow.crc_at(index)
        # The membership in which it was counted, or one that changed since then: either may be the
        # one that the leader used.
        for membership in (core.membership, core.membership_at(index)[1]):
            have = sum(self._has_durable(voter, index, crc) for voter in membership.voters)
            if have >= membership.quorum:
                return
        raise Violated(
            "committed-is-durable",
            f"{index} is committed and durable on {have} of {len(membership.voters)} voters",
        )

    def _has_durable(self, name: str, index: int, crc: int) -> bool:
        shadow = self.shadows.get(name)
        return shadow is not None and shadow.durable_index >= index and shadow.holds(index, crc)

    # ---- clients ----------------------------------------------------------------------

    def acknowledged(self, queue: Queue, offset: int, body: bytes) -> None:
        """An append is acknowledged: its message is committed at that offset."""
        stored = self.queues.get(queue, ())
        if not 0 <= offset < len(stored):
            raise Violated(
                "acknowledged-is-committed",
                f"{queue[0].decode()}/{queue[1]} offset {offset}, committed up to {len(stored)}",
            )
        message = stored[offset]
        if message[_BODY_AT : _BODY_AT + len(body)] != body:
            raise Violated(
                "acknowledged-at-its-offset",
                f"{queue[0].decode()}/{queue[1]} offset {offset} holds another message",
            )

    def pulled(
        self,
        queue: Queue,
        offset: int,
        next_offset: int,
        body: bytes | memoryview,
        is_wanted: Callable[[int], bool] | None = None,
    ) -> None:
        """A pull returned messages: the committed ones at those offsets.

        `is_wanted` says at which offsets the pull's filter lets a message pass; None: at all.
        """
        stored = self.queues.get(queue, [])
        if next_offset > len(stored):
            raise Violated(
                "reads-are-committed", f"read up to {next_offset}, committed up to {len(stored)}"
            )
        expected = stored[offset:next_offset]
        if is_wanted is not None:
            expected = [stored[at] for at in range(offset, next_offset) if is_wanted(at)]
        if body != b"".join(expected):
            raise Violated(
                "reads-agree", f"offsets {offset}..{next_offset} are not what was committed there"
            )


def check_start(
    log: CommitLog, name: str, stopped_at: LogEnd | None, *, must_be_aborted: bool
) -> None:
    """Check the abort marker, and that a clean stop lost nothing. Raises Violated.

    `stopped_at` is the log's end at the clean stop; None where the last process did not stop
    cleanly.
    """
    if stopped_at is not None and log.was_aborted:
        raise Violated("abort-marks-a-crash", "a stop in order is taken for a crash", name)
    if stopped_at is not None and log.end != stopped_at:
        raise Violated("stop-keeps-all", f"the log ends at {log.end}, was stopped at {stopped_at}")
    if must_be_aborted and not log.was_aborted:
        raise Violated("abort-marks-a-crash", "a crash is taken for a stop in order", name)
