"""Whoever registers last as master is the master, also one that speaks of an older term.

A leader that was cut off, and replaced without knowing it, takes the route back.

Source: https://github.com/apache/rocketmq/issues/6316 (of two masters the name server should
choose the one with the larger epoch).
"""

from __future__ import annotations

from shaketable.system.mutants import GROUP, Hunt, Mutant
from shaketable.system.nameserver.registry import Registration, RouteRegistry


class OlderStateAccepted(RouteRegistry):
    """Compares no states."""

    def _refuse_older_state(self, said: Registration, holder: str | None) -> None:
        return


PLUGIN = Mutant(
    "older-state-accepted",
    registry=OlderStateAccepted,
    targets=GROUP,
    hunt=Hunt("queue", ("transfer", "members", "name-server-links")),
)
