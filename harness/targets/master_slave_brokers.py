"""Master-slave brokers, without a DLedger group: RocketMQ's other deployment modes.

Of n nodes the first m are masters of broker names of their own ("broker-0", ...); the others are
slaves of these, round robin; m is n without slaves, else n // 2 (at least 1). A slave never takes
over by itself. When a master loses its disk, the operator acts as RocketMQ's users do: the most
up-to-date slave is configured as master, and the node that lost its disk comes back as its slave
and copies its log. Without a slave it comes back empty.

Disks survive a kill, which ends the process and keeps the kernel's page cache. Power losses are not
injected, because RocketMQ's replication cannot continue when a master has lost the end of its log
and a slave still has it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import trio

from shaketable.harness.contracts.abilities import Broken, OnUnexpected
from shaketable.harness.contracts.errors import IndefiniteError
from shaketable.harness.contracts.plugins import (
    Address,
    Json,
    Launch,
    NodeLayout,
    NodeStatus,
    Promises,
)
from shaketable.harness.contracts.promises import FAULTS_OF_LINKS, FAULTS_OF_PROCESSES
from shaketable.harness.targets.client_rules import checked_clients
from shaketable.harness.targets.dledger import ENDS, GROUP_PROMISES, STEERING, promise_of_rule
from shaketable.harness.targets.group_operations import GroupOperations, is_name_server
from shaketable.harness.targets.logs.master_slave_files import PLACE_FILE, Place, read_messages
from shaketable.harness.targets.programs import PlantedBugs, broker, client_parts_of, name_server
from shaketable.harness.targets.refusals import limits_of
from shaketable.harness.targets.steering_files import SteeringFiles
from shaketable.system.client import (
    BrokerGroupClient,
    ClientParts,
    OutcomeUnknownError,
    RefusedError,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from shaketable.harness.contracts.simulation import SimulatedGroup, Simulator


KEPT_BY_THE_MACHINE = (
    frozenset({"kill", "pause", "disk-full", "disk-slow", "disk-stall"})
    | FAULTS_OF_PROCESSES
    | FAULTS_OF_LINKS
)
"""Faults that leave what a process wrote on its machine."""
OFFSETS_MAY_GO = frozenset(
    {
        "offset-went-back",
        "offset-ran-ahead",
        "offset-lost",
        "redelivered-committed",
        "duplicate-delivery",
    }
)
DELIVERY = GROUP_PROMISES - OFFSETS_MAY_GO
"""Anomalies that a consumer group never shows in these modes.

Consumer offsets and the progress of delayed messages are written every few seconds
(flushConsumerOffsetInterval, flushDelayOffsetInterval), and copied by slaves every ten.
"""
LOG_FILE_BYTES = 64 << 20
"""An empty slave copies from the start of the master's last file, so there should be only one."""
REGISTER_MS = 10_000
"""The allowed minimum: only the answer tells a slave where its master's topics and offsets are."""
LATE_MS = 1_000
"""How long a send may wait for disk and slave; RocketMQ's 5 and 3 s are longer than most faults."""
READMIT_POLL_S = 0.1
ENDS_TIMEOUT_S = 4.0
"""How long a promotion waits for slaves that do not answer: they may have just been started."""
STATUS_TIMEOUT_S = 1.0
MASTER, SLAVE = "master", "slave"


class MasterSlaveTarget:
    """One of the modes: `role` is what a master's brokerRole is."""

    needs_name_server = True
    default_workload = "combined-queues"
    end_causes = ENDS
    promise_of_rule = staticmethod(promise_of_rule)
    logs_readable = True
    why_no_power_loss = (
        "masters and slaves keep what they have written at a kill: a slave does not go on with a"
        " master that has lost the end of its log (docs/deployments.md); world sim loses it"
    )

    def __init__(self, name: str, role: str, promises: Promises, *, has_slaves: bool) -> None:
        self.name = name
        self.promises = promises
        self.mutants: Mapping[str, str] = PlantedBugs(name)
        self._role = role
        self._has_slaves = has_slaves
        self._parts: dict[str, str] = {}
        """The current part of each node: MASTER or SLAVE."""
        self._status_clients: dict[tuple[str, Address], BrokerGroupClient] = {}

    @property
    def client_type(self) -> type:
        """The type of its clients."""
        return MasterSlaveClient

    group_client_type = client_type

    # ---- nodes -------------------------------------------------------------------------

    @property
    def default_faults(self) -> tuple[str, ...]:
        """The default faults; without slaves, masters do not communicate, so no partition."""
        links = ("partition",) if self._has_slaves else ()
        disks = ("disk-full", "disk-slow", "disk-stall")
        return ("client-links", *disks, "kill", "name-servers", *links, "pause", "wipe")

    def why_no_links(self, nodes: Sequence[str]) -> str | None:
        """Without slaves return a reason: masters do not communicate; slaves copy masters."""
        return None if self._has_slaves else f"nodes of {self.name} do not talk to each other"

    def prepare(self, layout: NodeLayout) -> Launch:
        """Return the node's configuration, and the file that states which queues it may have."""
        node, masters = layout.node, self._masters(layout)
        self._parts[node] = MASTER if number_of(node) < masters else SLAVE
        master = f"n{number_of(node) % masters}"
        return self._launch(layout, None if self._parts[node] == MASTER else master)

    def checked_clients(
        self, report: Callable[[Broken], None], now_ns: Callable[[], int]
    ) -> AbstractContextManager[OnUnexpected]:
        """Check what its clients in this process do within their calls."""
        return checked_clients(report, now_ns)

    def steering(self, layout: NodeLayout) -> SteeringFiles:
        """Return where to write a node's orders."""
        return SteeringFiles(layout.directory / STEERING)

    def name_server(self, address: Address) -> Launch:
        """Start one of the system's own name servers."""
        return name_server(address, checks_itself=True)

    def name_server_with(self, bug: str, address: Address) -> Launch:
        """Start one with a planted bug."""
        return name_server(address, bug, checks_itself=True)

    async def status(self, layout: NodeLayout, timeout_s: float) -> NodeStatus | None:
        """Ask a node for its part, and for its log's end (a byte position)."""
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
        # A slave knows its master by configuration, long before a name server reports it.
        leader = self._master_of(layout.node, self._masters(layout))
        end = answer.end_index
        group = f"broker-{broker_of(layout.node, self._masters(layout))}"
        return NodeStatus(layout.node, answer.role, 0, leader, end, end, group)

    def client(self, addresses: Mapping[str, Address], timeout_s: float) -> MasterSlaveClient:
        """Return a client that finds masters and slaves through the name servers."""
        return self.client_of(addresses, timeout_s)

    def client_of(
        self,
        addresses: Mapping[str, Address],
        timeout_s: float,
        bug: str | None = None,
        rng: Random | None = None,
        client_id: str | None = None,
    ) -> MasterSlaveClient:
        """Return such a client, with an optional planted bug, random generator and client id."""
        nodes = sum(not is_name_server(node) for node in addresses)
        parts = client_parts_of(bug)
        return MasterSlaveClient(addresses, self._count(nodes), timeout_s, parts, rng, client_id)

    @property
    def simulator(self) -> Simulator:
        """The simulated world of a master and its slaves."""
        from shaketable.harness.targets.simulators import MasterSlaveSimulator  # noqa: PLC0415 - see below

        return MasterSlaveSimulator(self.name, self._role, has_slaves=self._has_slaves)

    def simulated_group(
        self, nodes: Sequence[str], options: Json, name_servers: Sequence[str]
    ) -> SimulatedGroup:
        """Return brokers of this mode in a simulated world."""
        # Imported late: client workers and executors do not need it.
        from shaketable.harness.targets.simulated_group import BrokerGroup  # noqa: PLC0415

        own = MasterSlaveTarget(self.name, self._role, self.promises, has_slaves=self._has_slaves)
        return BrokerGroup(own, nodes, options, name_servers)

    # Static: it is pickled for executors.
    @staticmethod
    def read_log(directory: Path, node: str) -> Iterator[pa.RecordBatch]:
        """Decode a stopped node's commit log."""
        return read_messages(directory, node)

    # ---- lost disks (contracts.abilities.LosesDisks) -------------------------------------

    def why_no_disk_may_go(self, nodes: Sequence[str]) -> str | None:
        """Return None: there is no quorum to keep."""
        return None

    def why_not_now(self, node: str, missing: Sequence[str]) -> str | None:
        """With slaves allow one loss at a time: not a master's and its slave's disk together."""
        if self._has_slaves and missing:
            return f"{', '.join(missing)} is not back yet"
        return None

    def store(self, layout: NodeLayout) -> Path:
        """Return the folder with all that a node stores."""
        return layout.directory / "store"

    async def renew(
        self, layouts: Mapping[str, NodeLayout], node: str, lost: Mapping[str, int]
    ) -> Mapping[str, Launch]:
        """Promote the most up-to-date slave of a master that lost its disk; the others copy it."""
        masters = self._count(len(layouts))
        others = [
            each
            for each in layouts
            if each != node and broker_of(each, masters) == broker_of(node, masters)
        ]
        if not others:
            return {node: self._launch(layouts[node], None)}
        if self._parts[node] == SLAVE:
            master = next(each for each in others if self._parts[each] == MASTER)
            return {node: self._launch(layouts[node], master)}
        ends = await self._ends(layouts, others)
        heir = max(others, key=lambda each: (ends[each], each))
        self._parts[node], self._parts[heir] = SLAVE, MASTER
        launches = {heir: self._launch(layouts[heir], None)}
        launches |= {
            each: self._launch(layouts[each], heir) for each in (*others, node) if each != heir
        }
        return launches

    async def readmit(
        self,
        layouts: Mapping[str, NodeLayout],
        node: str,
        lost: Mapping[str, int],
        timeout_s: float,
    ) -> None:
        """Wait until the node answers, and, as a slave, has copied its master's log as of now."""
        masters = self._count(len(layouts))
        with trio.move_on_after(timeout_s):
            master = self._master_of(node, masters)
            while (wanted := await self._end(layouts[master])) < -1:  # noqa: ASYNC110 - a question
                await trio.sleep(READMIT_POLL_S)
            while await self._end(layouts[node]) < wanted:  # noqa: ASYNC110 - a question
                await trio.sleep(READMIT_POLL_S)
            return
        raise IndefiniteError(f"{node} has not copied what its master has within {timeout_s:g} s")

    # ---- steps -------------------------------------------------------------------------

    def _count(self, nodes: int) -> int:
        """Return the initial number of masters among so many nodes."""
        return max(1, nodes // 2) if self._has_slaves else nodes

    def _masters(self, layout: NodeLayout) -> int:
        return self._count(len(layout.peers) + 1)

    def _master_of(self, node: str, masters: int) -> str:
        """Return the current master of the node's broker name."""
        return next(
            each
            for each, part in self._parts.items()
            if part == MASTER and broker_of(each, masters) == broker_of(node, masters)
        )

    async def _ends(
        self, layouts: Mapping[str, NodeLayout], nodes: Sequence[str]
    ) -> Mapping[str, int]:
        """Return where the nodes' logs end; wait for those that do not answer yet.

        A slave with a longer log than the one that is promoted could never copy from it again.
        """
        ends = dict.fromkeys(nodes, -2)
        with trio.move_on_after(ENDS_TIMEOUT_S):
            while True:
                for each in nodes:
                    ends[each] = await self._end(layouts[each])
                if -2 not in ends.values():
                    break
                await trio.sleep(READMIT_POLL_S)
        return ends

    async def _end(self, layout: NodeLayout) -> int:
        """Return the position of a node's last byte, -1 for none, -2 if it does not answer."""
        status = await self.status(layout, STATUS_TIMEOUT_S)
        return -2 if status is None else status.end_index

    def _launch(self, layout: NodeLayout, master: str | None) -> Launch:
        """Configure a master, or a slave of that node."""
        options: Json = layout.options
        masters = self._masters(layout)
        number = broker_of(layout.node, masters)
        lines = {
            "brokerClusterName": "shaketable",
            "brokerName": f"broker-{number}",
            "brokerId": 0 if master is None else number_of(layout.node) + 1,
            "brokerRole": self._role if master is None else "SLAVE",
            "brokerIP1": layout.client_address.host,
            "listenPort": layout.client_address.port,
            "haListenPort": layout.peer_address.port,
            "namesrvAddr": ";".join(map(str, layout.name_servers)),
            "storePathRootDir": layout.directory / "store",
            "registerNameServerPeriod": REGISTER_MS,
            "flushDiskType": "SYNC_FLUSH",
            "syncFlushTimeout": LATE_MS,
            "slaveTimeout": LATE_MS,
            "mappedFileSizeCommitLog": LOG_FILE_BYTES,
            "shaketableInvariants": "true",
            "shaketableSeed": options.get("seed") or "",
            "shaketableMutant": options.get("mutant") or "",
        }
        lines |= limits_of(options)
        if options.get("steering"):
            lines["shaketableSteering"] = layout.directory / STEERING
        if master is not None:
            lines["haMasterAddress"] = layout.peers[master]
            lines["slaveReadEnable"] = "true"
        return broker(layout.directory, lines, {PLACE_FILE: Place(number, masters).encoded()})


class MasterSlaveClient(GroupOperations):
    """The operations of all workloads, through name servers."""

    def __init__(
        self,
        addresses: Mapping[str, Address],
        masters: int,
        timeout_s: float,
        parts: ClientParts | None = None,
        rng: Random | None = None,
        client_id: str | None = None,
    ) -> None:
        names = [f"broker-{number}" for number in range(masters)]
        super().__init__(addresses, names, timeout_s, parts, rng, client_id)

    @property
    def node(self) -> str | None:
        """The node that answered last, if known."""
        return self.group_node

    async def append(self, key: str, value: int) -> int:
        """Send; a log's queues are like others."""
        self._use_queue(key)
        return await self.send(key, value)

    async def read(self, key: str, offset: int) -> int | None:
        """Pull the message at `offset`."""
        self._use_queue(key)
        return next((v for at, v in (await self.poll(key, offset)).messages if at == offset), None)

    async def end(self, key: str) -> int:
        """Return the queue's max offset."""
        self._use_queue(key)
        return await self.max_offset(key)

    def _use_queue(self, key: str) -> None:
        """Make sure that the topic has this queue: a broker that lost its disk has lost it."""
        topic, _, number = key.rpartition("/")
        if topic != self._topic or int(number) >= self._queues:
            self.use(topic, int(number) + 1)

    async def aclose(self) -> None:
        """Leave the group, and close connections."""
        await self.close_groups()


def number_of(node: str) -> int:
    """Return k of node "n<k>"."""
    return int(node.removeprefix("n"))


def broker_of(node: str, masters: int) -> int:
    """Return the number of a node's broker name."""
    return number_of(node) % masters
