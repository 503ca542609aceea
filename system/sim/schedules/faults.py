"""The one vocabulary of faults of both simulated worlds, as data.

Each fault has a start and a duration in virtual milliseconds and carries its own repair: what
began at `start_ms` is mended at `start_ms + duration_ms` by whatever injects it. So faults can
be removed from a schedule one by one. A node is named by its id, or as "leader" and "follower":
whoever leads, and the first that follows, when the fault starts. In links "*" is everybody else.

Source: HARNESSES.md (what the harnesses inject), DLEDGER.md section E (what broke real groups).
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

LEADER = "leader"
FOLLOWER = "follower"
EVERYBODY = "*"

Links = tuple[tuple[str, str], ...]
"""Ordered pairs (from, to)."""


class Fault(msgspec.Struct, frozen=True, tag_field="fault", tag=str.lower, kw_only=True):
    """What all faults share: when it starts and how long it lasts, in milliseconds."""

    start_ms: int
    duration_ms: int

    @property
    def end_ms(self) -> int:
        """When it is mended."""
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
    """The process dies; `loses_unsynced`: the machine does, and forgets what was not synced."""

    loses_unsynced: bool = True


class CrashAtOperation(NodeFault, frozen=True, tag="crash_at_operation"):
    """The machine loses power at the `operations`-th changing disk operation from the start on."""

    operations: int
    loses_unsynced: bool = True


class Pause(NodeFault, frozen=True, tag="pause"):
    """The process stands still (SIGSTOP), then finds all that came in the meantime."""


class Cut(LinkFault, frozen=True, tag="cut"):
    """Nothing gets through; a pair given in one order only is a one-way cut."""


class SlowLink(LinkFault, frozen=True, tag="slow_link"):
    """Every message takes that much longer."""

    delay_ms: float


class LossyLink(LinkFault, frozen=True, tag="lossy_link"):
    """A message is lost with that probability."""

    probability: float


class Duplicate(LinkFault, frozen=True, tag="duplicate"):
    """A message arrives twice with that probability."""

    probability: float


class Reorder(LinkFault, frozen=True, tag="reorder"):
    """A message is late by up to `delay_ms`, and others overtake it, with that probability."""

    probability: float
    delay_ms: float


class NarrowLink(LinkFault, frozen=True, tag="narrow_link"):
    """So many bytes a second get through. Of connections alone: no schedule draws it."""

    bytes_per_s: float


class ClockRate(NodeFault, frozen=True, tag="clock_rate"):
    """The node's clocks run at that rate (1.0 is right)."""

    rate: float


class ClockOffset(NodeFault, frozen=True, tag="clock_offset"):
    """The node's wall clock is wrong by that much; its monotonic clock is not."""

    offset_ms: int


class SlowDisk(NodeFault, frozen=True, tag="slow_disk"):
    """Every sync takes `factor` times as long."""

    factor: float


class StallDisk(NodeFault, frozen=True, tag="stall_disk"):
    """No disk operation ends before the fault does."""


class FailFsync(NodeFault, frozen=True, tag="fail_fsync"):
    """The next fsync fails and drops what it should have written."""


class Eio(NodeFault, frozen=True, tag="eio"):
    """Every disk operation is an input/output error."""


class FullDisk(NodeFault, frozen=True, tag="full_disk"):
    """The disk has `spare_bytes` left.

    With `copies_on_write` what is written again needs room, too, as on btrfs, ZFS or a thin
    volume: there a file that was made whole can find no room.
    """

    spare_bytes: int = 0
    copies_on_write: bool = False


class BitRot(NodeFault, frozen=True, tag="bit_rot"):
    """One bit of the durable log rots: at that part (0.0 to 1.0) of a data file's bytes."""

    place: float
    bit: int = 0


class Stop(NodeFault, frozen=True, tag="stop"):
    """The process ends in order (SIGTERM); `loses_power`: the machine is then switched off."""

    loses_power: bool = False


class DamageFile(NodeFault, frozen=True, tag="damage_file"):
    """The process dies, and one of its small files is damaged.

    `file` names which (`system.sim.broken_starts.file_damage`), `place` (0.0 to 1.0) the byte or,
    of several files, the one. `way` is "bit", "zeros", "short" or "gone".
    """

    file: str
    way: str = "bit"
    place: float = 0.5


class RefusedChange(Fault, frozen=True, tag="refused_change"):
    """The leader is asked for a change of the membership that it must refuse.

    `why` is "unknown" (a member that is none is to be removed), "present" (the leader itself is
    to be added), "nameless" (a member without an id is to be added) or "no_voter" (who is no
    member is to lead).
    """

    why: str


class Wipe(NodeFault, frozen=True, tag="wipe"):
    """The node loses its disk; it comes back empty under a new id, and replaces the old one."""


class Strike(Fault, frozen=True, tag="strike"):
    """Whoever gets that far first while it lasts is cut off that very moment, until its end.

    `moment` is "elected" (a member leads a new term) or "stands" (it has opened a new term).
    """

    moment: str


class Transfer(Fault, frozen=True, tag="transfer"):
    """The leader is asked to hand over to `to`."""

    to: str


class AddMember(Fault, frozen=True, tag="add_member"):
    """A new node joins as a learner and becomes a voter."""


class RemoveMember(NodeFault, frozen=True, tag="remove_member"):
    """A member is removed from the group, and shut down at the fault's end."""


class ReplaceMember(NodeFault, frozen=True, tag="replace_member"):
    """A new node joins, and once it votes the old one is removed and shut down."""


class Expire(Fault, frozen=True, tag="expire"):
    """Every member's oldest log files are past their retention."""


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
    """Return the pairs that links with "leader", "follower" and "*" stand for, in order.

    Without a leader the first member takes its place. A pair of a member with itself is none.
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
    if name == EVERYBODY:
        return members
    return ({LEADER: leads, FOLLOWER: follows}.get(name, name),)
