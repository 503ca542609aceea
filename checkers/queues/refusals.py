"""Requests that must be refused are refused, with the right code, and soon.

A `misrequest` is a request that must be refused: which one in `input`, in words as "request" in
`extra` (not in older histories), with which code in `expected`; its output is the code of the
answer, 0 if it was carried out. One that fails was refused for a reason that has nothing to do with
the request (no leader, a full disk).

Source: RocketMQ's ResponseCode; jepsen's definite and indefinite errors (resources/errors.edn of
maelstrom).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
import pyarrow as pa

from shaketable.checkers.anomalies.log_rules import conclude, details
from shaketable.checkers.anomalies.observations import (
    NEVER,
    Answers,
    Bools,
    is_valid,
    whole_numbers,
)
from shaketable.checkers.findings import Findings, gather
from shaketable.checkers.queues.quiet_times import (
    answered_between,
    is_one_term,
    quiet_since,
    unanswered_between,
)
from shaketable.harness.contracts.plugins import CheckContext
from shaketable.harness.contracts.verdict import Finding, Verdict
from shaketable.harness.history.schema import request_of

NAME: Final = "refusals"
DONE, WRONG, SILENT = "not-refused", "wrong-refusal", "no-answer"
SUCCESS: Final = 0
BOUND_NS: Final = 1_000_000_000
"""Others are answered within this time if nothing is wrong."""
ASKED: Final = ("misrequest", "delete-topic")


class Refusals:
    """A request that must be refused is refused, by the right code, and soon.

    Judges each topic's operators. No such request is carried out; none is refused with another
    code. One without an answer is a finding if it was quiet for as long as its client waited, one
    leader was in office, another operation was answered in the first second, and no operation of
    another kind was left without an answer: a request may be many steps, each of which waits.
    """

    name = NAME
    tables: tuple[str, ...] = ("operations",)
    partition = "key"

    def check(self, tables: Mapping[str, pa.Table], context: CheckContext) -> pa.Table:
        """Judge one topic's requests."""
        operations = tables["operations"]
        asked = Answers(operations, ASKED)
        findings = Findings()
        is_misrequest = asked.is_("misrequest")
        expected = whole_numbers(asked.table["expected"])
        lacks = (
            is_misrequest & asked.is_ok & ~(asked.has_output & is_valid(asked.table["expected"]))
        )
        if lacks.any():
            raise ValueError(f"operation {asked.op[np.argmax(lacks)]} lacks its codes")
        judged = is_misrequest & asked.is_ok
        is_done = judged & (asked.output == SUCCESS)
        is_wrong = judged & ~is_done & (asked.output != expected)
        _add(DONE, is_done, "was done", asked, findings, context)
        _add(WRONG, is_wrong, "was refused with code {output}", asked, findings, context)
        is_silent = _unanswered(operations, asked, context)
        _add(SILENT, is_silent, "was not answered, though others were", asked, findings, context)
        counts = {"topics": 1, "asked": int(judged.sum()), "not_now": int(asked.is_failed.sum())}
        return findings.table(counts)

    def conclude(self, findings: pa.Table, context: CheckContext) -> Verdict:
        """Join the topics' findings."""
        gathered = gather(findings)
        asked = gathered.sums().get("asked", 0)
        clean = f"all {asked} requests that must be refused were, each with its code"
        return conclude(NAME, gathered, context, clean=clean, what=("asked",))


PLUGIN = Refusals()


def _add(
    kind: str, mask: Bools, what: str, asked: Answers, findings: Findings, context: CheckContext
) -> None:
    def describe(row: int) -> Finding:
        code = asked.table["expected"][row].as_py()
        which = f"the {asked.table['f'][row].as_py()} {asked.input[row]}"
        if request := request_of(asked.table["extra"][row].as_py()):
            which += f' ("{request}")'
        wanted = "" if code is None else f", which is to be refused with code {code},"
        outcome = what.format(output=asked.output[row])
        message = (
            f"{asked.key}: {which} of process {asked.process[row]} (op {asked.op[row]}){wanted}"
            f" {outcome}."
        )
        more = details(context, int(asked.call[row]))
        return Finding(kind, message, asked.key, None, (int(asked.op[row]),), more)

    findings.add(kind, np.flatnonzero(mask).tolist(), describe)


def _unanswered(operations: pa.Table, asked: Answers, context: CheckContext) -> Bools:
    """Return which requests had no answer in quiet times, while all others were answered."""
    until = asked.call + context.patience_ns
    quiet = quiet_since(context, until)
    is_silent: Bools = ~asked.is_ok & ~asked.is_failed & (quiet != NEVER) & (quiet <= asked.call)
    is_silent &= answered_between(operations, asked.call, asked.call + BOUND_NS)
    is_silent &= ~unanswered_between(operations, asked.call - context.patience_ns, until, ASKED)
    for row in np.flatnonzero(is_silent).tolist():
        # The term that ended a request may have been seen late.
        is_silent[row] = is_one_term(context, int(asked.call[row]), int(until[row]))
    return is_silent
