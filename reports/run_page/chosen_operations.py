"""Choose the operations in the page's table: all of a small run, the relevant ones of a large run.

No evidence for a verdict is sampled away. The table has every operation that a finding names, and
its neighbours; every one that failed or is indeterminate, up to limits that a run of a million
exceeds only if more than one in a hundred fails; the slowest; the first and last of each client;
and an even sample of the rest. What a limit cuts is counted.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from shaketable.reports.check_page.checked_history import accused_in
from shaketable.reports.plain_json import is_whole, listed, mapping

ALL_MAX: Final = 16_000
"""A run with at most this many operations is shown whole."""
NAMED_MAX: Final = 8_000
"""Limit of operations that findings name."""
NEIGHBOURS: Final = 4
"""Operations shown before and after a named one, on the same key."""
NEAR_MAX: Final = 4_000
UNKNOWN_MAX: Final = 12_000
FAILED_MAX: Final = 12_000
SLOWEST: Final = 400
CLIENTS_MAX: Final = 500
"""Clients whose first and last operations are shown. After an indeterminate operation a client
continues as a new process, so there may be many."""
SAMPLE_MAX: Final = 3_000

NAMED, NEAR, UNKNOWN, FAILED, SLOW, EDGE, SAMPLE = (1 << bit for bit in range(7))
WHY: Final[Mapping[int, str]] = {
    NAMED: "named by a finding",
    NEAR: "beside one that is named",
    UNKNOWN: "outcome unknown",
    FAILED: "failed",
    SLOW: "among the slowest",
    EDGE: "first or last of a client",
    SAMPLE: "sample of the others",
}
"""Why an operation is in the table, most important first: bits of a number."""

Places = npt.NDArray[np.int64]


class LimitDivisors(NamedTuple):
    """Divisors of the limits: of failed and indeterminate ones, of neighbours and samples."""

    unsuccessful: int = 1
    others: int = 1


UNDIVIDED: Final = LimitDivisors()


@dataclass(frozen=True, slots=True)
class Chosen:
    """The operations of the table, by the time of their call.

    `why` has the bits of `WHY` for each row. `total` is how many the run had. `cut` lists
    categories that exceed their limit: (category, how many, how many are shown).
    """

    rows: pa.Table
    why: npt.NDArray[np.int64]
    total: int
    cut: tuple[tuple[str, int, int], ...] = ()
    missing: int = 0
    """Operations that findings name but the history does not have."""

    @property
    def is_whole(self) -> bool:
        """Whether the table holds all of the run's operations."""
        return bool(self.rows.num_rows == self.total)


def named_operations(results: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the ids of all operations that findings in results.json name, broken or observed.

    Those proven to be at fault come first, so that no limit cuts them off.
    """
    findings = list(_findings(results))
    accused = (accused_in(mapping(finding.get("details"))) for finding in findings)
    named = dict.fromkeys(op for ops in accused for op in ops)
    for finding in findings:
        ops = listed(finding.get("operations"))
        named.update(dict.fromkeys(op for op in ops if is_whole(op) and abs(op) < 2**63))
    return tuple(named)


def _findings(results: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    for verdict in mapping(results.get("checkers")).values():
        for place in ("findings", "observed"):
            yield from (mapping(finding) for finding in listed(mapping(verdict).get(place)))


def choose(
    operations: pa.Table, named: Collection[int] = (), divisors: LimitDivisors = UNDIVIDED
) -> Chosen:
    """Choose the operations that a page shows.

    Args:
        operations: rows of OPERATIONS as the export sorts them, by key, then by call time, so that
            neighbours are adjacent rows.
        named: ids of the operations that findings name, the most important first.
        divisors: divide the limits.
    """
    total = operations.num_rows
    is_whole = total <= ALL_MAX
    why = np.zeros(total, dtype=np.int64)
    cut: list[tuple[str, int, int]] = []

    def mark(bit: int, places: Places, most: int, what: str) -> Places:
        kept = (
            places if is_whole else places[:most] if bit & (NAMED | NEAR) else _evenly(places, most)
        )
        why[kept] |= bit
        if len(kept) < len(places):
            cut.append((what, len(places), len(kept)))
        return kept

    at, missing = _places(operations["op"], named)
    at = mark(NAMED, at, NAMED_MAX, "that findings name")
    near = _near(operations["key"], at)
    mark(NEAR, near, NEAR_MAX // divisors.others, "beside those that findings name")
    by_call, outcome = operations["call_ns"].to_numpy(), operations["outcome"]
    unknown, failed = (_by(by_call, _where(pc.equal(outcome, kind))) for kind in ("info", "fail"))
    mark(UNKNOWN, unknown, UNKNOWN_MAX // divisors.unsuccessful, "of unknown outcome")
    mark(FAILED, failed, FAILED_MAX // divisors.unsuccessful, "that failed")
    why[_slowest(operations)] |= SLOW
    edges, edges_total = _edges(operations["process"].to_numpy(), by_call)
    why[edges] |= EDGE
    if len(edges) < edges_total and not is_whole:
        cut.append(("first or last of a client", edges_total, len(edges)))
    if is_whole:
        shown = _by(by_call, np.arange(total))
    else:
        why[_evenly(_by(by_call, np.flatnonzero(why == 0)), SAMPLE_MAX // divisors.others)] |= (
            SAMPLE
        )
        shown = _by(by_call, np.flatnonzero(why))
    return Chosen(operations.take(pa.array(shown)), why[shown], total, tuple(cut), missing)


def _places(ids: Any, named: Collection[int]) -> tuple[Places, int]:
    """Return the rows of the named operations, in the order named, and how many are missing."""
    if not named:
        return np.zeros(0, dtype=np.int64), 0
    wanted = pa.array(named, pa.int64())
    column = ids.combine_chunks() if isinstance(ids, pa.ChunkedArray) else ids
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    at = _where(pc.is_in(column, value_set=wanted))  # one operation may have several rows
    found = column.to_numpy()[at]
    rank = {op: place for place, op in enumerate(named)}
    order = np.argsort(np.array([rank[op] for op in found.tolist()], dtype=np.int64), kind="stable")
    return at[order], len(rank) - len(np.unique(found))


def _near(keys: Any, at: Places) -> Places:
    """Return the rows adjacent to those given, of the same key, without those given."""
    if not len(at):
        return at
    steps = [step for step in range(-NEIGHBOURS, NEIGHBOURS + 1) if step]
    near = (at[:, None] + np.array(steps)[None, :]).ravel()
    of = np.repeat(at, len(steps))
    is_there = (near >= 0) & (near < len(keys))
    near, of = near[is_there], of[is_there]
    is_same = pc.equal(keys.take(pa.array(near)), keys.take(pa.array(of)))
    near = near[np.asarray(pc.fill_null(is_same, fill_value=False))]
    _, first = np.unique(near, return_index=True)
    kept: Places = near[np.sort(first)]
    return kept[~np.isin(kept, at)]


def _slowest(operations: pa.Table) -> Places:
    took = pc.subtract(operations["return_ns"], operations["call_ns"])
    took_ns = pc.fill_null(took, -1).to_numpy()
    if len(took_ns) <= SLOWEST:
        return np.zeros(0, dtype=np.int64)
    slowest = np.argpartition(took_ns, len(took_ns) - SLOWEST)[len(took_ns) - SLOWEST :]
    return slowest.astype(np.int64)


def _edges(processes: Places, by_call: Places) -> tuple[Places, int]:
    """Return the first and last operations of some clients, and how many all clients have."""
    order = np.lexsort((by_call, processes))
    sorted_processes = processes[order]
    firsts = np.flatnonzero(np.diff(sorted_processes, prepend=sorted_processes[:1] - 1))
    if not len(firsts):
        return firsts, 0
    lasts = np.append(firsts[1:], len(processes)) - 1
    kept = _evenly(np.arange(len(firsts)), CLIENTS_MAX)
    total = len(firsts) + int(np.count_nonzero(firsts != lasts))
    return np.unique(order[np.concatenate((firsts[kept], lasts[kept]))]), total


def _where(mask: Any) -> Places:
    return np.flatnonzero(np.asarray(pc.fill_null(mask, fill_value=False))).astype(np.int64)


def _by(times: Places, places: Places) -> Places:
    """Sort the rows by their times."""
    return places[np.argsort(times[places], kind="stable")]


def _evenly(places: Places, most: int) -> Places:
    """Return at most `most` of the rows, evenly spaced, including the first and last."""
    if len(places) <= most:
        return places
    return places[np.unique(np.linspace(0, len(places) - 1, most).round().astype(np.int64))]


# The page's table as compact JSON: columns, differences, numbered texts. Pure.
#
# `pack` documents the format. Only the page's script (templates/operations.js) reads it. Numbers
# that JavaScript cannot represent exactly are strings.

EXACT_MAX: Final = 2**53
"""JavaScript represents whole numbers below this exactly."""
TEXT_CHARACTERS_MAX: Final = 160
"""Characters of an error or an extra output; the run's files have it in full."""
TEXTS: Final = ("f", "key", "outcome", "node", "error", "extra")
NUMBERS: Final = ("input", "output", "offset")
NS_PER_US: Final = 1_000


def pack(chosen: Chosen) -> str:
    """Return the JSON, safe inside a script element.

    {"rows": n, "texts": {"f": [...], ...}, "why": ["named by a finding", ...], "columns":
      {"op": [first, difference, ...], "call": [likewise, in microseconds],
       "took": [microseconds, or -1 where nothing returned], "process": [...],
       "f": [number of a text], "key", "outcome", "node", "error", "extra" likewise (-1: none),
       "why": [bits], "input", "output", "offset": [number or null]}}
    """
    rows = chosen.rows
    texts: dict[str, list[str]] = {}
    call_us = rows["call_ns"].to_numpy() // NS_PER_US
    took = pc.subtract(rows["return_ns"], rows["call_ns"])
    took_us = pc.fill_null(pc.divide(took, NS_PER_US), -1).to_numpy()
    columns: dict[str, list[Any]] = {
        "op": _differences(rows["op"].to_numpy()),
        "call": _differences(call_us),
        "took": took_us.tolist(),
        "process": _exact(rows["process"]),
        "why": chosen.why.tolist(),
    }
    for name in TEXTS:
        columns[name], texts[name] = _coded(rows[name])
    for name in NUMBERS:
        columns[name] = _exact(rows[name])
    packed = {
        "rows": rows.num_rows,
        "texts": texts,
        "why": list(WHY.values()),
        "columns": columns,
    }
    return inside_script(json.dumps(packed, separators=(",", ":")))


def _differences(values: npt.NDArray[np.int64]) -> list[int]:
    """Delta-encode the values, so that the numbers have few digits."""
    return [int(value) for value in np.diff(values, prepend=0)] if len(values) else []


def _coded(column: Any) -> tuple[list[int], list[str]]:
    cut = pc.utf8_slice_codeunits(column, 0, TEXT_CHARACTERS_MAX + 1)  # one more, to detect a cut
    codes = cut.combine_chunks().dictionary_encode()
    if isinstance(codes, pa.ChunkedArray):
        codes = codes.combine_chunks()
    numbers = pc.fill_null(codes.indices, -1).to_pylist()
    return numbers, [
        text[:TEXT_CHARACTERS_MAX] + "…" if len(text) > TEXT_CHARACTERS_MAX else text
        for text in codes.dictionary.to_pylist()
    ]


def _exact(column: Any) -> list[int | str | None]:
    return [
        value if value is None or abs(value) < EXACT_MAX else str(value)
        for value in column.to_pylist()
    ]


def inside_script(text: str) -> str:
    """Escape what could end a script element or start a comment in it, with JSON's own escapes."""
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text
