"""Events that faults of a script wait for: an election, another fault, a node's N-th fsync.

Source: harness.scripts, which names the events.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import trio

from shaketable.harness.plugins import World
from shaketable.harness.scripts import FAULT_BEGAN, FAULT_HEALED, LEADER_ELECTED, counted
from shaketable.harness.words import CountsEffects

COUNTS_POLL_S = 0.02
"""How often nodes' own counts are looked at: an event is noticed so late at most."""


class Happenings:
    """Counts events, and lets faults wait for the next one."""

    def __init__(self) -> None:
        self._seen: Counter[str] = Counter()
        self._more = trio.Event()

    def leader_elected(self) -> None:
        """Somebody came to lead a new term."""
        self._tell(LEADER_ELECTED)

    def fault_began(self, name: str) -> None:
        """A fault of that name took effect."""
        self._tell(f"{FAULT_BEGAN}:{name}")

    def fault_healed(self, name: str) -> None:
        """A fault of that name was undone."""
        self._tell(f"{FAULT_HEALED}:{name}")

    def _tell(self, event: str) -> None:
        self._seen[event] += 1
        self._more.set()
        self._more = trio.Event()

    async def wait(self, event: str, nth: int, since: Mapping[str, int], world: World) -> None:
        """Return when the event has happened for the `nth` time since `since`.

        Args:
            event: as a script names it; "sync:100" is each 100th of one node.
            nth: counted from 1.
            since: what `mark` returned.
            world: asked for what nodes count.
        """
        of_nodes = counted(event)
        if of_nodes is None:
            while self._seen[event] - since.get(event, 0) < nth:
                await self._more.wait()
            return
        kind, every = of_nodes
        assert isinstance(world, CountsEffects), "looked at before"
        while not any(  # noqa: ASYNC110 - nodes count in files, without events
            world.effects(node).get(kind, 0) - since.get(f"{node}/{kind}", 0) >= every * nth
            for node in world.nodes
        ):
            await trio.sleep(COUNTS_POLL_S)

    def mark(self, world: World) -> Mapping[str, int]:
        """Return how often everything has happened so far, for `wait`."""
        of_nodes: dict[str, int] = {}
        if isinstance(world, CountsEffects):
            for node in world.nodes:
                of_nodes |= {f"{node}/{kind}": n for kind, n in world.effects(node).items()}
        return {**self._seen, **of_nodes}
