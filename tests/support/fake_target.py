"""The plug-in for fake_node.py, and its client. For tests of the harness only."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import trio

from shaketable.harness.contracts.errors import DefiniteError, IndefiniteError
from shaketable.harness.contracts.plugins import Address, Launch, NodeLayout, NodeStatus, Promises

PROGRAM = Path(__file__).with_name("fake_node.py")


class FakeTarget:
    """A group that elects somebody and promises nothing."""

    name = "fake"
    promises = Promises(note="a fake for tests of the harness")
    mutants: Mapping[str, str] = {
        "crash": "ends at start",
        "forgets": "copies no log from the leader",
    }

    def prepare(self, layout: NodeLayout) -> Launch:
        def pair(address: Address) -> list[Any]:
            return [address.host, address.port]

        config = {
            "node": layout.node,
            "client": pair(layout.client_address),
            "peer": pair(layout.peer_address),
            "peers": {node: pair(address) for node, address in layout.peers.items()},
            "mutant": layout.options.get("mutant"),
        }
        path = layout.directory / "config.json"
        path.write_text(json.dumps(config))
        return Launch((sys.executable, str(PROGRAM), str(path)))

    async def status(self, layout: NodeLayout, timeout_s: float) -> NodeStatus | None:
        with trio.move_on_after(timeout_s):
            try:
                return NodeStatus(**await _ask(layout.client_address, {"do": "status"}))
            except (OSError, trio.BrokenResourceError, EOFError):
                return None
        return None

    async def transfer_leadership(self, layout: NodeLayout, to: str, timeout_s: float) -> None:
        with trio.move_on_after(timeout_s):
            try:
                answer = await _ask(layout.client_address, {"do": "transfer", "to": to})
            except (OSError, trio.BrokenResourceError, EOFError) as error:
                raise IndefiniteError(type(error).__name__) from error
            if "error" in answer:
                raise DefiniteError(answer["error"])
            return
        raise IndefiniteError("no answer in time")

    def client(self, addresses: Mapping[str, Address], timeout_s: float) -> FakeClient:
        return FakeClient(addresses, timeout_s)

    def read_log(self, directory: Path, node: str) -> Iterator[pa.RecordBatch]:
        yield from ()


class FakeClient:
    """Tries one node after the other until one says that it leads."""

    def __init__(self, addresses: Mapping[str, Address], timeout_s: float) -> None:
        self.node: str | None = None
        self._addresses = dict(addresses)
        self._timeout_s = timeout_s

    async def append(self, key: str, value: int) -> int:
        return await self._do({"do": "append", "key": key, "value": value})

    async def read(self, key: str, offset: int) -> int | None:
        return await self._do({"do": "read", "key": key, "offset": offset})

    async def end(self, key: str) -> int:
        return await self._do({"do": "end", "key": key})

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()

    async def _do(self, message: dict[str, Any]) -> Any:
        for node, address in self._addresses.items():
            with trio.move_on_after(self._timeout_s) as waited:
                try:
                    answer = await _ask(address, message)
                except (OSError, trio.BrokenResourceError, EOFError) as error:
                    if isinstance(error, ConnectionRefusedError):
                        continue
                    raise IndefiniteError(f"{node}: {type(error).__name__}") from error
                if "error" not in answer:
                    self.node = node
                    return answer["result"]
            if waited.cancelled_caught:
                raise IndefiniteError(f"{node}: no answer in time")
        await trio.sleep(0.02)
        raise DefiniteError("no leader")


async def _ask(address: Address, message: dict[str, Any]) -> dict[str, Any]:
    try:
        stream = await trio.open_tcp_stream(address.host, address.port)
    except OSError as error:
        raise ConnectionRefusedError(str(error)) from error
    async with stream:
        await stream.send_all(json.dumps(message).encode() + b"\n")
        data = b""
        while not data.endswith(b"\n"):
            more = await stream.receive_some(65536)
            if not more:
                raise EOFError
            data += more
        return json.loads(data)


def make_client(addresses: Mapping[str, Address], timeout_s: float) -> FakeClient:
    return FakeClient(addresses, timeout_s)
