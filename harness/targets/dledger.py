"""The built-in target: a RocketMQ-compatible broker group on a DLedger (Raft) commit log.

Queue keys are "<topic>/<queue id>". A value is stored as its decimal digits, which
`dledger_files` reads back from the nodes' files without the broker's code.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Final

import trio

from shaketable.harness.contracts.abilities import (
    BROKE_RULE,
    FOUND_DAMAGE,
    Broken,
    DurableRange,
    OnUnexpected,
)
from shaketable.harness.contracts.clients import PollResult
from shaketable.harness.contracts.errors import DefiniteError, IndefiniteError
from shaketable.harness.contracts.plugins import (
    Address,
    Json,
    Launch,
    NodeLayout,
    NodeStatus,
    Promises,
)
from shaketable.harness.contracts.promises import (
    FAULTS_OF_CLOCKS,
    FAULTS_OF_DISKS,
    FAULTS_OF_LINKS,
    FAULTS_OF_PROCESSES,
)
from shaketable.harness.targets import dledger_members as ids
from shaketable.harness.targets import dledger_members as members
from shaketable.harness.targets.client_rules import checked_clients
from shaketable.harness.targets.group_operations import GROUP as CONSUMER_GROUP
from shaketable.harness.targets.group_operations import GroupOperations, is_name_server, value_of
from shaketable.harness.targets.programs import PlantedBugs, broker, client_parts_of, name_server
from shaketable.harness.targets.refusals import limits_of
from shaketable.harness.targets.steering_files import SteeringFiles
from shaketable.system.client import (
    BrokerGroupClient,
    ClientParts,
    DamagedResponseError,
    OutcomeUnknownError,
    RefusedError,
    commit_offset,
    committed_offset,
)
from shaketable.system.sim.stories.promises import PROMISES

if TYPE_CHECKING:
    import pyarrow as pa

    from shaketable.harness.contracts.simulation import SimulatedGroup, Simulator


GROUP = "shaketable"
QUORUM_NODES_MIN = 3
_FLUSH = {"fsync": "SYNC_FLUSH", "page-cache": "ASYNC_FLUSH"}
STEERING = "steering"
"""The folder, in a node's own, where a node finds its orders, if it obeys any."""
RECORDING = "inputs.recording"
"""The file, in a node's folder, where a node records its inputs, if configured to."""
ENDS: Final[Mapping[int, str]] = {65: FOUND_DAMAGE, 70: BROKE_RULE}
"""The meaning of our nodes' exit statuses (`system.node.process`)."""


def promise_of_rule(reason: str) -> tuple[str, str] | None:
    """Return what the rule promises that a reason names: `[ERROR: ]RULE: what was found`."""
    named = [PROMISES[part] for part in reason.split(": ", 2)[:2] if part in PROMISES]
    return (named[0].statement, named[0].impact) if named else None


GROUP_PROMISES = frozenset(
    {
        "lost-message",
        "out-of-order",
        "redelivered-committed",
        "duplicate",
        "inconsistent-offsets",
        "G1a",
        "phantom-read",
        "poll-skip",
        "int-poll-skip",
        "nonmonotonic-poll",
        "int-nonmonotonic-poll",
        "nonmonotonic-send",
        "offset-went-back",
        "offset-ran-ahead",
        "offset-lost",
        "never-committed",
        "early-delivery",
        "early-answer",
        "duplicate-delivery",
        "late-delivery",
        "wrong-attempt",
        "two-owners",
        "needless-redelivery",
        "unwanted-tag",
        "missed-tag",
        "unwanted-key",
        "missed-key",
        "not-refused",
        "wrong-refusal",
        "no-answer",
        "lock-overlap",
        "lost-element",
        "unexpected-element",
        "duplicated-element",
    }
)
"""Anomalies that a consumer group never shows (docs/anomalies.md)."""


# Map errors of the group's client to definite and indefinite errors.


class DamagedReadError(IndefiniteError):
    """A response that was received damaged."""


@asynccontextmanager
async def definite_or_not() -> AsyncIterator[None]:
    """Raise the client's errors as what they mean for a history.

    Raises:
        DefiniteError: the operation was refused.
        IndefiniteError: its outcome is unknown.
    """
    try:
        yield
    except RefusedError as error:
        raise DefiniteError(str(error)) from error
    except DamagedResponseError as error:
        raise DamagedReadError(str(error)) from error
    except OutcomeUnknownError as error:
        raise IndefiniteError(str(error)) from error


# The clients of a campaign, over the public client of a DLedger group.
#
# A key is "<topic>/<queue id>". A value is stored as its decimal digits. What is read is recorded
# as it is, right or wrong, so that the checkers see it.

BROKER_NAME = "broker-0"
FOREIGN_VALUE = -1
"""Recorded for a read that returned another message than requested. No client appends it, so the
checkers report a read of a value that was never written.
"""
POLL_MAX = 32
"""Most messages of a pull (the broker's pull_messages_max)."""
_VALUE = re.compile(rb"-?[0-9]{1,18}")


class DLedgerClient:
    """Operations on a log, on registers, sets and counters built on it, and on group offsets.

    Implements `contracts.clients.ConditionalClient`, `PollingClient` and `OffsetsClient`.
    """

    def __init__(
        self,
        addresses: Mapping[str, Address],
        timeout_s: float,
        rng: Random | None = None,
        parts: ClientParts | None = None,
    ) -> None:
        hosts = {node: (at.host, at.port) for node, at in addresses.items()}
        # Unseeded: the first member to try and the pause of a retry need not repeat.
        group_client = (parts or ClientParts()).group_client
        self._client = group_client(hosts, timeout_s=timeout_s, rng=rng or Random())

    @property
    def node(self) -> str | None:
        """The node that answered last."""
        return self._client.answered_by

    async def append(self, key: str, value: int) -> int:
        """Send a message whose body is the value's digits."""
        topic, queue_id = _queue(key)
        async with definite_or_not():
            return (await self._client.send(topic, queue_id, b"%d" % value)).queue_offset

    async def append_at(self, key: str, value: int, offset: int) -> int:
        """Send on condition that the message gets this offset; return the offset that it got."""
        topic, queue_id = _queue(key)
        async with definite_or_not():
            sent = await self._client.send_at(topic, queue_id, b"%d" % value, offset)
            return sent.queue_offset

    async def read(self, key: str, offset: int) -> int | None:
        """Pull the message at `offset`."""
        topic, queue_id = _queue(key)
        try:
            async with definite_or_not():
                result = await self._client.pull(topic, queue_id, offset, count_max=1)
        except DamagedReadError:
            return FOREIGN_VALUE
        if not result.messages:
            return None
        message = result.messages[0]
        if message.queue_offset != offset or not _VALUE.fullmatch(message.body):
            return FOREIGN_VALUE
        return int(message.body)

    async def poll(self, key: str, offset: int) -> PollResult:
        """Pull messages from `offset` on."""
        topic, queue_id = _queue(key)
        async with definite_or_not():
            result = await self._client.pull(topic, queue_id, offset, count_max=POLL_MAX)
        messages = [(each.queue_offset, value_of(each.body)) for each in result.messages]
        is_outside = not messages and result.next_offset != offset
        return PollResult(messages, result.next_offset, is_outside)

    async def end(self, key: str) -> int:
        """Return the queue's max offset."""
        topic, queue_id = _queue(key)
        async with definite_or_not():
            return await self._client.max_offset(topic, queue_id)

    async def fetch(self, key: str) -> int | None:
        """Fetch the group's offset from the leader."""
        topic, queue_id = _queue(key)
        async with definite_or_not():
            return await committed_offset(self._client, CONSUMER_GROUP, topic, queue_id)

    async def commit(self, key: str, offset: int) -> None:
        """Commit the group's offset at the leader."""
        topic, queue_id = _queue(key)
        async with definite_or_not():
            await commit_offset(self._client, CONSUMER_GROUP, topic, queue_id, offset)

    def is_reusable(self) -> bool:
        """Return True: it knows who led, and no more."""
        return True

    async def aclose(self) -> None:
        """Close connections."""
        self._client.close()


class DLedgerGroupClient(GroupOperations, DLedgerClient):
    """All operations: those of the log through members, those of groups through name servers."""

    def __init__(
        self,
        nodes: Mapping[str, Address],
        addresses: Mapping[str, Address],
        timeout_s: float,
        rng: Random | None = None,
        parts: ClientParts | None = None,
        client_id: str | None = None,
    ) -> None:
        DLedgerClient.__init__(self, nodes, timeout_s, rng, parts)
        GroupOperations.__init__(self, addresses, (BROKER_NAME,), timeout_s, parts, rng, client_id)

    @property
    def node(self) -> str | None:
        """The node that answered last, if known."""
        return self.group_node or self._client.answered_by

    def is_reusable(self) -> bool:
        """Return whether it has not taken part in a group: it only knows who led then."""
        return not self._topic

    async def aclose(self) -> None:
        """Leave the group, and close connections."""
        self._client.close()
        await self.close_groups()


def _queue(key: str) -> tuple[str, int]:
    topic, _, queue_id = key.rpartition("/")
    return topic, int(queue_id)


# Which bytes of a member's log are certainly on its disk, so that it must notice their damage.
#
# The file `syncedto` holds the durable watermark, in the newer of its two valid slots
# (docs/adr/0002). This reader shares no code with the node.

SLOT_BYTES: Final = 4096
_MAGIC: Final = b"syncedto"
_SLOT = struct.Struct(">8sQ?QqqqIqqqIqq")
"""magic, sequence, is complete, file bytes, first and end (index, term, position, CRC), cut, old
log's end."""
_CRC = struct.Struct(">I")


def durable_ranges_of(store: Path) -> Sequence[DurableRange]:
    """Return the durable parts of the data files in a member's store.

    Raises:
        OSError: the store cannot be read.
    """
    found: list[DurableRange] = []
    for mark in sorted(store.glob("dledger-*/syncedto")):
        file_bytes, begin, end = _newest(mark.read_bytes())
        for path in sorted((mark.parent / "data").iterdir()):
            if not path.name.isdecimal():
                continue
            first = int(path.name)
            start, stop = max(begin, first), min(end, first + file_bytes)
            if start < stop:
                found.append(DurableRange(path, start - first, stop - first))
    return found


def _newest(data: bytes) -> tuple[int, int, int]:
    """Return (file bytes, first position, end position) of the newest valid slot, else zeros."""
    slots = []
    for at in (0, SLOT_BYTES):
        slot = data[at : at + _SLOT.size]
        crc = data[at + _SLOT.size : at + _SLOT.size + _CRC.size]
        if len(slot) == _SLOT.size and crc == _CRC.pack(zlib.crc32(slot)):
            fields = _SLOT.unpack(slot)
            if fields[0] == _MAGIC:
                slots.append(fields)
    if not slots:
        return 0, 0, 0
    newest = max(slots, key=lambda fields: int(fields[1]))
    return int(newest[3]), int(newest[6]), int(newest[10])


class DLedgerTarget:
    """A group of three or more brokers on a replicated commit log (DLedger, Raft)."""

    name = "dledger"
    client_type = DLedgerClient
    group_client_type = DLedgerGroupClient
    needs_name_server = False
    lease_max_ms = 249
    default_faults = (
        "client-links",
        "clock",
        "disk-full",
        "disk-slow",
        "kill",
        "members",
        "name-servers",
        "partition",
        "pause",
        "power",
        "transfer",
        "wipe",
    )
    default_workload = "combined"
    end_causes = ENDS
    promise_of_rule = staticmethod(promise_of_rule)
    logs_readable = True
    promises = Promises(
        durable_under=frozenset({"kill", "pause", "transfer", "wipe"})
        | FAULTS_OF_PROCESSES
        | FAULTS_OF_LINKS
        | FAULTS_OF_CLOCKS
        | FAULTS_OF_DISKS,
        linearizable=frozenset({"append", "read", "end", "write", "cas", "add"}),
        committed_prefix=True,
        failover_goals_s=(1.0, 2.0),
        excludes=GROUP_PROMISES,
        note="A quorum of copies is fsynced before an append is acknowledged; reads and "
        "end offsets are linearizable at the leader by read index.",
    )
    mutants: Mapping[str, str]

    def __init__(self) -> None:
        self.mutants = PlantedBugs(self.name)
        self._status_clients: dict[tuple[str, Address], BrokerGroupClient] = {}
        self._members: dict[str, str] = {}
        """The member id that each node was last configured with."""

    @property
    def simulator(self) -> Simulator:
        """The simulated worlds of the same code."""
        # Imported late: client workers and executors do not need it.
        from shaketable.harness.targets.simulators import DLedgerSimulator  # noqa: PLC0415

        return DLedgerSimulator()

    def simulated_group(
        self, nodes: Sequence[str], options: Json, name_servers: Sequence[str]
    ) -> SimulatedGroup:
        """Return a group of members in a simulated world."""
        from shaketable.harness.targets.simulated_group import BrokerGroup  # noqa: PLC0415 - see above

        return BrokerGroup(DLedgerTarget(), nodes, options, name_servers)

    def prepare(self, layout: NodeLayout) -> Launch:
        """Return the node's configuration and how to start it."""
        return self._launch(layout, layout.node)

    def _launch(self, layout: NodeLayout, member: str) -> Launch:
        """Configure the node as that member; one that is not the node's first member joins."""
        self._members[layout.node] = member
        peers = {**layout.peers, member: layout.peer_address}
        listed = ";".join(f"{node}-{at.host}:{at.port}" for node, at in sorted(peers.items()))
        options = layout.options
        lines = {
            "brokerClusterName": "shaketable",
            "brokerName": BROKER_NAME,
            "brokerIP1": layout.client_address.host,
            "listenPort": layout.client_address.port,
            "storePathRootDir": layout.directory / "store",
            "enableDLegerCommitLog": "true",
            "dLegerGroup": GROUP,
            "dLegerPeers": listed,
            "dLegerSelfId": member,
            "mappedFileSizeCommitLog": options.get("data_file_bytes", 1 << 30),
            "mappedFileSizeIndex": options.get("index_file_bytes", 160 << 20),
            "shaketableInvariants": "true",
            "shaketableDisk": options.get("disk", "real"),
            "shaketableSeed": options.get("seed") or "",
            "shaketableMutant": options.get("mutant") or "",
            "flushDiskType": _FLUSH[options.get("ack", "fsync")],
        }
        lines |= limits_of(options)
        if options.get("leases_ms"):
            lines["shaketableLeaseMs"] = options["leases_ms"]
        if options.get("steering"):
            lines["shaketableSteering"] = layout.directory / STEERING
        if options.get("spares"):
            lines["shaketableReach"] = ids.reach(layout)
        if member != layout.node:
            lines["shaketableJoin"] = "true"
        if layout.name_servers:
            lines["namesrvAddr"] = ";".join(map(str, layout.name_servers))
        if options.get("record") == "inputs":
            lines["shaketableRecord"] = layout.directory / RECORDING
        return broker(layout.directory, lines)

    def _member(self, layout: NodeLayout) -> str:
        """Return the member id that a node was last configured with."""
        known = self._members.get(layout.node)
        return known or ids.last_member(layout.directory, layout.node)

    def steering(self, layout: NodeLayout) -> SteeringFiles:
        """Return where to write a node's orders."""
        return SteeringFiles(layout.directory / STEERING)

    def durable_ranges(self, layout: NodeLayout) -> Sequence[DurableRange]:
        """Return the durable parts of a dead node's log; it must notice if they are damaged."""
        return durable_ranges_of(self.store(layout))

    def checked_clients(
        self, report: Callable[[Broken], None], now_ns: Callable[[], int]
    ) -> AbstractContextManager[OnUnexpected]:
        """Check what its clients in this process do within their calls."""
        return checked_clients(report, now_ns)

    def name_server(self, address: Address) -> Launch:
        """Start one of the system's own name servers."""
        return name_server(address, checks_itself=True)

    def name_server_with(self, bug: str, address: Address) -> Launch:
        """Start one with a planted bug."""
        return name_server(address, bug, checks_itself=True)

    async def status(self, layout: NodeLayout, timeout_s: float) -> NodeStatus | None:
        """Ask a node for its DLedger metadata."""
        at = layout.client_address
        client = self._status_clients.get((layout.node, at))
        if client is None:
            client = self._status_clients[layout.node, at] = BrokerGroupClient(
                {layout.node: (at.host, at.port)}, timeout_s=timeout_s, rng=Random(0)
            )
        try:
            answer = await client.metadata(layout.node)
        except (RefusedError, OutcomeUnknownError):
            client.close()
            return None
        size = len(layout.peers) + 1
        return NodeStatus(
            ids.node_of(answer.member, size),
            answer.role,
            answer.term,
            None if answer.leader is None else ids.node_of(answer.leader, size),
            answer.committed_index,
            answer.end_index,
            wall_ms=answer.wall_ms,
            monotonic_ms=answer.monotonic_ms,
        )

    async def transfer_leadership(self, layout: NodeLayout, to: str, timeout_s: float) -> None:
        """Ask the node, which leads, to transfer leadership to node `to`."""
        at = layout.client_address
        client = BrokerGroupClient(
            {layout.node: (at.host, at.port)}, timeout_s=timeout_s, rng=Random(0)
        )
        try:
            async with definite_or_not():
                size = len(layout.peers) + 1
                voters = (await client.metadata(layout.node)).voters
                known = [voter for voter in voters if ids.node_of(voter, size) == to]
                await client.transfer_leadership(known[-1] if known else to)
        finally:
            client.close()

    # ---- lost disks (contracts.abilities.LosesDisks) -------------------------------------

    def why_no_disk_may_go(self, nodes: Sequence[str]) -> str | None:
        """Require a remaining quorum, which has all that was acknowledged."""
        if len(nodes) < QUORUM_NODES_MIN:
            return f"a group of {len(nodes)} keeps no quorum without one of them"
        return None

    def why_not_now(self, node: str, missing: Sequence[str]) -> str | None:
        """Allow one loss at a time, from a complete group: else an entry's last copy may go."""
        return f"{', '.join(missing)} is not back yet" if missing else None

    def store(self, layout: NodeLayout) -> Path:
        """Return the folder with all that a node stores."""
        return layout.directory / "store"

    async def renew(
        self, layouts: Mapping[str, NodeLayout], node: str, lost: Mapping[str, int]
    ) -> Mapping[str, Launch]:
        """Restart the node as a new member: with an empty disk, its old vote and log are gone."""
        await trio.lowlevel.checkpoint()
        member = ids.member_of(node, lost[node], len(layouts))
        return {node: self._launch(layouts[node], member)}

    async def readmit(
        self,
        layouts: Mapping[str, NodeLayout],
        node: str,
        lost: Mapping[str, int],
        timeout_s: float,
    ) -> None:
        """Add the new member, wait until it votes, remove the old one."""
        await members.readmit(layouts, node, lost, timeout_s)

    # ---- membership changes (contracts.abilities.ChangesMembers) -------------------------

    def why_no_member_may_go(self, nodes: Sequence[str]) -> str | None:
        """Require a remaining group of two, which can add the member back."""
        if len(nodes) < QUORUM_NODES_MIN:
            return f"a group of {len(nodes)} without a member could not do without another"
        return None

    async def remove_member(
        self, layouts: Mapping[str, NodeLayout], node: str, timeout_s: float
    ) -> tuple[str, ...]:
        """Remove a node from the group."""
        async with definite_or_not():
            return await members.remove(layouts, self._member, node, timeout_s)

    async def add_member(
        self, layouts: Mapping[str, NodeLayout], node: str, timeout_s: float
    ) -> tuple[str, ...]:
        """Add a node to the group again, as a voter."""
        return await members.restore(layouts, self._member, node, timeout_s)

    def client(self, addresses: Mapping[str, Address], timeout_s: float) -> DLedgerClient:
        """Return a client of the group; with name servers, one that can join consumer groups."""
        return self.client_of(addresses, timeout_s)

    def client_of(
        self,
        addresses: Mapping[str, Address],
        timeout_s: float,
        bug: str | None = None,
        rng: Random | None = None,
        client_id: str | None = None,
    ) -> DLedgerClient:
        """Return such a client, with an optional planted bug, random generator and client id."""
        parts = client_parts_of(bug)
        nodes = {node: at for node, at in addresses.items() if not is_name_server(node)}
        if len(nodes) == len(addresses):
            return DLedgerClient(addresses, timeout_s, rng, parts)
        return DLedgerGroupClient(nodes, addresses, timeout_s, rng, parts, client_id)

    # Static: it is pickled for executors, without the target's connections.
    @staticmethod
    def read_log(directory: Path, node: str) -> Iterator[pa.RecordBatch]:
        """Decode a stopped node's files."""
        # Imported late: client workers do not need pyarrow, which is slow to import.
        from shaketable.harness.targets.logs.dledger_files import read_entries  # noqa: PLC0415

        return read_entries(directory, node)

    @staticmethod
    def log_segments(directory: Path, node: str) -> tuple[str, ...]:
        """Return the names of a stopped node's data files."""
        from shaketable.harness.targets.logs.dledger_files import log_segments  # noqa: PLC0415

        return log_segments(directory, node)

    @staticmethod
    def read_segment(directory: Path, node: str, segment: str) -> Iterator[pa.RecordBatch]:
        """Decode one of a stopped node's data files."""
        from shaketable.harness.targets.logs.dledger_files import read_segment  # noqa: PLC0415

        return read_segment(directory, node, segment)


PLUGIN = DLedgerTarget()
