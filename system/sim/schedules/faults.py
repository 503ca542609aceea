"""The faults of both simulated worlds, as data, and which small files may be damaged.

Each fault has a start and a duration in virtual milliseconds; whatever applies it at `start_ms`
undoes it at `start_ms + duration_ms`. So faults can be removed from a schedule one by one. A node
is named by its id, or as "leader" or "follower": the leader, or the first follower, at the fault's
start; "others" are all but these two. The id of a member that has left means one that has joined
since (`stand_ins`). In links "*" is all other members.

Source: HARNESSES.md (what other harnesses inject), DLEDGER.md section E (bugs of real groups).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from shaketable.system.store.key_index import HEADER_BYTES

if TYPE_CHECKING:
    from shaketable.system.sim.disk import Platter


LEADER = "leader"
FOLLOWER = "follower"
OTHERS = "others"
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


class CrashAtTruncation(Fault, frozen=True, tag="crash_at_truncation"):
    """The first member that truncates its log while this lasts loses power soon after.

    It does at the `operations`-th changing disk operation from there on, and is down until the end.
    """

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


class LowMtu(LinkFault, frozen=True, tag="low_mtu"):
    """Larger segments are dropped silently. Only for connections; no schedule generates it."""

    mtu_bytes: float


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
    preallocated file can run out of space. `refused` is the share, 0.0 to 1.0, of the writes
    without space that are refused: other programs use the disk too, so that a write may find some
    that they have freed, and the next one none. `since` delays all this until a path that contains
    it is written, as "appliedto": so the disk becomes full in the middle of what is saved.
    """

    spare_bytes: int = 0
    copies_on_write: bool = False
    refused: float = 1.0
    since: str = ""


class BitRot(NodeFault, frozen=True, tag="bit_rot"):
    """One bit of the durable log flips, at that share (0.0 to 1.0) of a data file's bytes."""

    place: float
    bit: int = 0


class Stop(NodeFault, frozen=True, tag="stop"):
    """The process stops cleanly (SIGTERM); with `loses_power` the machine is then switched off."""

    loses_power: bool = False


class DamageFile(NodeFault, frozen=True, tag="damage_file"):
    """The process is killed, and one of its small files is damaged.

    `file` names the file (see below); `place` (0.0 to 1.0) is the byte
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
    | CrashAtTruncation
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


def stand_ins(first: Sequence[str], members: Sequence[str]) -> dict[str, str]:
    """Return, for each of the first members that has left, a member that has joined since, if any.

    A schedule names the members that a group starts with; a fault of one that has been replaced
    would otherwise do nothing.
    """
    gone = [name for name in first if name not in members]
    return dict(zip(gone, [name for name in members if name not in first], strict=False))


def expand_links(
    links: Links,
    members: Sequence[str],
    leader: str | None,
    instead: Mapping[str, str] | None = None,
) -> Links:
    """Replace "leader", "follower", "*" and members that have left; return the pairs in order.

    `instead` has who stands in for a member that has left. Without a leader the first member
    takes its place. Pairs of a member with itself are dropped.
    """
    links = tuple(((instead or {}).get(a, a), (instead or {}).get(b, b)) for a, b in links)
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


# Which of a node's small files may be damaged, how, and what must follow.
#
# Damage to the vote or the durable watermark must be detected: the node does not start. What can
# be rebuilt from the log is rebuilt silently. Consume queue units and key index items have no
# checksum, as in RocketMQ: whole files of them are lost, not single bits.

MUST_BE_DETECTED = ("currterm", "snapshot", "syncedto", "syncedto_slot", "data")
"""A start may be refused; for a damaged `data` file or a single slot it need not be."""
ALWAYS_DETECTED = ("currterm", "snapshot", "syncedto")
REBUILT = ("checkpoint", "appliedto", "log_index", "consumequeue", "key_index")
OF_A_BROKER = ("checkpoint", "appliedto", "consumequeue", "key_index")
"""What a broker without a group rebuilds."""
_ALL_WAYS = ("bit", "zeros", "short", "gone")
WAYS: Mapping[str, tuple[str, ...]] = {
    "currterm": _ALL_WAYS,
    "snapshot": ("bit", "zeros", "short"),  # without one an upgraded log may be as it should
    "syncedto": _ALL_WAYS,
    "syncedto_slot": ("bit",),
    "data": ("zeros", "short", "gone"),
    "checkpoint": _ALL_WAYS,
    "appliedto": _ALL_WAYS,
    "log_index": _ALL_WAYS,
    "consumequeue": ("zeros", "short", "gone"),
    "key_index": ("bit", "short", "gone"),
}
"""In which ways each file may be damaged."""
_SLOT_BYTES = 4096
_SLOT_USED_BYTES = 60


def damage_file(platter: Platter, root: str, node: str, file: str, way: str, place: float) -> bool:
    """Damage one file of a node whose process has ended; return False if there is none."""
    return _damage(
        platter, _path_of(platter, root, f"{root}/dledger-{node}", file, place), file, way, place
    )


def damage_broker_file(platter: Platter, root: str, file: str, way: str, place: float) -> bool:
    """Damage one of OF_A_BROKER at a broker without a group; return False if there is none."""
    return _damage(platter, _path_of(platter, root, root, file, place), file, way, place)


def _damage(platter: Platter, path: str | None, file: str, way: str, place: float) -> bool:
    if path is None or platter.written_size(path) < 2:
        return False
    size = platter.written_size(path)
    if way == "gone":
        platter.lose_file(path)
    elif way == "short":
        platter.truncate_file(path, size // 2 if file == "currterm" else int(place * size / 2))
    elif way == "zeros":
        platter.zero_file(path)
    elif file in ("syncedto", "syncedto_slot"):
        at = int(place * _SLOT_USED_BYTES)
        slots = (0, _SLOT_BYTES) if file == "syncedto" else (_SLOT_BYTES * (size % 2),)
        for slot in slots:
            if slot + at < size:
                platter.flip_bit(path, slot + at)
    elif file == "key_index":
        platter.flip_bit(path, int(place * HEADER_BYTES))
    else:
        platter.flip_bit(path, int(place * size), int(place * 1000) % 8)
    return True


def _path_of(platter: Platter, root: str, folder: str, file: str, place: float) -> str | None:
    fixed = {
        "currterm": f"{folder}/currterm",
        "snapshot": f"{folder}/snapshot",
        "syncedto": f"{folder}/syncedto",
        "syncedto_slot": f"{folder}/syncedto",
        "checkpoint": f"{folder}/checkpoint",
        "appliedto": f"{folder}/appliedto",
    }
    if file in fixed:
        return fixed[file]
    prefix = {
        "data": f"{folder}/data/",
        "log_index": f"{folder}/index/",
        "consumequeue": f"{root}/consumequeue/",
        "key_index": f"{root}/index/",
    }[file]
    paths = sorted(path for path in platter.inodes if path.startswith(prefix))
    return paths[int(place * len(paths))] if paths else None
