"""Counts and latencies of a run's operations: by function, by outcome, by fault window.

Source: jepsen.checker `stats`, where a function without a single success makes the run unknown
too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shaketable.checkers.findings import Findings, gather
from shaketable.harness.contracts.plugins import CheckContext
from shaketable.harness.contracts.verdict import Outcome, Verdict

NAME = "stats"
OUTCOMES = ("ok", "fail", "info")
OUTSIDE = "outside"
BUCKETS_PER_DOUBLING = 16
"""Latency histogram: bounds grow by 2**(1/16), so a quantile is at most 4.5 % too high."""
ERRORS_MAX = 50
"""Distinct error texts that are counted separately, in each partition and in the verdict."""
OTHER_ERRORS = "other errors"
NS_PER_MS = 1_000_000


class Stats:
    """Counts of operations; UNKNOWN if a function never succeeded, never INVALID.

    `data` of its verdict: `by_f` {f: {ok, fail, info}}; `inside` the same for operations
    invoked while any fault was in force, `outside` for the others; `windows` [{fault,
    name, description, by_f}]; `latency_ms` {f: {p50, p99, max, count}} of ok operations;
    `errors` [{f, outcome, error, count}], the most frequent first.
    """

    name = NAME
    tables: tuple[str, ...] = ("operations",)
    partition = "key"

    def check(self, tables: Mapping[str, pa.Table], context: CheckContext) -> pa.Table:
        """Count one key's operations; the counts of all keys can be added up."""
        operations = tables["operations"]
        calls = operations["call_ns"].to_numpy()
        windows = {}
        inside = np.zeros(len(calls), dtype=np.bool_)
        for window in context.windows:
            within = (calls >= window.start_ns) & (calls <= window.stop_ns)
            inside |= within
            windows[str(window.fault)] = _count(operations.filter(pa.array(within)))
        counts = {
            "by_f": _count(operations),
            "inside": _count(operations.filter(pa.array(inside))),
            "windows": windows,
            "latency": _latencies(operations) if context.is_timed else {},
            "errors": _errors(operations),
        }
        return Findings().table(counts)

    def conclude(self, findings: pa.Table, context: CheckContext) -> Verdict:
        """Add up the counts of all keys."""
        parts = gather(findings).checked
        by_f = _add(part["by_f"] for part in parts)
        inside = _add(part["inside"] for part in parts)
        data: dict[str, Any] = {
            "by_f": _table(by_f),
            "inside": _table(inside),
            "outside": _table(Counter({k: n - inside[k] for k, n in by_f.items()})),
            "windows": [
                {
                    "fault": window.fault,
                    "name": window.name,
                    "description": window.description,
                    "by_f": _table(_add(p["windows"][str(window.fault)] for p in parts)),
                }
                for window in context.windows
            ],
            "latency_ms": _quantiles(part["latency"] for part in parts),
            "errors": _top_errors(part["errors"] for part in parts),
        }
        table = data["by_f"]
        never = [f for f, row in table.items() if not row["ok"]]
        total: Counter[str] = Counter()
        for row in table.values():
            total.update(row)
        counts: dict[str, int | float] = {"operations": sum(total.values()), **total}
        text = ", ".join(f"{total[outcome]} {outcome}" for outcome in OUTCOMES)
        summary = f"{counts['operations']} operations: {text}"
        if not table:
            return Verdict(NAME, Outcome.UNKNOWN, "no operations at all", counts=counts, data=data)
        if never:
            summary += f"; not a single ok {' or '.join(never)}"
            summary += _most_frequent_error((part["errors"] for part in parts), never)
        outcome = Outcome.UNKNOWN if never else Outcome.VALID
        return Verdict(NAME, outcome, summary, counts=counts, data=data)


PLUGIN = Stats()


def _count(operations: pa.Table) -> dict[str, int]:
    """Count operations by "f outcome"."""
    groups = operations.group_by(["f", "outcome"]).aggregate([([], "count_all")])
    rows = groups.to_pylist()
    return {f"{row['f']} {row['outcome']}": row["count_all"] for row in rows}


def _latencies(operations: pa.Table) -> dict[str, dict[str, Any]]:
    """Return for each f the latency histogram of its ok operations: {bucket: count}, maximum."""
    done = operations.filter(pc.equal(operations["outcome"], "ok"))
    histograms = {}
    for f in sorted(pc.unique(done["f"]).to_pylist()):
        mine = done.filter(pc.equal(done["f"], f))
        lasted = mine["return_ns"].to_numpy() - mine["call_ns"].to_numpy()
        lasted = np.maximum(lasted.astype(np.int64), 1)
        buckets = np.ceil(np.log2(lasted) * BUCKETS_PER_DOUBLING).astype(np.int64)
        values, counts = np.unique(buckets, return_counts=True)
        histogram = {str(b): int(n) for b, n in zip(values, counts, strict=True)}
        histograms[f] = {"buckets": histogram, "max_ns": int(lasted.max())}
    return histograms


def _quantiles(parts: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Merge histograms; return p50, p99 and the maximum in ms, and the count, for each f."""
    buckets: dict[str, Counter[int]] = {}
    longest: dict[str, int] = {}
    for part in parts:
        for f, histogram in part.items():
            into = buckets.setdefault(f, Counter())
            into.update({int(b): n for b, n in histogram["buckets"].items()})
            longest[f] = max(longest.get(f, 0), histogram["max_ns"])
    result = {}
    for f, joined in sorted(buckets.items()):
        bounds = np.array(sorted(joined))
        cumulative = np.cumsum([joined[int(b)] for b in bounds])
        row: dict[str, float] = {"count": int(cumulative[-1]), "max": longest[f] / NS_PER_MS}
        for name, share in (("p50", 0.5), ("p99", 0.99)):
            bound = bounds[int(np.searchsorted(cumulative, share * cumulative[-1]))]
            ns = min(2.0 ** (int(bound) / BUCKETS_PER_DOUBLING), longest[f])
            row[name] = round(ns / NS_PER_MS, 3)
        result[f] = row
    return result


def _errors(operations: pa.Table) -> list[list[Any]]:
    """Count [f, outcome, error]: the ERRORS_MAX most frequent, the others together."""
    failed = operations.filter(pc.is_valid(operations["error"]))
    groups = failed.group_by(["f", "outcome", "error"]).aggregate([([], "count_all")])
    rows = [[r["f"], r["outcome"], r["error"], r["count_all"]] for r in groups.to_pylist()]
    rows.sort(key=lambda row: (-row[3], row[:3]))
    rest: Counter[tuple[str, str]] = Counter()
    for f, outcome, _, count in rows[ERRORS_MAX:]:
        rest[f, outcome] += count
    return rows[:ERRORS_MAX] + [[f, o, OTHER_ERRORS, n] for (f, o), n in sorted(rest.items())]


def _top_errors(parts: Iterable[list[list[Any]]]) -> list[dict[str, Any]]:
    total: Counter[tuple[str, str, str]] = Counter()
    for part in parts:
        for f, outcome, error, count in part:
            total[f, outcome, error] += count
    ranked = sorted(total.items(), key=lambda item: (-item[1], item[0]))
    return [
        {"f": f, "outcome": outcome, "error": error, "count": count}
        for (f, outcome, error), count in ranked[:ERRORS_MAX]
    ]


def _most_frequent_error(parts: Iterable[list[list[Any]]], never: Collection[str]) -> str:
    """Say what most often kept operations from being ok of which none was; "" if unknown."""
    total: Counter[tuple[str, str]] = Counter()
    for part in parts:
        for f, _, error, count in part:
            if f in never and error != OTHER_ERRORS:
                total[error, f] += count
    if not total:
        return ""
    (error, f), _ = total.most_common(1)[0]
    return f"; the most frequent error: {error} (of {f})"


def _add(parts: Iterable[Mapping[str, int]]) -> Counter[str]:
    total: Counter[str] = Counter()
    for part in parts:
        total.update(part)
    return total


def _table(counts: Mapping[str, int]) -> dict[str, dict[str, int]]:
    """Turn counts by "f outcome" into {f: {ok, fail, info}}."""
    table: dict[str, dict[str, int]] = {}
    for name, count in sorted(counts.items()):
        f, _, outcome = name.rpartition(" ")
        table.setdefault(f, dict.fromkeys(OUTCOMES, 0))[outcome] = count
    return table
