"""The faults of both simulated worlds, as data.

Each fault has a start and a duration in virtual milliseconds; whatever applies it at `start_ms`
undoes it at `start_ms + duration_ms`. So faults can be removed from a schedule one by one. A node
is named by its id, or as "leader" or "follower": the leader, or the first follower, at the fault's
start. In links "*" is all other members.

Source: HARNESSES.md (what other harnesses inject), DLEDGER.md section E (bugs of real groups).
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

LEADER = "leader"
FOLLOWER = "follower"
ALL = "*"

Links = tuple[tuple[str, str], ...]
"""Ordered pairs (from, to)."""


class Fault(msgspec.Struct, frozen=True, tag_field="fault", tag=str.lower, kw_only=True):
    """Common to all faults: start and duration, in virtual milliseconds."""

    start_ms: int
    duration_ms: int

    @property
    def end_ms(self) -> int:
        """When the fault is undone."""
        return self.start_ms + self.duration_ms

    @property
    def kind(self) -> str:
        """The fault's name, as in JSON."""
        return str(self.__struct_config__.tag)


class NodeFault(Fault, frozen=True, kw_only=True):
    """A fault of one node."""

    node: str


class LinkFault(Fault, frozen=True, kw_only=True):
    """A fault of links, each in one direction."""

    links: Links


class Crash(NodeFault, frozen=True, tag="crash"):
    """The process is killed; with `loses_unsynced` the machine crashes and loses unsynced data."""

    loses_unsynced: bool = True


class CrashAtOperation(NodeFault, frozen=True, tag="crash_at_operation"):
    """The machine loses power at the `operations`-th changing disk operation after the start."""

    operations: int
    loses_unsynced: bool = True


class Pause(NodeFault, frozen=True, tag="pause"):
    """The process is paused (SIGSTOP); when resumed it gets all inputs that came meanwhile."""


class Cut(LinkFault, frozen=True, tag="cut"):
    """No message passes; a pair in one order only is a one-way cut."""


class SlowLink(LinkFault, frozen=True, tag="slow_link"):
    """Every message takes longer by `delay_ms`."""

    delay_ms: float


class LossyLink(LinkFault, frozen=True, tag="lossy_link"):
    """A message is lost with that probability."""

    probability: float


class Duplicate(LinkFault, frozen=True, tag="duplicate"):
    """A message arrives twice with that probability."""

    probability: float


class Reorder(LinkFault, frozen=True, tag="reorder"):
    """With that probability a message is late by up to `delay_ms`, and others overtake it."""

    probability: float
    delay_ms: float


class NarrowLink(LinkFault, frozen=True, tag="narrow_link"):
    """A bandwidth limit. Only for connections; no schedule generates it."""

    bytes_per_s: float


class ClockRate(NodeFault, frozen=True, tag="clock_rate"):
    """The node's clocks run at that rate (1.0 is correct)."""

    rate: float


class ClockOffset(NodeFault, frozen=True, tag="clock_offset"):
    """The node's wall clock is off by `offset_ms`; its monotonic clock is not."""

    offset_ms: int


class SlowDisk(NodeFault, frozen=True, tag="slow_disk"):
    """Every sync takes `factor` times as long."""

    factor: float


class StallDisk(NodeFault, frozen=True, tag="stall_disk"):
    """No disk operation completes before the fault ends."""


class FailFsync(NodeFault, frozen=True, tag="fail_fsync"):
    """The next fsync fails and drops the dirty pages."""


class Eio(NodeFault, frozen=True, tag="eio"):
    """Every disk operation fails with an input/output error."""


class FullDisk(NodeFault, frozen=True, tag="full_disk"):
    """The disk has only `spare_bytes` left.

    With `copies_on_write` overwriting needs space too, as on btrfs, ZFS or a thin volume: even a
    preallocated file can run out of space.
    """

    spare_bytes: int = 0
    copies_on_write: bool = False


class BitRot(NodeFault, frozen=True, tag="bit_rot"):
    """One bit of the durable log flips, at that share (0.0 to 1.0) of a data file's bytes."""

    place: float
    bit: int = 0


class Stop(NodeFault, frozen=True, tag="stop"):
    """The process stops cleanly (SIGTERM); with `loses_power` the machine is then switched off."""

    loses_power: bool = False


class DamageFile(NodeFault, frozen=True, tag="damage_file"):
    """The process is killed, and one of its small files is damaged.

    `file` names the file (`system.sim.broken_starts.file_damage`); `place` (0.0 to 1.0) is the byte
    or, of several files, which one. `way` is "bit", "zeros", "short" or "gone".
    """

    file: str
    way: str = "bit"
    place: float = 0.5


class RefusedChange(Fault, frozen=True, tag="refused_change"):
    """The leader gets a membership request that it must refuse.

    `why` is "unknown" (remove a node that is not a member), "present" (add the leader itself),
    "nameless" (add a member without an id) or "no_voter" (transfer to a node that is not a member).
    """

    why: str


class Wipe(NodeFault, frozen=True, tag="wipe"):
    """The node loses its disk; a new node with an empty disk and a new id replaces it."""


class Strike(Fault, frozen=True, tag="strike"):
    """The first member that reaches `moment` while this lasts is isolated until its end.

    `moment` is "elected" (it leads a new term) or "stands" (it has started a new term).
    """

    moment: str


class Transfer(Fault, frozen=True, tag="transfer"):
    """The leader is asked to transfer its leadership to `to`."""

    to: str


class AddMember(Fault, frozen=True, tag="add_member"):
    """A new node joins as a learner and becomes a voter."""


class RemoveMember(NodeFault, frozen=True, tag="remove_member"):
    """A member is removed from the group and then shut down."""


class ReplaceMember(NodeFault, frozen=True, tag="replace_member"):
    """A new node joins; once it is a voter the old one is removed and shut down."""


class Expire(Fault, frozen=True, tag="expire"):
    """Every member's full log files are past their retention."""


AnyFault = (
    Crash
    | CrashAtOperation
    | Pause
    | Cut
    | SlowLink
    | LossyLink
    | Duplicate
    | Reorder
    | ClockRate
    | ClockOffset
    | SlowDisk
    | StallDisk
    | FailFsync
    | Eio
    | FullDisk
    | BitRot
    | Wipe
    | Transfer
    | Strike
    | AddMember
    | RemoveMember
    | ReplaceMember
    | Expire
    | Stop
    | DamageFile
    | RefusedChange
)


def expand_links(links: Links, members: Sequence[str], leader: str | None) -> Links:
    """Replace "leader", "follower" and "*" in links; return the pairs in order.

    Without a leader the first member takes its place. Pairs of a member with itself are dropped.
    """
    leads = leader or members[0]
    follows = next((member for member in members if member != leads), leads)
    found: dict[tuple[str, str], None] = {}
    for source, target in links:
        for first in _expand(source, members, leads, follows):
            for second in _expand(target, members, leads, follows):
                if first != second:
                    found[first, second] = None
    return tuple(found)


def _expand(name: str, members: Sequence[str], leads: str, follows: str) -> Sequence[str]:
    if name == ALL:
        return members
    return ({LEADER: leads, FOLLOWER: follows}.get(name, name),)
