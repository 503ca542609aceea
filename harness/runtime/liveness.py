"""What must have come back once all faults are over, where time itself is simulated.

On a machine a slow disk or a busy processor explains a group that does not settle in time: nobody
knows. In a simulated world nothing is slow that no fault makes slow. So a group that has not come
back when `PATIENCE_S` of virtual time have passed never comes back: a violation of liveness.

Source: docs/adr/0044; the simulator's own invariants everybody-runs and everybody-catches-up;
"eventually" in TigerBeetle's VOPR, which heals all faults and demands that its cluster converges.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from shaketable.harness.contracts.broken_rules import Broken

PATIENCE_S: Final = 60.0
"""Virtual seconds that the group has for each step back: to be elected, to answer the clients'
last operations, to settle. The slowest thing that a correct node waits for is a connection that it
takes for dead (20 s), and then the next try (5 s) and registration (10 s)."""
SERVES: Final = "group-serves"
RUNS: Final = "everybody-runs"
CATCHES_UP: Final = "everybody-catches-up"
CALLS_END: Final = "calls-end"
NAME_SERVERS_RUN: Final = "name-servers-run"
OF_NODES: Final = frozenset({SERVES, RUNS, CATCHES_UP, NAME_SERVERS_RUN})
"""These hold though a disk was lost: a node without it begins anew, as its target says."""
OF_CALLS: Final = frozenset({CALLS_END})
"""A client may wait for ever for what was lost where that was never promised to be kept."""
NEW_DISK: Final = "wipe"
_PROMISES: Final[Mapping[str, tuple[str, str]]] = {
    SERVES: (
        "A group that nothing disturbs has a leader, and serves, soon after it was started.",
        "Nobody can use it.",
    ),
    RUNS: (
        "Every node is up again once the faults are over.",
        "The group would be one failure away from standing still.",
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
        "Clients that begin then find no broker.",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Standstill:
    """How a group stands when its time is over.

    Attributes:
        at_ns: when that was looked at, since the run's begin.
        waited_s: how long it was waited for since, in virtual seconds.
        down: nodes that do not run, or wait for their disk: node -> that in words.
        behind: nodes that run and do not agree with their group, those that are furthest first.
        states: each node in a few words.
        waiting: what clients wait for, a line for each.
    """

    at_ns: int
    waited_s: float
    down: Mapping[str, str] = field(default_factory=dict)
    behind: tuple[str, ...] = ()
    states: str = ""
    waiting: tuple[str, ...] = ()


def not_back(still: Standstill, *, settled: bool, answered: bool) -> tuple[Broken, ...]:
    """Return what did not come back, nodes before clients.

    Args:
        still: how the group stands.
        settled: whether the nodes that run agree.
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
        behind = ", ".join(still.behind) or "the group"
        what = f"{behind} did not come to agree with the others in {after}: {still.states}"
        node = still.behind[0] if still.behind else ""
        found.append(_broken(CATCHES_UP, what + clients, node, still))
    if not answered:
        waits = "; ".join(still.waiting) or "clients did not finish"
        found.append(_broken(CALLS_END, f"{after}: {waits}; {still.states}", "", still))
    return tuple(found)


def never_served(still: Standstill) -> Broken:
    """Return that a group does not serve to which nothing was done yet."""
    within = f"within {still.waited_s:.0f} s of virtual time, before any fault"
    node = min(still.down, default=still.behind[0] if still.behind else "")
    return _broken(SERVES, f"the group has no leader {within}: {still.states}", node, still)


def name_server_ended(line: str, at_ns: int) -> Broken:
    """Return that a name server ended by itself, as this line says."""
    return Broken(NAME_SERVERS_RUN, line, "", at_ns, *_PROMISES[NAME_SERVERS_RUN])


def _broken(invariant: str, finding: str, node: str, still: Standstill) -> Broken:
    return Broken(invariant, finding, node, still.at_ns, *_PROMISES[invariant])


def _rest(still: Standstill, named: frozenset[str]) -> str:
    """The other nodes in words."""
    others = [state for state in still.states.split("; ") if state.partition(" ")[0] not in named]
    return f"; {'; '.join(others)}" if others else ""


def _clients(still: Standstill) -> str:
    """What clients wait for, behind the nodes."""
    return f"; {'; '.join(still.waiting)}" if still.waiting else ""
