"""How long a search stays where it is stuck, and how far it then goes back."""

from __future__ import annotations

from dataclasses import dataclass, field

STALL_NODES = 1000
"""After so many nodes without getting further a search goes elsewhere, at first."""
BACK_EVENTS = 32
BACK_EVENTS_MAX = 1024


@dataclass(slots=True)
class Pace:
    """Where it is stuck a search goes back ever further, then begins anew and stays longer.

    What was chosen wrong may lie far in front of the place where that shows; depth first, all that
    lies between would be tried before. So moves near that place are put off while others are
    tried, for some time. Nothing is left out.

    Attributes:
        stall: after so many nodes without getting further the search is taken to be stuck.
        back: moves not more than so many events before the deepest one are put off; 0 if none.
    """

    stall: int = field(default_factory=lambda: STALL_NODES)
    back: int = 0
    _deepest: int = field(default=-1)

    def stuck(self, deepest: int) -> bool:
        """Take note that it is stuck, `deepest` being the furthest event it came to.

        Returns:
            True if it is stuck at a new place, or may stay longer from now on: then it is worth
            while to try windows there.
        """
        if deepest > self._deepest:
            self._deepest, self.stall, self.back = deepest, STALL_NODES, BACK_EVENTS
            return True
        if self.back < BACK_EVENTS_MAX:
            self.back = max(BACK_EVENTS, 2 * self.back)
            return False
        self.stall, self.back = 2 * self.stall, 0
        return True
