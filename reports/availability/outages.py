"""When the group did not serve: clients asked, and nothing was acknowledged. Pure.

Source: availability by time, as service level objectives count it;
`reports.availability.worked` for when somebody asked.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from itertools import takewhile
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from shaketable.reports.availability.recovery import Gap
from shaketable.reports.availability.worked import Worked, outages, serving

OUTAGE_FROM_NS: Final = 500_000_000
"""A stretch without an acknowledgement is an outage from this length on."""


@dataclass(frozen=True, slots=True)
class Availability:
    """When the group did not serve, by what was acknowledged.

    `serving` names the operations that it goes by: those that append or, where the workload has
    none, all. `start_ns` and `stop_ns` bound the time in which clients worked; an outage at its
    end goes on until the first acknowledgement after it, where there was one. They are by time,
    and none overlaps another.
    """

    serving: tuple[str, ...]
    start_ns: int
    stop_ns: int
    outages: tuple[Gap, ...] = ()

    @property
    def total_ns(self) -> int:
        """How long all outages were together."""
        return sum(outage.length_ns for outage in self.outages)

    @property
    def longest_ns(self) -> int:
        """How long the longest one was; 0 without any."""
        return max((outage.length_ns for outage in self.outages), default=0)

    @property
    def share(self) -> float:
        """The share of the time in which clients worked that was no outage, 0 to 1."""
        whole = self.stop_ns - self.start_ns
        return 1.0 if whole <= 0 else 1.0 - self.lost_ns(self.start_ns, self.stop_ns) / whole

    def lost_ns(self, start_ns: int, stop_ns: int) -> int:
        """How much of [start, stop] was outage."""
        first = bisect_right(self.outages, start_ns, key=_stop_ns)
        inside = takewhile(lambda outage: outage.start_ns < stop_ns, self.outages[first:])
        return sum(
            min(stop_ns, outage.stop_ns) - max(start_ns, outage.start_ns) for outage in inside
        )


def _stop_ns(outage: Gap) -> int:
    return outage.stop_ns


def availability(operations: pa.Table, worked: Worked | None) -> Availability | None:
    """Find the outages of a run; None if nobody called anything while clients worked.

    Args:
        operations: rows of OPERATIONS in any order.
        worked: when clients worked; None if the run does not say: until the last call then, and
            an outage in which all clients wait to the end is not seen.
    """
    asked = serving(operations)
    if not asked.num_rows:
        return None
    worked = worked or Worked(int(pc.max(asked["call_ns"]).as_py()))
    start_ns = int(pc.min(asked["call_ns"]).as_py())
    if start_ns > worked.until_ns:
        return None
    starts, stops = outages(asked, worked)
    is_long = stops - starts >= OUTAGE_FROM_NS
    found = zip(starts[is_long].tolist(), stops[is_long].tolist(), strict=True)
    names = tuple(sorted(filter(None, pc.unique(asked["f"]).to_pylist())))
    return Availability(names, start_ns, worked.until_ns, tuple(Gap(*each) for each in found))
