"""The capabilities of worlds: what a world can do to nodes, and what a fault needs.

A fault names the capabilities that it needs (`needs`) and its family (`family`). If the world lacks
one of them (`harness.runtime.availability`), the fault is skipped, with the reason. The
oldest capabilities are methods of `contracts.plugins.World`. Each of the others is one of the small
protocols here: a world implements those that it has, and a chosen fault may rely on them.

Source: DESIGN.md decisions 8, 10 and 11; jepsen.net, jepsen.nemesis.time, lazyfs, charybdefs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Final, Literal, Protocol, runtime_checkable

from shaketable.harness.contracts.plugins import Json, World

Link = tuple[str, str]
"""An ordered pair of nodes (a, b): all traffic from a to b."""


class Capability(StrEnum):
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
    MTU = "mtu"
    RESET = "reset"
    HALF_OPEN = "half-open"
    DUPLICATE = "duplicate"
    REORDER = "reorder"
    CORRUPT = "corrupt"
    # links to name servers (`LinksNameServers`)
    NAME_SERVERS = "name-servers"
    # name server processes (`FaultsNameServers`)
    NAME_SERVER_PROCESSES = "name-server-processes"
    # connections of clients (`LinksClients`)
    CLIENT_LINKS = "client-links"
    # clocks (`SkewsClocks`)
    CLOCK = "clock"
    # disks (`InjectsDiskFaults`)
    DISK_ERRORS = "disk-errors"
    DISK_FULL = "disk-full"
    DISK_SLOW = "disk-slow"
    POWER = "power"
    DAMAGE = "damage"
    ROLLBACK = "rollback"
    # resources (`LimitsResources`)
    CPU = "cpu"
    MEMORY = "memory"
    DESCRIPTORS = "descriptors"
    # operator actions (`StopsNodes`, `MovesMembers`)
    STOP = "stop"
    MEMBERS = "members"


OF_DISKS: Final = frozenset(
    {Capability.DISK_ERRORS, Capability.DISK_FULL, Capability.DISK_SLOW, Capability.POWER}
)
"""Capabilities that need a say in what becomes of a node's disk calls."""

STEERED: Final = frozenset({Capability.CLOCK}) | OF_DISKS
"""Capabilities that need nodes that can be steered (`contracts.abilities.SteersNodes`).

Those of disks can also be had from a disk of the harness (`contracts.abilities.HasVolatileDisk`).
"""

OUTER_LINKS: Final = frozenset({Capability.NAME_SERVERS, Capability.CLIENT_LINKS})
"""Capabilities for links that do not join two nodes."""

TAKE_LOGS: Final = frozenset({Capability.WIPE, Capability.DAMAGE, Capability.ROLLBACK})
"""Capabilities that remove stored entries: the entries are counted first."""

PROCESS: Final = "process"
NETWORK: Final = "network"
CLOCK: Final = "clock"
DISK: Final = "disk"
ROLLBACK: Final = "rollback"
MEMBERSHIP: Final = "membership"
RESOURCES: Final = "resources"
OTHER: Final = "other"
FAMILIES: Final = (PROCESS, NETWORK, CLOCK, DISK, ROLLBACK, MEMBERSHIP, RESOURCES, OTHER)
"""The families of faults. `rollback` is outside Raft's fault model and is judged separately."""


def needs_of(fault: object) -> frozenset[Capability]:
    """Return the capabilities that a fault needs: its `needs`, or none."""
    return frozenset(getattr(fault, "needs", ()))


def family_of(fault: object) -> str:
    """Return the family of a fault: its `family`, or `OTHER`."""
    return str(getattr(fault, "family", OTHER))


# ---- optional parts of a fault --------------------------------------------------------------


@runtime_checkable
class Acts(Protocol):
    """A fault that keeps acting while it is in force (a rolling restart).

    The nemesis calls `act` once, after `apply`, and cancels it when the fault's time is up. If
    `act` returns earlier, the fault ends then. `note` writes the grown undo to the ledger: call it
    before the step that the new undo reverts (write-ahead). `undo` is what `apply` returned; `act`
    changes it in place, and `probe` and `undo` get the changed one.
    """

    async def act(self, plan: Json, undo: Json, world: World, note: Callable[[Json], None]) -> None:
        """Act until done or cancelled."""
        ...

    def min_duration_s(self, nodes: Sequence[str]) -> float:
        """Return the minimum duration in seconds for the fault to do its job."""
        ...


ANY_NODE: Final = "any"
"""In the result of `TakesOut.taken_out`: one node, which may be any."""


@runtime_checkable
class TakesOut(Protocol):
    """A fault that takes nodes out of the group while in force: it counts against the budget."""

    def taken_out(self, plan: Json, nodes: Sequence[str]) -> Collection[str]:
        """Return the nodes that an aimed plan stops or cuts off from the majority; see ANY_NODE."""
        ...

    def narrowed(self, plan: Json, nodes: Sequence[str], spare: Collection[str]) -> Json | None:
        """Return the plan without the nodes in `spare`; None if nothing is left of it."""
        ...


@runtime_checkable
class UndoesAhead(Protocol):
    """A fault that returns its undo before it is applied, in case the harness is killed meanwhile.

    Required of a fault that acts outside its world (it adds a firewall rule on another machine):
    the undo is in the ledger before `apply` starts, and `heal` uses it to revert a fault that was
    killed half way. A fault that only uses its world's capabilities returns an undo that reverts
    nothing, since their effects end with the group. If a third-party fault has no `undo_ahead`,
    `heal` cannot know what it did, and reports that.
    """

    def undo_ahead(self, plan: Json) -> Json:
        """Return the undo for anything that `apply` of this aimed plan may have done. Pure."""
        ...


# ---- links -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkShape:
    """What happens to the traffic of a link, as tc-netem. Shares are of packets (chunks), 0 to 1.

    Attributes:
        delay_ms, jitter_ms: each packet is delayed by `delay_ms` plus or minus at most `jitter_ms`.
        loss, duplicate, reorder, corrupt: the share that is lost, duplicated, reordered, or has a
            bit flipped.
        rate_bytes_s: bandwidth in bytes a second; 0: unlimited.
        mtu_bytes: larger packets (chunks, with their headers) are dropped silently; 0: none is.
        reset_every_ms: mean interval between resets of all connections; 0: never.
        half_open: one end of each connection is closed, and the other end gets no FIN or RST.
        seed: seeds all random choices.
    """

    delay_ms: float = 0.0
    jitter_ms: float = 0.0
    loss: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    corrupt: float = 0.0
    rate_bytes_s: float = 0.0
    mtu_bytes: float = 0.0
    reset_every_ms: float = 0.0
    half_open: bool = False
    seed: str = ""

    @property
    def capabilities(self) -> frozenset[Capability]:
        """The capabilities that this shape needs."""
        asked = {
            Capability.DELAY: self.delay_ms or self.jitter_ms,
            Capability.LOSS: self.loss,
            Capability.DUPLICATE: self.duplicate,
            Capability.REORDER: self.reorder,
            Capability.CORRUPT: self.corrupt,
            Capability.RATE: self.rate_bytes_s,
            Capability.MTU: self.mtu_bytes,
            Capability.RESET: self.reset_every_ms,
            Capability.HALF_OPEN: self.half_open,
        }
        return frozenset(capability for capability, much in asked.items() if much)

    def to_json(self) -> Json:
        """Return a dict for a plan; `LinkShape(**json)` reads it back."""
        return asdict(self)


@runtime_checkable
class ShapesLinks(Protocol):
    """A world that can degrade its links."""

    async def shape(self, links: Sequence[Link], shape: LinkShape) -> str:
        """Shape these links; return an id. Several shapes of one link add up."""
        ...

    async def unshape(self, shape: str) -> None:
        """Remove exactly this shape (idempotent)."""
        ...

    def shaped(self, shape: str) -> Json:
        """Return what the shape did so far; also after it was removed.

        Keys: {"bytes", "packets" or "chunks", "delayed", "delay_ms_mean", "dropped", "duplicated",
        "reordered", "corrupted", "resets", "refused"}; those that do not apply are missing or 0.
        """
        ...


@runtime_checkable
class LinksNameServers(Protocol):
    """A world that can cut and shape the links between nodes and name servers.

    All shapes apply: delay, loss, resets, half-open connections.
    """

    @property
    def name_servers(self) -> Sequence[str]:
        """The name servers' names, as ends of links."""
        ...


@runtime_checkable
class FaultsNameServers(Protocol):
    """A world that can kill, pause and restart name servers, by name, like nodes.

    They are not nodes: their status is not polled, and node faults do not choose them.
    """

    @property
    def name_servers(self) -> Sequence[str]:
        """The name servers' names."""
        ...

    @property
    def name_server_peers(self) -> Sequence[str]:
        """The nodes and clients that talk to them, as ends of links; none if not cuttable."""
        ...

    async def kill(self, node: str) -> Json:
        """Kill a name server, as `contracts.plugins.World.kill`; `resume` and so on work too."""
        ...

    async def pause(self, node: str) -> Json:
        """Pause a name server; see `contracts.plugins.World.pause`."""
        ...

    async def cut(self, links: Sequence[Link]) -> str:
        """Cut links; see `contracts.plugins.World.cut`."""
        ...


@runtime_checkable
class LinksClients(Protocol):
    """A world that can break the connections between clients and nodes."""

    @property
    def client_hosts(self) -> Sequence[str]:
        """The clients' hosts, as ends of links that can be cut and shaped; none if they cannot."""
        ...

    async def break_connections(self, nodes: Sequence[str]) -> None:
        """Break all connections of clients to these nodes, idle or not."""
        ...

    def broken_connections(self) -> int:
        """Return how many connections were broken so far, as far as is known."""
        ...


# ---- clocks ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockChange:
    """A clock skew of one process: an offset in ms, and a rate (1: normal, 0: frozen).

    With `strobe_ms` the clock alternates between the offset and the correct time, for `strobe_ms`
    each. A monotonic clock never goes back: it keeps the lead that an offset or a rate gave it.
    """

    offset_ms: float = 0.0
    rate: float = 1.0
    which: Literal["wall", "monotonic", "both"] = "both"
    strobe_ms: float = 0.0

    def to_json(self) -> Json:
        """Return a dict for a plan; `ClockChange(**json)` reads it back."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockReading:
    """A node's clocks, measured on the node, relative to the harness's clocks.

    Attributes:
        offset_ms: how far its wall clock is ahead.
        monotonic_offset_ms: how far its monotonic clock has got ahead since the node started.
        rate: the rate of its monotonic clock; 1.0: the same as ours.
        is_wall_only: only the wall clock could be measured.
    """

    offset_ms: float
    monotonic_offset_ms: float = 0.0
    rate: float = 1.0
    is_wall_only: bool = False


@runtime_checkable
class SkewsClocks(Protocol):
    """A world that can skew the clocks of a single process."""

    async def skew(self, node: str, change: ClockChange) -> Json:
        """Skew a node's clocks; return the undo for `unskew`, valid in other processes too."""
        ...

    async def unskew(self, node: str, undo: Json) -> None:
        """Revert exactly this skew (idempotent)."""
        ...

    async def read_clock(self, node: str) -> ClockReading:
        """Measure a node's clocks.

        Raises:
            IndefiniteError: the node does not answer.
        """
        ...


# ---- disks -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskFaultSpec:
    """A disk fault: what happens to a node's disk calls.

    Attributes:
        op: the calls that are affected.
        error: the errno that they fail with ("EIO", "ENOSPC"); "": none.
        nth: the first call that is affected (counted from 1); 0: all.
        times: the number of calls that are affected; 0: until healed.
        delay_ms: added latency of each call.
        stall: calls block until the fault is healed.
    """

    op: Literal["read", "write", "sync", "any"] = "any"
    error: str = ""
    nth: int = 0
    times: int = 0
    delay_ms: float = 0.0
    stall: bool = False

    def to_json(self) -> Json:
        """Return a dict for a plan; `DiskFaultSpec(**json)` reads it back."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """Damage to the files of a dead node.

    Attributes:
        how: flip bits, truncate a file, or roll the whole store back to a copy.
        file: the file of the store (an `fnmatch` pattern); "": a random one.
        bytes_: the bytes to truncate, or the number of bits to flip.
        copy: the id that `copy_store` returned, for a rollback.
        seed: seeds all random choices.
    """

    how: Literal["flip", "truncate", "rollback"]
    file: str = ""
    bytes_: int = 1
    copy: str = ""
    seed: str = ""

    def to_json(self) -> Json:
        """Return a dict for a plan; `Damage(**json)` reads it back."""
        return asdict(self)


@runtime_checkable
class InjectsDiskFaults(Protocol):
    """A world that can inject faults into the disk of a single node."""

    async def inject_disk_fault(self, node: str, fault: DiskFaultSpec) -> str:
        """Inject a fault into a node's disk from now on; return an id."""
        ...

    async def heal_disk(self, fault: str) -> None:
        """End exactly this disk fault (idempotent)."""
        ...

    def disk_fault_effects(self, fault: str) -> Json:
        """Return what the fault did so far, as counted by the node; also after it was healed."""
        ...

    async def damage(self, node: str, damage: Damage) -> Json:
        """Damage the files of a dead node; return what was changed, and where."""
        ...

    async def copy_store(self, node: str) -> str:
        """Copy a dead node's store, for a later rollback; return an id."""
        ...

    async def start_damaged(self, node: str, incarnation: int) -> Json:
        """Start a node on a damaged store, and see whether it refuses the store or serves.

        `incarnation` is the dead one. Returns {"incarnation": of the started process, "refused":
        the message with which it exited, None if it runs, "serves": whether it answers}. A node
        that runs but does not answer in time has neither refused nor served.
        """
        ...

    async def revive(self, node: str, incarnation: int) -> None:
        """Give a node that refused its store an empty disk, and let its group restore its data.

        `incarnation` is the one that refused. Idempotent; a running node is left alone.
        """
        ...


@runtime_checkable
class LosesPower(Protocol):
    """A world that can cut a node's power: unsynced data is lost, and its amount is known."""

    async def lose_power(self, nodes: Sequence[str], on: str = "") -> Json:
        """Cut the power of nodes, all at once; `restart` starts them again.

        With `on` ("sync:3", "message:PushRequest") each node loses power at that event of its own
        (its third sync from now on), or at the timeout if the event does not come. A node that
        another fault ended meanwhile, and started again, loses it when the others have. Returns
        {"incarnations": as `World.kill`, "lost_bytes": by node, data that was certainly unsynced;
        where they are known: "lost_entries": by node, names of files whose folder was not synced}.
        """
        ...


@runtime_checkable
class CountsEffects(Protocol):
    """A world whose nodes count their own events: for faults that strike at the N-th event."""

    def effects(self, node: str) -> Mapping[str, int]:
        """Return the node's event counts so far: {"sync": n, "write": n, "message": n}.

        Counts are summed over its incarnations. The names are those of script events ("sync:100").
        """
        ...


@runtime_checkable
class TellsWhatIsLeft(Protocol):
    """A world that outlives the run: a failed fault that could not be taken back is for `heal`."""

    def left_over(self) -> str | None:
        """Return which undo failed, and was not done since; None if none."""
        ...


# ---- operators ---------------------------------------------------------------------------
#
# Graceful stops and restarts, and membership changes. Source: jepsen.nemesis.membership;
# redpanda-data/chaos (rolling restarts, reconfiguration).


@runtime_checkable
class SeesFromOutside(Protocol):
    """A world that may not see its nodes' processes: only whether a node answers.

    Then `World.is_alive` and `World.is_paused` mean that a request went unanswered.
    """

    sees_answers_only: bool


@runtime_checkable
class StopsNodes(Protocol):
    """A world that can stop a node gracefully and tell when its group is ready again."""

    async def stop(self, node: str) -> Json:
        """Stop the node's process gracefully and wait for its exit; SIGKILL it if it does not exit.

        Returns {"incarnation": n} for `World.restart`; n is `UNTOUCHED` if the node was not
        running.
        """
        ...

    def incarnation(self, node: str) -> int:
        """Return how often the node was started."""
        ...

    async def until_ready(self, timeout_s: float) -> bool:
        """Wait until all running nodes answer and agree on a leader; return False on timeout."""
        ...


@runtime_checkable
class MovesMembers(Protocol):
    """A world in which the group's membership can be changed.

    Its target is a `contracts.abilities.ChangesMembers`.
    """

    async def remove_member(self, node: str) -> Json:
        """Ask the leader to remove the node from its group, and wait until it is removed.

        Returns {"took_ms" (None if the removal was not observed), "members": the current members as
        the leader reports them, "error": why it was refused or not observed, or None}.
        """
        ...

    async def add_member(self, node: str) -> Json:
        """Add the node to its group again, as a voter (idempotent). Returns as `remove_member`.

        Raises:
            IndefiniteError: it is not a voter in time.
        """
        ...


# ---- resources ---------------------------------------------------------------------------
#
# Exhaustion of one process's processor time, memory or file descriptors. Source: DESIGN.md
# decision 10; Chaos Mesh's StressChaos; setrlimit(2).


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """What is taken from a process. None (or a share of 1.0) leaves a resource alone.

    Attributes:
        cpu_share: share of the time in which the process may run, in slices of `slice_ms`.
        slice_ms: length of a slice.
        memory_spare_bytes: how much more memory (address space) it may allocate than it has now.
        descriptors_spare: how many more files and connections it may open than it has now.
        callers: this many idle connections are opened to it meanwhile, since a limit on
            descriptors has no effect on a process that opens none.
    """

    cpu_share: float = 1.0
    slice_ms: float = 50.0
    memory_spare_bytes: int | None = None
    descriptors_spare: int | None = None
    callers: int = 0

    def to_json(self) -> Json:
        """Return it as JSON for a plan; `Resources(**json)` reads it back."""
        return asdict(self)


@runtime_checkable
class LimitsResources(Protocol):
    """A world that can limit processor time, memory and descriptors of a node's process.

    If the process exits because of a limit, the fault is the cause; `lift_limits` restarts it.
    """

    async def limit_resources(self, node: str, resources: Resources) -> str:
        """Apply these limits to the node's running process; return an id ("" if none runs)."""
        ...

    async def lift_limits(self, limits: str) -> None:
        """Lift exactly these limits; restart a node that exited because of them (idempotent)."""
        ...

    def limit_effects(self, limits: str) -> Json:
        """Return the effects so far, measured from outside; also after the limits were lifted.

        Always "node" and "ended" (how its process exited because of the limit; None if it did not).
        CPU: "stopped_ms", "stops", "cpu_ms" (time it ran), "wall_ms", and "cpu_share_before".
        Memory: "limit_bytes", "had_bytes", "refused" (lines in its log that report it), "silent"
        (running, but not answering). Descriptors: "limit", "open" (the most seen), "unaccepted"
        (connections that waited to be accepted with no descriptor free, the most seen), "refused".
        """
        ...
