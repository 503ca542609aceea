"""A broker that says that it goes removes whoever has its id of that name now.

The old master's late word takes the new master out of the routes.

Source: https://github.com/apache/rocketmq/issues/5374 (the address should be compared, not the
brokerId).
"""

from __future__ import annotations

from shaketable.system.mutants import GROUP, REPLICATED, Hunt, Mutant
from shaketable.system.nameserver.registry import (
    Connection,
    Registered,
    Registration,
    RouteRegistry,
)


class UnregisterById(RouteRegistry):
    """Remembers by which id an address registered."""

    def __init__(self) -> None:
        super().__init__()
        self._ids: dict[str, int] = {}

    def register(
        self, registration: Registration, connection: Connection, now_ms: float
    ) -> Registered:
        """Take a broker in."""
        self._ids[registration.address] = registration.broker_id
        return super().register(registration, connection, now_ms)

    def unregister(self, broker_name: str, address: str) -> None:
        """Forget who has that id."""
        brokers = self._brokers.get(broker_name)
        holder = brokers.addresses.get(self._ids.get(address, -1)) if brokers else None
        super().unregister(broker_name, holder or address)


PLUGIN = Mutant(
    "unregister-by-id",
    registry=UnregisterById,
    targets=(*GROUP, *REPLICATED),
    hunt=Hunt("queue", ("transfer", "members", "name-server-links")),
)
