"""What operators do to a group: nodes ended in good order and started again, members that change.

The words `stop` and `members` (`contracts.words`): optional protocols beside
`contracts.plugins.World`.

Source: jepsen.nemesis.membership; redpanda-data/chaos (rolling restarts, reconfiguration).
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from shaketable.harness.contracts.plugins import Json


@runtime_checkable
class StopsNodes(Protocol):
    """A world that can ask a node to end, and say when its group serves again."""

    async def stop(self, node: str) -> Json:
        """Ask the node's process to end in good order, and wait until it has; SIGKILL if not.

        Returns {"incarnation": n} for `World.restart`; n is `UNTOUCHED` if it did not run.
        """
        ...

    def incarnation(self, node: str) -> int:
        """How often the node was started."""
        ...

    async def until_ready(self, timeout_s: float) -> bool:
        """Wait until all nodes that run answer, and know one leader; False if not in time."""
        ...


@runtime_checkable
class MovesMembers(Protocol):
    """A world in which the membership of the group can be changed.

    Its target is a `contracts.abilities.ChangesMembers`.
    """

    async def remove_member(self, node: str) -> Json:
        """Ask whoever leads to take the node out of its group, and wait until that holds.

        Returns {"took_ms" (None if it was not seen to be out), "members": the nodes that are
        members then, as the leader says, "error": why it was refused or not seen, or None}.
        """
        ...

    async def add_member(self, node: str) -> Json:
        """Have the node in its group again, with a vote (idempotent); answers in the same way.

        Raises:
            IndefiniteError: it has no vote in time.
        """
        ...
