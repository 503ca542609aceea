"""A group's offsets are read as if they stood for whole pulls: rounded up to the next sixteen.

Whoever takes a queue over begins behind messages that nobody was given.

Source: our own, after "poll-skip" of jepsen.tests.kafka: a position ahead of what was given.
"""

from __future__ import annotations

from typing import Any

from shaketable.system.broker.broker import Broker
from shaketable.system.broker.groups.group_offsets import OffsetTable
from shaketable.system.mutants import Hunt, Mutant

PULL = 16


class _InWholePulls(OffsetTable):
    """Knows offsets to the next whole pull."""

    def get(self, group: str, topic: str, queue_id: int) -> int | None:
        offset = super().get(group, topic, queue_id)
        return None if offset is None else -(-offset // PULL) * PULL


class OffsetsRoundedUp(Broker):
    """A broker with that table."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        known = self._reput.tables.offsets
        self._reput.tables.offsets = self._groups.offsets.table = coarse = _InWholePulls()
        coarse.restore(known.state())


PLUGIN = Mutant(
    "offsets-rounded-up", broker=OffsetsRoundedUp, hunt=Hunt("offsets", ("kill", "partition"))
)
