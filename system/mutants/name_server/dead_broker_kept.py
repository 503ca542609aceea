"""A broker that is gone stays in the routes until it is heard of again.

Clients are sent to where nobody is, also when another member leads since.

Source: https://github.com/apache/rocketmq/issues/2728 (clients go on with the route of a broker
that is down).
"""

from __future__ import annotations

from shaketable.system.mutants import Mutant
from shaketable.system.nameserver.registry import Connection, RouteRegistry


class DeadBrokerKept(RouteRegistry):
    """Forgets nobody."""

    def gone(self, connection: Connection) -> list[str]:
        """Forget none of those that registered over the connection."""
        del connection
        return []

    def expire(self, now_ms: float) -> list[Connection]:
        """Forget none of those that are silent."""
        del now_ms
        return []


PLUGIN = Mutant("dead-broker-kept", registry=DeadBrokerKept)
