"""Lookups of messages, by key and by tags, return those that match and no others.

A query by key returns the messages that have the key, the newest first.

A plain `send` (no tag in `expected`) of v has the key of each range of values that contains v, and
a unique key. A `find` queries the range of `expected` values from `input` on; with an `offset` only
messages that were stored at the same time as the message there. A `find-unique` queries the unique
key of the value `input`. A `peek` queries by an id that was never handed out: for what is `input`
bytes after the start of a message, which is no message; with 0, right after that message.

Source: RocketMQ's QueryMessageProcessor and IndexService.queryOffset; apache/rocketmq issues 3613
(a key of the same hash is found), 1919.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
import pyarrow as pa

from shaketable.checkers.anomalies.log_rules import conclude, details
from shaketable.checkers.anomalies.observations import (
    NEVER,
    NOWHERE,
    Answers,
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

FOUND_BY_KEY: Final = "found-by-key"
UNWANTED_BY_KEY, MISSED_BY_KEY = "unwanted-key", "missed-key"


class FoundByKey:
    """A query by key or id returns the newest messages that have it, and no others.

    Judges each queue by itself. No message is returned that does not have the key, none twice, and
    no more than were requested. No acknowledged message is missing whose offset is at or below that
    of a message which the same node had returned to a poll before, while no fault was in force and
    no leader was elected; of a full answer only messages newer than its oldest must be there.
    """

    name = FOUND_BY_KEY
    tables: tuple[str, ...] = ("operations",)
    partition = "key"
    needs_run = True

    def check(self, tables: Mapping[str, pa.Table], context: CheckContext) -> pa.Table:
        """Judge one queue."""
        operations = tables["operations"]
        queries, sends = _Queries(operations), _Sends(operations)
        findings = Findings()
        _wrongly_found(queries, sends, findings, context)
        judged = _missed_by_key(
            queries, sends, _shown(operations, queries, context), findings, context
        )
        counts = {"queues": 1, "looks": len(queries.rows), "found": len(queries.value)}
        return findings.table(counts | {"judged": judged})

    def conclude(self, findings: pa.Table, context: CheckContext) -> Verdict:
        """Join the queues' findings."""
        gathered = gather(findings)
        counts = gathered.sums()
        clean = (
            f"{counts.get('looks', 0)} times messages were queried by key or id,"
            f" {counts.get('found', 0)} came: of these keys, and no others;"
            f" {counts.get('judged', 0)} times it is known which had to come"
        )
        return conclude(FOUND_BY_KEY, gathered, context, clean=clean, what=("looks",))


class _Sends:
    """The plain sends of a queue, which have keys, in the order of their offsets.

    Indeterminate ones have the offset NOWHERE, and come first.
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


class _Queries:
    """Queries by key or id: `rows` of them, and for each returned message its `row` and `value`."""

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
        starts = np.searchsorted(self.row, np.arange(len(answers.op) + 1))
        self.start_row, self.stop_row = starts[:-1], starts[1:]

    def label(self, row: int) -> str:
        """Return one as text: "the find of 64 to 95 by process 3 (op 17)"."""
        answers, first, last = self.answers, int(self.first[row]), int(self.stop[row]) - 1
        f = answers.table["f"][row].as_py()
        what = f"{first} to {last}" if last > first else f"{first}"
        if self.is_peek[row]:
            what = f"{first} bytes after a message's start" if first else "a message's end"
        return f"the {f} of {what} by process {answers.process[row]} (op {answers.op[row]})"


def _wrongly_found(
    queries: _Queries, sends: _Sends, findings: Findings, context: CheckContext
) -> None:
    """Add a finding for each unwanted message: without the key, twice, or one too many."""
    value, row = queries.value, queries.row
    is_plain = np.isin(value, sends.value)
    bears = is_plain & (value >= queries.first[row]) & (value < queries.stop[row])
    is_right = np.where(queries.is_peek[row], queries.first[row] == 0, bears)
    place = np.arange(len(row)) - queries.start_row[row]
    is_repeated = np.zeros(len(row), np.bool_)
    order = np.lexsort((place, queries.offset, row))
    same = (np.diff(row[order]) == 0) & (np.diff(queries.offset[order]) == 0)
    is_repeated[order[1:]] = same
    is_beyond = place >= FOUND_MAX
    unwanted = np.flatnonzero(~is_right | is_repeated | is_beyond)

    def describe(n: int) -> Finding:
        query, answers = int(row[n]), queries.answers
        why = "which does not bear that key"
        if queries.is_peek[query]:
            why = "though no message starts there"
        elif is_right[n]:
            why = "once more" if is_repeated[n] else f"though {FOUND_MAX} were requested at most"
        key = answers.key
        message = (
            f"{key}: {queries.label(query)} brought {value[n]} of offset"
            f" {queries.offset[n]}, {why}."
        )
        more = details(context, int(answers.call[query]), value=value[n])
        operations = (int(answers.op[query]),)
        return Finding(UNWANTED_BY_KEY, message, key, int(queries.offset[n]), operations, more)

    findings.add(UNWANTED_BY_KEY, unwanted.tolist(), describe)


def _shown(operations: pa.Table, queries: _Queries, context: CheckContext) -> Ints:
    """Return for each query up to which offset its node had returned messages before, or 0.

    Only polls count that were called after the last disturbance before the query.
    """
    polls = Answers(operations, ("poll",))
    # An empty poll is no evidence: its consumer may have been set beyond the queue's end.
    reach = np.zeros(len(polls.op), np.int64)
    row, offset, _ = polls.pairs(polls.is_ok)
    np.maximum.at(reach, row, offset + 1)
    nodes = polls.table["node"].to_pylist()
    shown = np.zeros(len(queries.answers.op), np.int64)
    asked = queries.answers.table["node"].to_pylist()
    quiet = _quiet_since(context, queries.answers.call, queries.answers.end)
    for node in {asked[row] for row in queries.rows.tolist()} - {None}:
        mine = np.flatnonzero(polls.is_ok & np.array([each == node for each in nodes], np.bool_))
        mine = mine[np.argsort(polls.end[mine], kind="stable")]
        for query in queries.rows[[asked[row] == node for row in queries.rows.tolist()]].tolist():
            before = mine[: np.searchsorted(polls.end[mine], queries.answers.call[query])]
            before = before[polls.call[before] >= quiet[query]]
            shown[query] = reach[before].max(initial=0)
    return shown


def _quiet_since(context: CheckContext, calls: Ints, ends: Ints) -> Ints:
    """Return since when each query had been undisturbed; NEVER if it was disturbed meanwhile."""
    since = np.zeros(len(calls), np.int64)
    for from_ns, stop_ns in disturbances(context):
        since = np.where(stop_ns < calls, np.maximum(since, stop_ns), since)
        since = np.where((from_ns <= ends) & (stop_ns >= calls), NEVER, since)
    return since


def _missed_by_key(
    queries: _Queries, sends: _Sends, shown: Ints, findings: Findings, context: CheckContext
) -> int:
    """Add a finding for each missing message; return how many queries were judged."""
    missed: list[tuple[int, int]] = []
    judged = 0
    for row in queries.rows[~queries.is_peek[queries.rows]].tolist():
        owed = _owed(queries, sends, row, int(shown[row]))
        judged += bool(len(owed))
        given = queries.value[queries.start_row[row] : queries.stop_row[row]]
        missed += [(row, int(n)) for n in owed[~np.isin(sends.value[owed], given)]]

    def describe(n: int) -> Finding:
        row, at = missed[n]
        send, answers = int(sends.rows[at]), sends.answers
        message = (
            f"{answers.key}: {queries.label(row)} did not bring {sends.value[at]}, which process"
            f" {answers.process[send]} (op {answers.op[send]}) had sent with that key to offset"
            f" {sends.offset[at]}, though its node had shown the queue up to offset {shown[row]}."
        )
        operations = (int(answers.op[send]), int(queries.answers.op[row]))
        more = details(context, int(sends.end[at]), value=sends.value[at])
        return Finding(MISSED_BY_KEY, message, answers.key, int(sends.offset[at]), operations, more)

    findings.add(MISSED_BY_KEY, range(len(missed)), describe)
    return judged


def _owed(queries: _Queries, sends: _Sends, row: int, shown: int) -> Ints:
    """Return the sends that a query must return."""
    lowest = 0
    count = int(queries.stop_row[row] - queries.start_row[row])
    if count >= FOUND_MAX:
        lowest = int(queries.offset[queries.start_row[row] : queries.stop_row[row]].min())
    first, last = np.searchsorted(sends.offset, (lowest, shown))
    if queries.is_at[row]:
        at = int(queries.at[row])
        first, last = (
            max(first, np.searchsorted(sends.offset, at)),
            min(last, np.searchsorted(sends.offset, at, side="right")),
        )
    owed = np.arange(first, max(first, last))
    value = sends.value[owed]
    bears: Bools = (value >= queries.first[row]) & (value < queries.stop[row])
    return owed[bears]


# A selection by tags returns exactly the messages that have one of them.
#
# A `send` has its tag in `expected`, null for none; batches and delayed messages have none. A
# `select` has its tags in `expected`, tag n as bit n, and its first offset in `input`; the answer's
# `offset` is where the broker stopped, and its messages are what it found before that.
#
# Source: RocketMQ's documentation of tag filtering; FilterAPI, DefaultMQPushConsumerImpl.

TAG_SELECTION: Final = "tag-selection"
UNWANTED_BY_TAGS, MISSED_BY_TAGS = "unwanted-tag", "missed-tag"
NO_TAG: Final = -1


class TagSelection:
    """A poll with tags returns all messages that have them, and no others.

    Judges each queue by itself: no message is returned that was not sent with such a tag, and no
    acknowledged one is missing whose offset the answer passed.
    """

    name = TAG_SELECTION
    tables: tuple[str, ...] = ("operations",)
    partition = "key"
    needs_run = True

    def check(self, tables: Mapping[str, pa.Table], context: CheckContext) -> pa.Table:
        """Judge one queue."""
        selections = _Selections(tables["operations"])
        sends = Answers(tables["operations"], ("send", "append"))
        tags = np.where(is_valid(sends.table["expected"]), _numbers(sends, "expected"), NO_TAG)
        findings = Findings()
        _wrongly_selected(selections, sends, tags, findings, context)
        _missed_by_tags(selections, sends, tags, findings, context)
        counts = {
            "queues": 1,
            "selections": len(selections.rows),
            "selected": len(selections.value),
        }
        return findings.table(counts)

    def conclude(self, findings: pa.Table, context: CheckContext) -> Verdict:
        """Join the queues' findings."""
        gathered = gather(findings)
        counts = gathered.sums()
        clean = (
            f"{counts.get('selections', 0)} times tags were requested, {counts.get('selected', 0)}"
            " messages came: all that bear them, and no others"
        )
        return conclude(TAG_SELECTION, gathered, context, clean=clean, what=("selected",))


class _Selections:
    """Selections: `rows` of them, and for each returned message its `row` and `value`."""

    def __init__(self, operations: pa.Table) -> None:
        self.answers = answers = Answers(operations, ("select",))
        self.rows = np.flatnonzero(answers.is_ok)
        answers.require_inputs(answers.is_ok)
        for column in ("expected", "offset"):
            if (answers.is_ok & ~is_valid(answers.table[column])).any():
                raise ValueError(f"a select lacks its {column}")
        self.tags, self.start = _numbers(answers, "expected"), answers.input
        self.stop = _numbers(answers, "offset")
        self.row, self.offset, self.value = answers.pairs(answers.is_ok)

    def label(self, row: int) -> str:
        """Return one as text: "the select of tag 1 by process 3 (op 17)"."""
        answers, tags = self.answers, int(self.tags[row])
        names = [str(tag) for tag in range(tags.bit_length()) if tags >> tag & 1]
        who = f"process {answers.process[row]} (op {answers.op[row]})"
        return f"the select of {'tag' if len(names) == 1 else 'tags'} {', '.join(names)} by {who}"


def _numbers(answers: Answers, column: str) -> Ints:
    return whole_numbers(answers.table[column])


def _wrongly_selected(
    selections: _Selections, sends: Answers, tags: Ints, findings: Findings, context: CheckContext
) -> None:
    """Add a finding for each returned message that was not sent with one of the tags."""
    wanted = np.zeros(len(selections.value), bool)
    for tag in np.unique(tags[tags != NO_TAG]).tolist():
        bearing = sends.input[~sends.is_failed & (tags == tag)]
        wanted |= (selections.tags[selections.row] >> tag & 1 == 1) & np.isin(
            selections.value, bearing
        )
    unwanted = np.flatnonzero(~wanted)
    order = np.argsort(sends.input, kind="stable")

    def describe(n: int) -> Finding:
        row, value = int(selections.row[n]), int(selections.value[n])
        at = int(np.searchsorted(sends.input[order], value))
        send = int(order[at]) if at < len(order) and sends.input[order[at]] == value else NOWHERE
        operations = [int(selections.answers.op[row])]
        what = "which no client sent with a tag"
        if send != NOWHERE:
            operations.append(int(sends.op[send]))
            bore = f"with tag {tags[send]}" if tags[send] != NO_TAG else "without one"
            what = f"which process {sends.process[send]} (op {sends.op[send]}) had sent {bore}"
        key, offset = selections.answers.key, int(selections.offset[n])
        message = f"{key}: {selections.label(row)} brought {value}, {what}."
        more = details(context, int(selections.answers.call[row]), value=value)
        return Finding(UNWANTED_BY_TAGS, message, key, offset, tuple(operations), more)

    findings.add(UNWANTED_BY_TAGS, unwanted.tolist(), describe)


def _missed_by_tags(
    selections: _Selections, sends: Answers, tags: Ints, findings: Findings, context: CheckContext
) -> None:
    """Add a finding for each acknowledged message that an answer passed without returning it."""
    has_offset = is_valid(sends.table["offset"])
    acked = np.flatnonzero(sends.is_ok & has_offset & (tags != NO_TAG))
    offset = _numbers(sends, "offset")
    acked = acked[np.argsort(offset[acked], kind="stable")]
    of_tags = {
        asked: acked[asked >> tags[acked] & 1 == 1]
        for asked in np.unique(selections.tags[selections.rows]).tolist()
    }
    values = np.split(selections.value, np.flatnonzero(np.diff(selections.row)) + 1)
    brought = {int(selections.row[at]): set(part.tolist()) for at, part in _starts(values)}
    missed: list[tuple[int, int]] = []
    for row in selections.rows.tolist():
        mine = of_tags[int(selections.tags[row])]
        first, last = np.searchsorted(offset[mine], (selections.start[row], selections.stop[row]))
        given = brought.get(row, set())
        missed += [
            (row, send) for send in mine[first:last].tolist() if int(sends.input[send]) not in given
        ]

    def describe(n: int) -> Finding:
        row, send = missed[n]
        key = selections.answers.key
        is_one = int(selections.tags[row]).bit_count() == 1
        which = "that tag" if is_one else f"tag {tags[send]}"
        message = (
            f"{key}: {selections.label(row)} went from offset {selections.start[row]} to"
            f" {selections.stop[row]} without {sends.input[send]}, which process"
            f" {sends.process[send]} (op {sends.op[send]}) had sent with {which} to offset"
            f" {offset[send]}."
        )
        operations = (int(sends.op[send]), int(selections.answers.op[row]))
        more = details(context, int(sends.end[send]), value=sends.input[send])
        return Finding(MISSED_BY_TAGS, message, key, int(offset[send]), operations, more)

    findings.add(MISSED_BY_TAGS, range(len(missed)), describe)


def _starts(parts: list[Ints]) -> list[tuple[int, Ints]]:
    """Return each part that is not empty, with its start in the whole."""
    starts = np.cumsum([0, *map(len, parts)])
    return [(int(starts[n]), part) for n, part in enumerate(parts) if len(part)]


PLUGINS = (FoundByKey(), TagSelection())
