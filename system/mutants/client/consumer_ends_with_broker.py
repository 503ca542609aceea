"""A consumer's task ends with the first broker that it cannot reach, and nobody is told.

Its program goes on, and no message is handled any more until it is started again.

Source: https://github.com/Parsely/pykafka/issues/227 (errors of a worker thread that nobody
caught ended it, and the consumer with it).
"""

from __future__ import annotations

from shaketable.system.client import GroupMembership
from shaketable.system.mutants import Hunt, Mutant
from shaketable.system.mutants.client import parts_with
from shaketable.system.remoting.command import Command


class _Fragile(GroupMembership):
    """Takes it that brokers are always there."""

    async def _try(self, address: str, command: Command) -> Command | None:
        return await self._source.ask_broker(address, command, self._timeout_s)


PLUGIN = Mutant(
    "consumer-ends-with-broker",
    client=parts_with(_Fragile),
    hunt=Hunt("queue-push", ("kill", "pause")),
)
