"""A request that is not answered in time is reported as refused: certainly without an effect.

Whoever believes it sends once more, or goes on as if nothing had happened; the message is stored.

Source: https://github.com/apache/rocketmq/issues/1921 (the producer throws MQClientException, and
the messages are at the brokers).
"""

from __future__ import annotations

from shaketable.system.client import (
    BrokerGroupClient,
    ClientParts,
    Producer,
    PullConsumer,
    RefusedError,
)
from shaketable.system.client.channels import Channels
from shaketable.system.client.connection import Connection, OutcomeUnknownError
from shaketable.system.mutants import Hunt, Mutant
from shaketable.system.remoting.command import Command


class _Sure(Connection):
    """Knows of no unknown outcome."""

    async def call(self, command: Command, timeout_s: float) -> Command:
        """Ask, and take silence for a refusal."""
        try:
            return await super().call(command, timeout_s)
        except OutcomeUnknownError as error:
            raise RefusedError(-1, str(error)) from None


class _Channels(Channels):
    connection_type = _Sure


class _GroupClient(BrokerGroupClient):
    connection_type = _Sure


class _Producer(Producer):
    channels_type = _Channels


class _PullConsumer(PullConsumer):
    channels_type = _Channels


PLUGIN = Mutant(
    "timeout-is-refusal",
    client=ClientParts(_GroupClient, _Producer, _PullConsumer),
    hunt=Hunt("log", ("pause", "partition")),
)
