"""Answers are given to the calls of a connection in the calls' order, whatever their numbers.

Where a call timed out, or is answered later than the next one, others get its answer.

Source: https://github.com/dpkp/kafka-python/pull/403 (responses were not correlated with their
requests).
"""

from __future__ import annotations

from shaketable.system.client import BrokerGroupClient, ClientParts, Producer, PullConsumer
from shaketable.system.client.channels import Channels
from shaketable.system.client.connection import Connection, PendingCall
from shaketable.system.mutants import Mutant
from shaketable.system.remoting.command import Command


class _InOrder(Connection):
    """Gives an answer to whoever waits longest."""

    def _asker_of(self, response: Command) -> PendingCall | None:
        return next((call for call in self._calls.values() if call.response is None), None)


class _Channels(Channels):
    connection_type = _InOrder


class _GroupClient(BrokerGroupClient):
    connection_type = _InOrder


class _Producer(Producer):
    channels_type = _Channels


class _PullConsumer(PullConsumer):
    channels_type = _Channels


PLUGIN = Mutant("answers-by-arrival", client=ClientParts(_GroupClient, _Producer, _PullConsumer))
