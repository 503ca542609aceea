"""Optional protocols of a target: capabilities that not every target has.

A fault or command that needs one reports in one line that the target lacks it.

Source: jepsen.db (`Pause`, `Primary`), optional protocols of a database.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

import msgspec

from shaketable.harness.contracts.plugins import Address, Launch, NodeLayout, TargetClient

if TYPE_CHECKING:
    import pyarrow as pa

    from shaketable.harness.contracts.capabilities import Capability
    from shaketable.harness.contracts.plugins import Target


# How a run learns that a node or its world broke an invariant.
#
# Log output is not searched for this, since a program may print anything. Only the exit status
# counts, for targets that declare what theirs mean (`contracts.abilities.ExplainsEnds`).

BROKE_RULE: Final = "broke-rule"
"""The node found an invariant of its protocol broken and stopped rather than go on."""
FOUND_DAMAGE: Final = "found-damage"
"""The node found its stored data damaged and refused to start."""
ENDED_UNHARMED: Final = "ended-unharmed"
"""The node exited by itself, and its world knows of no fault that would make a node exit."""


@dataclass(frozen=True, slots=True)
class Broken:
    """An invariant that a world saw broken during a campaign.

    Attributes:
        invariant: its name.
        finding: what was seen when it was first broken.
        node: the node; "" for the whole group.
        at_ns: when, in ns since the start of the run.
        promise: what the invariant guarantees, in a sentence.
        matters: why that matters; may be empty.
        operations: ids of the history's operations that show it.
    """

    invariant: str
    finding: str
    node: str
    at_ns: int
    promise: str = ""
    matters: str = ""
    operations: tuple[int, ...] = ()

    def __str__(self) -> str:
        at = f" at {self.node}" if self.node else ""
        return f"invariant {self.invariant} broken{at}: {self.finding}"


# The machines that a target's nodes run on: how OpenSSH reaches them, where nodes live there.
#
# Source: ssh(1), ssh_config(5); jepsen.control (nodes that are reached by SSH).

_DESTINATION: Final = re.compile(
    r"(?P<user>[^\s@/\[\]-][^\s@/\[\]]*@)?"
    r"(?:\[(?P<v6>[0-9a-fA-F:.]+)\]|(?P<host>[^\s@/\[\]:-][^\s@/\[\]:]*))(?::(?P<port>[0-9]+))?"
)
"""[user@]host[:port], an IPv6 address in brackets."""
PORT_MAX: Final = 65_535


DISK_GIB_MAX: Final = 1_024


class Hosts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The hosts of a group, one for each node, in the order n0, n1, ...

    Attributes:
        ssh: where each is reached by `ssh`: user@host, user@host:port, user@[IPv6 address], or a
            name of the user's ssh_config.
        options: further options of `ssh`, for all of them.
        addresses: where clients and the other nodes reach each host; by default as `ssh` does.
        folder: an absolute path there, in which each run makes a folder of its own.
        client_port: where each node listens for clients.
        peer_port: where it listens for its peers.
        fetch_data: whether nodes' data are copied into the run's folder at the end.
        disk_gib: the size of each node's own file system, if it may lose power. Its file has holes:
            it takes what is used.
    """

    ssh: tuple[str, ...]
    options: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()
    folder: str = "/var/tmp/shaketable"  # noqa: S108 - on another machine; each run has its own
    client_port: int = 7000
    peer_port: int = 7001
    fetch_data: bool = False
    disk_gib: int = 4

    def __post_init__(self) -> None:
        if not self.ssh:
            raise ValueError("ssh: name at least one host")
        for text in self.ssh:
            if _DESTINATION.fullmatch(text) is None:
                raise ValueError(f"ssh: {text!r} is not user@host, nor user@host:port")
        if self.addresses and len(self.addresses) != len(self.ssh):
            raise ValueError(f"addresses: give {len(self.ssh)}, one for each of ssh")
        reached = [self.address(number) for number in range(len(self.ssh))]
        if len(set(reached)) < len(reached):
            raise ValueError("two nodes have the same host; each needs one of its own")
        if not self.folder.startswith("/") or self.folder.strip("/") == "":
            raise ValueError("folder: give an absolute path, not /")
        for port in (self.client_port, self.peer_port):
            if not 0 < port <= PORT_MAX:
                raise ValueError(f"{port} is no port")
        if self.client_port == self.peer_port:
            raise ValueError("client_port and peer_port are the same")
        if not 0 < self.disk_gib <= DISK_GIB_MAX:
            raise ValueError(f"disk_gib: {self.disk_gib} is not 1 to {DISK_GIB_MAX}")

    def address(self, number: int) -> str:
        """Return where node `number` is reached: a name or an IP address, without brackets."""
        if self.addresses:
            return self.addresses[number].strip("[]")
        found = self._parsed(number)
        return found["v6"] or found["host"]

    def destination(self, number: int) -> tuple[str, ...]:
        """Return the arguments of `ssh` that name the host of node `number`."""
        found = self._parsed(number)
        port = ("-p", found["port"]) if found["port"] else ()
        return (*port, f"{found['user'] or ''}{found['v6'] or found['host']}")

    def _parsed(self, number: int) -> re.Match[str]:
        found = _DESTINATION.fullmatch(self.ssh[number])
        assert found is not None, "checked when it was made"
        return found


# What only some targets can do.


@runtime_checkable
class TransfersLeadership(Protocol):
    """A target whose leader can transfer its leadership."""

    async def transfer_leadership(self, layout: NodeLayout, to: str, timeout_s: float) -> None:
        """Ask the node, which leads, to transfer leadership to node `to`.

        Returns once it agreed; `to` may become leader only later, or never.

        Raises:
            DefiniteError: refused; the leader does not change.
            IndefiniteError: no answer; leadership may be transferred.
        """
        ...


@runtime_checkable
class AdvertisesAddresses(Protocol):
    """A target whose nodes advertise one address to all peers.

    Such nodes find it in `NodeLayout.advertised_address`. If links are proxies, the process that
    holds the other end of a connection identifies the caller (harness.network.proxy).
    """

    advertises_addresses: bool


@runtime_checkable
class ListensFurther(Protocol):
    """A target whose nodes listen at further addresses, each of which has a name.

    As Kafka's do for their controllers, whose traffic may not share the brokers' port. Such nodes
    find them in `NodeLayout.further`. If links are proxies, they advertise addresses as well.
    """

    further_ports: Sequence[str]


@runtime_checkable
class ListensOnce(Protocol):
    """A target whose nodes may listen for clients and peers at the same address."""

    listens_once: bool


@runtime_checkable
class TellsOwnAddresses(Protocol):
    """A target whose nodes may tell each other where they listen, whatever they were told.

    As Galera's do: a proxy between them would be passed by. Such links are cut in world `netns`.
    """

    tells_own_addresses: bool


@runtime_checkable
class UsuallyPaced(Protocol):
    """A target for whose campaigns other times are usual: it needs longer to come back."""

    @property
    def usual_campaign(self) -> Mapping[str, float]:
        """Return values, in seconds, by key of campaign files; for campaigns that give none."""
        ...


@runtime_checkable
class HasSize(Protocol):
    """A target that may say how many nodes its group has."""

    @property
    def group_size(self) -> int | None:
        """Return the number of its nodes; None: as many as a campaign says."""
        ...


@runtime_checkable
class ChangesMembers(Protocol):
    """A target whose group members can be removed and added back."""

    def why_no_member_may_go(self, nodes: Sequence[str]) -> str | None:
        """Return a short reason why no member can be removed from such a group; None if one can."""
        ...

    async def remove_member(
        self, layouts: Mapping[str, NodeLayout], node: str, timeout_s: float
    ) -> tuple[str, ...]:
        """Remove a node from its group; return the members once that is in effect.

        Raises:
            DefiniteError: refused; the membership is unchanged.
            IndefiniteError: no answer; it may still change.
        """
        ...

    async def add_member(
        self, layouts: Mapping[str, NodeLayout], node: str, timeout_s: float
    ) -> tuple[str, ...]:
        """Add a node to its group as a voter (idempotent); return the members after that.

        Raises:
            IndefiniteError: it is not a voter in time.
        """
        ...


@runtime_checkable
class NamesBrokers(Protocol):
    """A target whose clients can find nodes through name servers, and join consumer groups.

    A name server is a process beside the nodes. Faults of nodes do not select it; its links can be
    cut as any other. It is started if the workload uses consumer groups, or if `needs_name_server`
    is set, which is for all workloads.
    """

    needs_name_server: bool

    def name_server(self, address: Address) -> Launch:
        """Return how to start a name server that listens at `address`."""
        ...


@runtime_checkable
class LimitsStatus(Protocol):
    """A target whose status takes longer than a request: a command has to be run for it."""

    @property
    def status_timeout_s(self) -> float:
        """How long `Target.status` may take, in seconds."""
        ...


@runtime_checkable
class RunsAlready(Protocol):
    """A target whose group runs already: a run neither starts its nodes nor ends them.

    Attributes:
        addresses: where clients reach the nodes n0, n1, ...
    """

    addresses: tuple[Address, ...]

    def why_not(self, capability: Capability) -> str | None:
        """Return a short reason why nothing can be done to its nodes that needs this; or None."""
        ...

    async def act(self, action: str, node: str, to: str = "") -> str:
        """Do something to a node: kill, stop, start, pause, resume; or to what it sends to another.

        On links: cut, heal, dropped. Doing it twice is like doing it once. Returns what was
        printed: for dropped, how much was dropped.

        Raises:
            HarnessError: it failed, or did not end in time.
        """
        ...

    def client_of_run(
        self, addresses: Mapping[str, Address], timeout_s: float, run: str
    ) -> TargetClient:
        """Return a client as `Target.client` does, whose keys no other run uses."""
        ...


@runtime_checkable
class RunsOnHosts(Protocol):
    """A target whose nodes run on other machines: a run starts and ends them by OpenSSH.

    `Target.prepare` then says how to start a node there, and touches nothing.

    Attributes:
        hosts: the machines.
        lacks: what was found to be impossible there, and why, when they were looked at.
    """

    hosts: Hosts
    lacks: dict[Capability, str]

    def why_not(self, capability: Capability) -> str | None:
        """Return a short reason why nothing can be done to its nodes that needs this; or None."""
        ...


OnUnexpected = Callable[[str, Exception], None]
"""Called with an operation's name, and the unexpected error that it raised."""


@runtime_checkable
class ChecksClients(Protocol):
    """A target that knows rules of what its clients do within their calls."""

    def checked_clients(
        self, report: Callable[[Broken], None], now_ns: Callable[[], int]
    ) -> AbstractContextManager[OnUnexpected | None]:
        """Check all its clients of this process, meanwhile; `report` gets what is broken first.

        `now_ns` is the time since the start of the run. Nothing is judged that a busy machine may
        explain. What the context manager returns, if anything, is called with each error that a
        client raised though no client should.
        """
        ...


@runtime_checkable
class UsuallyShaken(Protocol):
    """A target with default faults, for campaigns that name none.

    These should be the faults that its documentation speaks of: those that it promises to survive
    and those that it does not.
    """

    default_faults: tuple[str, ...]


@runtime_checkable
class UsuallyUsed(Protocol):
    """A target with a default workload, for campaigns that name none."""

    @property
    def default_workload(self) -> str:
        """The workload's name."""
        ...


@runtime_checkable
class TakesOptions(Protocol):
    """A target with options of its own, which a campaign can choose (`--option NAME=VALUE`).

    `options` has each with its value.
    """

    @property
    def options(self) -> Mapping[str, str]:
        """Return the options by name."""
        ...

    def configured(self, options: Mapping[str, str]) -> Target:
        """Return the same target with these options in place of its own.

        Raises:
            UsageError: it has no such option, or not with that value.
        """
        ...


@runtime_checkable
class NeedsInstallation(Protocol):
    """A target whose program has to be installed before it can run."""

    def why_not_installed(self) -> str | None:
        """Return what is missing and how to install it, in one line; None if nothing is."""
        ...


@runtime_checkable
class LinksNodes(Protocol):
    """A target that knows which nodes communicate with each other."""

    def why_no_links(self, nodes: Sequence[str]) -> str | None:
        """Return a short reason why these nodes never communicate; None if they do."""
        ...


@runtime_checkable
class LosesDisks(Protocol):
    """A target that defines how a node recovers from the loss of its disk.

    `lost` maps nodes to how often each has lost its disk; nodes that never did may be missing.
    """

    def why_no_disk_may_go(self, nodes: Sequence[str]) -> str | None:
        """Return a short reason why no disk of such a group may be lost; None if one may."""
        ...

    def why_not_now(self, node: str, missing: Sequence[str]) -> str | None:
        """Return why this node's disk must not be lost now (the fault budget); None if it may be.

        `missing` are the other nodes that are down, stopped, or not fully recovered.
        """
        ...

    def store(self, layout: NodeLayout) -> Path:
        """Return the folder that is lost with the node's disk."""
        ...

    async def renew(
        self, layouts: Mapping[str, NodeLayout], node: str, lost: Mapping[str, int]
    ) -> Mapping[str, Launch]:
        """Write the configurations with which the group continues after the node lost its disk.

        Returns how to start nodes from now on, in the order in which they must start: the node
        itself, and others whose role changes (these are restarted).
        """
        ...

    async def readmit(
        self,
        layouts: Mapping[str, NodeLayout],
        node: str,
        lost: Mapping[str, int],
        timeout_s: float,
    ) -> None:
        """Wait until the restarted node has caught up with the others (idempotent).

        Raises:
            IndefiniteError: it has not caught up in time.
        """
        ...


@runtime_checkable
class HasVolatileDisk(Protocol):
    """A target of third-party programs that keep all data in one folder, which may be mounted.

    Then a file system is mounted there that loses what was not synced (`harness.volatile_disk`):
    its nodes can lose power, and their disks fail, fill up and stall.
    """

    def disk(self, layout: NodeLayout) -> Path:
        """Return the folder; what is in it after `Target.prepare` is on the disk, and synced."""
        ...


@runtime_checkable
class ShowsLogs(Protocol):
    """A target that declares whether its nodes' logs can be read (`Target.read_log`).

    If they cannot, the durability of acknowledged appends is judged by what clients read after the
    heal. For a target that does not declare it, logs without any entry prove nothing.
    """

    logs_readable: bool


@runtime_checkable
class SegmentedLog(Protocol):
    """A target whose nodes' logs consist of segments that can be read in parallel."""

    def log_segments(self, directory: Path, node: str) -> tuple[str, ...]:
        """Return the names of the segments, in log order.

        Raises:
            OSError: the files cannot be read.
        """
        ...

    def read_segment(self, directory: Path, node: str, segment: str) -> Iterator[pa.RecordBatch]:
        """Decode one segment. All segments in order give the rows of `Target.read_log`.

        Raises:
            OSError: the files cannot be read.
        """
        ...


@runtime_checkable
class TunesReplication(Protocol):
    """A target whose acknowledgement policy and leases a campaign can choose.

    The node options are "ack" ("fsync", "page-cache") and "leases_ms" (0: no leases; at most
    `lease_max_ms`).
    """

    lease_max_ms: int


class NodeSteering(Protocol):
    """The orders to one node, and the node's counts of their effects (docs/faults.md)."""

    def order(
        self,
        clocks: Sequence[Mapping[str, object]] = (),
        disk_faults: Sequence[Mapping[str, object]] = (),
        trips: Sequence[Mapping[str, object]] = (),
    ) -> int:
        """Replace all orders in force; return the version of the new ones.

        Raises:
            OSError: they cannot be written.
        """
        ...

    def effects(self) -> Mapping[str, int]:
        """Return the node's counters by name; empty if it has not counted yet."""
        ...

    def disk_fault(self, number: int) -> Mapping[str, int]:
        """Return the node's counters of one disk fault; empty if it does not know that fault."""
        ...


@runtime_checkable
class SteersNodes(Protocol):
    """A target whose nodes obey orders about their clocks and disks, and count the effects."""

    def steering(self, layout: NodeLayout) -> NodeSteering:
        """Return where to write a node's orders. The node obeys if it has the option "steering"."""
        ...


@runtime_checkable
class LosesNothingAtAKill(Protocol):
    """A target whose nodes take orders about their disks, and none to lose what is not synced.

    `why_no_power_loss` says why, in one line.
    """

    why_no_power_loss: str


@runtime_checkable
class ShowsClock(Protocol):
    """A target whose nodes are third-party programs that expose their wall clock.

    Their wall clocks can be faked (harness.runtime.processes.faketime). The exposed clock is how
    the harness measures whether the program is affected; this promises nothing about the program.
    """

    async def wall_clock(self, layout: NodeLayout, timeout_s: float) -> float:
        """Return a node's wall clock in seconds since the epoch, at the resolution it exposes.

        Raises whatever the client library raises; then the clock is not readable.
        """
        ...


@dataclass(frozen=True, slots=True)
class DurableRange:
    """Bytes [start, end) of a file: durable data that a node must not lose without noticing."""

    path: Path
    start: int
    end: int


@runtime_checkable
class ExplainsEnds(Protocol):
    """A target whose nodes give the reason for their exit in the exit status.

    `end_causes` maps an exit status to BROKE_RULE or FOUND_DAMAGE of `contracts.broken_rules`;
    other statuses mean nothing. A node that exits with one of these, and no fault that explains it,
    is a violation.
    """

    end_causes: Mapping[int, str]


@runtime_checkable
class ExplainsRules(Protocol):
    """A target that can say what the rules are for that its nodes check of themselves."""

    def promise_of_rule(self, reason: str) -> tuple[str, str] | None:
        """Return what a rule promises, and why that matters, each in a sentence.

        `reason` is what a node gave as its reason to stop, in its last line of output. None if it
        names no rule that the target knows.
        """
        ...


@runtime_checkable
class NoticesDamage(Protocol):
    """A target that knows which parts of a node's files are certainly durable."""

    def durable_ranges(self, layout: NodeLayout) -> Sequence[DurableRange]:
        """Return the parts of a dead node's files that the node has promised to keep.

        Raises:
            OSError: they cannot be read.
        """
        ...


@runtime_checkable
class StoresFiles(Protocol):
    """A target whose nodes' files may be damaged, though no one says which damage they notice.

    A node that serves with damaged files is then no reason for doubt: clients judge what it serves.
    """

    def stored_ranges(self, layout: NodeLayout) -> Sequence[DurableRange]:
        """Return the parts of a dead node's files that may be damaged.

        Raises:
            OSError: they cannot be read.
        """
        ...


@dataclass(frozen=True, slots=True)
class PlantedBug:
    """The description of a planted bug.

    Attributes:
        name: as `--mutant` takes it.
        family: what kind of part it breaks: "consensus", "client", ...
        targets: the names of the targets that have the part.
        breaks: what it breaks, in one line.
        source: the real bug or paper that it is modelled on, in one line.
        links: the addresses in `source`.
        workload: the workload to hunt it with; empty: any.
        faults: the faults to hunt it under.
    """

    name: str
    family: str
    targets: tuple[str, ...]
    breaks: str
    source: str = ""
    links: tuple[str, ...] = ()
    workload: str = ""
    faults: tuple[str, ...] = ()


@runtime_checkable
class CataloguesBugs(Protocol):
    """Optional protocol of `Target.mutants`: a mapping that also describes each bug."""

    def catalogue(self) -> Sequence[PlantedBug]:
        """Return the description of each bug."""
        ...


def planted_bugs(targets: Iterable[Target]) -> list[PlantedBug]:
    """Return the planted bugs of these targets, each once, sorted by family and name."""
    found: dict[str, PlantedBug] = {}
    for target in targets:
        for bug in _catalogue(target):
            found.setdefault(bug.name, bug)
    return sorted(found.values(), key=lambda bug: (bug.family, bug.name))


def _catalogue(target: Target) -> Sequence[PlantedBug]:
    """Return a target's catalogue of bugs; without one, their names and what they break."""
    if isinstance(target.mutants, CataloguesBugs):
        return target.mutants.catalogue()
    return [
        PlantedBug(name=name, family="", targets=(target.name,), breaks=breaks)
        for name, breaks in target.mutants.items()
    ]


@runtime_checkable
class PlantsBugsBeside(Protocol):
    """A target that can also plant bugs in its clients and name servers."""

    def client_of(
        self, addresses: Mapping[str, Address], timeout_s: float, bug: str | None = None
    ) -> TargetClient:
        """Return a client as `Target.client` does, with the bug planted, if one is named."""
        ...

    def name_server_with(self, bug: str, address: Address) -> Launch:
        """Return how to start a name server with that bug planted (NamesBrokers)."""
        ...
