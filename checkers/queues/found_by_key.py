"""Who asks for messages by key is given those that bear it, the newest first, and no others.

A plain `send` (no tag in `expected`) of v bears the key of each range of values that v lies in, and
a unique key. A `find` asks for the range of `expected` values from `input` on; with an `offset` for
those alone that were stored at the same time as the message there. A `find-unique` asks for the
unique key of the value `input`. A `peek` asks by an id that nobody was told: for what stands
`input` bytes behind the begin of a message, which is no message; with 0, right behind that one.

Source: RocketMQ's QueryMessageProcessor and IndexService.queryOffset; apache/rocketmq issues 3613
(a key of the same hash is found), 1919.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
import pyarrow as pa

from shaketable.checkers.anomalies.answers import Answers
from shaketable.checkers.anomalies.log_rules import conclude, details
from shaketable.checkers.anomalies.observations import (
    NEVER,
    NOWHERE,
    Bools,
    Ints,
    is_valid,
    whole_numbers,
)
from shaketable.checkers.findings import Findings, gather
from shaketable.checkers.queues.quiet_times import disturbances
from shaketable.harness.contracts.clients import FOUND_MAX
from shaketable.harness.contracts.plugins import CheckContext
from shaketable.harness.contracts.verdict import Finding, Verdict

NAME: Final = "found-by-key"
UNWANTED, MISSED = "unwanted-key", "missed-key"


class FoundByKey:
    """Asked for messages by key or by id, a queue gives the newest that bear it and no others.

    Judges each queue by itself. No message comes that does not bear the key, none comes twice, and
    no more than were asked for. None is left out that was acknowledged at or before the offset of a
    message that the same node had brought a poll before, while no fault was in force and nobody was
    elected; where as many came as were asked for, none that is newer than these.
    """

    name = NAME
    tables: tuple[str, ...] = ("operations",)
    partition = "key"

    def check(self, tables: Mapping[str, pa.Table], context: CheckContext) -> pa.Table:
        """Judge one queue."""
        operations = tables["operations"]
        looks, sends = _Looks(operations), _Sends(operations)
        findings = Findings()
        _unwanted(looks, sends, findings, context)
        judged = _missed(looks, sends, _shown(operations, looks, context), findings, context)
        counts = {"queues": 1, "looks": len(looks.rows), "found": len(looks.value)}
        return findings.table(counts | {"judged": judged})

    def conclude(self, findings: pa.Table, context: CheckContext) -> Verdict:
        """Join the queues' findings."""
        gathered = gather(findings)
        counts = gathered.sums()
        clean = (
            f"{counts.get('looks', 0)} times messages were asked for by key or id,"
            f" {counts.get('found', 0)} came: of these keys, and no others;"
            f" {counts.get('judged', 0)} times it is known which had to come"
        )
        return conclude(NAME, gathered, context, clean=clean, what=("looks",))


PLUGIN = FoundByKey()


class _Sends:
    """The plain sends of a queue, which bear keys, in the order of their offsets.

    Those of unknown outcome have NOWHERE as their offset, and stand first.
    """

    def __init__(self, operations: pa.Table) -> None:
        self.answers = answers = Answers(operations, ("send",))
        is_plain = ~is_valid(answers.table["expected"]) & ~answers.is_failed
        has_offset = is_valid(answers.table["offset"]) & answers.is_ok
        offset = np.where(has_offset, whole_numbers(answers.table["offset"]), NOWHERE)
        rows = np.flatnonzero(is_plain)
        self.rows = rows[np.argsort(offset[rows], kind="stable")]
        self.offset, self.value = offset[self.rows], answers.input[self.rows]
        self.end = answers.end[self.rows]


class _Looks:
    """Answers to who asked by key or id: `rows` of them, and a row of `row`, `value` a message."""

    def __init__(self, operations: pa.Table) -> None:
        self.answers = answers = Answers(operations, ("find", "find-unique", "peek"))
        self.rows = np.flatnonzero(answers.is_ok)
        answers.require_inputs(answers.is_ok)
        expected = answers.table["expected"]
        lacks = answers.is_ok & answers.is_("find") & ~is_valid(expected)
        if lacks.any():
            raise ValueError(f"operation {answers.op[np.argmax(lacks)]} lacks its range")
        self.is_peek = answers.is_("peek")
        self.is_at = is_valid(answers.table["offset"])
        self.at = whole_numbers(answers.table["offset"])
        self.first = answers.input
        span = np.where(answers.is_("find"), whole_numbers(expected), 1)
        self.stop = self.first + span
        self.row, self.offset, self.value = answers.pairs(answers.is_ok)
        begins = np.searchsorted(self.row, np.arange(len(answers.op) + 1))
        self.begin, self.behind = begins[:-1], begins[1:]

    def told(self, row: int) -> str:
        """Name one: "the find of 64 to 95 by process 3 (op 17)"."""
        answers, first, last = self.answers, int(self.first[row]), int(self.stop[row]) - 1
        f = answers.table["f"][row].as_py()
        what = f"{first} to {last}" if last > first else f"{first}"
        if self.is_peek[row]:
            what = f"{first} bytes behind a message's begin" if first else "a message's end"
        return f"the {f} of {what} by process {answers.process[row]} (op {answers.op[row]})"


def _unwanted(looks: _Looks, sends: _Sends, findings: Findings, context: CheckContext) -> None:
    """Add a finding for each message that should not have come: another's, twice, too many."""
    value, row = looks.value, looks.row
    is_plain = np.isin(value, sends.value)
    bears = is_plain & (value >= looks.first[row]) & (value < looks.stop[row])
    is_right = np.where(looks.is_peek[row], looks.first[row] == 0, bears)
    place = np.arange(len(row)) - looks.begin[row]
    is_repeated = np.zeros(len(row), np.bool_)
    order = np.lexsort((place, looks.offset, row))
    same = (np.diff(row[order]) == 0) & (np.diff(looks.offset[order]) == 0)
    is_repeated[order[1:]] = same
    is_beyond = place >= FOUND_MAX
    unwanted = np.flatnonzero(~is_right | is_repeated | is_beyond)

    def describe(n: int) -> Finding:
        look, answers = int(row[n]), looks.answers
        why = "which does not bear that key"
        if looks.is_peek[look]:
            why = "though no message begins there"
        elif is_right[n]:
            why = "once more" if is_repeated[n] else f"though {FOUND_MAX} were asked for at most"
        key = answers.key
        message = (
            f"{key}: {looks.told(look)} brought {value[n]} of offset {looks.offset[n]}, {why}."
        )
        more = details(context, int(answers.call[look]), value=value[n])
        operations = (int(answers.op[look]),)
        return Finding(UNWANTED, message, key, int(looks.offset[n]), operations, more)

    findings.add(UNWANTED, unwanted.tolist(), describe)


def _shown(operations: pa.Table, looks: _Looks, context: CheckContext) -> Ints:
    """Return for each row how far its node had shown the queue to go before, 0 if nobody knows.

    Only polls count that were called when the last disturbance in front of the look was over.
    """
    polls = Answers(operations, ("poll",))
    # An empty poll shows nothing: its consumer may have been set beyond the queue's end.
    reach = np.zeros(len(polls.op), np.int64)
    row, offset, _ = polls.pairs(polls.is_ok)
    np.maximum.at(reach, row, offset + 1)
    nodes = polls.table["node"].to_pylist()
    shown = np.zeros(len(looks.answers.op), np.int64)
    asked = looks.answers.table["node"].to_pylist()
    quiet = _quiet_since(context, looks.answers.call, looks.answers.end)
    for node in {asked[row] for row in looks.rows.tolist()} - {None}:
        mine = np.flatnonzero(polls.is_ok & np.array([each == node for each in nodes], np.bool_))
        mine = mine[np.argsort(polls.end[mine], kind="stable")]
        for look in looks.rows[[asked[row] == node for row in looks.rows.tolist()]].tolist():
            before = mine[: np.searchsorted(polls.end[mine], looks.answers.call[look])]
            before = before[polls.call[before] >= quiet[look]]
            shown[look] = reach[before].max(initial=0)
    return shown


def _quiet_since(context: CheckContext, calls: Ints, ends: Ints) -> Ints:
    """Return since when nothing had happened to the group until each answer; NEVER: it did then."""
    since = np.zeros(len(calls), np.int64)
    for from_ns, stop_ns in disturbances(context):
        since = np.where(stop_ns < calls, np.maximum(since, stop_ns), since)
        since = np.where((from_ns <= ends) & (stop_ns >= calls), NEVER, since)
    return since


def _missed(
    looks: _Looks, sends: _Sends, shown: Ints, findings: Findings, context: CheckContext
) -> int:
    """Add a finding for each message that had to come and did not; return how many judged."""
    missed: list[tuple[int, int]] = []
    judged = 0
    for row in looks.rows[~looks.is_peek[looks.rows]].tolist():
        owed = _owed(looks, sends, row, int(shown[row]))
        judged += bool(len(owed))
        given = looks.value[looks.begin[row] : looks.behind[row]]
        missed += [(row, int(n)) for n in owed[~np.isin(sends.value[owed], given)]]

    def describe(n: int) -> Finding:
        row, at = missed[n]
        send, answers = int(sends.rows[at]), sends.answers
        message = (
            f"{answers.key}: {looks.told(row)} did not bring {sends.value[at]}, which process"
            f" {answers.process[send]} (op {answers.op[send]}) had sent with that key to offset"
            f" {sends.offset[at]}, though its node had shown the queue up to offset {shown[row]}."
        )
        operations = (int(answers.op[send]), int(looks.answers.op[row]))
        more = details(context, int(sends.end[at]), value=sends.value[at])
        return Finding(MISSED, message, answers.key, int(sends.offset[at]), operations, more)

    findings.add(MISSED, range(len(missed)), describe)
    return judged


def _owed(looks: _Looks, sends: _Sends, row: int, shown: int) -> Ints:
    """Return which sends an answer has to bring."""
    lowest = 0
    count = int(looks.behind[row] - looks.begin[row])
    if count >= FOUND_MAX:
        lowest = int(looks.offset[looks.begin[row] : looks.behind[row]].min())
    first, last = np.searchsorted(sends.offset, (lowest, shown))
    if looks.is_at[row]:
        at = int(looks.at[row])
        first, last = (
            max(first, np.searchsorted(sends.offset, at)),
            min(last, np.searchsorted(sends.offset, at, side="right")),
        )
    owed = np.arange(first, max(first, last))
    value = sends.value[owed]
    bears: Bools = (value >= looks.first[row]) & (value < looks.stop[row])
    return owed[bears]
