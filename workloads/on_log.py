"""The base of objects that are built on a log: its operations go to the log's client unchanged."""

from __future__ import annotations

from shaketable.harness.contracts.plugins import TargetClient


class OnLog:
    """A client of a log, to be given further operations."""

    def __init__(self, client: TargetClient) -> None:
        self._client = client

    @property
    def node(self) -> str | None:
        """The node that answered last."""
        return self._client.node

    async def append(self, key: str, value: int) -> int:
        """Append, unchanged."""
        return await self._client.append(key, value)

    async def read(self, key: str, offset: int) -> int | None:
        """Read, unchanged."""
        return await self._client.read(key, offset)

    async def end(self, key: str) -> int:
        """Return the queue's end, unchanged."""
        return await self._client.end(key)

    async def aclose(self) -> None:
        """Close connections."""
        await self._client.aclose()
