"""A violated invariant, as an exception."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from shaketable.system.raft.protocol import InvariantError


class Violated(Exception):  # noqa: N818 - a finding, not an error of the world
    """Says which invariant, what was found, and at which node ("": the one that is checked)."""

    def __init__(self, invariant: str, finding: str, node: str = "") -> None:
        super().__init__(f"{invariant}: {finding}")
        self.invariant = invariant
        self.finding = finding
        self.node = node


@contextmanager
def as_invariant_error() -> Iterator[None]:
    """Raise what is violated as the error that ends a node."""
    try:
        yield
    except Violated as found:
        raise InvariantError(str(found)) from found
