"""Scenarios: named sequences of faults that bugs of consensus and storage have needed.

Independent random faults seldom combine. The bug of Raft's figure 8 needs a leader that is cut off
with entries that it could not replicate, a successor that crashes at once, and the first one back.
Each function here generates the steps of one such sequence. A step is that of a script
(`harness.campaigns.scripts`); its times count from the start of the scenario, and its victims may
be roles (see `Cast`).

Source: Raft section 5.4.2 (figure 8), dissertation sections 3.6, 4.2.1, 6.4.1; Ongaro, raft-dev, 10
July 2015; DLEDGER.md section E; CORDS (FAST 2017) and "Protocol-Aware Recovery" (FAST 2018) for
faults of disks in replicated systems. `system.sim.schedules.scenarios` has the same ones, by the
same names.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from shaketable.harness.campaigns.scripts import LEADER_ELECTED, Step
from shaketable.harness.contracts.errors import UsageError
from shaketable.harness.contracts.plugins import Json

ELECTION_S: Final = 1.2
"""Time allowed for each election that a step waits for, in seconds."""
LARGE_NODES_MIN: Final = 5
"""Groups of this size keep a quorum without two nodes."""
AT_SYNCS: Final = ("sync:1", "sync:2", "sync:3", "write:2")
"""Moments of a power loss: when the disk starts that call for the n-th time."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What a scenario needs to know of the campaign.

    Attributes:
        nodes: number of nodes.
        faults: names of the faults that it may use.
        leases_ms: length of leader leases; 0: none.
    """

    nodes: int
    faults: frozenset[str]
    leases_ms: int = 0


@dataclass(frozen=True, slots=True)
class Scenario:
    """A named sequence of faults.

    Attributes:
        name: as a campaign names it.
        summary: what `list` shows.
        faults: the faults that it requires.
        steps: generates its steps.
        nodes_min: the smallest group in which it has any effect.
        elects: whether it needs a group that elects leaders.
        is_last: whether it comes once, at the end of the chaos phase.
    """

    name: str
    summary: str
    faults: frozenset[str]
    steps: Callable[[Random, Setting], list[Step]]
    nodes_min: int = 3
    elects: bool = True
    is_last: bool = False


def span_s(steps: Collection[Step]) -> float:
    """Return how long a scenario takes, in seconds, if each of its events comes in time."""
    return max(
        step.duration + (step.after + ELECTION_S * step.times if step.at is None else step.at)
        for step in steps
    )


def _long(rng: Random, min_duration_s: float, most_s: float) -> float:
    """Choose a time log-uniformly, so that short ones are as frequent as long ones."""
    return round(math.exp(rng.uniform(math.log(min_duration_s), math.log(most_s))), 3)


def _step(fault: str, at: float, duration: float, victims: str, **plan: Any) -> Step:
    return Step(
        fault=fault, at=round(at, 3), duration=round(duration, 3), victims=(victims,), plan=plan
    )


def _one_of(rng: Random, setting: Setting, *faults: str) -> str:
    return rng.choice([fault for fault in faults if fault in setting.faults])


def _figure_8(rng: Random, setting: Setting) -> list[Step]:
    away_s = _long(rng, 0.8, 2.0)
    heal = rng.choice(("deliver", "reset"))
    fall = Step(
        fault=_one_of(rng, setting, "kill", "kill", "power"),
        on=LEADER_ELECTED,
        after=_long(rng, 0.01, 0.3),
        duration=_long(rng, 0.5, 1.5),
        times=2,
        victims=("leader",),
        plan={},
    )
    return [_step("partition", 0, away_s, "@led", heal=heal), fall]


def _strike_the_elected(rng: Random, setting: Setting) -> list[Step]:
    strike = Step(
        fault=_one_of(rng, setting, "kill", "pause", "power"),
        on=LEADER_ELECTED,
        after=_long(rng, 0.005, 0.3),
        duration=_long(rng, 0.2, 1.0),
        times=2
        if setting.nodes < LARGE_NODES_MIN
        else 3,  # of five, three may crash one after another
        victims=("leader",),
    )
    first = _one_of(rng, setting, "kill", "pause")
    return [_step(first, 0, _long(rng, 0.7, 1.5), "@led"), strike]


def _stale_tail(rng: Random, setting: Setting) -> list[Step]:
    away_s = _long(rng, 0.8, 2.5)
    back_s = max(0.1, away_s + rng.uniform(-0.05, 0.4))
    fall = _one_of(rng, setting, "kill", "power")
    steps = [
        _step("partition", 0, away_s, "@led", heal=rng.choice(("deliver", "reset"))),
        _step(fall, back_s, _long(rng, 0.3, 1.0), "leader"),
    ]
    if rng.random() < 0.5:
        steps.append(_step(fall, back_s + _long(rng, 0.05, 0.5), _long(rng, 0.2, 0.6), "@led"))
    return steps


def _vote_and_crash(rng: Random, setting: Setting) -> list[Step]:
    off_s = _long(rng, 0.9, 2.0)
    first = _one_of(rng, setting, "partition", "kill")
    cut = {"heal": rng.choice(("deliver", "reset"))} if first == "partition" else {}
    voters = ("@follower-1", "@follower-2")[: 1 if setting.nodes < LARGE_NODES_MIN else 2]
    return [
        _step(first, 0, off_s, "@led", **cut),
        *(
            _step("power", 0.05, _long(rng, 0.1, 0.5), voter, on=rng.choice(AT_SYNCS))
            for voter in voters
        ),
    ]


def _held_over_election(rng: Random, setting: Setting) -> list[Step]:
    held_s = _long(rng, 1.0, 3.0)
    off_s = rng.uniform(0.1, 0.4)
    fall = _one_of(rng, setting, "pause", "transfer", "partition")
    whom = "@follower-2" if fall == "transfer" else "@led"
    steps = [
        _step("partition", 0, held_s, "@led+@follower-1", shape="one-way", heal="deliver"),
        _step(fall, off_s, _long(rng, 0.7, held_s), whom),
    ]
    if "kill" in setting.faults and rng.random() < 0.5:  # held over two elections
        steps.append(_step("kill", off_s + ELECTION_S / 2, _long(rng, 0.2, 0.6), "leader"))
    return steps


def _change_under_partition(rng: Random, setting: Setting) -> list[Step]:
    parted_s = _long(rng, 0.8, 2.5)
    cut_s, change_s = rng.choice(((0.0, 0.03), (0.0, 0.15), (0.03, 0.0), (0.0, parted_s - 0.1)))
    with_leader = "@led" if setting.nodes < LARGE_NODES_MIN else "@led+@follower-1"
    heal = rng.choice(("deliver", "reset"))
    steps = [
        _step("partition", cut_s, parted_s, with_leader, heal=heal),
        _step("members", change_s, _long(rng, 0.5, 2.0), "@follower-2"),
    ]
    if "kill" in setting.faults and rng.random() < 0.5:  # the new leader crashes too
        steps.append(_step("kill", parted_s + 0.1, _long(rng, 0.2, 0.6), "leader"))
    return steps


def _majority_power_loss(rng: Random, setting: Setting) -> list[Step]:
    away_s = _long(rng, 0.6, 2.0)
    lost_s = rng.uniform(0.15, away_s)
    at = rng.choice(AT_SYNCS)
    return [
        _step("pause", 0, away_s, "@minority"),
        _step("power", lost_s, _long(rng, 0.2, 1.0), "@led+@rest", on=at),
    ]


def _slow_leader_and_wipe(rng: Random, setting: Setting) -> list[Step]:
    slow_s = _long(rng, 1.2, 2.5)
    disk_fault = {"op": "sync", "delay_ms": rng.choice((60.0, 150.0, 400.0))}
    steps = [
        _step("disk-slow", 0, slow_s, "@led", disk_fault=disk_fault),
        _step("wipe", rng.uniform(0.05, 0.4), _long(rng, 0.3, 1.0), "@follower-1"),
    ]
    if "power" in setting.faults and rng.random() < 0.5:  # its unsynced entries are lost
        steps.append(_step("power", slow_s * 0.7, _long(rng, 0.2, 0.6), "@led", on=""))
    return steps


def _snapshot_during_truncation(rng: Random, setting: Setting) -> list[Step]:
    away_s = _long(rng, 1.0, 2.0)
    heal = rng.choice(("deliver", "reset"))
    fall_s = away_s + _long(rng, 0.3, 1.2)
    return [
        _step("partition", 0, away_s, "@led", heal=heal),
        _step("wipe", away_s - rng.uniform(0.1, 0.5), _long(rng, 0.2, 0.6), "@follower-1"),
        _step("kill", fall_s, _long(rng, 0.3, 0.8), "leader"),
    ]


def _clock_jump_at_lease(rng: Random, setting: Setting) -> list[Step]:
    jump_ms = rng.choice((100.0, 300.0, 600.0, 5000.0))
    # Leases assume that no follower's clock runs ahead. The leader's may: its lease ends early.
    whose = "@led" if setting.leases_ms else rng.choice(("@led", "@follower-1", "@followers"))
    change = {"offset_ms": jump_ms, "which": rng.choice(("monotonic", "both"))}
    off_s = rng.uniform(0.05, 0.3)
    return [
        _step("clock", 0, _long(rng, 1.0, 2.5), whose, kind="offset", change=change),
        _step("partition", off_s, _long(rng, 0.8, 2.0), "@led"),
    ]


def _transfer_to_the_stale(rng: Random, setting: Setting) -> list[Step]:
    stale_s = _long(rng, 0.5, 2.0)
    early_s = rng.choice((0.0, 0.0, 0.1, 0.4))
    return [
        _step("partition", 0, stale_s, "@follower-1", heal=rng.choice(("deliver", "reset"))),
        _step("transfer", max(0.1, stale_s - early_s), 0.8, "@follower-1"),
    ]


def _reset_while_unflushed(rng: Random, setting: Setting) -> list[Step]:
    stalled_s = _long(rng, 1.0, 2.0)
    disk_fault = {"op": "sync", "stall": True}
    shape = {"reset_every_ms": 150.0}
    return [
        _step("disk-stall", 0, stalled_s, "@follower-1", disk_fault=disk_fault),
        _step("reset", rng.uniform(0.1, 0.4), 0.3, "@follower-1", link_shape=shape),
    ]


def _lost_while_behind(rng: Random, setting: Setting) -> list[Step]:
    away_s, behind_s = _long(rng, 0.2, 0.5), _long(rng, 0.8, 2.0)
    lost_s = rng.uniform(away_s + 0.2, behind_s)
    # A cut keeps connections open, so a master would wait for its slaves and acknowledge nothing.
    return [
        _step("kill", 0, away_s, "@followers"),
        _step("partition", 0.1, behind_s, "@led", heal=rng.choice(("deliver", "reset"))),
        _step("wipe", lost_s, _long(rng, 0.3, 1.0), "@led", silent_s=0.0),
    ]


def _full_follower(rng: Random, setting: Setting) -> list[Step]:
    # Long enough for the leader to send again what the follower did not take, and to commit more.
    full_s = _long(rng, 1.5, 3.0)
    disk_fault = {"op": "write", "error": "ENOSPC"}
    return [
        _step("disk-full", 0, full_s, "@follower-1", disk_fault=disk_fault),
        _step("kill", full_s * rng.uniform(0.6, 1.0), _long(rng, 0.3, 1.0), "@led"),
    ]


def _late_word(rng: Random, setting: Setting) -> list[Step]:
    late_s = _long(rng, 0.4, 1.0)
    shape = {"how": "shaped", "direction": "both", "link_shape": {"delay_ms": late_s * 1e3}}
    if "transfer" in setting.faults and rng.random() < 0.5:
        # Once elected, it awaits the answer to its last registration, then registers as leader.
        said_s = 0.1 + 2 * late_s
        falls_s = said_s + rng.uniform(0.1, 0.7) * late_s
        whom = rng.choice(("@led", "@follower-2"))
        return [
            _step("name-server-links", 0, falls_s + late_s, "@follower-1", **shape),
            _step("transfer", 0.05, 0.5, "@follower-1"),
            _step("transfer", falls_s, 0.5, whom),
        ]
    return [
        _step("name-server-links", 0, 2 * late_s + 0.5, "@led", **shape),
        _step("members", 0.1, 2 * late_s, "@led"),
    ]


def _final_power_loss(rng: Random, setting: Setting) -> list[Step]:
    return [_step("power", 0, _long(rng, 0.3, 0.6), "all", on="")]


def _named(*scenarios: Scenario) -> dict[str, Scenario]:
    return {scenario.name: scenario for scenario in scenarios}


def _of(*faults: str) -> frozenset[str]:
    return frozenset(faults)


SCENARIOS: Final = _named(
    Scenario(
        "figure-8",
        "Raft's figure 8: the leader is isolated, two new leaders crash in turn, and it is back.",
        _of("partition", "kill"),
        _figure_8,
    ),
    Scenario(
        "strike-the-elected",
        "Each newly elected leader is killed or paused at once (or loses power), repeatedly.",
        _of("kill", "pause"),
        _strike_the_elected,
    ),
    Scenario(
        "stale-tail",
        "A leader with a stale tail returns just as the new leader dies.",
        _of("partition", "kill"),
        _stale_tail,
    ),
    Scenario(
        "vote-and-crash",
        "A voter loses power at an fsync during an election, and is soon back.",
        _of("partition", "power"),
        _vote_and_crash,
    ),
    Scenario(
        "held-over-election",
        "The leader's messages to a follower arrive one or two elections later.",
        _of("partition", "pause"),
        _held_over_election,
    ),
    Scenario(
        "change-under-partition",
        "A member is removed while the leader is in a minority partition, and added back later.",
        _of("members", "partition"),
        _change_under_partition,
    ),
    Scenario(
        "majority-power-loss",
        "While a minority is paused, the acknowledging majority loses power at an fsync.",
        _of("power", "pause"),
        _majority_power_loss,
    ),
    Scenario(
        "slow-leader-and-wipe",
        "The leader's disk is slow while a follower's is wiped; the leader may then lose power.",
        _of("disk-slow", "wipe"),
        _slow_leader_and_wipe,
    ),
    Scenario(
        "snapshot-during-truncation",
        "A follower restarts empty while an old leader truncates its log; the new leader dies.",
        _of("partition", "wipe", "kill"),
        _snapshot_during_truncation,
    ),
    Scenario(
        "clock-jump-at-lease",
        "A clock jumps ahead as the leader is isolated (the leader's clock, if leases are in use).",
        _of("clock", "partition"),
        _clock_jump_at_lease,
    ),
    Scenario(
        "transfer-to-the-stale",
        "Leadership is transferred to a follower that was isolated until a moment ago.",
        _of("partition", "transfer"),
        _transfer_to_the_stale,
    ),
    Scenario(
        "reset-while-unflushed",
        "A follower's connections are reset while it has unsynced writes on a stalled disk.",
        _of("disk-stall", "reset"),
        _reset_while_unflushed,
        elects=False,
    ),
    Scenario(
        "lost-while-behind",
        "The followers are killed and isolated from the leader, whose disk is then wiped.",
        _of("kill", "partition", "wipe"),
        _lost_while_behind,
        elects=False,
    ),
    Scenario(
        "full-follower",
        "A follower's disk is full, and then the leader crashes.",
        _of("disk-full", "kill"),
        _full_follower,
    ),
    Scenario(
        "late-word",
        "A leader's registration reaches the name servers after another member was elected.",
        _of("name-server-links", "members"),
        _late_word,
    ),
    Scenario(
        "final-power-loss",
        "At the end all nodes lose power at once: acknowledged messages must be on disk.",
        _of("power"),
        _final_power_loss,
        nodes_min=1,
        elects=False,
        is_last=True,
    ),
)
"""All scenarios by name."""


# The cast of a scenario: roles that are assigned when it starts, and kept until it ends.
#
# "leader" is the leader at the start of a fault. That is not enough for a sequence of faults, in
# which the first leader has to come back, and one elected since has to crash. A cast assigns roles
# to nodes once, and later steps strike the same nodes.
#
#     @led              the leader when the first step started
#     @follower-2       the second of the other nodes, in the random order of the first step
#     @followers        all other nodes
#     @minority, @rest  the first (n - 1) / 2 of the other nodes, and the remaining ones: with @led
#                       these are just a majority
#     @NAME             the victims of the step with `remember = "NAME"`
#
# Several are joined by "+": "@led+@follower-1".

ROLE: Final = "@"
TOGETHER: Final = "+"
RESERVED_ROLES: Final = ("led", "followers", "minority", "rest")
_FOLLOWER: Final = re.compile(r"follower-([1-9])")
_NAME: Final = re.compile(r"[a-z][a-z0-9-]{0,31}")


def roles_of(victims: Sequence[str]) -> str:
    """Return the roles that a step names, joined; "" if it names none.

    Raises:
        UsageError: it mixes roles and other victims, or a role's name is malformed.
    """
    asked = [name for victim in victims for name in victim.split(TOGETHER)]
    if not any(name.startswith(ROLE) for name in asked):
        return ""
    for name in asked:
        if not name.startswith(ROLE) or not _NAME.fullmatch(name.removeprefix(ROLE)):
            raise UsageError(f"victims {', '.join(victims)}: expected roles alone, as @led+@rest")
    return TOGETHER.join(asked)


def check_name(name: str) -> None:
    """Check that a step may remember its victims under that name.

    Raises:
        UsageError: it may not.
    """
    if name in RESERVED_ROLES or _FOLLOWER.fullmatch(name) or not _NAME.fullmatch(name):
        raise UsageError(f"remember {name!r}: expected a name of its own, as old-leader")


class Cast:
    """The roles of one scenario.

    Args:
        leader: the leader when it starts; None if unknown.
        order: all nodes, in random order.
    """

    def __init__(self, leader: str | None, order: Sequence[str]) -> None:
        self._led = leader if leader is not None else order[0]
        self._followers = [node for node in order if node != self._led]
        self._remembered: dict[str, list[str]] = {}

    def remember(self, name: str, nodes: Sequence[str]) -> None:
        """Give these nodes a name."""
        self._remembered[name] = list(nodes)

    def nodes(self, roles: str) -> list[str]:
        """Return the nodes with these roles ("@led+@rest"), each once; may be empty."""
        found: dict[str, None] = {}
        for role in roles.split(TOGETHER):
            found |= dict.fromkeys(self._of(role.removeprefix(ROLE)))
        return list(found)

    def aimed(self, plan: Json, roles: str) -> Json | None:
        """Return the plan aimed at these roles; None if no node has them.

        For a plan in the vocabulary of `harness.faults.victims`: its "variant" names the nodes, and
        they come first in its "order".
        """
        nodes = self.nodes(roles)
        if not nodes:
            return None
        named = {"variant": TOGETHER.join(nodes)} if "variant" in plan else {}
        rest = [node for node in plan.get("order", ()) if node not in nodes]
        return {**plan, **named, "order": [*nodes, *rest]}

    def _of(self, role: str) -> Sequence[str]:
        few = max(1, len(self._followers) // 2)
        match role:
            case "led":
                return [self._led]
            case "followers":
                return self._followers
            case "minority":
                return self._followers[:few]
            case "rest":
                return self._followers[few:]
        if (follower := _FOLLOWER.fullmatch(role)) is not None:
            number = int(follower[1])
            return self._followers[number - 1 : number]
        return self._remembered.get(role, ())
