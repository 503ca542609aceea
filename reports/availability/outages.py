"""Find when the group did not serve: clients made requests, and none was acknowledged. Pure.

Source: availability by time, as service level objectives define it; see
`reports.availability.client_activity` for when clients made requests.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from itertools import takewhile
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from shaketable.reports.availability.client_activity import ClientActivity, outages, serving
from shaketable.reports.availability.recovery import Gap

OUTAGE_MIN_NS: Final = 500_000_000
"""A stretch without an acknowledgement counts as an outage from this length on."""


@dataclass(frozen=True, slots=True)
class Availability:
    """When the group did not serve, judged by acknowledgements.

    `serving` names the operations that are measured: those that append, or all if the workload has
    none. `start_ns` and `stop_ns` bound the time in which clients worked; an outage at its end
    lasts until the first acknowledgement after it, if there was one. `outages` are sorted by time
    and do not overlap.
    """

    serving: tuple[str, ...]
    start_ns: int
    stop_ns: int
    outages: tuple[Gap, ...] = ()

    @property
    def total_ns(self) -> int:
        """The total length of all outages."""
        return sum(outage.length_ns for outage in self.outages)

    @property
    def longest_ns(self) -> int:
        """The length of the longest outage; 0 without any."""
        return max((outage.length_ns for outage in self.outages), default=0)

    @property
    def share(self) -> float:
        """The share of the clients' working time without an outage, 0 to 1."""
        whole = self.stop_ns - self.start_ns
        return 1.0 if whole <= 0 else 1.0 - self.lost_ns(self.start_ns, self.stop_ns) / whole

    def lost_ns(self, start_ns: int, stop_ns: int) -> int:
        """Return how much of [start, stop] was outage."""
        first = bisect_right(self.outages, start_ns, key=_stop_ns)
        inside = takewhile(lambda outage: outage.start_ns < stop_ns, self.outages[first:])
        return sum(
            min(stop_ns, outage.stop_ns) - max(start_ns, outage.start_ns) for outage in inside
        )


def _stop_ns(outage: Gap) -> int:
    return outage.stop_ns


def availability(operations: pa.Table, activity: ClientActivity | None) -> Availability | None:
    """Find the outages of a run; None if no operation was invoked while clients worked.

    Args:
        operations: rows of OPERATIONS in any order.
        activity: when clients worked. If None, they count as working until the last call, and an
            outage in which all clients wait until the end is missed.
    """
    asked = serving(operations)
    if not asked.num_rows:
        return None
    activity = activity or ClientActivity(int(pc.max(asked["call_ns"]).as_py()))
    start_ns = int(pc.min(asked["call_ns"]).as_py())
    if start_ns > activity.until_ns:
        return None
    starts, stops = outages(asked, activity)
    is_long = stops - starts >= OUTAGE_MIN_NS
    found = zip(starts[is_long].tolist(), stops[is_long].tolist(), strict=True)
    names = tuple(sorted(filter(None, pc.unique(asked["f"]).to_pylist())))
    return Availability(names, start_ns, activity.until_ns, tuple(Gap(*each) for each in found))
