"""What operators do to a group: graceful stops and restarts, and membership changes.

The capabilities `stop` and `members` (`contracts.capabilities`): optional protocols beside
`contracts.plugins.World`.

Source: jepsen.nemesis.membership; redpanda-data/chaos (rolling restarts, reconfiguration).
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from shaketable.harness.contracts.plugins import Json


@runtime_checkable
class StopsNodes(Protocol):
    """A world that can stop a node gracefully and tell when its group is ready again."""

    async def stop(self, node: str) -> Json:
        """Stop the node's process gracefully and wait for its exit; SIGKILL it if it does not exit.

        Returns {"incarnation": n} for `World.restart`; n is `UNTOUCHED` if the node was not
        running.
        """
        ...

    def incarnation(self, node: str) -> int:
        """Return how often the node was started."""
        ...

    async def until_ready(self, timeout_s: float) -> bool:
        """Wait until all running nodes answer and agree on a leader; return False on timeout."""
        ...


@runtime_checkable
class MovesMembers(Protocol):
    """A world in which the group's membership can be changed.

    Its target is a `contracts.abilities.ChangesMembers`.
    """

    async def remove_member(self, node: str) -> Json:
        """Ask the leader to remove the node from its group, and wait until it is removed.

        Returns {"took_ms" (None if the removal was not observed), "members": the current members as
        the leader reports them, "error": why it was refused or not observed, or None}.
        """
        ...

    async def add_member(self, node: str) -> Json:
        """Add the node to its group again, as a voter (idempotent). Returns as `remove_member`.

        Raises:
            IndefiniteError: it is not a voter in time.
        """
        ...
