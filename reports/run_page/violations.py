"""The findings of results.json: grouped, with their evidence, and by the promises that they break.

Each has the operations around it. The evidence is in a finding's `details`, or follows from the
operations that it names: `details` may hold value, acknowledged_by, acknowledged_ns, fault or
faults, and instead (what each node holds in its place). Other details are shown as they are.

The table of promises has their texts, the checkers that judged them, and the findings.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeGuard

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shaketable.harness.contracts.finding_kinds import record_of
from shaketable.harness.contracts.plugins import FaultWindow
from shaketable.harness.contracts.promises import in_families
from shaketable.harness.history.schema import APPENDING, request_of
from shaketable.reports import finding_texts
from shaketable.reports.finding_texts import are_steps, rank, steps_text
from shaketable.reports.plain_json import ID_MAX, is_whole
from shaketable.reports.run_view import (
    CheckerView,
    OperationRow,
    PromiseRow,
    Violation,
    ViolationGroup,
    named_operations,
)

SHOWN_MAX = 20
"""Findings of one checker that are shown; the others are counted."""

PICTURES_MAX = 8
"""Findings of one checker that are shown with a picture and the operations around them."""

AROUND = 12
"""Operations shown before and after the one in question."""

TEXT_MAX = 300
"""Characters of one piece of evidence that are shown."""

OUTPUT_TEXT_MAX = 60
"""Characters of an operation's output that are shown."""

SEEN_BY = "linearizable-log"
"""In findings about reads, the fault that this checker names is that of the read, not a cause."""

_ABOUT_READS = frozenset({"read", "end"})

JUST_BEFORE = "just before "
"""Prefix in the evidence for a fault that began only after the acknowledgement."""

_SHOWN_ELSEWHERE = frozenset({"value", "acknowledged_by", "acknowledged_ns", "fault", "instead"})

Finding = Mapping[str, Any]


@dataclass(slots=True)
class OperationLookup:
    """Looks up operations by id, place and neighbourhood; caches each queue's operations."""

    operations: pa.Table
    windows: tuple[FaultWindow, ...]
    _by_key: dict[str | None, pa.Table] = field(default_factory=dict)

    def by_id(self, ids: Sequence[int]) -> list[OperationRow]:
        """Return the operations with these ids, in the order of their calls."""
        if not ids:
            return []
        wanted = pa.array(ids, pa.int64())
        found = self.operations.filter(pc.is_in(self.operations["op"], value_set=wanted))
        return rows_of(found, set(ids))

    def appends_at(self, key: str | None, offset: int | None) -> list[OperationRow]:
        """Return the acknowledged appends that got this offset."""
        if key is None or offset is None:
            return []
        queue = self.queue(key)
        is_append = pc.is_in(queue["f"], value_set=pa.array(APPENDING))
        at_offset = pc.and_(pc.equal(queue["offset"], offset), is_append)
        found = queue.filter(pc.and_(at_offset, pc.equal(queue["outcome"], "ok")))
        return rows_of(found, set(found["op"].to_pylist()))

    def reads_at(self, key: str | None, offset: int | None, count: int) -> list[OperationRow]:
        """Return the first and last `count` answered reads and polls of this offset."""
        if key is None or offset is None:
            return []
        queue = self.queue(key)
        is_look = pc.and_(pc.equal(queue["offset"], offset), pc.equal(queue["outcome"], "ok"))
        is_look = pc.and_(is_look, pc.invert(pc.is_in(queue["f"], value_set=pa.array(APPENDING))))
        found = queue.filter(is_look)
        if found.num_rows > 2 * count:
            last = found.slice(found.num_rows - count)
            found = pa.concat_tables([found.slice(0, count), last])
        return rows_of(found, set())

    def appends_of(self, key: str | None, values: Sequence[int]) -> list[OperationRow]:
        """Return the operations that appended these values to a queue, whatever their outcome."""
        if not values:
            return []
        queue = self.queue(key)
        is_append = pc.is_in(queue["f"], value_set=pa.array(APPENDING))
        is_one = pc.is_in(queue["input"], value_set=pa.array(values, pa.int64()))
        return rows_of(queue.filter(pc.and_(is_append, is_one)), set())

    def end_before(self, key: str | None, time_ns: int) -> int | None:
        """Return a lower bound of a queue's end, by the appends acknowledged before `time_ns`."""
        queue = self.queue(key)
        is_acked = pc.and_(
            pc.is_in(queue["f"], value_set=pa.array(APPENDING)), pc.equal(queue["outcome"], "ok")
        )
        is_over = pc.fill_null(pc.less(queue["return_ns"], time_ns), False)
        greatest = pc.max(queue.filter(pc.and_(is_acked, is_over))["offset"]).as_py()
        return None if greatest is None else int(greatest) + 1

    def around(
        self, key: str | None, marked: Sequence[OperationRow], offset: int | None
    ) -> tuple[OperationRow, ...]:
        """Return the marked operations and their neighbours in time and in offset."""
        queue = self.queue(key)
        if queue.num_rows == 0 or not (marked or offset is not None):
            return tuple(marked)
        calls = queue["call_ns"].to_numpy()
        chosen = np.zeros(queue.num_rows, dtype=bool)
        if marked:
            position = int(np.searchsorted(calls, marked[0].call_ns))
            chosen[max(0, position - AROUND) : position + AROUND + 1] = True
        if offset is not None:
            offsets = queue["offset"].fill_null(-1).to_numpy()
            distance = np.where(offsets < 0, np.iinfo(np.int64).max, np.abs(offsets - offset))
            nearest = np.argsort(distance, kind="stable")[: AROUND if marked else 2 * AROUND]
            chosen[nearest[distance[nearest] <= AROUND]] = True
        ids = {row.op for row in marked}
        near = rows_of(queue.filter(pa.array(chosen)), ids)
        present = {row.op for row in near}
        rows = near + [row for row in marked if row.op not in present]
        return tuple(sorted(rows, key=lambda row: (row.call_ns, row.op)))

    def window_at(self, time_ns: int) -> FaultWindow | None:
        """Return the fault that was active at `time_ns`, the last one to begin."""
        inside = [w for w in self.windows if w.from_ns <= time_ns <= w.stop_ns]
        return inside[-1] if inside else None

    def queue(self, key: str | None) -> pa.Table:
        """Return the operations of one queue, by the time of their call."""
        if key not in self._by_key:
            column = self.operations["key"]
            mask = pc.is_null(column) if key is None else pc.equal(column, key)
            self._by_key[key] = self.operations.filter(mask).sort_by(
                [("call_ns", "ascending"), ("op", "ascending")]
            )
        return self._by_key[key]


def kind_totals(verdict: Mapping[str, Any]) -> dict[str, int]:
    """Return how many findings of each kind a checker's verdict counted, kept or not.

    At least one finding of every kind is kept; `counts` has the numbers by kind.
    """
    kept = Counter(_kind(finding) for finding in verdict.get("findings") or ())
    counts = verdict.get("counts")
    counts = counts if isinstance(counts, Mapping) else {}
    totals = {}
    for kind, number in kept.items():
        counted = counts.get(kind)
        totals[kind] = max(number, counted) if isinstance(counted, int) else number
    if len(totals) == 1:  # then all findings are of this kind, whether it was counted or not
        kind, number = totals.popitem()
        totals[kind] = max(number, int(verdict.get("findings_total") or 0))
    return totals


def group_findings(
    findings: Iterable[Finding],
    totals: Mapping[str, int],
    lookup: OperationLookup,
    checker: str = "",
) -> tuple[ViolationGroup, ...]:
    """Group findings by kind and fault, the gravest kind first, and its largest group first.

    The first findings of each group get the operations around them.

    `totals` counts the checker's findings by kind, kept or not. A kind that is missing in it, or
    counted no higher than the findings given, was kept completely.
    """
    grouped: dict[tuple[str, str], list[tuple[Finding, Violation]]] = {}
    kept: Counter[str] = Counter()
    for finding in findings:
        violation = _violation(finding, lookup, checker)
        kept[violation.kind] += 1
        grouped.setdefault((violation.kind, violation.fault or ""), []).append((finding, violation))
    ordered = sorted(grouped.values(), key=lambda group: (rank(group[0][1].kind), -len(group)))
    largest = {members[0][1].kind: members for members in reversed(ordered)}
    if len(ordered) > SHOWN_MAX:  # leave out no kind because others have many faults
        ordered.sort(key=lambda members: largest[members[0][1].kind] is not members)
    cut = {kind: total for kind, total in totals.items() if total > kept[kind] > 0}
    groups = []
    shown_left, pictures_left = SHOWN_MAX, PICTURES_MAX
    for place, members in enumerate(ordered):
        groups_left = len(ordered) - place
        shown_here = max(1, shown_left // groups_left) if place else SHOWN_MAX - groups_left + 1
        pictures_here = max(1, pictures_left // groups_left) if pictures_left > 0 else 0
        shown = [
            _with_surroundings(finding, violation, lookup) if n < pictures_here else violation
            for n, (finding, violation) in enumerate(members[: max(1, shown_here)])
        ]
        shown_left -= len(shown)
        pictures_left -= min(pictures_here, len(shown))
        violations = [violation for _, violation in members]
        groups.append(
            ViolationGroup(shown[0].kind, _title(violations, cut), tuple(shown), len(violations))
        )
        if shown_left <= 0 and place + 1 < len(ordered):
            groups.append(_rest(ordered[place + 1 :]))
            break
    return tuple(groups)


def _rest(groups: Sequence[Sequence[tuple[Finding, Violation]]]) -> ViolationGroup:
    count = sum(len(members) for members in groups)
    kinds = sorted({violation.kind for members in groups for _, violation in members})
    title = f"{count} more in {len(groups)} other group(s): {', '.join(kinds)}"
    return ViolationGroup("more", title, (), count)


def _title(violations: Sequence[Violation], cut: Mapping[str, int]) -> str:
    """Return the title of a group: count, kind, queues and offsets, and fault."""
    first = violations[0]
    count = len(violations)
    text = f"{first.kind}, {count:,} times" if count > 1 else first.kind
    if first.kind in cut:
        text = f"{first.kind}, {count:,} kept of {cut[first.kind]:,} in all"
    places = []
    for key in sorted({violation.key or "" for violation in violations}):
        offsets = [v.offset for v in violations if (v.key or "") == key and v.offset is not None]
        if not key and not offsets:
            continue
        span = ""
        if offsets:
            low, high = min(offsets), max(offsets)
            span = f" offset {low}" if low == high else f" offsets {low} to {high}"
        places.append(f"{key}{span}".strip())
    more = len(places) - 4
    rest = f"; and {more} more queue{'s' if more > 1 else ''}" if more > 0 else ""
    where = "; ".join(places[:4]) + rest
    under = f", {first.fault_text}" if first.fault else ""
    return f"{text}{': ' if where else ''}{where}{under}"


def _kind(finding: Finding) -> str:
    return str(finding.get("kind") or "violation")


def _is_read(checker: str, kind: str) -> bool:
    """Return whether a finding is about a read, whose fault is the one under which it showed."""
    text = kind.partition(" ")[0].split("-")  # the space precedes "(not promised)"
    return checker == SEEN_BY and (text == ["duplicate"] or not _ABOUT_READS.isdisjoint(text))


def _violation(finding: Finding, lookup: OperationLookup, checker: str) -> Violation:
    """Combine a finding's own evidence with its operations."""
    details = finding.get("details")
    details = details if isinstance(details, Mapping) else {}
    key, offset = finding.get("key"), finding.get("offset")
    key = key if isinstance(key, str) else None
    offset = offset if is_whole(offset) and abs(offset) <= ID_MAX else None
    ids = list(named_operations(finding))
    marked = lookup.by_id(ids)
    acked = [row for row in marked if row.f in APPENDING and row.outcome == "ok"]
    # Of several appends prefer the one of the finding's value, else the first.
    append = next((row for row in acked if row.input == details.get("value")), None)
    append = append or next(iter(acked), None)
    value = details.get("value", append.input if append else None)
    node = details.get("acknowledged_by") or (append.node if append else None)
    time_ns = details.get("acknowledged_ns", append.return_ns if append else None)
    moment_ns = time_ns if time_ns is not None else (marked[-1].call_ns if marked else None)
    is_read = _is_read(checker, _kind(finding))
    if is_read:  # the first operation is the read
        moment_ns = next((row.call_ns for row in marked if row.op == ids[0]), None)
    fault, faults = details.get("fault"), details.get("faults")
    faults = faults if isinstance(faults, list) else []
    if faults and (fault is None or str(faults[0]).startswith(JUST_BEFORE)):
        fault = faults[0]
    hidden = _SHOWN_ELSEWHERE if len(faults) > 1 else _SHOWN_ELSEWHERE | {"faults"}
    if fault is None or isinstance(fault, int):
        numbered = [w for w in lookup.windows if w.fault == fault]
        window = numbered[0] if numbered else None
        if window is None and moment_ns is not None:
            window = lookup.window_at(int(moment_ns))
        fault = f"{window.name} {window.fault} ({window.description})" if window else None
    return Violation(
        kind=_kind(finding),
        message=str(finding.get("message") or ""),
        key=key,
        offset=offset,
        value=value if isinstance(value, int) else None,
        acknowledged_by=None if node is None else str(node),
        acknowledged_ns=int(time_ns) if isinstance(time_ns, int) else None,
        fault=None if fault is None else _text(fault),
        fault_text="" if fault is None else _fault_text(_text(fault), is_read),
        instead=_instead(details.get("instead")),
        evidence=tuple((str(k), _text(v)) for k, v in details.items() if k not in hidden),
        finding=finding,
    )


def _fault_text(fault: str, is_read: bool) -> str:
    if fault.startswith(JUST_BEFORE):
        return fault
    return f"seen under {fault}" if is_read else f"under {fault}"


def _with_surroundings(
    finding: Finding, violation: Violation, lookup: OperationLookup
) -> Violation:
    marked = lookup.by_id(list(named_operations(finding)))
    marked = marked or lookup.appends_at(violation.key, violation.offset)
    key = violation.key if violation.key is not None else (marked[0].key if marked else None)
    around = lookup.around(key, marked, violation.offset)
    if not around:
        return violation
    first_ns = min(row.call_ns for row in around)
    last_ns = max(row.return_ns or row.call_ns for row in around)
    windows = tuple(w for w in lookup.windows if w.from_ns <= last_ns and w.stop_ns >= first_ns)
    return replace(violation, around=around, windows=windows)


def _instead(instead: object) -> tuple[tuple[str, str], ...]:
    """Return what is stored in its place, by node; a single sentence has the node ""."""
    if not instead:
        return ()
    if isinstance(instead, Mapping):
        return tuple((str(node), _text(what)) for node, what in sorted(instead.items()))
    return (("", _text(instead)),)


def _text(value: object) -> str:
    """Print a piece of evidence, lists and maps without their brackets."""
    if value is None:
        text = "nothing"
    elif isinstance(value, Mapping):
        text = "; ".join(f"{name}: {_text(what)}" for name, what in value.items()) or "none"
    elif isinstance(value, list):
        text = ", ".join(map(_text, value)) or "none"
    else:
        text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= TEXT_MAX else text[: TEXT_MAX - 1] + "…"


def rows_of(table: pa.Table, marked: set[int]) -> list[OperationRow]:
    """Convert rows of OPERATIONS for a page, by the time of their call."""
    names = [
        "op", "process", "f", "key", "input", "expected", "output", "offset",
        "call_ns", "return_ns", "outcome", "error", "node", "extra",
    ]  # fmt: skip
    rows = table.select(names).sort_by([("call_ns", "ascending"), ("op", "ascending")]).to_pylist()
    extras = [row.pop("extra") for row in rows]
    return [
        OperationRow(
            **row,
            marked=row["op"] in marked,
            output_text=_output_text(extra, row["f"]),
            request=_request_text(extra),
        )
        for row, extra in zip(rows, extras, strict=True)
    ]


def _output_text(extra: str | None, f: str) -> str:
    """Return the output of an operation that does not fit the columns; "" if there is none.

    Messages of a poll are printed as reads are: "7 @3" is the value 7 at offset 3.
    """
    if not extra:
        return ""
    try:
        output = json.loads(extra).get("output")
    except (ValueError, AttributeError, RecursionError):
        return ""
    if output is None:
        return ""
    if are_steps(output):
        return steps_text(output)
    if f == "poll" and are_messages(output):
        text = ", ".join(f"{value} @{offset}" for offset, value in output) or "nothing"
    else:
        text = output if isinstance(output, str) else json.dumps(output)
    return _cut(text)


def _request_text(extra: str | None) -> str:
    """Return what was requested, if `input` only numbers it: words, or a transaction's steps.

    Those of a transaction that was answered are in its output.
    """
    if not extra or (request := request_of(extra)):
        return _cut(request) if extra else ""
    try:
        given = json.loads(extra)
        steps = None if "output" in given else given.get("input")
    except (ValueError, AttributeError, TypeError, RecursionError):
        return ""
    return steps_text(steps) if are_steps(steps) else ""


def _cut(text: str) -> str:
    return text if len(text) <= OUTPUT_TEXT_MAX else text[: OUTPUT_TEXT_MAX - 1] + "…"


def polled_messages(extra: str | None) -> list[tuple[int, int]]:
    """Return what a poll returned as (offset, value) pairs; empty if malformed."""
    try:
        output = json.loads(extra or "{}").get("output")
    except (ValueError, AttributeError, RecursionError):
        return []
    return [(offset, value) for offset, value in output] if are_messages(output) else []


def are_messages(output: object) -> TypeGuard[list[list[int]]]:
    """Return whether this is the output of a poll: a list of offsets and values."""
    return isinstance(output, list) and all(
        isinstance(each, list) and len(each) == 2 and all(map(is_whole, each)) for each in output
    )


# The table of promises.

DURABLE, DELIVERED, LINEARIZABLE, PREFIX, EXCLUDED, MEANT, RULES, ISOLATED, TOTAL = range(9)

JUDGES: Final[Mapping[str, tuple[int, ...]]] = {
    "durability": (DURABLE,),
    "final-reads": (DURABLE,),
    "set-full": (DURABLE, LINEARIZABLE, EXCLUDED),
    "counter": (DURABLE, LINEARIZABLE, EXCLUDED),
    "total-queue": (DURABLE, LINEARIZABLE, EXCLUDED),
    "consumer-offsets": (DURABLE, EXCLUDED),
    "group-delivery": (DURABLE, DELIVERED, EXCLUDED),
    "log-anomalies": (DURABLE, DELIVERED, LINEARIZABLE, EXCLUDED),
    "linearizable": (LINEARIZABLE,),
    "linearizable-log": (LINEARIZABLE,),
    "linearizable-register": (LINEARIZABLE,),
    "cycles": (LINEARIZABLE, EXCLUDED),
    "transaction-cycles": (LINEARIZABLE, EXCLUDED),
    "bank": (TOTAL,),
    "isolation": (ISOLATED, EXCLUDED),
    "committed-prefix": (PREFIX,),
    "invariants": (RULES,),
    "run-as-planned": (MEANT,),
    "vacuity": (MEANT,),
    "stats": (MEANT,),
    "online": (LINEARIZABLE,),
}
"""Promises that each of our checkers judges; other checkers judge what the target excludes."""

ABOUT: Final = {"kept": DURABLE, "delivered": DELIVERED, "committed": PREFIX}
"""The row of what a kind of finding is about (`finding_kinds`)."""


def promise_rows(promises: object, checkers: Sequence[CheckerView]) -> tuple[PromiseRow, ...]:
    """Return a row for each promise of the target, and one on whether the run tested them.

    Args:
        promises: contracts.plugins.Promises as JSON; anything else promises nothing.
        checkers: the verdicts of the run.
    """
    stated: Mapping[str, Any] = promises if isinstance(promises, Mapping) else {}
    # A target that says nothing of delivery has it as durable, also one that knows no messages.
    follows = _names(stated.get("delivered_under")) == _names(stated.get("durable_under"))
    rows = [
        row
        for which, text in _stated(stated)
        if (row := _row(which, text, checkers)).judged_by or which != DELIVERED or not follows
    ]
    if any(TOTAL in JUDGES.get(checker.name, ()) for checker in checkers):
        rows.append(_row(TOTAL, "Every read of all accounts has the same total.", checkers))
    if any(RULES in JUDGES.get(checker.name, ()) for checker in checkers):
        rows.append(
            _row(RULES, "Nodes and clients keep the rules of their own protocol.", checkers)
        )
    if checkers:
        meant = (
            "The run tested this: it ran to its end, faults took effect, and enough was done under"
            " them."
        )
        rows.append(_row(MEANT, meant, checkers))
    return tuple(row for row in rows if row.judged_by or row.text)


def _stated(stated: Mapping[str, Any]) -> Iterable[tuple[int, str]]:
    durable = _names(stated.get("durable_under"))
    if durable:
        yield DURABLE, f"What was acknowledged is kept under {in_families(frozenset(durable))}."
    delivered = _names(stated.get("delivered_under"))
    if delivered:
        under = in_families(frozenset(delivered))
        yield DELIVERED, f"What is kept stays at its offset, and consumers get it, under {under}."
    if linearizable := _names(stated.get("linearizable")):
        names = ", ".join(sorted(linearizable))
        behave = "behave" if len(linearizable) > 1 else "behaves"
        yield (
            LINEARIZABLE,
            f"On each key, {names} {behave} as if done one after the other, each at a moment "
            "between its call and its answer (linearizable).",
        )
    if level := stated.get("isolation"):
        yield ISOLATED, f"Transactions are isolated as {level} asks for (docs/isolation.md)."
    if stated.get("committed_prefix"):
        yield PREFIX, "What is committed is the same, entry by entry, in the logs of all nodes."
    if excludes := _names(stated.get("excludes")):
        yield EXCLUDED, f"None of these is ever seen: {', '.join(sorted(excludes))}."


def _row(which: int, text: str, checkers: Sequence[CheckerView]) -> PromiseRow:
    judges = [checker for checker in checkers if which in JUDGES.get(checker.name, (EXCLUDED,))]
    if not judges:
        return PromiseRow(text, (), "nothing in this run looks at it", "")
    against = {checker.name: _against(which, checker) for checker in judges}
    verdict = _verdict(judges, against)
    return PromiseRow(
        text,
        tuple((checker.name, _own_verdict(checker, against)) for checker in judges),
        _found(judges, against, verdict),
        verdict,
    )


def _against(which: int, checker: CheckerView) -> tuple[tuple[str, int], ...]:
    """Return the checker's findings that break this promise, by kind."""

    def is_against(kind: str) -> bool:
        about = ABOUT.get(record_of(kind).about or "", which)
        return about == which or about not in JUDGES.get(checker.name, ())

    return tuple((kind, count) for kind, count in checker.totals if is_against(kind))


def _own_verdict(checker: CheckerView, against: Mapping[str, Sequence[object]]) -> str:
    """Return the checker's verdict on this promise: its findings may be about another one."""
    is_about_another = checker.verdict == "INVALID" and checker.totals and not against[checker.name]
    return "VALID" if is_about_another else checker.verdict


def _verdict(judges: Sequence[CheckerView], against: Mapping[str, Sequence[object]]) -> str:
    verdicts = {_own_verdict(checker, against) for checker in judges}
    return next(word for word in ("INVALID", "UNKNOWN", "VALID") if word in verdicts)


def _found(
    judges: Sequence[CheckerView],
    against: Mapping[str, Sequence[tuple[str, int]]],
    verdict: str,
) -> str:
    if verdict == "VALID":
        return "no violation found"
    found = (
        finding_texts.summarize(finding_texts.merge_totals(against.values()))
        if verdict == "INVALID"
        else ""
    )
    silent = [
        f"{checker.name}: {checker.summary}"
        for checker in judges
        if _own_verdict(checker, against) == verdict
        and not (verdict == "INVALID" and against[checker.name])
    ]
    return "; ".join(part for part in (found, *silent) if part) or "not known"


def _names(value: object) -> tuple[str, ...]:
    return tuple(map(str, value)) if isinstance(value, list | tuple) else ()


# A target's promises as sentences, from `contracts.plugins.Promises` as JSON.


def promised(promises: object) -> tuple[str, ...]:
    """Return a target's promises (contracts.plugins.Promises as JSON) as sentences."""
    stated: Mapping[str, Any] = promises if isinstance(promises, Mapping) else {}
    sentences = []
    if durable := _names(stated.get("durable_under")):
        survived = in_families(frozenset(durable))
        power = " (power loss counts as one of the disk)" if "power" in durable else ""
        power = "" if "power" in survived else power
        sentences.append(f"an acknowledged append survives {survived}{power}")
    if linearizable := _names(stated.get("linearizable")):
        sentences.append(f"{', '.join(sorted(linearizable))} are linearizable on each queue")
    if level := stated.get("isolation"):
        sentences.append(f"transactions are {level}")
    if stated.get("committed_prefix"):
        sentences.append("committed log prefixes are equal on all nodes")
    delivered = _names(stated.get("delivered_under"))
    if delivered and set(delivered) != set(durable):
        under = in_families(frozenset(delivered))
        sentences.append(f"what is kept stays at its offset under {under}")
    if excludes := _names(stated.get("excludes")):
        sentences.append(f"never shows {', '.join(sorted(excludes))}")
    if note := stated.get("note"):
        sentences.append(str(note).rstrip("."))
    return tuple(sentences)
