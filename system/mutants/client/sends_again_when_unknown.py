"""A send of which nobody knows what became of it is sent once more behind the caller's back.

Where the first one was stored, the message is there twice, or behind later ones.

Source: https://github.com/tulios/kafkajs/issues/257 (100,000 messages sent, 110,000 to 120,000
stored, after timeouts); RocketMQ's retryTimesWhenSendFailed likewise.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from shaketable.system.client import (
    BrokerGroupClient,
    ClientParts,
    OutcomeUnknownError,
    Producer,
    Sent,
)
from shaketable.system.client.connection import Connection, DamagedResponseError
from shaketable.system.mutants import Hunt, Mutant

Result = TypeVar("Result")
SENDS_MAX = 3


class _GroupClient(BrokerGroupClient):
    """Tries everything again."""

    async def _at_leader(self, attempt: Callable[[Connection, float], Awaitable[Result]]) -> Result:
        for _ in range(SENDS_MAX - 1):
            try:
                return await super()._at_leader(attempt)
            except DamagedResponseError:
                raise
            except OutcomeUnknownError:
                continue
        return await super()._at_leader(attempt)


class _Producer(Producer):
    """Tries sends again."""

    async def _until_stored(self, *args: Any) -> Sent:
        for _ in range(SENDS_MAX - 1):
            try:
                return await super()._until_stored(*args)
            except DamagedResponseError:
                raise
            except OutcomeUnknownError:
                continue
        return await super()._until_stored(*args)


PLUGIN = Mutant(
    "sends-again-when-unknown",
    client=ClientParts(_GroupClient, _Producer),
    hunt=Hunt("log", ("pause", "partition")),
)
