"""What the nodes of a simulated group write to their logs, kept to be saved beside their files.

The lines have the form of those of real nodes, stamped by the world's clock, which begins with the
year 1970; what was done to a node stands between them as marks, as in the world of processes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Final

LINES_MAX: Final = 20_000
"""Lines of one node that are kept, the last ones; the first line says how many went."""
MARK: Final = "--- shaketable:"
"""Begins a line that is not the node's own, as in `harness.runtime.nodes`."""
_BEGIN: Final = datetime(1970, 1, 1, tzinfo=UTC)


class SimulatedLogs:
    """The logs of a group's nodes."""

    def __init__(self, nodes: Iterable[str], now_ms: Callable[[], float]) -> None:
        self._lines: dict[str, deque[str]] = {node: deque(maxlen=LINES_MAX) for node in nodes}
        self._written = dict.fromkeys(self._lines, 0)
        self._now_ms = now_ms

    def said(self, at_ms: float, node: str, level: str, text: str) -> None:
        """Keep what a node said; what is said elsewhere in the world is nobody's log."""
        stamp = (_BEGIN + timedelta(milliseconds=at_ms)).replace(tzinfo=None)
        self._add(node, f"{stamp.isoformat(timespec='milliseconds')} level={level} {text}")

    def mark(self, node: str, what: str) -> None:
        """Note what was done to a node."""
        self._add(node, f"{MARK} {node} {what} at {self._now_ms() / 1e3:.3f} s")

    def text(self, node: str) -> str:
        """Return a node's log, which ends with a line's end."""
        lines = list(self._lines[node])
        if gone := self._written[node] - len(lines):
            lines.insert(0, f"{MARK} {node} {gone} lines before these were not kept")
        return "".join(f"{line}\n" for line in lines)

    def _add(self, node: str, line: str) -> None:
        if node in self._lines:
            self._lines[node].append(line)
            self._written[node] += 1
