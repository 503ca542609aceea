"""The edges of the dependency graph of one or several logs.

Pure. Edges join invocations (ids of operations):

- **ww**, write-write: the next version, in the version order that offsets give.
- **wr**, write-read: the value of a write was read.
- **process**: the next invocation of the same process.
- **realtime**: one returned before the other was called.

Real time needs no edge for each pair: the moment of each return is a node, with an edge to the
next such moment; each operation has an edge to the moment of its return, and one from the last
moment before its call. Paths give the same order with three edges an operation.

Source: Adya 1999 (G0, G1c); Elle (Alvaro & Kingsbury, VLDB 2020) for process and real time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from shaketable.checkers.anomalies.observations import NEVER, NOWHERE, Ints, Log, senders

WW, WR, PROCESS, REALTIME = "ww", "wr", "process", "realtime"
DEPENDENCIES: Final = (WW, WR)


@dataclass(frozen=True, slots=True)
class Edges:
    """Edges of one kind between invocations: their ids, and the rows of the log that show them.

    Both rows of a ww edge are sends; the second one of a wr edge is a read.
    """

    log: int
    kind: str
    sources: Ints
    targets: Ints
    from_rows: Ints
    to_rows: Ints


@dataclass(frozen=True, slots=True)
class Invocations:
    """The nodes of the graph, in the order of their ids. `end` is NEVER for unknown outcomes."""

    op: Ints
    process: Ints
    call: Ints
    end: Ints


def edges_of(logs: Sequence[Log]) -> list[Edges]:
    """Return the write-write and write-read edges of each log.

    Values that several sends may have put prove nothing and are left out. An offset that was seen
    with two values, or a value at two offsets, is not in the version order: that is an anomaly of
    its own.
    """
    found = []
    for number, log in enumerate(logs):
        for kind, sources, targets, from_rows, to_rows in (
            (WW, *_write_write(log)),
            (WR, *_write_read(log)),
        ):
            differs = sources != targets
            found.append(
                Edges(
                    number,
                    kind,
                    sources[differs],
                    targets[differs],
                    from_rows[differs],
                    to_rows[differs],
                )
            )
    return found


def invocations_of(logs: Sequence[Log], edges: Sequence[Edges]) -> Invocations:
    """Return the invocations that have an edge."""
    parts = [part for log in logs for part in (log.sends, log.reads)]
    op = np.concatenate([part.op for part in parts])
    process = np.concatenate([part.process for part in parts])
    call = np.concatenate([part.call for part in parts])
    end = np.concatenate([part.end for part in parts])
    named = np.sort(np.concatenate([ends for e in edges for ends in (e.sources, e.targets)]))
    named = named[np.append(True, named[1:] != named[:-1])]
    order = np.argsort(op, kind="stable")
    rows = order[np.searchsorted(op[order], named)]
    return Invocations(op[rows], process[rows], call[rows], end[rows])


def process_edges(nodes: Invocations) -> tuple[Ints, Ints]:
    """Return the edges from each invocation to its process's next one, as indices of `nodes`."""
    order = np.lexsort((nodes.op, nodes.process))
    follows = nodes.process[order][1:] == nodes.process[order][:-1]
    return order[:-1][follows], order[1:][follows]


def realtime_edges(nodes: Invocations) -> tuple[Ints, Ints]:
    """Return the edges of real time, as indices of `nodes`; moments are numbered after these."""
    done = np.flatnonzero(nodes.end != NEVER)
    done = done[np.argsort(nodes.end[done], kind="stable")]
    moments = len(nodes.op) + np.arange(len(done))
    # Intervals are closed: what is called when another returns is concurrent with it.
    last = np.searchsorted(nodes.end[done], nodes.call, side="left") - 1
    later = np.flatnonzero(last >= 0)
    sources = np.concatenate((done, moments[:-1], moments[last[later]]))
    targets = np.concatenate((moments, moments[1:], later))
    return sources, targets


def _write_write(log: Log) -> tuple[Ints, Ints, Ints, Ints]:
    """Return (source, target, send, send) for consecutive versions."""
    rows, _ = placed_sends(log)
    before, after = rows[:-1], rows[1:]
    return log.sends.op[before], log.sends.op[after], before, after


def _write_read(log: Log) -> tuple[Ints, Ints, Ints, Ints]:
    """Return (source, target, send, read) for every value that was read."""
    sends, reads = log.sends, log.reads
    writer = senders(log, _unique_sends(log), reads.value)
    read = np.flatnonzero(writer != NOWHERE)
    return sends.op[writer[read]], reads.op[read], writer[read], read


def placed_sends(log: Log) -> tuple[Ints, Ints]:
    """Return the version order: the sends with an undisputed offset, by offset, and the offsets."""
    sends, reads = log.sends, log.reads
    rows = _unique_sends(log)
    acked = rows[sends.is_ok[rows] & (sends.offset[rows] >= 0)]
    writer = senders(log, rows, reads.value)
    read = np.flatnonzero(writer != NOWHERE)
    row = np.concatenate((acked, writer[read]))
    offset = np.concatenate((sends.offset[acked], reads.offset[read]))
    # Any other value that was seen at an offset disputes it too.
    unknown = np.flatnonzero(writer == NOWHERE)
    order = np.lexsort((row, offset))
    is_new = np.ones(len(order), dtype=np.bool_)
    row, offset = row[order], offset[order]
    is_new[1:] = (row[1:] != row[:-1]) | (offset[1:] != offset[:-1])
    row, offset = row[is_new], offset[is_new]
    _, of_offset, offsets = np.unique(offset, return_inverse=True, return_counts=True)
    _, of_row, rows_seen = np.unique(row, return_inverse=True, return_counts=True)
    is_undisputed = (offsets[of_offset] == 1) & (rows_seen[of_row] == 1)
    is_undisputed &= ~np.isin(offset, reads.offset[unknown])
    return row[is_undisputed], offset[is_undisputed]


def _unique_sends(log: Log) -> Ints:
    may_have = ~log.sends.is_failed & ~np.isin(log.sends.value, log.repeated)
    return np.flatnonzero(may_have)
