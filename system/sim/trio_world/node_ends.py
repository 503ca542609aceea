"""With which exit status a simulated node's process ends: as the real one would."""

from __future__ import annotations

from system.node.ends import EXIT_OTHER, OWN_RULES, reason
from system.node.ends import exit_status as of_foreseen
from system.store.disk import StoreError

__all__ = ["exit_status", "reason"]


def exit_status(error: BaseException) -> int:
    """Return the exit status of a node that raised this error out of its serving."""
    return of_foreseen(error) if isinstance(error, (StoreError, *OWN_RULES)) else EXIT_OTHER
