"""A connection that closes late takes the broker along that has registered over another one since.

A broker that came back is in no route until it registers the next time.

Source: https://github.com/apache/rocketmq/issues/11043 (what was decided of the old connection is
carried out on the new registration).
"""

from __future__ import annotations

from shaketable.system.mutants import Hunt, Mutant
from shaketable.system.nameserver.registry import (
    Connection,
    Registered,
    Registration,
    RouteRegistry,
)


class LateCloseForgetsNewcomer(RouteRegistry):
    """Remembers which addresses ever registered over a connection."""

    def __init__(self) -> None:
        super().__init__()
        self._of_connection: dict[Connection, set[str]] = {}

    def register(
        self, registration: Registration, connection: Connection, now_ms: float
    ) -> Registered:
        """Take a broker in."""
        answer = super().register(registration, connection, now_ms)
        self._of_connection.setdefault(connection, set()).add(registration.address)
        return answer

    def gone(self, connection: Connection) -> list[str]:
        """Forget all of them."""
        addresses = sorted(self._of_connection.pop(connection, ()))
        return self._forget_all([each for each in addresses if each in self._live])


PLUGIN = Mutant(
    "late-close-forgets-newcomer",
    registry=LateCloseForgetsNewcomer,
    hunt=Hunt("queue", ("kill", "name-server-links")),
)
