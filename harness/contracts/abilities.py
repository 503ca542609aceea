"""What a target may be able to do besides what every target must: optional protocols.

A fault or command that needs such an ability says in one line that a target lacks it.

Source: jepsen.db (`Pause`, `Primary`), optional protocols of a database.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from shaketable.harness.contracts.plugins import Address, Launch, NodeLayout, TargetClient

if TYPE_CHECKING:  # faults import this module, and client workers them
    import pyarrow as pa


@runtime_checkable
class TransfersLeadership(Protocol):
    """A target whose leader can be asked to hand leadership over."""

    async def transfer_leadership(self, layout: NodeLayout, to: str, timeout_s: float) -> None:
        """Ask the node, which leads, to hand leadership to node `to`.

        Returns when it was agreed to; `to` may come to lead only later, or never.

        Raises:
            DefiniteError: refused: leadership stays where it is.
            IndefiniteError: no answer: it may be handed over.
        """
        ...


@runtime_checkable
class AdvertisesAddresses(Protocol):
    """A target whose nodes tell each other where they are: one address of a node for all others.

    Such nodes find it in `NodeLayout.advertised_address`. Where links are proxies, who calls is
    then told by the process that holds the other end (harness.network.callers).
    """

    advertises_addresses: bool


@runtime_checkable
class ChangesMembers(Protocol):
    """A target whose group can be told to do without a member, and to take it back."""

    def why_no_member_may_go(self, nodes: Sequence[str]) -> str | None:
        """Say in a few words why no such group can do without a member; None if it can."""
        ...

    async def remove_member(
        self, layouts: Mapping[str, NodeLayout], node: str, timeout_s: float
    ) -> tuple[str, ...]:
        """Take a node out of its group; return which nodes are members once that holds.

        Raises:
            DefiniteError: refused: the membership is as it was.
            IndefiniteError: no answer: it may change yet.
        """
        ...

    async def add_member(
        self, layouts: Mapping[str, NodeLayout], node: str, timeout_s: float
    ) -> tuple[str, ...]:
        """Have a node in its group, with a vote; return which nodes are members then.

        Doing it twice is doing it once.

        Raises:
            IndefiniteError: it has no vote in time.
        """
        ...


@runtime_checkable
class NamesBrokers(Protocol):
    """A target whose clients can find its nodes by name servers, and join consumer groups.

    A name server is a process of the run beside the nodes: no fault strikes it, one its links. It
    is started if a workload is about consumer groups, or the target `needs_name_server` for all.
    """

    needs_name_server: bool

    def name_server(self, address: Address) -> Launch:
        """Say how to start a name server that listens there."""
        ...


@runtime_checkable
class UsuallyShaken(Protocol):
    """A target that says which faults a campaign draws from that names none.

    Those that its documentation speaks of: what it promises to stand, and what it does not.
    """

    default_faults: tuple[str, ...]


@runtime_checkable
class UsuallyUsed(Protocol):
    """A target that says what clients do in a campaign that names no workload."""

    @property
    def default_workload(self) -> str:
        """The workload's name."""
        ...


@runtime_checkable
class LinksNodes(Protocol):
    """A target that says which nodes have anything to tell each other."""

    def why_no_links(self, nodes: Sequence[str]) -> str | None:
        """Say in a few words why these nodes never talk to each other; None if they do."""
        ...


@runtime_checkable
class LosesDisks(Protocol):
    """A target that says how a node comes back that lost its disk.

    `lost` is how often each node lost its disk so far; nodes that never did may be missing.
    """

    def why_no_disk_may_go(self, nodes: Sequence[str]) -> str | None:
        """Say in a few words why no disk of such a group may be lost; None if one may."""
        ...

    def why_not_now(self, node: str, missing: Sequence[str]) -> str | None:
        """Say why this node's disk must not be lost now: a budget. None if it may.

        `missing` are the other nodes that are down, stopped, or not whole again yet.
        """
        ...

    def store(self, layout: NodeLayout) -> Path:
        """Return the folder that is lost with the node's disk."""
        ...

    async def renew(
        self, layouts: Mapping[str, NodeLayout], node: str, lost: Mapping[str, int]
    ) -> Mapping[str, Launch]:
        """Write the configurations with which the group goes on, now that the node lost its disk.

        Returns how nodes are started from now on, those first that must be there first: the
        node itself, and others whose part changes (they are started again).
        """
        ...

    async def readmit(
        self,
        layouts: Mapping[str, NodeLayout],
        node: str,
        lost: Mapping[str, int],
        timeout_s: float,
    ) -> None:
        """See to it that the node, which runs again, has what the others have.

        Doing it twice is doing it once.

        Raises:
            IndefiniteError: it has not in time.
        """
        ...


@runtime_checkable
class ShowsLogs(Protocol):
    """A target that says whether what its nodes stored can be read (`Target.read_log`).

    Where it cannot, whether acknowledged appends are kept is judged by what clients read after the
    heal. Of a target that does not say, logs in which nothing stands at all show nothing.
    """

    logs_readable: bool


@runtime_checkable
class SegmentedLog(Protocol):
    """A target whose nodes' logs consist of parts that can be read apart, at the same time."""

    def log_segments(self, directory: Path, node: str) -> tuple[str, ...]:
        """Return the names of the parts, in the log's order.

        Raises:
            OSError: the files cannot be read.
        """
        ...

    def read_segment(self, directory: Path, node: str, segment: str) -> Iterator[pa.RecordBatch]:
        """Decode one part: all parts in their order give the rows of `Target.read_log`.

        Raises:
            OSError: the files cannot be read.
        """
        ...


@runtime_checkable
class TunesReplication(Protocol):
    """A target that lets a campaign choose when it acknowledges, and whether it trusts clocks.

    The choices are the options "ack" ("fsync", "page-cache") and "leases_ms" (0: none; at most
    `lease_max_ms`) of a node.
    """

    lease_max_ms: int


class NodeSteering(Protocol):
    """The orders of one node, and what it counted of them (docs/faults.md)."""

    def order(
        self,
        clocks: Sequence[Mapping[str, object]] = (),
        harms: Sequence[Mapping[str, object]] = (),
        trips: Sequence[Mapping[str, object]] = (),
    ) -> int:
        """Let these be all orders in force from now on; return their version.

        Raises:
            OSError: they cannot be written.
        """
        ...

    def effects(self) -> Mapping[str, int]:
        """What the node counted, by name; empty if it never did."""
        ...

    def harm(self, number: int) -> Mapping[str, int]:
        """What the node counted of one harm; empty if it never knew of it."""
        ...


@runtime_checkable
class SteersNodes(Protocol):
    """A target whose nodes obey orders about their clocks and disks, and count what they do."""

    def steering(self, layout: NodeLayout) -> NodeSteering:
        """Return where the orders of a node go; it obeys if it has the option "steering"."""
        ...


@runtime_checkable
class ShowsClock(Protocol):
    """A target whose nodes are programs of others, and show what time it is for them.

    Their wall clocks can be faked (harness.runtime.processes.faketime). Whether a program notices
    is measured by what it shows; a target that has this ability promises nothing about it.
    """

    async def wall_clock(self, layout: NodeLayout, timeout_s: float) -> float:
        """Return the wall clock of a node, in seconds since the epoch, as coarse as it shows it.

        May raise whatever the library raises that it is asked with: then it shows nothing.
        """
        ...


@dataclass(frozen=True, slots=True)
class Vital:
    """Bytes [start, behind) of a file that a node must not lose without noticing."""

    path: Path
    start: int
    behind: int


@runtime_checkable
class ExplainsEnds(Protocol):
    """A target whose nodes say by their exit status why they ended.

    `end_causes` maps an exit status to BROKE_RULE or FOUND_DAMAGE of `contracts.broken_rules`; one
    that is not in it says nothing. A node that ends so, without a fault that explains it, is a
    violation.
    """

    end_causes: Mapping[int, str]


@runtime_checkable
class NoticesDamage(Protocol):
    """A target that says which parts of a node's files are on its disk for certain."""

    def vital(self, layout: NodeLayout) -> Sequence[Vital]:
        """Return the parts of a dead node's files that it has promised to keep.

        Raises:
            OSError: they cannot be read.
        """
        ...


@dataclass(frozen=True, slots=True)
class PlantedBug:
    """What is said of a planted bug.

    Attributes:
        name: as `--mutant` takes it.
        family: what kind of part it breaks: "consensus", "client", ...
        targets: the names of the targets that have the part.
        breaks: what it breaks, one line.
        source: after what it is modelled, one line.
        links: the addresses in `source`.
        workload: with which it is hunted; empty: any.
        faults: under which it is hunted.
        is_simulated: whether the target's simulated worlds have the part.
    """

    name: str
    family: str
    targets: tuple[str, ...]
    breaks: str
    source: str = ""
    links: tuple[str, ...] = ()
    workload: str = ""
    faults: tuple[str, ...] = ()
    is_simulated: bool = False


@runtime_checkable
class CataloguesBugs(Protocol):
    """What `Target.mutants` may be besides a map: one that says more of each bug."""

    def catalogue(self) -> Sequence[PlantedBug]:
        """Return what is said of each."""
        ...


@runtime_checkable
class PlantsBugsBeside(Protocol):
    """A target whose planted bugs may also be in its clients and in its name servers."""

    def client_of(
        self, addresses: Mapping[str, Address], timeout_s: float, bug: str | None = None
    ) -> TargetClient:
        """Return a client as `Target.client` does, with that bug planted, if one is named."""
        ...

    def name_server_with(self, bug: str, address: Address) -> Launch:
        """Say how to start a name server with that bug planted (NamesBrokers)."""
        ...
