"""The orders that steer a node: clock changes, disk faults, trips.

`control.json` in the node's steering folder holds all orders in force (docs/faults.md). It is
replaced by a rename, so that a node reads either the old orders or the new ones.
"""

from __future__ import annotations

from typing import Literal

import msgspec

FILE_NAME = "control.json"


class ClockOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A change of the node's clocks, in force while the order exists.

    `offset_ms` sets a clock forward (or back, for the wall clock only: a monotonic clock never goes
    back). `rate` is its speed from now on, 0 to stop it. With `strobe_ms` it alternates between the
    offset and the correct time, for `strobe_ms` each; a monotonic clock jumps ahead, and then
    stops until time has caught up.
    """

    number: int
    offset_ms: float = 0.0
    rate: float = 1.0
    which: Literal["wall", "monotonic", "both"] = "both"
    strobe_ms: float = 0.0

    def is_of(self, clock: str) -> bool:
        """Return whether the order changes that clock ("wall" or "monotonic")."""
        return self.which in (clock, "both")


class DiskFaultOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A disk fault: calls of a kind fail, are delayed, or do not return.

    It affects `times` calls (0: all) from the `nth` such call on, counted from 1 since the node
    read the order.
    """

    number: int
    op: Literal["read", "write", "sync", "any"] = "any"
    error: Literal["", "EIO", "ENOSPC"] = ""
    nth: int = 0
    times: int = 0
    delay_ms: float = 0.0
    stall: bool = False


class TripOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Kill the process at the `nth` event from now on, or stop it until it is resumed.

    `on` is a kind of disk call ("read", "write", "sync", "name"), "message", or a kind of message
    such as "message:PushRequest". The trip occurs before the call is made or the message is sent.
    With a `pid` it is for that process alone: the next one of its node is spared.
    """

    number: int
    on: str
    nth: int = 1
    what: Literal["kill", "stop"] = "kill"
    pid: int = 0


class Orders(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All orders in force. `version` increases with each change."""

    version: int = 0
    clocks: tuple[ClockOrder, ...] = ()
    disk_faults: tuple[DiskFaultOrder, ...] = ()
    trips: tuple[TripOrder, ...] = ()


def read_orders(data: bytes) -> Orders:
    """Decode the contents of `control.json`.

    Raises:
        ValueError: they are malformed. The message is one line.
    """
    try:
        return msgspec.json.decode(data, type=Orders)
    except msgspec.DecodeError as error:
        raise ValueError(str(error)) from None
