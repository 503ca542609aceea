"""The nodes that may be out of their group: while one is, no node may lose its disk."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager


class Leaving:
    """Nodes that were removed from their group and are not surely in it again.

    Two faults may strike one node: the second may remove it after the first has added it again.
    """

    def __init__(self) -> None:
        self._out: set[str] = set()
        self._asked: Counter[str] = Counter()

    @contextmanager
    def asked(self, node: str) -> Iterator[None]:
        """Mark a node as being removed: it may be out from now on."""
        self._out.add(node)
        self._asked[node] += 1
        try:
            yield
        finally:
            self._asked[node] -= 1
            self._out.add(node)  # it may have been added meanwhile, and removed again

    def is_back(self, node: str) -> None:
        """Mark a node as a member again, unless another fault is removing it."""
        if not self._asked[node]:
            self._out.discard(node)

    def why_not_wiped(self) -> str | None:
        """Return why no disk must be lost now; None if one may."""
        return f"{', '.join(sorted(self._out))} may be out of the group" if self._out else None
