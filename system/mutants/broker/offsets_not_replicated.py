"""A leader keeps the offsets that groups commit to itself, and acknowledges them at once.

The next leader knows nothing of them: an acknowledged commit goes back.

Source: RocketMQ's ConsumerOffsetManager in DLedger mode (bug E24), where offsets are a file of each
broker's own.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from shaketable.system.broker.broker import Broker
from shaketable.system.broker.mode import DLEDGER, Mode
from shaketable.system.mutants import GROUP, Hunt, Mutant
from shaketable.system.native.table_events import TableEvents


class OffsetsNotReplicated(Broker):
    """A member whose table of offsets is its own, as a master's is that has no group."""

    def __init__(self, *args: Any, mode: Mode = DLEDGER, **more: Any) -> None:
        super().__init__(*args, mode=replace(mode, offset_events=TableEvents), **more)


PLUGIN = Mutant(
    "offsets-not-replicated",
    broker=OffsetsNotReplicated,
    targets=GROUP,
    hunt=Hunt("offsets", ("kill", "partition")),
)
