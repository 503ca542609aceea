"""Checks that elements added to a set are in every later read, and how long that took.

Source: jepsen.checker "set-full".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from shaketable.checkers.anomalies.log_rules import conclude, details
from shaketable.checkers.anomalies.observations import NEVER, NOWHERE, Answers, Bools, Ints
from shaketable.checkers.findings import Findings, gather
from shaketable.harness.contracts.plugins import CheckContext
from shaketable.harness.contracts.verdict import Finding, Verdict

NAME: Final = "set-full"
LOST, STALE = "lost-element", "stale-element"
UNEXPECTED, REPEATED = "unexpected-element", "repeated-element"
QUANTILES: Final = (0.5, 0.95, 0.99, 1.0)
SETS_SHOWN_MAX: Final = 100
"""Sets whose latencies the verdict carries."""
NS_PER_MS: Final = 1_000_000


class SetFull:
    """Every element known to be in a set is in all later reads.

    An element is known from the return of its add, or of the first read that has it, whichever
    comes first. *Lost*: the last read misses it. *Stale*: a later read misses it, a still later one
    has it; its latency is the time from when it was known to the call of the last read without it.
    *Never read*: no read was called after it was known.
    """

    name = NAME
    tables: tuple[str, ...] = ("operations",)
    partition = "key"

    def check(self, tables: Mapping[str, pa.Table], context: CheckContext) -> pa.Table:
        """Follow each element of one set through the reads.

        Raises:
            ValueError: something was removed, or an add has no element.
        """
        rows = Answers(tables["operations"], ("add", "read", "remove"))
        if rows.is_("remove").any():
            raise ValueError("set-full judges sets that only grow: this one has removes")
        found = _follow(rows)
        findings = Findings()
        # Missing from a read that was called after the element was known.
        is_missed = (found.absent != NOWHERE) & (found.absent_call > found.known_ns)
        is_lost = is_missed & (found.absent > found.present)
        _add(findings, LOST, is_lost, found, rows, context)
        _add(findings, STALE, is_missed & ~is_lost, found, rows, context)
        is_unexpected = ~found.may_exist & (found.present != NOWHERE)
        _add(findings, UNEXPECTED, is_unexpected, found, rows, context)
        _add(findings, REPEATED, found.is_repeated, found, rows, context)
        is_stable = found.may_exist & (found.present != NOWHERE) & ~is_lost
        waited = np.where(is_missed, found.absent_call - found.known_ns, 0)
        counts: dict[str, Any] = {
            "sets": 1,
            "reads": len(found.reads),
            "stable": int(is_stable.sum()),
            "lost": int(is_lost.sum()),
            "never_read": int((found.is_acked & (found.present == NOWHERE) & ~is_lost).sum()),
            "key": rows.key,
            "stable_ms": _quantiles(waited[is_stable & context.is_timed]),
            "lost_ms": _quantiles(waited[is_lost & context.is_timed]),
        }
        return findings.table(counts)

    def conclude(self, findings: pa.Table, context: CheckContext) -> Verdict:
        """Join the sets' findings; `data` has the latencies of each set, in ms by quantile."""
        gathered = gather(findings)
        counts = gathered.sums()
        doubts = [] if counts.get("reads") else ["no read returned"]
        if never := counts.get("never_read"):
            doubts.append(
                f"{never} acknowledged elements were never read: no read began after them"
            )
        clean = (
            f"all {counts.get('stable', 0)} elements known to be there were found by later reads"
        )
        verdict = conclude(
            NAME, gathered, context, clean=clean, what=("stable", "lost"), doubts=doubts
        )
        for checked in gathered.checked[:SETS_SHOWN_MAX]:
            latencies = {name: checked[name] for name in ("stable_ms", "lost_ms")}
            verdict.data.setdefault("latencies", {})[checked["key"]] = latencies
        return verdict


PLUGIN = SetFull()


@dataclass(frozen=True, slots=True)
class _Elements:
    """What is known of each element; `present` and `absent` are places in `reads`.

    `values` are whole numbers or texts of JSON, as `Answers.elements` has them. `reads` are rows,
    in the order of their calls; `absent` is the last one without the element.
    """

    values: list[int] | list[str]
    known_ns: Ints  # NEVER if it was never known
    present: Ints
    absent: Ints
    absent_call: Ints
    is_acked: Bools
    may_exist: Bools  # a client tried to add it, and that did not certainly fail
    is_repeated: Bools  # a read had it twice
    reads: Ints
    add: Ints  # a row that tried to add it, or NOWHERE


def _follow(rows: Answers) -> _Elements:
    is_add = rows.is_("add")
    adds = np.flatnonzero(is_add)
    elements = rows.elements(is_add, rows.is_("read") & rows.is_ok)
    reads = np.flatnonzero(elements.lengths >= 0)
    is_list = elements.lengths[elements.shown_by] >= 0
    of_read, of_seen = elements.shown_by[is_list], elements.of_shown[is_list]
    reads = reads[np.argsort(rows.call[reads], kind="stable")]
    place = np.full(len(rows.op), NOWHERE, dtype=np.int64)
    place[reads] = np.arange(len(reads))
    of_add, size = elements.of_put, len(elements.values)
    known = np.full(size, NEVER, dtype=np.int64)
    np.minimum.at(known, of_add, rows.end[adds])
    np.minimum.at(known, of_seen, rows.end[of_read])
    may_exist = np.zeros(size, dtype=np.bool_)
    may_exist[of_add[~rows.is_failed[adds]]] = True
    is_acked = np.zeros(size, dtype=np.bool_)
    is_acked[of_add[rows.is_ok[adds]]] = True
    add = np.full(size, NOWHERE, dtype=np.int64)
    add[of_add] = adds
    present, absent, is_repeated = _last_reads(of_seen, place[of_read], size, len(reads))
    call = np.append(rows.call[reads], NEVER)[absent]
    return _Elements(
        values=elements.values,
        known_ns=known,
        present=present,
        absent=absent,
        absent_call=call,
        is_acked=is_acked,
        may_exist=may_exist,
        is_repeated=is_repeated,
        reads=reads,
        add=add,
    )


def _last_reads(element: Ints, place: Ints, size: int, reads: int) -> tuple[Ints, Ints, Bools]:
    """Return for each element the last read with it, the last without it, if one had it twice.

    Sort an element's reads from the last one backwards: as long as no read misses it, its n-th
    read is the n-th from the end. The first place where that fails is the last read without it.
    """
    order = np.lexsort((-place, element))
    element, place = element[order], place[order]
    is_same = np.zeros(len(order), dtype=np.bool_)
    is_same[1:] = (element[1:] == element[:-1]) & (place[1:] == place[:-1])
    is_repeated = np.zeros(size, dtype=np.bool_)
    is_repeated[element[is_same]] = True
    element, place = element[~is_same], place[~is_same]
    counts = np.bincount(element, minlength=size)
    starts = np.cumsum(counts) - counts
    present = np.full(size, NOWHERE, dtype=np.int64)
    has_any = counts > 0
    present[has_any] = place[starts[has_any]]
    expected = reads - 1 - (np.arange(len(element)) - starts[element])
    absent = reads - 1 - counts  # if all those at the end have it
    missing = place != expected
    first = np.flatnonzero(missing)[::-1]  # the first one of each element is written last
    absent[element[first]] = expected[first]
    return present, np.maximum(absent, NOWHERE), is_repeated


def _quantiles(waited_ns: Ints) -> dict[str, float]:
    if not len(waited_ns):
        return {}
    at = np.quantile(waited_ns, QUANTILES, method="higher") / NS_PER_MS
    return {str(q): round(float(ms), 3) for q, ms in zip(QUANTILES, at, strict=True)}


def _add(
    findings: Findings,
    kind: str,
    mask: Bools,
    found: _Elements,
    rows: Answers,
    context: CheckContext,
) -> None:
    """Add a finding for each element of `mask`, with the operations that show it."""

    def describe(n: int) -> Finding:
        value, ops = found.values[n], []
        add = int(found.add[n])
        if add != NOWHERE:
            ops.append(int(rows.op[add]))
        last, missed = (int(rows.op[found.reads[at[n]]]) if at[n] != NOWHERE else None
                        for at in (found.present, found.absent))  # fmt: skip
        ops += [each for each in (last, missed) if each is not None]
        seen = "no read had it" if last is None else f"op {last} was the last read that had it"
        by_ms = (int(found.absent_call[n]) - int(found.known_ns[n])) / NS_PER_MS
        since = f"{by_ms:.3f} ms after" if context.is_timed else "after"
        message = {
            LOST: f"{value} is lost: op {missed}, called {since} it was known to be"
            f" there, does not have it; {seen}",
            STALE: f"{value} was missed by op {missed}, called {since} it was known to"
            f" be there; {seen}",
            UNEXPECTED: f"{value} was read (op {last}), but "
            + ("its add certainly failed" if add != NOWHERE else "no client ever added it"),
            REPEATED: f"{value} is more than once in one answer; {seen}",
        }[kind]
        moment = int(rows.call[found.reads[found.absent[n]]]) if missed is not None else NEVER
        more = details(context, moment, value=value)
        return Finding(kind, f"{rows.about}{message}.", rows.key or None, None, tuple(ops), more)

    findings.add(kind, np.flatnonzero(mask).tolist(), describe)
