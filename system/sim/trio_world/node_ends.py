"""Exit status of a simulated node's process, as of the real one."""

from __future__ import annotations

from shaketable.system.node.ends import EXIT_OTHER, RESOURCE_ERRORS, reason
from shaketable.system.node.ends import exit_status as of_node

__all__ = ["exit_status", "reason"]


def exit_status(error: BaseException) -> int:
    """Return the exit status of a node that raised this error."""
    return EXIT_OTHER if isinstance(error, RESOURCE_ERRORS) else of_node(error)
