"""Requests that must be refused are refused, with the right code, and soon.

A `misrequest` is a request that must be refused: which one in `input`, in words as "request" in
`extra` (not in older histories), with which code in `expected`; its output is the code of the
answer, 0 if it was carried out. One that fails was refused for a reason that has nothing to do with
the request (no leader, a full disk). The error of one that was answered with a code that leaves
open whether it was done begins with "code 1:".

Source: RocketMQ's ResponseCode; jepsen's definite and indefinite errors (resources/errors.edn of
maelstrom).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

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
SETTLED_NS: Final = 2_000_000_000
"""For so long after a fault a leader may leave open whether something was done: it waits for a
majority that it has lost."""
OPEN: Final = r"^code \d+: [^\[]"
"""The error of an answer that leaves open whether it was done, as clients report it. One that names
a code of DLedger (501, no quorum in term; 502, none in time) tells why."""
OPEN_MIN: Final = 2
"""Fewer such answers to one request may be due to its leader."""
ASKED: Final = ("misrequest", "delete-topic")


class Refusals:
    """Invalid requests are refused promptly, with the right response code.

    Judges each topic's operators. No such request is carried out; none is refused with another
    code. Nor is one always answered with a code that leaves open whether it was done: twice and
    more, never with another code, and once in a quiet time. One without an answer is
    a finding if it was quiet for as long as its client waited, one leader was in office, another
    operation was answered in the first second, and no operation of another kind was left without
    an answer: a request may be many steps, each of which waits.
    """

    name = NAME
    tables: tuple[str, ...] = ("operations",)
    partition = "key"
    needs_run = True

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
        is_open = is_misrequest & _left_open(asked, context)
        what = 'was answered "{error}", which leaves open whether it was done'
        _add(WRONG, is_open, what, asked, findings, context)
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
        outcome = what.format(output=asked.output[row], error=asked.table["error"][row].as_py())
        message = (
            f"{asked.key}: {which} of process {asked.process[row]} (op {asked.op[row]}){wanted}"
            f" {outcome}."
        )
        more = details(context, int(asked.call[row]))
        return Finding(kind, message, asked.key, None, (int(asked.op[row]),), more)

    findings.add(kind, np.flatnonzero(mask).tolist(), describe)


def _left_open(asked: Answers, context: CheckContext) -> Bools:
    """Return which requests were answered as no request that must be refused may be.

    One that needs a majority may be, as its leader loses it. When it was answered is not known.
    """
    errors = pc.fill_null(asked.table["error"], "")
    is_open: Bools = np.asarray(pc.match_substring_regex(errors, OPEN)) & ~asked.is_failed
    which, times = np.unique(asked.input[is_open], return_counts=True)
    is_open &= np.isin(asked.input, which[times >= OPEN_MIN])
    is_open &= ~np.isin(asked.input, asked.input[asked.is_ok])
    soon = asked.call + BOUND_NS
    quiet = quiet_since(context, soon, recovery_ns=SETTLED_NS)
    is_open &= (quiet != NEVER) & (quiet <= asked.call)
    return is_open


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
