"""A selection by tags returns exactly the messages that have one of them.

A `send` has its tag in `expected`, null for none; batches and delayed messages have none. A
`select` has its tags in `expected`, tag n as bit n, and its first offset in `input`; the answer's
`offset` is where the broker stopped, and its messages are what it found before that.

Source: RocketMQ's documentation of tag filtering; FilterAPI, DefaultMQPushConsumerImpl.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
import pyarrow as pa

from shaketable.checkers.anomalies.answers import Answers
from shaketable.checkers.anomalies.log_rules import conclude, details
from shaketable.checkers.anomalies.observations import NOWHERE, Ints, is_valid, whole_numbers
from shaketable.checkers.findings import Findings, gather
from shaketable.harness.contracts.plugins import CheckContext
from shaketable.harness.contracts.verdict import Finding, Verdict

NAME: Final = "tag-selection"
UNWANTED, MISSED = "unwanted-tag", "missed-tag"
NO_TAG: Final = -1


class TagSelection:
    """Asked for the messages of some tags, a queue gives all of them and no others.

    Judges each queue by itself: no message is returned that was not sent with such a tag, and no
    acknowledged one is missing whose offset the answer passed.
    """

    name = NAME
    tables: tuple[str, ...] = ("operations",)
    partition = "key"

    def check(self, tables: Mapping[str, pa.Table], context: CheckContext) -> pa.Table:
        """Judge one queue."""
        selections = _Selections(tables["operations"])
        sends = Answers(tables["operations"], ("send", "append"))
        tags = np.where(is_valid(sends.table["expected"]), _numbers(sends, "expected"), NO_TAG)
        findings = Findings()
        _unwanted(selections, sends, tags, findings, context)
        _missed(selections, sends, tags, findings, context)
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
            f"{counts.get('selections', 0)} times tags were asked for, {counts.get('selected', 0)}"
            " messages came: all that bear them, and no others"
        )
        return conclude(NAME, gathered, context, clean=clean, what=("selected",))


PLUGIN = TagSelection()


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


def _unwanted(
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
        what = "which nobody sent with a tag"
        if send != NOWHERE:
            operations.append(int(sends.op[send]))
            bore = f"with tag {tags[send]}" if tags[send] != NO_TAG else "without one"
            what = f"which process {sends.process[send]} (op {sends.op[send]}) had sent {bore}"
        key, offset = selections.answers.key, int(selections.offset[n])
        message = f"{key}: {selections.label(row)} brought {value}, {what}."
        more = details(context, int(selections.answers.call[row]), value=value)
        return Finding(UNWANTED, message, key, offset, tuple(operations), more)

    findings.add(UNWANTED, unwanted.tolist(), describe)


def _missed(
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
        return Finding(MISSED, message, key, int(offset[send]), operations, more)

    findings.add(MISSED, range(len(missed)), describe)


def _starts(parts: list[Ints]) -> list[tuple[int, Ints]]:
    """Return each part that is not empty, with its start in the whole."""
    starts = np.cumsum([0, *map(len, parts)])
    return [(int(starts[n]), part) for n, part in enumerate(parts) if len(part)]
