"""Every invariant catches a bug planted for it, and what the clients' history must not show."""

from __future__ import annotations

import re
from dataclasses import replace
from types import SimpleNamespace

import msgspec
import pytest

from shaketable.system import mutants
from shaketable.system.broker.broker import Broker
from shaketable.system.broker.reading import queries
from shaketable.system.broker.reading.key_items import message_at
from shaketable.system.invariants.queues import check_answered, check_bounds
from shaketable.system.invariants.violated import Violated
from shaketable.system.mutants import Mutant
from shaketable.system.raft.core import RaftCore
from shaketable.system.raft.leadership import Leadership
from shaketable.system.raft.membership import Membership
from shaketable.system.raft.protocol import (
    Append,
    Batch,
    Compact,
    LogEnd,
    Role,
    RoleChange,
    SaveState,
    Snapshot,
    Truncate,
)
from shaketable.system.raft.protocol import Install as InstallWrite
from shaketable.system.sim.disk import PowerLoss, SimDisk
from shaketable.system.sim.rules.client_history import (
    APPEND,
    FAIL,
    MAX_OFFSET,
    OK,
    PULL,
    UNKNOWN,
    Operation,
    check_filled,
    check_history,
    check_refusals,
)
from shaketable.system.sim.rules.invariants import Invariants, check_no_lease
from shaketable.system.sim.rules.kept_files import HANDLES_MAX, check_handles
from shaketable.system.sim.rules.shadow import Shadow
from shaketable.system.sim.run_trace import Counts
from shaketable.system.sim.schedules.faults import StallDisk
from shaketable.system.sim.schedules.schedule import Call, Options, Schedule, Settings
from shaketable.system.sim.world import run_seed
from shaketable.system.store.commit_log import CommitLog
from shaketable.system.store.disk import DiskFailed
from shaketable.system.store.entry import EntryBuilder
from shaketable.system.store.log_writer import LogWriter
from shaketable.system.store.state_files import HardState

THREE = Membership(("n0", "n1", "n2"))


# ---- a group of shadows, with no world behind it ---------------------------------------


class FakeLog:
    """Stands for a core's log view and a commit log: whatever a test puts in."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.end = self.start = LogEnd()
        self.state = HardState()

    @property
    def end_index(self) -> int:
        return self.batches[-1].last_index if self.batches else -1

    @property
    def end_term(self) -> int:
        return self.batches[-1].term if self.batches else -1

    def term_at(self, index: int) -> int:
        return next(batch.term for batch in self.batches if batch.last_index >= index)

    def batches_from(self, index: int, bytes_max: int) -> tuple[Batch, ...]:
        return tuple(
            batch if batch.first_index >= index else batch.after(index - 1)
            for batch in self.batches
            if batch.last_index >= index
        )


class FakeCore:
    def __init__(self) -> None:
        self.log = FakeLog()
        self.membership = THREE
        self.role = Role.FOLLOWER
        self.term = 1

    def membership_at(self, index: int) -> tuple[int, Membership]:
        return -1, self.membership


class Table:
    """Three members' shadows; entries are appended and committed by hand."""

    def __init__(self) -> None:
        self.invariants = Invariants(Counts())
        self.cores = {}
        for name in THREE.voters:
            self.cores[name] = FakeCore()
            shadow = self.invariants.shadows[name] = Shadow(name)
            shadow.core, shadow.log, shadow.is_up = self.cores[name], self.cores[name].log, True

    def shadow(self, name: str) -> Shadow:
        return self.invariants.shadows[name]

    def append(self, batch: Batch, *names: str, synced: bool = True) -> None:
        for name in names:
            self.invariants.ordered(self.shadow(name), [Append(batch)])
            self.cores[name].log.batches.append(batch)
            if synced:
                self.invariants.synced(self.shadow(name), [Append(batch)])

    def commit(self, name: str, index: int) -> None:
        self.invariants.committed(self.shadow(name), index)

    def lead(self, name: str, term: int) -> None:
        self.cores[name].role, self.cores[name].term = Role.LEADER, term
        self.invariants.changed_role(self.shadow(name), RoleChange(Role.LEADER, term, name))


def entries(count: int = 1, term: int = 1, behind: LogEnd | None = None, offset: int = 0) -> Batch:
    builder = EntryBuilder(behind or LogEnd(), term, 1 << 20, bytes(8))
    for number in range(count):
        builder.add(b"log", 0, offset + number, b"%d." % (offset + number))
    return builder.take()[0]


def end_of(batch: Batch) -> LogEnd:
    return LogEnd(batch.last_index, batch.term, batch.end_position, batch.last_chain_crc())


def broken(name: str):
    return pytest.raises(Violated, match=f"^{name}:")


def test_a_good_run_breaks_nothing():
    table = Table()
    table.lead("n0", 1)
    first = entries(3)
    table.append(first, "n0", "n1", "n2")
    table.commit("n0", 2)
    table.commit("n1", 1)
    table.commit("n1", 2)
    tail = entries(2, 1, end_of(first), 3)
    table.append(tail, "n0")
    table.lead("n1", 2)
    newer = entries(1, 2, end_of(first), 3)
    table.append(newer, "n1", "n2")
    table.commit("n1", 3)
    table.invariants.ordered(table.shadow("n0"), [Truncate(2)])
    table.append(newer, "n0")
    table.commit("n0", 3)
    assert table.invariants.committed_index == 3
    assert len(table.invariants.queues[b"log", 0]) == 4


def test_only_conflicts_are_removed():
    table = Table()
    first = entries(3)
    table.append(first, "n0")
    table.invariants.ordered(table.shadow("n0"), [Truncate(1)])
    with broken("only-conflicts-are-removed"):
        table.append(first.after(1), "n0")


def test_one_leader_a_term():
    table = Table()
    table.lead("n0", 1)
    table.lead("n1", 2)
    with broken("one-leader-a-term"):
        table.lead("n2", 2)


def test_log_matching():
    table = Table()
    first, other = entries(1), entries(1, offset=9)
    table.append(first, "n0")
    with broken("log-matching"):  # the same index and term, another entry
        table.append(other, "n1")
    table = Table()
    table.append(first, "n0")
    table.append(entries(1, 2, offset=7), "n1")
    behind = entries(1, 3, end_of(first))
    table.append(behind, "n0")
    with broken("log-matching"):  # the same entry behind another one
        table.append(behind, "n1")
    with broken("log-matching"):  # and so where nobody has seen the entry before
        table.append(entries(2, 4, end_of(first)), "n1")
    with broken("log-contiguous"):
        table.append(behind, "n2")


def test_leader_completeness():
    table = Table()
    batch = entries(2)
    table.append(batch, "n0", "n1")
    table.commit("n0", 1)
    with broken("leader-completeness"):
        table.lead("n2", 5)
    table = Table()
    table.append(entries(2, offset=5), "n2")
    table.lead("n2", 3)
    table.append(entries(1, 2), "n0", "n1")
    with broken("leader-completeness"):  # committed behind the back of a later leader
        table.commit("n0", 0)


def test_committed_stays_committed():
    table = Table()
    first = entries(1)
    table.append(first, "n0", "n1", "n2")
    table.append(entries(1, 2, end_of(first), 1), "n0", "n1")
    table.append(entries(1, 3, end_of(first), 1), "n2")
    table.cores["n0"].term = 4
    with broken("committed-stays-committed"):  # n1 would vote for n2, which lacks it (figure 8)
        table.commit("n0", 1)
    table.shadow("n2").is_up = False
    table.commit("n0", 1)


def test_committed_stays_committed_whatever_membership_others_believe_in():
    table = Table()
    table.append(entries(1), "n0", "n1")
    table.cores["n2"].membership = Membership(("n2",))
    with broken("committed-stays-committed"):
        table.commit("n0", 0)


def test_removed_stays_removed():
    table = Table()
    first = entries(1)
    table.append(first, "n0")
    shadow, log = table.shadow("n0"), FakeLog()
    log.end = end_of(entries(1, 1, end_of(first), 1))
    with broken("removed-stays-removed"):
        table.invariants._check_recovered(shadow, log)
    shadow.in_flight = (Truncate(0),)
    log.log_end_at = lambda index: end_of(first)
    table.invariants._check_recovered(shadow, log)


@pytest.mark.parametrize("error", [PowerLoss, DiskFailed])
def test_what_only_a_dead_disk_knows_is_held_against_nobody(error):
    def unreadable(index):
        raise error

    shadow = Shadow("n0")
    shadow.log = FakeLog()
    shadow.log.log_end_at = unreadable
    shadow.reset_to(5, 77)
    assert shadow.holds(5, 77)
    assert not shadow.holds(5, 78)
    assert not shadow.holds(6, 77)
    assert shadow.holds(3, 1)


def test_committed_never_changes():
    table = Table()
    table.append(entries(1), "n0", "n1")
    table.commit("n0", 0)
    table.append(entries(1, 2), "n2")
    with broken("committed-never-changes"):
        table.commit("n2", 0)
    with broken("committed-stays"):
        table.invariants.ordered(table.shadow("n0"), [Truncate(-1)])
    table.shadow("n0").commit_index = 1
    with broken("commit-never-falls"):
        table.commit("n0", 0)
    with broken("committed-is-held"):
        table.commit("n1", 5)


def test_snapshots_stand_for_what_is_committed():
    table = Table()
    batch = entries(2)
    table.append(batch, "n0", "n1")
    table.commit("n0", 1)
    good = Snapshot(end_of(batch), THREE, -1, b"")
    table.invariants.ordered(table.shadow("n2"), [InstallWrite(good)])
    table.commit("n2", 1)
    bad = Snapshot(LogEnd(1, 1, batch.end_position, 77), THREE, -1, b"")
    with broken("committed-never-changes"):
        table.invariants.ordered(table.shadow("n2"), [InstallWrite(bad)])


def test_committed_is_durable_on_a_majority():
    table = Table()
    batch = entries(2)
    table.append(batch, "n0")
    table.append(batch, "n1", "n2", synced=False)
    with broken("committed-is-durable"):
        table.commit("n0", 1)
    table.invariants.synced(table.shadow("n2"), [Append(batch)])
    table.commit("n0", 1)


def test_durable_survives_a_crash():
    table = Table()
    batch = entries(3)
    table.append(batch, "n0", "n1", "n2")
    log = FakeLog()
    log.end = LogEnd(1, 1, 10, 5)
    table.cores["n0"].ledger = None
    with broken("durable-survives"):
        table.invariants.started("n0", table.cores["n0"], log, 0.0)
    log.end = end_of(batch)
    log.log_end_at = lambda index: LogEnd(index, 1, 10, 5)
    with broken("durable-survives"):
        table.invariants.started("n0", table.cores["n0"], log, 0.0)


def test_votes_survive_a_crash():
    table = Table()
    table.invariants.synced(table.shadow("n0"), [SaveState(4, "n1")])
    with broken("vote-is-durable"):
        table.invariants.started("n0", table.cores["n0"], FakeLog(), 0.0)


def test_offsets_have_no_gap():
    table = Table()
    table.append(entries(1, offset=1), "n0", "n1")
    with broken("offsets-gapless"):
        table.commit("n0", 0)


def test_acknowledgements_and_reads():
    table = Table()
    table.append(entries(2), "n0", "n1")
    table.commit("n0", 1)
    invariants, queue = table.invariants, (b"log", 0)
    stored = invariants.queues[queue]
    invariants.acknowledged(queue, 1, b"1.")
    with broken("acknowledged-is-committed"):
        invariants.acknowledged(queue, 2, b"2.")
    with broken("acknowledged-at-its-offset"):
        invariants.acknowledged(queue, 0, b"1.")
    invariants.pulled(queue, 0, 2, stored[0] + stored[1])
    with broken("reads-agree"):
        invariants.pulled(queue, 0, 2, stored[1] + stored[0])
    with broken("reads-are-committed"):
        invariants.pulled(queue, 0, 3, b"")


# ---- what clients saw -----------------------------------------------------------------


def did(number: int, kind: str, at: int, from_ms: float, to_ms: float, outcome: str = OK):
    operation = Operation(number, 0, kind, 0, at if kind == APPEND else 0, from_ms)
    operation.end_ms, operation.outcome, operation.end = to_ms, outcome, at
    return operation


def test_a_history_in_real_time_order_is_good():
    check_history(
        [
            did(1, APPEND, 0, 0, 5),
            did(2, APPEND, 2, 1, 9),
            did(3, APPEND, 1, 1, 9),
            did(4, PULL, 1, 6, 7),
            did(5, MAX_OFFSET, 3, 10, 11),
            did(6, APPEND, 7, 20, 21, UNKNOWN),
            did(7, MAX_OFFSET, 3, 22, 23),
        ]
    )


def test_stale_reads_and_appends_in_the_past_are_found():
    with broken("no-stale-read"):
        check_history([did(1, APPEND, 4, 0, 5), did(2, MAX_OFFSET, 4, 6, 7)])
    with broken("no-stale-read"):
        check_history([did(1, PULL, 9, 0, 5), did(2, PULL, 8, 6, 7)])
    with broken("real-time-order"):
        check_history([did(1, MAX_OFFSET, 3, 0, 5), did(2, APPEND, 2, 6, 7)])
    with broken("offsets-unique"):
        check_history([did(1, APPEND, 3, 0, 5), did(2, APPEND, 3, 1, 7)])


def test_refusals_are_definite():
    history = [did(1, APPEND, 0, 0, 5), did(2, APPEND, 0, 0, 5, FAIL)]
    check_refusals(history, [1])
    with broken("refusal-is-definite"):
        check_refusals(history, [1, 2])
    with broken("stored-once"):
        check_refusals(history, [1, 1])


# ---- whole groups with a bug planted --------------------------------------------------

CALM = Schedule(
    seed=5,
    settings=Settings(run_ms=6000),
    faults=(),
    calls=tuple(Call(at_ms, at_ms // 50 % 4, "batch", 0, 4) for at_ms in range(400, 4400, 50)),
)


def calm(mutant: Mutant):
    found = run_seed(0, schedule=CALM, mutant=mutant).violation
    assert found is not None
    return found.invariant


class Mute(RaftCore):
    """Never stands for election."""

    def _start_pre_vote(self) -> None:
        self._restart_election_timer()


class Deaf(Broker):
    """Applies nothing behind the tenth entry."""

    def _dispatch_limit(self, commit_index: int) -> int:
        return min(commit_index, 10) if self.core.member == "n1" else commit_index


class Clumsy(RaftCore):
    """Breaks on the third push."""

    pushes = 0

    def _on_push(self, push) -> None:
        self.pushes += 1
        assert self.pushes < 3, "too much"
        super()._on_push(push)


class Fragile(CommitLog):
    """Does not open."""

    @classmethod
    def open(cls, *args):
        raise AssertionError("no")


def test_liveness_and_life_are_watched():
    assert run_seed(0, schedule=CALM).violation is None
    assert calm(Mutant("mute", core=Mute)) == "appends-succeed"
    assert calm(Mutant("deaf", broker=Deaf)) == "every-node-catches-up"
    assert calm(Mutant("clumsy", core=Clumsy)) == "node-runs-on"
    assert calm(Mutant("fragile", commit_log=Fragile)) == "node-starts"


def test_bounds_are_watched():
    class Waiting:
        due_ms = 5.0

    class FakeBroker:
        class _pending:  # noqa: N801 - named as the broker's attribute
            waiting = [Waiting()]  # noqa: RUF012

        class _config:  # noqa: N801
            pending_sends_max = 10

    check_answered("n0", FakeBroker(), 4.0)
    with broken("appends-are-answered"):
        check_answered("n0", FakeBroker(), 5.0)
    FakeBroker._pending.waiting = [Waiting()] * 30
    with broken("queues-are-bounded"):
        check_bounds("n0", FakeBroker(), None)


def test_a_leader_with_a_dead_disk_is_noticed():
    stall = StallDisk(start_ms=1500, duration_ms=3400, node="leader")
    schedule = msgspec.structs.replace(CALM, faults=(stall,))
    assert run_seed(0, schedule=schedule).violation is None
    found = run_seed(0, schedule=schedule, mutant=mutants.load("leads-with-dead-disk")).violation
    assert found is not None
    assert found.invariant == "stalled-disk-leads-not"


class Hasty(Broker):
    """Lets files go an hour before they are old enough."""

    def disk_usage(self, used_ratio, files, now_ms, wall_ms) -> None:
        super().disk_usage(used_ratio, files, now_ms, wall_ms + 3_600_000)


def test_a_message_that_is_not_committed_cannot_be_viewed(monkeypatch):
    assert run_seed(1, Options(run_ms=12_000)).violation is None

    def anywhere(log, position, _end_position):
        return message_at(log, position, log.end_position)

    monkeypatch.setattr(queries, "message_at", anywhere)
    violation = run_seed(1, Options(run_ms=12_000)).violation
    assert violation is not None
    assert violation.invariant == "reads-are-committed"
    assert "view by position" in violation.finding


class Thorough(Broker):
    """Lets all files go that are old enough, in one step."""

    def disk_usage(self, used_ratio, files, now_ms, wall_ms) -> None:
        expiry = replace(self._config.expiry, files_a_step_max=100)
        self._config = replace(self._config, expiry=expiry)
        super().disk_usage(used_ratio, files, now_ms, wall_ms)


def test_files_expire_in_steps():
    settings = msgspec.structs.replace(
        CALM.settings, expiry_check_ms=2_000.0, reserved_ms=500, data_file_bytes=8_192,
        expired_files_max=1,
    )  # fmt: skip
    schedule = msgspec.structs.replace(CALM, settings=settings)
    kept = run_seed(0, schedule=schedule)
    assert kept.violation is None
    assert kept.counts.compactions > 0
    found = run_seed(0, schedule=schedule, mutant=Mutant("thorough", broker=Thorough)).violation
    assert found is not None
    assert found.invariant == "expiry-goes-in-steps"


def test_a_pull_brings_neither_too_much_nor_too_little():
    check_filled([100, 100], None, 32, 1000)
    check_filled([100, 100], 100, 2, 1000)
    check_filled([100, 100], 100, 32, 299)
    check_filled([500], 100, 32, 299)
    for count, count_max, bytes_max in ((2, 1, 999), (2, 9, 199), (2, 9, 300)):
        with pytest.raises(Violated, match="messages of"):
            check_filled([100] * count, 100, count_max, bytes_max)


def test_no_file_goes_before_its_time():
    settings = msgspec.structs.replace(
        CALM.settings, expiry_check_ms=500.0, reserved_ms=3_600_000, data_file_bytes=8_192
    )
    schedule = msgspec.structs.replace(CALM, settings=settings)
    kept = run_seed(0, schedule=schedule)
    assert kept.violation is None
    assert kept.counts.compactions == 0
    found = run_seed(0, schedule=schedule, mutant=Mutant("hasty", broker=Hasty)).violation
    assert found is not None
    assert found.invariant == "reserved-stays"
    old = msgspec.structs.replace(settings, reserved_ms=1_000)
    expired = run_seed(0, schedule=msgspec.structs.replace(CALM, settings=old))
    assert expired.violation is None
    assert expired.counts.compactions > 0


@pytest.mark.parametrize(
    ("name", "invariant"),
    [
        ("ack-before-quorum", "acknowledged-is-committed"),
        ("ack-before-fsync", "acknowledged-is-durable"),
        ("no-prevote", "pre-vote-before-campaign"),
        ("commit-by-counting", "commits-begin-with-the-term"),
        ("change-before-term-start", "changes-come-one-by-one"),
        ("vote-for-shorter-log", "votes-go-to-complete-logs"),
        ("end-term-is-current-term", "candidates-show-their-logs"),
        ("vote-not-awaited", "vote-is-durable"),
        ("dispatch-before-commit", "reads-are-committed"),
        ("one-message-a-pull", "pulls-are-filled"),
        ("held-pull-given-up-early", "held-pulls-wait"),
        ("held-pull-not-woken", "held-pulls-are-woken"),
        ("filtered-pull-skips-one", "reads-agree"),
        ("read-joins-open-round", "reads-wait-for-an-echo"),
        ("read-before-term-start", "reads-wait-for-the-term"),
        ("offsets-unconfirmed", "committed-offset-is-seen"),
    ],
)
def test_planted_bugs_break_the_invariant_meant_for_them(name, invariant):
    mutant = mutants.load(name)
    options = Options(run_ms=15_000)
    found = (run_seed(seed, options, mutant=mutant).violation for seed in range(8))
    first = next(violation for violation in found if violation is not None)
    assert first.invariant == invariant


class Disturbed(RaftCore):
    """Has a pre-vote, and votes for whoever wins one, although it hears a leader."""

    def _must_not_disturb(self, request):
        return False


def test_who_hears_a_leader_votes_for_nobody_else():
    mutant = Mutant("disturbed", Disturbed)
    violation = run_seed(7, Options(run_ms=20_000), mutant=mutant).violation
    assert violation.invariant == "leader-is-left-alone"
    assert re.match(r"n\d hears a leader, and would vote for n1 ", violation.finding)


@pytest.mark.parametrize(("term", "has_lease"), [(1, True), (1, False), (3, True)])
def test_who_is_elected_while_an_older_lease_holds_is_found(term, has_lease):
    def member(name, term, holds_lease):
        core = SimpleNamespace(term=term, holds_lease=lambda now_ms: holds_lease)
        return SimpleNamespace(name=name, core=core, is_up=True, local_ms=lambda: 0.0)

    elected = member("n1", 2, True)
    members = [member("n0", term, has_lease), elected]
    if term < 2 and has_lease:
        with broken("lease-shuts-out"):
            check_no_lease(members, elected)
    else:
        check_no_lease(members, elected)


def test_files_that_nobody_closes_are_counted():
    disk = SimDisk()
    disk.create("currterm", 8).close()
    for _ in range(2 * HANDLES_MAX):
        disk.open("currterm").close()
    check_handles("n0", disk)
    for _ in range(HANDLES_MAX + 1):
        disk.open("currterm")
    with pytest.raises(Violated, match=f"{HANDLES_MAX + 1} handles of currterm"):
        check_handles("n0", disk)
    disk.begin_process()
    check_handles("n0", disk)


def test_starts_that_fail_leave_nothing_open():
    assert run_seed(109, Options(run_ms=20_000)).violation is None


class Unready(Leadership):
    """Takes every learner for one that has caught up."""

    def _lag_of(self, learner):
        return 0


class Promoter(RaftCore):
    """A leader of that kind."""

    leadership_type = Unready


def test_learners_become_voters_when_they_have_caught_up():
    promoter = Mutant("promoter", Promoter)
    found = (run_seed(seed, Options(run_ms=20_000), mutant=promoter).violation for seed in range(4))
    first = next(violation for violation in found if violation is not None)
    assert first.invariant == "voters-have-caught-up"


class Hoarding(LogWriter):
    """Never takes compacted entries out of the log."""

    def _write(self, write):
        if not isinstance(write, Compact):
            super()._write(write)


def test_what_is_compacted_is_taken_out_of_the_log():
    hoarding = Mutant("hoarding", log_writer=Hoarding)
    found = (run_seed(seed, Options(run_ms=20_000), mutant=hoarding).violation for seed in range(8))
    first = next(violation for violation in found if violation is not None)
    assert first.invariant == "compacted-is-gone"
