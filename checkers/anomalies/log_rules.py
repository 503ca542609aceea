"""What the checkers of one log have in common: rules over a `Log`, findings and their texts.

Also which promises an anomaly breaks; one that breaks none is observed, not judged. An anomaly is a
violation if the target promises linearizable operations that cannot show it, or excludes it by name
(`Promises.excludes`). A loss of data is a violation only under faults that an acknowledged write
must survive. Source: DESIGN.md decision 5.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from shaketable.checkers.anomalies.observations import NEVER, NOWHERE, Log, Reads, load_log
from shaketable.checkers.findings import Findings, Gathered, fault_name, gather, settle, windows_at
from shaketable.harness.contracts.finding_kinds import ANOMALIES as ANOMALIES  # noqa: PLC0414 - named so by users
from shaketable.harness.contracts.finding_kinds import kinds_where, record_of
from shaketable.harness.contracts.plugins import CheckContext
from shaketable.harness.contracts.verdict import Finding, Verdict

REPEATED_SHOWN_MAX: Final = 5
"""Repeated values of one log that the verdict names."""

Rule = Callable[[Log, Findings, CheckContext], Mapping[str, int]]
"""Adds what it finds in a log to the findings; returns counts that add up over logs."""


def check_log(
    rules: Sequence[Rule], operations: pa.Table, context: CheckContext, *, needs_unique: bool
) -> pa.Table:
    """Apply rules to one log's operations; return rows of FINDINGS.

    `needs_unique`: the rules identify a message by its value, so values sent twice are left out,
    and the verdict cannot be VALID.

    Raises:
        ValueError: an operation lacks what its outcome needs, or is a whole transaction.
    """
    log = load_log(operations)
    findings = Findings()
    counts: dict[str, Any] = {
        "logs": 1,
        "sends_acknowledged": int(log.sends.is_ok.sum()),
        "sends_unknown": int((~log.sends.is_ok & ~log.sends.is_failed).sum()),
        "messages_read": len(log.reads.op),
    }
    for rule in rules:
        counts |= rule(log, findings, context)
    if needs_unique and len(log.repeated):
        counts["values_repeated"] = len(log.repeated)
        shown = log.repeated[:REPEATED_SHOWN_MAX].tolist()
        counts["repeated"] = [f"{value} in {log.key}" for value in shown]
    return findings.table(counts)


def conclude_log(
    name: str,
    findings: pa.Table,
    context: CheckContext,
    *,
    clean: str,
    what: Collection[str],
    doubts: Sequence[str] = (),
) -> Verdict:
    """Join the logs' findings into the verdict of checker `name`; see `conclude`."""
    gathered = gather(findings)
    doubts = [*doubts, *repeated_values(gathered)]
    return conclude(name, gathered, context, clean=clean, what=what, doubts=doubts)


def repeated_values(gathered: Gathered) -> list[str]:
    """Return the doubt that values which were sent more than once raise, if there are any."""
    repeated = [value for checked in gathered.checked for value in checked.get("repeated", ())]
    if not repeated:
        return []
    shown = ", ".join(repeated[:REPEATED_SHOWN_MAX])
    return [
        f"{gathered.sums()['values_repeated']} values were sent more than once, so messages"
        f" cannot be distinguished by them: {shown}"
    ]


def conclude(
    name: str,
    gathered: Gathered,
    context: CheckContext,
    *,
    clean: str,
    what: Collection[str],
    doubts: Sequence[str] = (),
    nothing: str = "nothing of known outcome to look at",
) -> Verdict:
    """Join the findings into the verdict of checker `name`, by the target's promises.

    `clean` is the summary if nothing was found. If all of the counts `what` are 0, nothing was
    checked, and the verdict is UNKNOWN because of `nothing`.
    """
    counts = gathered.sums()
    reasons = list(doubts)
    if not any(counts.get(each) for each in what):
        reasons.insert(0, nothing)
    return settle(
        name,
        gathered,
        context,
        clean=clean,
        doubts=reasons,
        doubtful=kinds_where(lambda kind: kind.needs_all_events),
        observed=lambda kind: why_not_promised(kind, context),
    )


def send_name(log: Log, row: int) -> str:
    """Return a send's name for messages: "the send of 5 at offset 3 by process 0 (op 12)"."""
    sends, what = log.sends, f"the {log.verb} of {log.sends.value[row]}"
    at = "" if sends.offset[row] == NOWHERE else f" at offset {sends.offset[row]}"
    return f"{what}{at} by process {sends.process[row]} (op {sends.op[row]})"


def read_name(reads: Reads, row: int) -> str:
    """Return a read's name for messages: "the poll by process 2 (op 17)"."""
    what = "poll" if reads.is_poll[row] else "read"
    return f"the {what} by process {reads.process[row]} (op {reads.op[row]})"


def details(context: CheckContext, time_ns: int, **more: Any) -> dict[str, Any]:
    """Return a finding's details: `more`, and the faults in force at that time."""
    extra = {
        name: int(each) if isinstance(each, np.integer) else each for name, each in more.items()
    }
    if time_ns != NEVER and (inside := windows_at(context, int(time_ns))):
        extra["faults"] = [fault_name(window) for window in inside]
    return extra


def finding(
    kind: str,
    log: Log,
    offset: int,
    operations: Sequence[int],
    message: str,
    extra: Mapping[str, Any],
) -> Finding:
    """Return a finding about a place in a log; `message` is a sentence without its full stop."""
    place = None if offset == NOWHERE else int(offset)
    ids = tuple(dict.fromkeys(int(op) for op in operations))
    return Finding(kind, f"{log.key}: {message}.", log.key, place, ids, dict(extra))


# Which promises an anomaly breaks.


def why_not_promised(kind: str, context: CheckContext) -> str | None:
    """Return why an anomaly breaks no promise of the target; None if it breaks one."""
    promises = context.promises
    record = record_of(kind)
    groups = record.excluded_by
    assert groups is not None, f"{kind}: its record does not say which promise excludes it"
    is_linearizable = all(group & promises.linearizable for group in groups)
    if not is_linearizable and kind not in promises.excludes:
        return "the target does not promise it"
    beyond = context.unpromised_faults(promises.durable_under)
    if record.needs_durability and beyond:
        return f"the target promises no durability under {beyond}"
    beyond = context.unpromised_faults(promises.all_delivered_under)
    if record.needs_delivery and beyond:
        return f"the target promises no delivery under {beyond}"
    return None
