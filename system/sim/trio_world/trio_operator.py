"""Operators of a simulated group: the unchanged admin client, and one that asks for the status.

Source: as in `system.sim.group_operator`, which has the same goals.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Protocol

import msgspec
import trio

from shaketable.system.client import Metadata, OutcomeUnknownError, RefusedError
from shaketable.system.client.group import AdminClient
from shaketable.system.invariants.violated import Violated
from shaketable.system.raft.protocol import Role, Snapshot
from shaketable.system.sim.group_operator import OPERATOR_RETRY_MS, UNKNOWN_MEMBER, VOTERS_MIN
from shaketable.system.sim.rules.client_history import check_all_closed, check_in_time
from shaketable.system.sim.trio_world.clocks import CURRENT, Process
from shaketable.system.sim.trio_world.host import CLIENT_PORT, PEER_PORT, Host, HostWorld

NAME = "operator"
ADDRESS = "10.0.2.1"
TIMEOUT_S = 1.0

Goal = tuple[bool, str]
"""A member that is to vote (True), or to be removed (False)."""


class OperatorWorld(HostWorld, Protocol):
    """What the operator needs of the world it is in."""

    members: dict[str, Host]

    @property
    def present(self) -> dict[str, Host]:
        """All members except those removed for good."""
        ...

    def client_addresses(self) -> dict[str, tuple[str, int]]:
        """Return the members' addresses for clients."""
        ...

    def leader(self) -> str | None:
        """Return the leader."""
        ...

    def new_member(self) -> Host:
        """Start an empty node that waits to be added to the group."""
        ...

    def shut_down(self, name: str) -> None:
        """Stop a node for good."""
        ...


class TrioOperator:
    """One group's operator: one change at a time, the oldest job first."""

    def __init__(self, world: OperatorWorld) -> None:
        self._world = world
        self._process = Process(NAME, ADDRESS, 0)
        world.network.add_host(NAME, ADDRESS)
        self._client = world.mutant.client.group_client(
            world.client_addresses(), timeout_s=TIMEOUT_S, rng=world.rngs.stream(NAME)
        )
        self._admin = AdminClient(self._client)
        self._jobs: list[tuple[str, list[Goal]]] = []
        self._is_at_work = False

    @property
    def is_busy(self) -> bool:
        """Whether a membership change is in progress."""
        return bool(self._jobs)

    @property
    def jobs(self) -> int:
        """Number of changes requested and not yet done."""
        return len(self._jobs)

    # ---- for faults -------------------------------------------------------------------

    def add(self) -> None:
        """Start a new node, add it and make it a voter."""
        host = self._world.new_member()
        self._add_job(f"add {host.name}", [(True, host.name)])

    def remove(self, name: str) -> None:
        """Remove a member and then shut it down."""
        self._add_job(f"remove {name}", [(False, name)])

    def replace(self, name: str) -> None:
        """Add a new node as a voter, then remove the old one."""
        host = self._world.new_member()
        self._add_job(f"replace {name}", [(True, host.name), (False, name)])

    def transfer(self, to: str) -> None:
        """Ask the leader, once, to transfer its leadership."""
        self._world.spawn(self._transfer, to)

    def request_refused_change(self, why: str) -> None:
        """Request a change that the leader must refuse."""
        self._world.spawn(self._request_refused_change, why)

    def check_done(self) -> None:
        """Raise Violated if a requested change is not done."""
        for name, goals in self._jobs:
            raise Violated("membership-change-completes", f"{name}: still to do {goals}")

    def learn(self, host: Host) -> None:
        """Add a node."""
        self._client.learn(host.name, host.address, CLIENT_PORT)

    def forget(self, name: str) -> None:
        """Remove a node."""
        self._client.forget(name)

    def close(self) -> None:
        """Close all connections. Raises Violated where one stays open."""
        self._client.close()
        check_all_closed(NAME, self._world.network.open_of(NAME))

    # ---- how it is done ---------------------------------------------------------------

    def _add_job(self, name: str, goals: list[Goal]) -> None:
        self._jobs.append((name, goals))
        if not self._is_at_work:  # the worker may still sleep after its last job
            self._is_at_work = True
            self._world.spawn(self._work)

    async def _transfer(self, to: str) -> None:
        CURRENT.set(self._process)
        with suppress(RefusedError, OutcomeUnknownError):
            await self._admin.transfer_leadership(to)
            self._world.counts.transfers += 1

    async def _request_refused_change(self, why: str) -> None:
        CURRENT.set(self._process)
        world = self._world
        leader = world.leader()
        if leader is None:
            return
        is_alone = len(world.present) == 1
        try:
            if why == "present":
                await self._admin.add_member(leader, "10.0.0.1:40911")
            elif why == "nameless":
                await self._admin.add_member("", "10.0.0.1:40911")
            elif why == "no_voter":
                await self._admin.transfer_leadership(UNKNOWN_MEMBER)
            else:
                await self._admin.remove_member(leader if is_alone else UNKNOWN_MEMBER)
        except RefusedError:
            world.counts.changes_refused += 1
        except OutcomeUnknownError:
            return
        else:
            if why == "unknown" and is_alone and len(world.present) > 1:
                return  # a member that joined meanwhile may have become a voter
            found = Violated("changes-are-checked", "a change was made that must be refused")
            world.violated(found, leader)

    async def _work(self) -> None:
        """Do all jobs, step by step; a step that is refused or indeterminate is retried."""
        CURRENT.set(self._process)
        while self._jobs:
            goals = self._jobs[0][1]
            with suppress(RefusedError, OutcomeUnknownError):
                group = await self._membership()
                if await self._step(group, *goals[0]):
                    self._world.counts.membership_changes += 1
                    goals.pop(0)
            if not goals:
                self._jobs.pop(0)
            await trio.sleep(OPERATOR_RETRY_MS / 1000)
        self._is_at_work = False

    async def _membership(self) -> Metadata:
        """Request the group's members; the last attempt may start at the deadline."""
        start_ms = self._world.clock.now_ms
        try:
            return await self._admin.membership()
        finally:
            took_ms = self._world.clock.now_ms - start_ms
            try:
                check_in_time("to ask for the members", took_ms, 2 * TIMEOUT_S * 1000)
            except Violated as found:
                self._world.violated(found, NAME)

    async def _step(self, group: Metadata, wants_vote: bool, member: str) -> bool:
        """Take one step towards a goal; return True once it is reached."""
        if wants_vote:
            if member in group.voters:
                return True
            if member not in group.learners:
                host = self._world.members[member]
                await self._admin.add_member(member, f"{host.address}:{PEER_PORT}")
            return False
        if member not in group.voters and member not in group.learners:
            self._world.shut_down(member)
            return True
        if len(group.voters) <= VOTERS_MIN:
            return True
        await self._admin.remove_member(member)
        return False


# An operator that asks for the members' status and for the leader, and whether that is so.
#
# It changes nothing. What a member says of itself is compared with its broker before and after,
# since either may be what it saw; who leads, with the member that led all the while.

ASKER_NAME = "status"
ASKER_ADDRESS = "10.0.2.2"
EVERY_MS = 200.0
ASK_TIMEOUT_S = 0.4
"""Shorter than a client waits for a connection, so that this limit counts, too."""
NO_NAME_SERVER = "10.0.2.2:9876"
"""No server listens there: members are asked at their own addresses."""
PAUSED_MS = 900.0
"""An answer that took longer may lack members that were paused meanwhile."""
_LEADER = "leader"
RATES = 3
"""Over ten seconds, a minute and ten minutes."""


class StatusWorld(HostWorld, Protocol):
    """What the queries need of the world they are in."""

    members: dict[str, Host]

    def client_addresses(self) -> dict[str, tuple[str, int]]:
        """Return the members' addresses for clients."""
        ...


class StatusQueries:
    """Asks now and then, with an admin client of its own."""

    def __init__(self, world: StatusWorld) -> None:
        self._world = world
        self._process = Process(ASKER_NAME, ASKER_ADDRESS, 0)
        world.network.add_host(ASKER_NAME, ASKER_ADDRESS)
        self._asked: set[str] = set()
        """Members asked since the call began."""
        self._reached: dict[str, int] = {}
        """The last incarnation of each member that has answered."""
        queries = self

        class Watched(world.mutant.client.group_client):  # type: ignore[name-defined, misc]
            async def metadata(self, member: str) -> Metadata:
                queries.asking(member)
                before = state_of(queries.host(member))
                with queries.in_time(f"to ask {member} for its state"):
                    answer: Metadata = await super().metadata(member)
                queries.answered(member, before, answer)
                return answer

        self.client = Watched(
            world.client_addresses(), timeout_s=ASK_TIMEOUT_S, rng=world.rngs.stream(ASKER_NAME)
        )
        self._admin = AdminClient(self.client)
        self._stats = world.mutant.client.pull_consumer(
            NO_NAME_SERVER, group=ASKER_NAME, timeout_s=ASK_TIMEOUT_S
        )
        self._found_leader = ""

    def close(self) -> None:
        """Close all connections. Raises Violated where one stays open."""
        self.client.close()
        self._stats.close()
        check_all_closed(ASKER_NAME, self._world.network.open_of(NAME))

    async def ask_for_ever(self) -> None:
        """Ask who leads, at regular times, and in between a member for its figures."""
        CURRENT.set(self._process)
        rounds = 0
        while True:
            await trio.sleep(EVERY_MS / 1000)
            rounds += 1
            await self._ask_for_figures(rounds)
            self._found_leader = ""
            self._asked.clear()
            before = self._steady()
            began_ms = self._world.clock.now_ms
            try:
                found = await self._admin.membership()
            except (RefusedError, OutcomeUnknownError):
                continue
            if self._world.clock.now_ms - began_ms < PAUSED_MS:
                self._check_leader(found, before)

    async def _ask_for_figures(self, rounds: int) -> None:
        """Ask the members in turn."""
        names = sorted(self._world.members)
        host = self._world.members[names[rounds % len(names)]]
        before = state_of(host)
        try:
            with self.in_time(f"to ask {host.name} for its figures"):
                figures = await self._stats.runtime_stats(f"{host.address}:{CLIENT_PORT}")
        except (RefusedError, OutcomeUnknownError):
            return
        try:
            check_figures(host.name, before, figures, state_of(host))
        except Violated as found:
            self._world.violated(found, host.name)

    @contextmanager
    def in_time(self, what: str) -> Iterator[None]:
        """Check that a call ends within its timeout."""
        began_ms = self._world.clock.now_ms
        try:
            yield
        finally:
            try:
                check_in_time(what, self._world.clock.now_ms - began_ms, ASK_TIMEOUT_S * 1000)
            except Violated as found:
                self._world.violated(found, ASKER_NAME)

    def host(self, member: str) -> Host | None:
        """Return a member's machine."""
        return self._world.members.get(member)

    def asking(self, member: str) -> None:
        """A member is asked. Once one said that it leads, the search for the leader is over."""
        if self._found_leader and member in self._asked:
            found = Violated(
                "operators-find-the-leader",
                f"{member} is asked again, though {self._found_leader} answered that it leads",
            )
            self._world.violated(found, ASKER_NAME)
        self._asked.add(member)

    def answered(self, member: str, before: State | None, answer: Metadata) -> None:
        """A member has answered."""
        host = self.host(member)
        after = state_of(host)
        if host is not None:
            self._reached[member] = host.incarnation
        if answer.role == _LEADER:
            self._found_leader = member
        try:
            check_status(member, before, answer, after, self._world.members)
        except Violated as found:
            self._world.violated(found, member)

    def _steady(self) -> dict[str, State]:
        """Return the members that lead now, and that the client has a connection to."""
        states = {name: state_of(host) for name, host in self._world.members.items()}
        return {
            name: state
            for name, state in states.items()
            if state is not None
            and state.role is Role.LEADER
            and self._reached.get(name) == state.incarnation
            and not self._world.members[name].is_paused
        }

    def _check_leader(self, found: Metadata, before: dict[str, State]) -> None:
        """Check that no member of a later term led all the while."""
        now = self._steady()
        for name, state in before.items():
            then = now.get(name)
            if then is not None and then.term == state.term > found.term:
                violated = Violated(
                    "operators-find-the-leader",
                    f"{found.member} of term {found.term} is named as the leader,"
                    f" {name} leads term {state.term}",
                )
                self._world.violated(violated, ASKER_NAME)


class State(msgspec.Struct, frozen=True):
    """What a member's broker says of itself at one time."""

    incarnation: int
    role: Role
    term: int
    committed: int
    log_end: int
    """Byte position of the log's end."""
    messages: int
    """Messages that its consume queues have, or had before they expired."""
    snapshot: Snapshot | None


def state_of(host: Host | None) -> State | None:
    """Return a member's state, None if it does not serve now."""
    if host is None or host.node is None:
        return None
    broker = host.node.broker
    core = broker.core
    return State(
        incarnation=host.incarnation,
        role=core.role,
        term=core.term,
        committed=core.ledger.checkpoint_index,
        log_end=core.log.end_position,
        messages=sum(end for _, end in broker.queues.ranges().values()),
        snapshot=core.ledger.snapshot,
    )


def check_status(
    member: str, before: State | None, answer: Metadata, after: State | None, members: object
) -> None:
    """Raise Violated where a member's answer is not what it was between two times."""
    assert isinstance(members, dict)
    if answer.member != member or answer.leader not in (None, *members):
        raise Violated(
            "status-is-true", f"{member} answers as {answer.member!r}, led by {answer.leader!r}"
        )
    if before is None or after is None or before.incarnation != after.incarnation:
        return
    if not before.term <= answer.term <= after.term:
        raise Violated(
            "status-is-true",
            f"{member} says term {answer.term}, it was in {before.term} to {after.term}",
        )
    least = before.committed
    if before.snapshot != after.snapshot:
        least = -1  # while a leader's snapshot replaces the log nothing of it is durable
    if not least <= answer.committed_index <= max(before.committed, after.committed):
        raise Violated(
            "status-is-true",
            f"{member} says that {answer.committed_index} is committed, it was"
            f" {before.committed} to {after.committed}",
        )


def check_figures(
    member: str, before: State | None, figures: Mapping[str, str], after: State | None
) -> None:
    """Raise Violated where a member's figures (KVTable) are not what they were between two times.

    While a leader's snapshot replaces the log, or a new leader truncates it, only the term counts.
    """
    rates = [float(rate) for rate in figures["putTps"].split()]
    if len(rates) != RATES or min(rates) < 0:
        raise Violated("status-is-true", f"{member} says that it takes {rates} messages a second")
    if before is None or after is None or before.incarnation != after.incarnation:
        return
    ranges = {"dledgerTerm": (before.term, after.term)}
    if before.snapshot == after.snapshot:
        ranges["putMessageTimesTotal"] = before.messages, after.messages
    if before.role is after.role is Role.LEADER and before.term == after.term:
        ranges["commitLogMaxOffset"] = before.log_end, after.log_end
    for name, (least, most) in ranges.items():
        if not least <= int(figures[name]) <= most:
            found = f"{member} says that {name} is {figures[name]}, it was {least} to {most}"
            raise Violated("status-is-true", found)
