"""How far consumers were behind producers over time, queue by queue: a pure function of operations.

By offsets, which only rise: where the acknowledged end of a queue was at a moment, less how far
somebody had been given messages, or had committed, by then. What comes again makes no lag smaller.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from shaketable.harness.history.schema import APPENDING
from shaketable.reports.plotting.series import bucket_ns

QUEUES_MAX: Final = 6
"""Queues that are shown by themselves: those with the largest lag. The sum is over all."""
GROUP_MARK: Final = "@"
"""Commits of a group bear the key "queue@group"."""
_LAST_PAIR: Final = r"\[(?P<offset>\d+),\s*[^\[\]]*\]\s*\]\s*\}\s*$"
"""In `extra` {"output": [[offset, value], ...]}: the offset of the last message."""

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ConsumerLag:
    """Messages that wait, at the end of each slice of time.

    `undelivered`: those acknowledged to producers and given to no consumer yet, by queue, the
    largest first; `undelivered_all` and `uncommitted_all` are sums over all queues. The last is
    None where no group committed anything.
    """

    ends_s: Floats
    undelivered: tuple[tuple[str, Floats], ...]
    undelivered_all: Floats
    uncommitted_all: Floats | None
    queues: int

    @property
    def most(self) -> int:
        """The most messages that waited at once, at the end of a slice."""
        return int(self.undelivered_all.max()) if len(self.undelivered_all) else 0


def consumer_lag(operations: pa.Table, duration_ns: int) -> ConsumerLag | None:
    """Measure the lag at the end of each slice of [0, duration]; None if nobody polled."""
    ok = operations.filter(
        pc.and_(pc.equal(operations["outcome"], "ok"), pc.is_valid(operations["return_ns"]))
    )
    polls = ok.filter(pc.equal(ok["f"], "poll"))
    sends = ok.filter(pc.is_in(ok["f"], value_set=pa.array(APPENDING)))
    if not polls.num_rows or not sends.num_rows:
        return None
    width_ns = bucket_ns(duration_ns)
    ends_ns = np.arange(1, max(1, -(-duration_ns // width_ns)) + 1, dtype=np.int64) * width_ns
    acknowledged = _ends(sends, sends["offset"], 1, ends_ns)
    delivered = _ends(polls, _last_offsets(polls), 1, ends_ns)
    commits = ok.filter(pc.equal(ok["f"], "commit"))
    committed = _ends(commits, commits["input"], 0, ends_ns)
    nothing = np.zeros(len(ends_ns))
    waiting = {
        queue: np.maximum(0, end - delivered.get(queue, nothing))
        for queue, end in acknowledged.items()
    }
    largest = sorted(waiting, key=lambda queue: (-float(waiting[queue].max()), queue))[:QUEUES_MAX]
    uncommitted = None
    if committed:
        uncommitted = sum(
            (
                np.maximum(0, end - committed.get(queue, nothing))
                for queue, end in acknowledged.items()
            ),
            nothing,
        )
    return ConsumerLag(
        ends_s=ends_ns / 1e9,
        undelivered=tuple((queue, waiting[queue]) for queue in largest),
        undelivered_all=sum(waiting.values(), nothing),
        uncommitted_all=uncommitted,
        queues=len(waiting),
    )


def _last_offsets(polls: pa.Table) -> Any:
    """Return the offset of the last message of each poll; null where there was none."""
    told = pc.struct_field(pc.extract_regex(polls["extra"], pattern=_LAST_PAIR), "offset")
    lists = pc.cast(pc.if_else(pc.less(pc.utf8_length(told), 19), told, None), pa.int64())
    one = pc.if_else(pc.is_valid(polls["output"]), polls["offset"], None)
    return pc.coalesce(lists, one)


def _ends(rows: pa.Table, offsets: Any, past: int, ends_ns: Ints) -> dict[str, Floats]:
    """Return for each queue the largest offset (plus `past`) known by each of these moments."""
    table = pa.table(
        {"key": rows["key"], "offset": pc.cast(offsets, pa.int64()), "time": rows["return_ns"]}
    )
    table = table.filter(pc.and_(pc.is_valid(table["offset"]), pc.is_valid(table["key"])))
    found: dict[str, Floats] = {}
    codes = table["key"].combine_chunks().dictionary_encode()
    if isinstance(codes, pa.ChunkedArray):
        codes = codes.combine_chunks()
    if not len(codes):
        return found
    number, names = codes.indices.to_numpy(), codes.dictionary.to_pylist()
    order = np.lexsort((table["time"].to_numpy(), number))
    number = number[order]
    times = table["time"].to_numpy()[order]
    reached = table["offset"].to_numpy()[order] + past
    edges = np.searchsorted(number, np.arange(len(names) + 1))
    for place, name in enumerate(names):
        inside = slice(int(edges[place]), int(edges[place + 1]))
        highest = np.concatenate(([0], np.maximum.accumulate(reached[inside])))
        by_then = highest[np.searchsorted(times[inside], ends_ns, side="right")].astype(np.float64)
        queue = name.partition(GROUP_MARK)[0]
        found[queue] = np.maximum(by_then, found[queue]) if queue in found else by_then
    return found
