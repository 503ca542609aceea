"""Checks that the committed prefixes of all nodes' logs are the same log.

Judges the nodes' files alone, not what clients saw. The work is split by ranges of the log index,
so that no part of it holds more than some entries of each node.

Source: Raft section 5.3 (Log Matching, State Machine Safety).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import groupby, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from shaketable.checkers.findings import Findings, Gathered, gather, settle
from shaketable.checkers.logs.append_fates import Ints, ints
from shaketable.checkers.logs.durability import why_not_judged
from shaketable.harness.contracts.plugins import CheckContext
from shaketable.harness.contracts.verdict import Finding, Verdict
from shaketable.harness.history.schema import ENTRIES, FINDINGS

NAME = "committed-prefix"
_ORDER = ("kind", "key", "offset", "message")
EMPTY = -1
"""The committed index of a node that has committed nothing."""

_Ints = npt.NDArray[np.int64]


class CommittedPrefix:
    """The nodes' logs agree on every committed entry.

    Findings: "divergent" (nodes that have committed an index hold different entries
    there), "term-fell" (an entry's term is lower than the one before it), "gap" (indices
    that a node committed are not in its log), "index-twice".
    """

    name = NAME
    tables: tuple[str, ...] = ("entries",)
    partition = "bucket"

    def check(self, tables: Mapping[str, pa.Table], context: CheckContext) -> pa.Table:
        """Compare one range of the log between all nodes that reported a committed index."""
        findings = Findings()
        entries = tables["entries"].filter(_is_committed(tables["entries"], context))
        intact = entries.filter(pc.is_null(entries["problem"]))
        spans = {}
        for node in context.committed:
            mine = entries.filter(pc.equal(entries["node"], node))
            if mine.num_rows:
                spans[node] = _follow(node, mine, findings)
        _compare(intact, findings)
        counts = {
            "entries": entries.num_rows,
            "damaged": entries.num_rows - intact.num_rows,
            "spans": spans,
        }
        return findings.table(counts)

    def judge_windows(
        self,
        summaries: Iterable[pa.Table],
        entries: Iterable[pa.Table],
        context: CheckContext,
    ) -> tuple[pa.Table, list[int]]:
        """Judge windows by what `WindowCutter` kept of them, for all nodes together.

        Returns the findings, and the windows whose entries must be compared on every node.
        """
        compared = compare_windows(summaries, entries)
        found = [self.check({"entries": rows}, context) for rows in compared.whole]
        for run in compared.agreed:
            counts = {"entries": run.entries, "damaged": 0, "spans": run.spans}
            found.append(Findings().table(counts))
        return pa.concat_tables([FINDINGS.empty_table(), *found]), compared.others

    def conclude(self, findings: pa.Table, context: CheckContext) -> Verdict:
        """Join the ranges: each must continue where the one before it ended."""
        gathered = gather(findings)
        joints = Findings()
        for node, committed in sorted(context.committed.items()):
            if node in context.unread:
                continue  # what its log lacks is not known
            spans = sorted(
                (c["spans"][node] for c in gathered.checked if node in c["spans"]),
                key=lambda span: span[0],
            )
            _join_spans(node, committed, spans, joints)
        # In an order that does not depend on where the ranges were cut.
        joined = pa.concat_tables([findings, joints.table({"spans": {}})])
        both = gather(joined.sort_by([(name, "ascending") for name in _ORDER]))
        why = why_not_judged(context)
        doubts = [] if why is None else [why]
        if damaged := both.sums().get("damaged"):
            doubts.append(f"{damaged} damaged entries could not be compared")
        return settle(
            NAME,
            both,
            context,
            clean=_clean(both, context),
            doubts=doubts,
            observed=lambda _kind: _why_unpromised(context),
        )

    judges_partial_logs = True
    """See `checkers.logs.durability.Durability.judges_partial_logs`."""


PLUGIN = CommittedPrefix()


def _why_unpromised(context: CheckContext) -> str | None:
    return None if context.promises.committed_prefix else "the target does not promise it"


def _clean(gathered: Gathered, context: CheckContext) -> str:
    if not context.committed:
        return "nothing to compare"
    low, high = min(context.committed.values()), max(context.committed.values())
    up_to = f"index {high}" if low == high else f"indices {low} to {high}"
    count = gathered.sums().get("entries", 0)
    return f"{len(context.committed)} nodes committed the same log up to {up_to} ({count} entries)"


def _is_committed(entries: pa.Table, context: CheckContext) -> pa.ChunkedArray:
    """Mark the entries that their own node has committed."""
    committed = dict(context.committed)
    limits = pa.array([committed.get(n, EMPTY) for n in context.nodes], pa.int64())
    which = pc.index_in(entries["node"], value_set=pa.array(context.nodes, pa.string()))
    limit = limits.take(which.combine_chunks())
    return pc.fill_null(pc.less_equal(entries["index"], pa.chunked_array([limit])), False)


def _follow(node: str, rows: pa.Table, findings: Findings) -> list[int | None]:
    """Check one node's entries; return [first index, last index, first term, last term].

    A damaged entry still fills its index, so it leaves no gap; its term is not used.
    """
    there = np.unique(_ints(rows["index"]))
    intact = rows.filter(pc.is_null(rows["problem"]))
    ordered = intact.sort_by([("index", "ascending"), ("position", "ascending")])
    index, term = _ints(ordered["index"]), _ints(ordered["term"])

    def gap(n: int) -> Finding:
        return _gap(node, int(there[n]) + 1, int(there[n + 1]) - 1)

    def fell(n: int) -> Finding:
        return _fell(node, int(index[n + 1]), int(term[n]), int(term[n + 1]))

    def twice(n: int) -> Finding:
        message = f"{node}: its log holds index {index[n]} twice."
        return Finding(
            "index-twice", message, None, None, (), {"node": node, "index": int(index[n])}
        )

    findings.add("gap", np.flatnonzero(np.diff(there) > 1).tolist(), gap)
    findings.add("term-fell", np.flatnonzero(np.diff(term) < 0).tolist(), fell)
    findings.add("index-twice", np.flatnonzero(np.diff(index) == 0).tolist(), twice)
    terms = (int(term[0]), int(term[-1])) if len(term) else (None, None)
    return [int(there[0]), int(there[-1]), *terms]


def _join_spans(node: str, committed: int, spans: list[list[Any]], findings: Findings) -> None:
    """Find what is missing before, between and after the ranges that one node holds."""
    gaps, falls = [], []
    first = spans[0][0] if spans else 0
    if first > 0:
        gaps.append((0, first - 1))
    for before, after in pairwise(spans):
        if after[0] != before[1] + 1:
            gaps.append((before[1] + 1, after[0] - 1))
        if before[3] is not None and after[2] is not None and after[2] < before[3]:
            falls.append((after[0], before[3], after[2]))
    last = spans[-1][1] if spans else EMPTY
    if last < committed:
        gaps.append((last + 1, committed))
    findings.add("gap", range(len(gaps)), lambda n: _gap(node, *gaps[n]))
    findings.add("term-fell", range(len(falls)), lambda n: _fell(node, *falls[n]))


def _compare(intact: pa.Table, findings: Findings) -> None:
    """Find the indices at which nodes hold entries of different term or content.

    State Machine Safety: entries committed at the same index must be the same.
    """
    rows = intact.sort_by([("index", "ascending"), ("node", "ascending")])
    index, term, crc = (_ints(rows[name]) for name in ("index", "term", "crc"))
    if not len(index):
        return
    is_first = np.ones(len(index), dtype=np.bool_)
    is_first[1:] = index[1:] != index[:-1]
    first = np.maximum.accumulate(np.where(is_first, np.arange(len(index)), 0))
    differs = (term != term[first]) | (crc != crc[first])
    starts = np.unique(first[differs])
    bounds = np.append(np.flatnonzero(is_first), len(index))

    def describe(start: int) -> Finding:
        end = int(bounds[np.searchsorted(bounds, start, side="right")])
        held = {row["node"]: _entry(row) for row in rows.slice(start, end - start).to_pylist()}
        what = "; ".join(f"{node} holds {entry}" for node, entry in held.items())
        row = rows.slice(start, 1).to_pylist()[0]
        message = f"entry {row['index']} is committed on nodes that disagree: {what}."
        details: dict[str, Any] = {"index": row["index"], "instead": held}
        return Finding("divergent", message, row["key"], row["offset"], (), details)

    findings.add("divergent", starts.tolist(), describe)


def _entry(row: Mapping[str, Any]) -> str:
    place = "an internal entry" if row["key"] is None else f"{row['key']} offset {row['offset']}"
    value = "" if row["value"] is None else f" value {row['value']}"
    return f"{place}{value} of term {row['term']} (crc {row['crc']:#010x})"


def _gap(node: str, first: int, last: int) -> Finding:
    which = f"index {first}" if first == last else f"indices {first} to {last}"
    message = f"{node}: its log lacks {which}, which it had committed."
    return Finding("gap", message, None, None, (), {"node": node, "first": first, "last": last})


def _fell(node: str, index: int, before: int, after: int) -> Finding:
    message = f"{node}: the term falls from {before} to {after} at index {index}."
    return Finding("term-fell", message, None, None, (), {"node": node, "index": index})


def _ints(column: pa.ChunkedArray) -> _Ints:
    return np.asarray(column.fill_null(0).to_numpy(), dtype=np.int64)


# Windows of the log's index, so that equal logs are compared by digests alone.
#
# If a node's entries fill a window regularly (every index once, terms that do not fall, nothing
# damaged), they are represented by a digest of their terms and contents. Nodes with equal digests
# hold the same entries there. The entries of any other window are kept.
#
# Source: the digests are BLAKE2b's, of 128 bits; a Merkle tree of one level (Merkle 1987).

WINDOW_ENTRIES = 16_384

SUMMARIES = pa.schema(
    [
        ("node", pa.string()),
        ("window", pa.int64()),  # its entries' index // WINDOW_ENTRIES
        ("first_term", pa.int64()),
        ("last_term", pa.int64()),
        ("digest", pa.string()),
    ]
)
"""A window that one node's committed entries fill regularly."""


class WindowCutter:
    """Cuts a node's entries, in the log's order, into windows.

    `committed` is the last index at which the node's entries count; later ones are left out.
    `kept`, if given, has the windows whose entries to keep, regular or not; all others are left
    out then.
    """

    def __init__(self, committed: int, kept: frozenset[int] | None = None) -> None:
        self._committed = committed
        self._kept = kept
        self._open = ENTRIES.empty_table()
        self._summaries: list[tuple[str, int, int, int, str]] = []
        self._entries: list[pa.Table] = []

    def add(self, rows: pa.Table) -> None:
        """Take the next rows of ENTRIES."""
        rows = pa.concat_tables([self._open, rows]) if self._open.num_rows else rows
        window = ints(rows["index"]) // WINDOW_ENTRIES
        borders = [0, *(np.flatnonzero(np.diff(window)) + 1).tolist()]
        for start, end in pairwise(borders):
            self._close(rows.slice(start, end - start), int(window[start]))
        self._open = rows.slice(borders[-1])

    def finish(self) -> None:
        """Close the last window: no more rows come."""
        if self._open.num_rows:
            self._close(self._open, self._open["index"][0].as_py() // WINDOW_ENTRIES)
        self._open = ENTRIES.empty_table()

    def take(self) -> tuple[pa.Table, pa.Table]:
        """Return and forget the windows closed so far: SUMMARIES, and rows of ENTRIES."""
        columns = [list(column) for column in zip(*self._summaries, strict=True)]
        summaries = SUMMARIES.empty_table() if not columns else pa.table(columns, schema=SUMMARIES)
        entries = pa.concat_tables([ENTRIES.empty_table(), *self._entries])
        self._summaries, self._entries = [], []
        return summaries, entries

    def _close(self, rows: pa.Table, window: int) -> None:
        if self._kept is not None and window not in self._kept:
            return
        index = ints(rows["index"])
        is_committed = index <= self._committed
        if self._kept is None and self._is_regular(rows, index) and is_committed.all():
            term, crc = ints(rows["term"]), ints(rows["crc"])
            digest = blake2b(term.tobytes() + crc.tobytes(), digest_size=16).hexdigest()
            node = rows["node"][0].as_py()
            self._summaries.append((node, window, int(term[0]), int(term[-1]), digest))
        elif is_committed.any():
            self._entries.append(rows.filter(pa.array(is_committed)))

    @staticmethod
    def _is_regular(rows: pa.Table, index: Ints) -> bool:
        return (
            rows.num_rows == WINDOW_ENTRIES
            and bool((np.diff(index) == 1).all())
            and rows["problem"].null_count == rows.num_rows
            and bool((np.diff(ints(rows["term"])) >= 0).all())
        )


@dataclass(slots=True)
class Agreed:
    """Neighbouring windows in which the same nodes hold the same entries.

    `spans` has each node's [first index, last index, first term, last term].
    """

    entries: int = 0
    spans: dict[str, list[int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Compared:
    """Windows by what is known of them: `agreed` runs, `whole` tables of rows, `others`' numbers.

    Of `others`, only digests are known from some nodes, and they do not suffice.
    """

    agreed: list[Agreed]
    whole: list[pa.Table]
    others: list[int]


def compare_windows(summaries: Iterable[pa.Table], entries: Iterable[pa.Table]) -> Compared:
    """Compare windows, given everything that any node has of each."""
    summarized = pa.concat_tables([SUMMARIES.empty_table(), *summaries]).to_pylist()
    summarized.sort(key=lambda row: (row["window"], row["node"]))
    rows = pa.concat_tables([ENTRIES.empty_table(), *entries])
    window_of = ints(rows["index"]) // WINDOW_ENTRIES
    kept = set(np.unique(window_of).tolist())
    compared = Compared([], [], [])
    for window, group in groupby(summarized, key=lambda row: row["window"]):
        of_node = list(group)
        # else a node has it twice
        is_unique = len({row["node"] for row in of_node}) == len(of_node)
        if window in kept or not is_unique or len({row["digest"] for row in of_node}) > 1:
            compared.others.append(window)
        else:
            _extend(compared.agreed, window, of_node)
    for window in sorted(kept.difference(compared.others)):
        compared.whole.append(rows.filter(pa.array(window_of == window)))
    return compared


def _extend(runs: list[Agreed], window: int, summarized: Sequence[dict[str, Any]]) -> None:
    """Add a window on which all nodes agree to the run before it, or start a new run."""
    first = window * WINDOW_ENTRIES
    last = first + WINDOW_ENTRIES - 1
    spans = {
        str(row["node"]): [first, last, row["first_term"], row["last_term"]] for row in summarized
    }
    before = runs[-1] if runs else Agreed()
    continues = before.spans.keys() == spans.keys() and all(
        before.spans[node][1] + 1 == first and before.spans[node][3] <= span[2]
        for node, span in spans.items()
    )
    if not continues:
        before = Agreed()
        runs.append(before)
    before.entries += WINDOW_ENTRIES * len(spans)
    for node, span in spans.items():
        if continues:
            before.spans[node][1], before.spans[node][3] = span[1], span[3]
        else:
            before.spans[node] = span
