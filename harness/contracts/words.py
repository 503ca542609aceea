"""The words of worlds: what a world can do to nodes, and how faults say what they need.

A fault names the words that it needs (`needs`) and the family that it belongs to (`family`); a
world that lacks one of them says why (`harness.runtime.offers`), and the fault is skipped with
that reason. The oldest words are methods of `contracts.plugins.World`; behind each of the others
stands one of the small protocols here, so that a world implements what it has, and a fault that
was chosen may rely on it.

Source: DESIGN.md decisions 8, 10 and 11; jepsen.net, jepsen.nemesis.time, lazyfs, charybdefs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Final, Literal, Protocol, runtime_checkable

from shaketable.harness.contracts.plugins import Json, World

Link = tuple[str, str]
"""An ordered pair of nodes (a, b): everything that flows from a to b."""


class Word(StrEnum):
    """One thing that a world can do to nodes."""

    KILL = "kill"
    PAUSE = "pause"
    CUT = "cut"
    TRANSFER = "transfer"
    WIPE = "wipe"
    # links (`ShapesLinks`)
    DELAY = "delay"
    LOSS = "loss"
    RATE = "rate"
    RESET = "reset"
    HALF_OPEN = "half-open"
    DUPLICATE = "duplicate"
    REORDER = "reorder"
    CORRUPT = "corrupt"
    # links to name servers (`LinksNameServers`)
    NAME_SERVERS = "name-servers"
    # name servers themselves (`StrikesNameServers`)
    NAME_SERVER_PROCESSES = "name-server-processes"
    # clocks (`SkewsClocks`)
    CLOCK = "clock"
    # disks (`HurtsDisks`)
    DISK_ERRORS = "disk-errors"
    DISK_FULL = "disk-full"
    DISK_SLOW = "disk-slow"
    POWER = "power"
    DAMAGE = "damage"
    ROLLBACK = "rollback"
    # resources (`contracts.resources.TakesResources`)
    CPU = "cpu"
    MEMORY = "memory"
    DESCRIPTORS = "descriptors"
    # what operators do (`contracts.operators`)
    STOP = "stop"
    MEMBERS = "members"


STEERED: Final = frozenset(
    {
        Word.CLOCK,
        Word.DISK_ERRORS,
        Word.DISK_FULL,
        Word.DISK_SLOW,
        Word.POWER,
    }
)
"""Words for which each node has to obey orders (`contracts.abilities.SteersNodes`)."""

TAKE_LOGS: Final = frozenset({Word.WIPE, Word.DAMAGE, Word.ROLLBACK})
"""Words that take entries from what nodes have stored: these are counted before."""

PROCESS: Final = "process"
NETWORK: Final = "network"
CLOCK: Final = "clock"
DISK: Final = "disk"
ROLLBACK: Final = "rollback"
MEMBERSHIP: Final = "membership"
RESOURCES: Final = "resources"
OTHER: Final = "other"
FAMILIES: Final = (PROCESS, NETWORK, CLOCK, DISK, ROLLBACK, MEMBERSHIP, RESOURCES, OTHER)
"""The families of faults; `rollback` is outside Raft's model and judged apart."""


def needs_of(fault: object) -> frozenset[Word]:
    """The words that a fault needs: its `needs`, none if it does not say."""
    return frozenset(getattr(fault, "needs", ()))


def family_of(fault: object) -> str:
    """The family of a fault: its `family`, `OTHER` if it does not say."""
    return str(getattr(fault, "family", OTHER))


# ---- what a fault may have besides what every fault has ----------------------------------


@runtime_checkable
class Acts(Protocol):
    """A fault that goes on doing something for as long as it holds (a wave of restarts).

    The nemesis calls `act` once, after `apply`, and cancels it when the fault's time is over; a
    fault whose `act` returns before that is over then. `note` writes a grown undo into the ledger:
    call it before the step that the new undo undoes. `undo` is the one that `apply` returned; what
    `act` changes in it (in place) is what `probe` and `undo` are given.
    """

    async def act(self, plan: Json, undo: Json, world: World, note: Callable[[Json], None]) -> None:
        """Do what there is to do until cancelled, or until it is done."""
        ...

    def least_s(self, nodes: Sequence[str]) -> float:
        """How long such a fault must hold at least to do what it is for, in seconds."""
        ...


ANYBODY: Final = "anybody"
"""What `TakesOut.taken_out` names beside, or in place of, nodes: one that may be any."""


@runtime_checkable
class TakesOut(Protocol):
    """A fault that takes nodes out of the group while it holds: it counts for the budget."""

    def taken_out(self, plan: Json, nodes: Sequence[str]) -> Collection[str]:
        """The nodes that an aimed plan stops, or parts from the majority; see ANYBODY."""
        ...

    def narrowed(self, plan: Json, nodes: Sequence[str], spare: Collection[str]) -> Json | None:
        """Return the plan without those nodes in `spare`; None if nothing would be left of it."""
        ...


@runtime_checkable
class UndoesAhead(Protocol):
    """A fault that says what undoes it before it is applied, for the harness may be killed in it.

    A fault that reaches beyond its world's words (it shuts a door of another machine) must: the
    ledger has that undo before `apply` begins, and `heal` undoes by it what was killed half way.
    A fault that uses the world's words alone returns what its `undo` takes for "nothing": what
    words did ends with the group. Of a fault that does not say it, and is not one of ours, `heal`
    cannot tell what it did, and says that.
    """

    def undo_ahead(self, plan: Json) -> Json:
        """Return what undoes whatever `apply` of this aimed plan may have done by then. Pure."""
        ...


# ---- links -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkShape:
    """What becomes of what flows over a link. Shares are of packets (or chunks), 0 to 1.

    Attributes:
        delay_ms, jitter_ms: each is late by `delay_ms`, give or take `jitter_ms` at most.
        loss, duplicate, reorder, corrupt: the share that is lost, comes twice, overtakes, or
            arrives with a bit changed.
        rate_bytes_s: bytes a second that get through; 0: all.
        reset_every_ms: the mean time after which all connections are reset; 0: never.
        half_open: one side's connections end without the other being told.
        seed: what is drawn, is drawn from it.
    """

    delay_ms: float = 0.0
    jitter_ms: float = 0.0
    loss: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    corrupt: float = 0.0
    rate_bytes_s: float = 0.0
    reset_every_ms: float = 0.0
    half_open: bool = False
    seed: str = ""

    @property
    def words(self) -> frozenset[Word]:
        """The words that it takes to do this."""
        asked = {
            Word.DELAY: self.delay_ms or self.jitter_ms,
            Word.LOSS: self.loss,
            Word.DUPLICATE: self.duplicate,
            Word.REORDER: self.reorder,
            Word.CORRUPT: self.corrupt,
            Word.RATE: self.rate_bytes_s,
            Word.RESET: self.reset_every_ms,
            Word.HALF_OPEN: self.half_open,
        }
        return frozenset(word for word, much in asked.items() if much)

    def to_json(self) -> Json:
        """For a plan; `LinkShape(**json)` reads it back."""
        return asdict(self)


@runtime_checkable
class ShapesLinks(Protocol):
    """A world whose links can be made worse than they are."""

    async def shape(self, links: Sequence[Link], shape: LinkShape) -> str:
        """Shape these links; return an id. Shapes of one link add up."""
        ...

    async def unshape(self, shape: str) -> None:
        """Take that shape away (idempotent); no other is touched."""
        ...

    def shaped(self, shape: str) -> Json:
        """What that shape did so far; also after it was taken away.

        {"bytes", "packets" or "chunks", "delayed", "delay_ms_mean", "dropped", "duplicated",
        "reordered", "corrupted", "resets", "refused"}: what does not apply is missing or 0.
        """
        ...


@runtime_checkable
class LinksNameServers(Protocol):
    """A world in which links between nodes and name servers can be cut and shaped as others.

    That is in every way: delays, losses, resets, half-open connections.
    """

    @property
    def name_servers(self) -> Sequence[str]:
        """What the name servers are called as ends of links."""
        ...


@runtime_checkable
class StrikesNameServers(Protocol):
    """A world whose name servers can be killed, paused and started as nodes are, by their names.

    They are no nodes: nobody asks them for a status, and faults of nodes do not strike them.
    `ends_of_name_servers` are those who talk to them, as ends of links that can be cut; none where
    their links are not the world's.
    """

    @property
    def name_servers(self) -> Sequence[str]:
        """What the name servers are called."""
        ...

    @property
    def ends_of_name_servers(self) -> Sequence[str]:
        """Nodes and clients."""
        ...

    async def kill(self, node: str) -> Json:
        """See `contracts.plugins.World.kill`; so with all others."""
        ...

    async def pause(self, node: str) -> Json:
        """See `contracts.plugins.World.pause`."""
        ...

    async def cut(self, links: Sequence[Link]) -> str:
        """See `contracts.plugins.World.cut`."""
        ...


# ---- clocks ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockChange:
    """What becomes of one process's clocks: an offset in ms, and a rate (0: frozen).

    With `strobe_ms` they show the offset and the right time by turns, for so long each. A
    monotonic clock never goes back: it keeps what an offset or a rate has put it ahead by.
    """

    offset_ms: float = 0.0
    rate: float = 1.0
    which: Literal["wall", "monotonic", "both"] = "both"
    strobe_ms: float = 0.0

    def to_json(self) -> Json:
        """For a plan; `ClockChange(**json)` reads it back."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockReading:
    """A node's clocks as measured of the node, against those of the harness.

    Attributes:
        offset_ms: its wall clock is ahead by so much.
        monotonic_offset_ms: its monotonic clock is ahead by so much since it started.
        rate: how fast its monotonic clock goes: 1.0 as ours.
        is_wall_only: nothing but the wall clock could be measured.
    """

    offset_ms: float
    monotonic_offset_ms: float = 0.0
    rate: float = 1.0
    is_wall_only: bool = False


@runtime_checkable
class SkewsClocks(Protocol):
    """A world in which each process's clocks can be changed, and nobody else's."""

    async def skew(self, node: str, change: ClockChange) -> Json:
        """Change a node's clocks; return what `unskew` needs (also by another process)."""
        ...

    async def unskew(self, node: str, undo: Json) -> None:
        """Undo exactly that change (idempotent)."""
        ...

    async def read_clock(self, node: str) -> ClockReading:
        """Measure a node's clocks.

        Raises:
            IndefiniteError: it does not answer.
        """
        ...


# ---- disks -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskHarm:
    """What becomes of a node's calls to its disk.

    Attributes:
        op: which calls.
        error: the errno that they fail with ("EIO", "ENOSPC"); "": none.
        nth: from the nth call on (counted from 1); 0: all.
        times: so many calls; 0: until healed.
        delay_ms: each takes longer by so much.
        stall: they do not return before it is healed.
    """

    op: Literal["read", "write", "sync", "any"] = "any"
    error: str = ""
    nth: int = 0
    times: int = 0
    delay_ms: float = 0.0
    stall: bool = False

    def to_json(self) -> Json:
        """For a plan; `DiskHarm(**json)` reads it back."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """What becomes of the files of a dead node.

    Attributes:
        how: a bit flipped, a file cut short, or the whole store rolled back to a copy.
        file: which file of the store (a pattern as of `fnmatch`); "": drawn.
        bytes_: how much is cut off, or how many bits are flipped.
        copy: the id that `copy_store` returned, for a rollback.
        seed: what is drawn, is drawn from it.
    """

    how: Literal["flip", "truncate", "rollback"]
    file: str = ""
    bytes_: int = 1
    copy: str = ""
    seed: str = ""

    def to_json(self) -> Json:
        """For a plan; `Damage(**json)` reads it back."""
        return asdict(self)


@runtime_checkable
class HurtsDisks(Protocol):
    """A world in which each node's disk can be made to fail, and nobody else's."""

    async def hurt_disk(self, node: str, harm: DiskHarm) -> str:
        """Do that to a node's disk from now on; return an id."""
        ...

    async def heal_disk(self, harm: str) -> None:
        """End exactly that harm (idempotent)."""
        ...

    def disk_harm(self, harm: str) -> Json:
        """What it did so far, as the node itself counted; also after it was healed."""
        ...

    async def damage(self, node: str, damage: Damage) -> Json:
        """Edit the files of a dead node; return what was changed, where."""
        ...

    async def copy_store(self, node: str) -> str:
        """Copy what a dead node has stored, for a later rollback; return an id."""
        ...

    async def tempt(self, node: str, incarnation: int) -> Json:
        """Start a damaged node, whose dead incarnation that is, and see what it does.

        Returns {"incarnation": of the process that was started, "refused": what it said when it
        ended by itself, None if it runs, "serves": whether it answers}. One that runs and does
        not answer in time has done neither.
        """
        ...

    async def revive(self, node: str, incarnation: int) -> None:
        """Give a node that refused its store an empty disk, and what it needs from its group.

        `incarnation` is the one that refused. Nothing is done twice, or to a node that runs.
        """
        ...


@runtime_checkable
class LosesPower(Protocol):
    """A world in which a node can lose what it had not synced, and it is known how much."""

    async def lose_power(self, nodes: Sequence[str], on: str = "") -> Json:
        """Let nodes lose power, all at once; `restart` starts them again.

        With `on` ("sync:3", "message:PushRequest") each at its third such event from now on, or
        when it does not come to that in time. Returns {"incarnations": as of `World.kill`,
        "lost_bytes": by node, what was certainly not synced}.
        """
        ...


@runtime_checkable
class CountsEffects(Protocol):
    """A world whose nodes count what they do: for faults that strike at the N-th of something."""

    def effects(self, node: str) -> Mapping[str, int]:
        """How often what happened in that node so far: {"sync": n, "write": n, "message": n}.

        The counts of its incarnations add up; names are those of the events of a script
        ("sync:100").
        """
        ...
