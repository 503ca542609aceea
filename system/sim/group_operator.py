"""The operator of a simulated group: changes its membership and transfers its leadership.

It sends the requests of real operators to every member that claims to lead, even a deposed one, and
repeats them until the committed membership is the wanted one. Only then is a removed node shut
down. Source: Ongaro's dissertation section 4 (add as learner, promote, remove).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from shaketable.system.invariants.violated import Violated
from shaketable.system.raft.membership import MEMBERS_MAX, Membership
from shaketable.system.raft.protocol import Role
from shaketable.system.remoting.codes import RequestCode, ResponseCode
from shaketable.system.remoting.command import Command
from shaketable.system.remoting.requests import MemberRequest
from shaketable.system.sim.clients import decode_reply
from shaketable.system.sim.event_heap import EventHeap
from shaketable.system.sim.member import SimMember
from shaketable.system.sim.run_trace import Counts
from shaketable.system.sim.schedules.schedule import Settings

REFUSED_CONNECTION = -2
"""The connection for requests that must be refused; their replies are checked."""
UNKNOWN_MEMBER = "n99"
CONNECTION = -1
"""The operator's connection at every node; replies on it are ignored."""
OPERATOR_RETRY_MS = 150.0
CROWD_EVERY_MS = 15.0
VOTERS_MIN = 2
"""The operator leaves at least so many voters."""


class OperatorWorld(Protocol):
    """What the operator needs of the world it is in."""

    settings: Settings
    heap: EventHeap
    counts: Counts
    members: dict[str, SimMember]

    @property
    def present(self) -> dict[str, SimMember]:
        """All members except those removed for good."""
        ...

    def leader(self) -> str | None:
        """Return the leader."""
        ...

    def new_member(self) -> SimMember:
        """Start an empty node that waits to be added to the group."""
        ...

    def shut_down(self, name: str) -> None:
        """Stop a node for good."""
        ...


class Operator:
    """A group's operator. A job is a list of goals: a member is to vote, or to be removed."""

    def __init__(self, world: OperatorWorld) -> None:
        self._world = world
        self._opaque = 0
        self._jobs: list[tuple[str, list[tuple[bool, str]]]] = []
        self._is_timed = False

    @property
    def is_busy(self) -> bool:
        """Whether a membership change is in progress."""
        return bool(self._jobs)

    @property
    def jobs(self) -> int:
        """Number of changes requested and not yet done."""
        return len(self._jobs)

    # ---- for faults -------------------------------------------------------------------

    def add(self) -> str:
        """Start a new node, add it and make it a voter; return its id."""
        member = self._world.new_member()
        self._add_job(f"add {member.name}", [(True, member.name)])
        return member.name

    def remove(self, name: str) -> None:
        """Remove a member and then shut it down."""
        self._add_job(f"remove {name}", [(False, name)])

    def replace(self, name: str) -> None:
        """Add a new node as a voter, then remove the old one."""
        member = self._world.new_member()
        self._add_job(f"replace {name}", [(True, member.name), (False, name)])

    def transfer(self, to: str) -> None:
        """Ask the leader, once, to transfer its leadership."""
        self._ask(RequestCode.TRANSFER_LEADERSHIP, MemberRequest(to))

    def request_refused_change(self, why: str) -> None:
        """Request a change that the leader must refuse."""
        leader = self._world.leader()
        if leader is None:
            return
        is_alone = len(self._world.present) == 1
        code, request = {
            "unknown": (
                RequestCode.REMOVE_MEMBER,
                MemberRequest(leader if is_alone else UNKNOWN_MEMBER),
            ),
            "present": (RequestCode.ADD_MEMBER, MemberRequest(leader, "10.0.0.1:40911")),
            "nameless": (RequestCode.ADD_MEMBER, MemberRequest("", "10.0.0.1:40911")),
            "no_voter": (RequestCode.TRANSFER_LEADERSHIP, MemberRequest(UNKNOWN_MEMBER)),
        }[why]
        self._ask(code, request, REFUSED_CONNECTION)

    def crowd(self) -> None:
        """Add members that never answer, up to the limit; one more must be refused."""
        world = self._world
        name = world.leader()
        if name is not None:
            membership = world.members[name].core.membership
            is_full = len(membership.members) >= MEMBERS_MAX
            member = MemberRequest(f"x{len(membership.members)}", "10.0.9.9:40911")
            self._ask(RequestCode.ADD_MEMBER, member, REFUSED_CONNECTION if is_full else CONNECTION)
            if is_full:
                return
        world.heap.push(world.heap.now_ms + CROWD_EVERY_MS, self.crowd)

    def answered(self, replies: Sequence[bytes]) -> None:
        """Check the replies to requests that must be refused. Raises Violated."""
        for reply in replies:
            header = decode_reply(reply)
            if header.code == ResponseCode.SUCCESS:
                raise Violated("changes-are-checked", "a change was made that must be refused")
            self._world.counts.changes_refused += 1

    def check_done(self) -> None:
        """Raise Violated if a requested change is not done."""
        for name, goals in self._jobs:
            raise Violated("membership-change-completes", f"{name}: still to do {goals}")

    # ---- how it is done ---------------------------------------------------------------

    def _add_job(self, name: str, goals: list[tuple[bool, str]]) -> None:
        self._jobs.append((name, goals))
        if not self._is_timed:
            self._is_timed = True
            self._world.heap.push(self._world.heap.now_ms, self._step_jobs)

    def _step_jobs(self) -> None:
        """Send the next step of each job to every member that claims to lead."""
        world = self._world
        self._is_timed = bool(self._jobs)
        if not self._jobs:
            return
        leaders = [m for m in world.members.values() if m.is_up and m.core.role is Role.LEADER]
        for leader in leaders:
            for _, goals in self._jobs:
                self._step(leader, goals)
            self._jobs = [job for job in self._jobs if job[1]]
        world.heap.push(world.heap.now_ms + OPERATOR_RETRY_MS, self._step_jobs)

    def _step(self, leader: SimMember, goals: list[tuple[bool, str]]) -> None:
        core = leader.core
        committed: Membership = core.membership_at(core.ledger.commit_index)[1]
        wants_vote, member = goals[0]
        if not committed.voters:
            return
        if wants_vote:
            if member in committed.voters:
                self._reached(goals)
            elif member not in core.membership.members:
                address = f"10.0.0.{1 + int(member[1:])}:40911"
                self._send(leader, RequestCode.ADD_MEMBER, MemberRequest(member, address))
        elif member not in committed.members:
            self._world.shut_down(member)
            self._reached(goals)
        elif core.membership.voters == committed.voters and len(committed.voters) <= VOTERS_MIN:
            self._reached(goals)
        elif member in core.membership.members:
            self._send(leader, RequestCode.REMOVE_MEMBER, MemberRequest(member))

    def _reached(self, goals: list[tuple[bool, str]]) -> None:
        self._world.counts.membership_changes += 1
        goals.pop(0)

    def _ask(self, code: RequestCode, request: MemberRequest, connection: int = CONNECTION) -> None:
        """Send a request to the leader."""
        name = self._world.leader()
        if name is not None:
            self._send(self._world.members[name], code, request, connection)

    def _send(
        self,
        member: SimMember,
        code: RequestCode,
        request: MemberRequest,
        connection: int = CONNECTION,
    ) -> None:
        world = self._world
        self._opaque += 1
        command = Command(code, self._opaque, ext=request.to_ext())
        at_ms = world.heap.now_ms + world.settings.client_delay_ms
        world.heap.push(at_ms, member.handle, connection, [command])
