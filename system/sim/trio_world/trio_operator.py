"""The operator of a simulated group: the unchanged admin client, retried until it is done.

Source: as in `system.sim.group_operator`, which has the same goals.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Protocol

import trio

from shaketable.system.client import Metadata, OutcomeUnknownError, RefusedError
from shaketable.system.client.admin import AdminClient
from shaketable.system.sim.group_operator import OPERATOR_RETRY_MS, UNKNOWN_MEMBER, VOTERS_MIN
from shaketable.system.sim.rules.client_history import check_all_closed, check_in_time
from shaketable.system.sim.rules.violation import Violated
from shaketable.system.sim.trio_world.host import CLIENT_PORT, PEER_PORT, Host, HostWorld
from shaketable.system.sim.trio_world.process import CURRENT, Process

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
