"""Liveness after all faults are over, in simulated time: what must have recovered.

On a real machine a slow disk or a busy CPU may explain a group that does not settle in time. In a
simulated world nothing is slow unless a fault makes it slow. So a group that has not recovered
after `PATIENCE_S` of virtual time never will: a liveness violation.

Source: docs/adr/0044; the simulator's own invariants every-node-runs and every-node-catches-up;
"eventually" in TigerBeetle's VOPR, which heals all faults and demands that its cluster converges.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from shaketable.harness.contracts.abilities import Broken

PATIENCE_S: Final = 60.0
"""Virtual seconds that the group has for each step of recovery: to elect a leader, to answer the
clients' last operations, to settle. The slowest wait of a correct node is for a connection that it
takes for dead (20 s), then the next try (5 s) and registration (10 s).
"""
SERVES: Final = "group-serves"
RUNS: Final = "every-node-runs"
CATCHES_UP: Final = "every-node-catches-up"
CALLS_END: Final = "calls-end"
NAME_SERVERS_RUN: Final = "name-servers-run"
OF_NODES: Final = frozenset({SERVES, RUNS, CATCHES_UP, NAME_SERVERS_RUN})
"""These hold even if a disk was lost: a node without it starts over, as its target defines."""
OF_CALLS: Final = frozenset({CALLS_END})
"""A client may wait forever for lost data that no promise covers."""
NEW_DISK: Final = "wipe"
_PROMISES: Final[Mapping[str, tuple[str, str]]] = {
    SERVES: (
        "A group that nothing disturbs has a leader, and serves, soon after it was started.",
        "No client can use it.",
    ),
    RUNS: (
        "Every node is up again once the faults are over.",
        "The group would be one failure away from losing its quorum.",
    ),
    CATCHES_UP: (
        "Once the faults are over, the nodes of a group agree who leads, and each of them has all"
        " that is committed.",
        "Its clients would wait for ever for what others have read, or for an acknowledgement.",
    ),
    CALLS_END: (
        "Once the faults are over, every call of a client ends, and one that is tried again"
        " succeeds in the end.",
        "The group would stay out of service although nothing is broken any more.",
    ),
    NAME_SERVERS_RUN: (
        "A name server that nothing is done to goes on.",
        "Clients that start then find no broker.",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Standstill:
    """The state of a group when its time is over.

    Attributes:
        at_ns: when it was observed, since the run's start.
        waited_s: how long it was waited for, in virtual seconds.
        down: nodes that do not run, or wait for their disk: node -> description.
        lagging: running nodes that do not agree with their group, the furthest behind first.
        states: a phrase on each node.
        waiting: what clients wait for, a line each.
    """

    at_ns: int
    waited_s: float
    down: Mapping[str, str] = field(default_factory=dict)
    lagging: tuple[str, ...] = ()
    states: str = ""
    waiting: tuple[str, ...] = ()


def not_recovered(still: Standstill, *, settled: bool, answered: bool) -> tuple[Broken, ...]:
    """Return what did not recover, nodes before clients.

    Args:
        still: the state of the group.
        settled: whether the running nodes agree.
        answered: whether all operations of the clients have ended, the last ones with success.
    """
    found = []
    clients = _clients(still)
    after = f"{still.waited_s:.0f} s of undisturbed virtual time after the last fault"
    if still.down:
        what = "; ".join(still.down.values())
        rest = _rest(still, frozenset(still.down))
        over = "though all faults are over"
        found.append(_broken(RUNS, f"{what}, {over}{rest}{clients}", min(still.down), still))
    if not settled:
        lagging = ", ".join(still.lagging) or "the group"
        what = f"{lagging} did not come to agree with the others in {after}: {still.states}"
        node = still.lagging[0] if still.lagging else ""
        found.append(_broken(CATCHES_UP, what + clients, node, still))
    if not answered:
        waits = "; ".join(still.waiting) or "clients did not finish"
        found.append(_broken(CALLS_END, f"{after}: {waits}; {still.states}", "", still))
    return tuple(found)


def never_served(still: Standstill) -> Broken:
    """Return the violation of a group that never served, without any fault."""
    within = f"within {still.waited_s:.0f} s of virtual time, before any fault"
    node = min(still.down, default=still.lagging[0] if still.lagging else "")
    return _broken(SERVES, f"the group has no leader {within}: {still.states}", node, still)


def name_server_ended(line: str, at_ns: int) -> Broken:
    """Return the violation of a name server that ended by itself, as this line reports."""
    return Broken(NAME_SERVERS_RUN, line, "", at_ns, *_PROMISES[NAME_SERVERS_RUN])


def _broken(invariant: str, finding: str, node: str, still: Standstill) -> Broken:
    return Broken(invariant, finding, node, still.at_ns, *_PROMISES[invariant])


def _rest(still: Standstill, named: frozenset[str]) -> str:
    """Describe the other nodes."""
    others = [state for state in still.states.split("; ") if state.partition(" ")[0] not in named]
    return f"; {'; '.join(others)}" if others else ""


def _clients(still: Standstill) -> str:
    """Describe what clients wait for, to follow the nodes."""
    return f"; {'; '.join(still.waiting)}" if still.waiting else ""
