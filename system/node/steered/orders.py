"""What whoever steers a node may order: changes of its clocks, harms of its disk, trips.

`control.json` in the node's steering folder holds all orders that are in force (docs/faults.md).
It is replaced by a rename, so that a node reads the old orders or the new ones.
"""

from __future__ import annotations

from typing import Literal

import msgspec

FILE_NAME = "control.json"


class ClockOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A change of the node's clocks, in force for as long as it stands there.

    `offset_ms` puts a clock forward (the wall clock also back; a monotonic one never goes back);
    `rate` is how fast it goes from now on, 0 for not at all. With `strobe_ms` it shows the offset
    and the right time by turns, for so long each: a monotonic clock jumps ahead, and stands still
    until time has caught up.
    """

    number: int
    offset_ms: float = 0.0
    rate: float = 1.0
    which: Literal["wall", "monotonic", "both"] = "both"
    strobe_ms: float = 0.0

    def is_of(self, clock: str) -> bool:
        """Whether that clock ("wall", "monotonic") is changed."""
        return self.which in (clock, "both")


class HarmOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A harm of the node's disk: calls of a kind fail, take longer, or do not return.

    From the `nth` such call on (counted from 1, from when the node first knew of the order),
    `times` calls; 0: all of them.
    """

    number: int
    op: Literal["read", "write", "sync", "any"] = "any"
    error: Literal["", "EIO", "ENOSPC"] = ""
    nth: int = 0
    times: int = 0
    delay_ms: float = 0.0
    stall: bool = False


class TripOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """At the `nth` event from now on the process is killed, or stopped until it is resumed.

    `on` is a kind of call to the disk ("read", "write", "sync", "name"), "message", or
    "message:PushRequest" and so on. It happens before the call is done or the message is sent.
    """

    number: int
    on: str
    nth: int = 1
    what: Literal["kill", "stop"] = "kill"


class Orders(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All that is in force. `version` grows with each change."""

    version: int = 0
    clocks: tuple[ClockOrder, ...] = ()
    harms: tuple[HarmOrder, ...] = ()
    trips: tuple[TripOrder, ...] = ()


def read_orders(data: bytes) -> Orders:
    """Decode what stands in `control.json`.

    Raises:
        ValueError: it holds no orders; one line says why.
    """
    try:
        return msgspec.json.decode(data, type=Orders)
    except msgspec.DecodeError as error:
        raise ValueError(str(error)) from None
