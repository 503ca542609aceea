"""A consumer whose connection has closed stays in its group until its heartbeats are missed.

Its share of the queues is read by nobody for two minutes.

Source: https://github.com/apache/rocketmq/issues/2732 (consumers are told of members that are
not there, and divide the queues by them).
"""

from __future__ import annotations

from shaketable.system.broker.broker import Broker
from shaketable.system.broker.effects import Connection
from shaketable.system.broker.groups.client_heartbeats import ClientHeartbeats
from shaketable.system.broker.groups.group_requests import GroupRequests
from shaketable.system.mutants import Hunt, Mutant


class _Remembers(ClientHeartbeats):
    """Waits for the heartbeat that does not come."""

    def gone(self, connection: Connection) -> None:
        """Do nothing."""


class _Groups(GroupRequests):
    heartbeats_type = _Remembers


class GoneConsumersStay(Broker):
    """A broker that knows groups so."""

    groups_type = _Groups


PLUGIN = Mutant(
    "gone-consumers-stay", broker=GoneConsumersStay, hunt=Hunt("queue-push", ("kill", "pause"))
)
