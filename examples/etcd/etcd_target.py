"""A group of etcd servers, each key a register: a system that shaketable knows nothing about.

Clients speak JSON with etcd's gateway. `my-etcd` reads linearizably, the other target locally.
"""

import hashlib
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping
from email.utils import parsedate_to_datetime
from itertools import count
from pathlib import Path
from typing import Any

import httpx

from shaketable.harness.contracts import promises as p
from shaketable.harness.contracts.errors import DefiniteError, IndefiniteError
from shaketable.harness.contracts.plugins import Address, Launch, NodeLayout, NodeStatus

SURVIVES = p.FAULTS_OF_PROCESSES | p.FAULTS_OF_LINKS | p.FAULTS_OF_CLOCKS | {"kill", "pause"}
REFUSALS = ("no leader", "not capable", "too many requests", "request is too large")
"""What etcd says before it proposes anything; behind any other error a write may take effect."""
INDEXES = ("raftAppliedIndex", "raftIndex")
ABSENT, TURNS = {"target": "VERSION", "version": "0"}, count()  # clients are spread by turns


class EtcdClient:
    """Registers (`contracts.clients.RegisterClient`) at one node; after a failure at another."""

    def __init__(self, nodes: Mapping[str, Address], timeout_s: float, reads: Any) -> None:
        self._nodes = sorted(nodes.items())
        self._turn = next(TURNS)
        self._http = httpx.AsyncClient(timeout=timeout_s, trust_env=False, verify=False)  # noqa: S501
        self._reads = reads
        self.node: str | None = None

    async def get(self, key: str) -> int | None:
        """Read; who knows nothing of an answer still knows that nothing was changed."""
        found = await self._post("range", {"key": _text(key), **self._reads}, DefiniteError)
        return int(b64decode(found["kvs"][0]["value"])) if "kvs" in found else None

    async def put(self, key: str, value: int) -> None:
        """Write."""
        await self._post("put", {"key": _text(key), "value": _text(value)})

    async def swap(self, key: str, expected: int | None, value: int) -> bool:
        """Write, in a transaction, if the key holds `expected` (None: if there is no such key)."""
        holds = ABSENT if expected is None else {"target": "VALUE", "value": _text(expected)}
        put = {"requestPut": {"key": _text(key), "value": _text(value)}}
        swap = {"compare": [{"key": _text(key), **holds}], "success": [put]}
        return "succeeded" in await self._post("txn", swap)

    async def aclose(self) -> None:
        """Close the connection."""
        await self._http.aclose()

    async def _post(self, what: str, body: Any, unknown: type[Exception] = IndefiniteError) -> Any:
        self.node, address = self._nodes[self._turn % len(self._nodes)]
        try:
            answer = await self._http.post(f"http://{address}/v3/kv/{what}", json=body)
            if answer.is_success:
                return answer.json()
            told = answer.json()["error"]
            error = (DefiniteError if told.endswith(REFUSALS) else unknown)(told)
        except (httpx.ConnectError, httpx.ConnectTimeout) as failed:
            error = DefiniteError(f"not connected: {failed}")
        except (httpx.HTTPError, ValueError, LookupError) as failed:
            error = unknown(f"{type(failed).__name__} {failed}")
        self._turn += 1
        raise error


class EtcdTarget:
    """Registers on a group of etcd servers: each key's value, read and written at any node."""

    client_type = EtcdClient
    advertises_addresses = True  # a member's id is made of the one URL that its peers know
    logs_readable = False
    mutants: Mapping[str, str] = {}

    def __init__(self, name: str, linearizable: set[str], **reads: bool) -> None:
        self.name, self._reads = name, reads
        self._http = httpx.AsyncClient(trust_env=False, verify=False)  # noqa: S501
        how = "serializable" if reads else "linearizable"
        self.summary = f"Registers on a group of etcd servers, any of which answers {how} reads."
        self.promises = p.Promises(durable_under=SURVIVES, linearizable=frozenset(linearizable))

    def prepare(self, layout: NodeLayout) -> Launch:
        """Say how to start a server that keeps all that it has in the node's folder."""
        members = {**layout.peers, layout.node: layout.advertised_address}
        options = {
            "name": layout.node,
            "data-dir": self.disk(layout) / "data",
            "listen-client-urls": f"http://{layout.client_address}",
            "advertise-client-urls": f"http://{layout.client_address}",
            "listen-peer-urls": f"http://{layout.peer_address}",
            "initial-advertise-peer-urls": f"http://{layout.advertised_address}",
            "initial-cluster": ",".join(f"{node}=http://{at}" for node, at in members.items()),
            "heartbeat-interval": 50,
            "election-timeout": 500,
        }
        return Launch(("etcd", *(f"--{option}={value}" for option, value in options.items())))

    def disk(self, layout: NodeLayout) -> Path:
        """Return the folder that can lose power: with --faults power it is a file system."""
        return layout.directory / "disk"

    async def status(self, layout: NodeLayout, timeout_s: float) -> NodeStatus | None:
        """Ask a node, which names its leader by the id that etcd makes of a member's URL."""
        try:
            said = (await self._ask(layout, timeout_s)).json()
        except httpx.HTTPError:
            return None
        node_of = {_member_id(at): node for node, at in layout.peers.items()}
        node_of[_member_id(layout.advertised_address)] = layout.node
        leader = node_of.get(said.get("leader"))
        role = {None: "candidate", layout.node: "leader"}.get(leader, "follower")
        term, done, end = (int(said.get(key, 0)) for key in ("raftTerm", *INDEXES))  # no zeros
        return NodeStatus(layout.node, role, term, leader, done, end)

    async def wall_clock(self, layout: NodeLayout, timeout_s: float) -> float:
        """Return the time that a node's answers bear, in whole seconds."""
        headers = (await self._ask(layout, timeout_s)).headers
        return parsedate_to_datetime(headers["Date"]).timestamp()

    async def _ask(self, layout: NodeLayout, timeout_s: float) -> httpx.Response:
        url = f"http://{layout.client_address}/v3/maintenance/status"
        return await self._http.post(url, json={}, timeout=timeout_s)

    def client(self, addresses: Mapping[str, Address], timeout_s: float) -> EtcdClient:
        """Return a client."""
        return EtcdClient(addresses, timeout_s, self._reads)

    @staticmethod  # executors get it, and nothing of the target
    def read_log(directory: Path, node: str) -> Iterator[Any]:
        """Read nothing: there is no reader of etcd's files here, as `logs_readable` says."""
        return iter(())


def _text(value: object) -> str:
    return b64encode(str(value).encode()).decode()


def _member_id(at: Address | None) -> str:
    digest = hashlib.sha1(f"http://{at}etcd-cluster".encode(), usedforsecurity=False).digest()
    return str(int.from_bytes(digest[:8], "big"))


PLUGIN = EtcdTarget("my-etcd", {"read", "write", "cas"})
SERIALIZABLE = EtcdTarget("my-etcd-serializable", {"write", "cas"}, serializable=True)
