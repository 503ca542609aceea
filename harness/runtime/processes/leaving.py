"""Which nodes may be out of their group: while one is, no other may lose its disk."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager


class Leaving:
    """Nodes that were asked to leave, and are not for certain in the group again.

    Two faults may aim at one node: what the first has brought back the second may yet take out.
    """

    def __init__(self) -> None:
        self._out: set[str] = set()
        self._asked: Counter[str] = Counter()

    @contextmanager
    def asked(self, node: str) -> Iterator[None]:
        """A node is being taken out; it may be out from now on."""
        self._out.add(node)
        self._asked[node] += 1
        try:
            yield
        finally:
            self._asked[node] -= 1
            self._out.add(node)  # it may have come back meanwhile, and gone again

    def is_back(self, node: str) -> None:
        """A node is in its group again, unless somebody is about to take it out."""
        if not self._asked[node]:
            self._out.discard(node)

    def why_not_wiped(self) -> str | None:
        """Say why no disk must be lost now, None if one may."""
        return f"{', '.join(sorted(self._out))} may be out of the group" if self._out else None
