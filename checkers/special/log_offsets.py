"""Logs whose appends return their offsets: decided by the offsets, without a search.

checkers.special.log_order has the rules, and why they suffice; here they are applied to one
partition whose log starts empty, and to which no value was appended twice.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from shaketable.checkers.search.budget import UNLIMITED, Limits
from shaketable.checkers.search.problem import Problem
from shaketable.checkers.special.decision import Accusation, Decision
from shaketable.checkers.special.log_order import (
    NO_ROW,
    Anomaly,
    Queue,
    anomalies,
    load_queue,
    repeated_value,
)
from shaketable.harness.history.schema import OPERATIONS

METHOD = "log-offsets"
OPERATION_BYTES = 100
"""What the passes hold at a time for each operation, at the most (measured)."""

_WHY = {
    "negative-offset": "{0} is about an offset that no log has",
    "offset-given-twice": "{0} and {1} were both given one offset",
    "phantom-read": "{0} returned what nobody ever appended",
    "aborted-read": "{0} returned what {1} certainly failed to append",
    "inconsistent-read": "{0} returned another value than {1} put there",
    "duplicate": "{0} returned a value that {1} put at another offset",
    "append-order": "{0} got a lower offset than {1}, which had returned before it was called",
    "future-read": "{0} had returned a value before {1}, at or below its offset, was called",
    "future-end": "{0} had returned before {1}, which stands below that end, was called",
    "stale-read": "{0} found nothing, though {1} had returned before it was called",
    "stale-end": "{0} leaves out {1}, which had returned before it was called",
    "read-went-back": "{0} found nothing, though {1} had seen the log longer before",
    "end-went-back": "{0} answered less than {1} had seen before",
    "unexplained-offset": (
        "{0} shows that an offset is taken, but no append that could stand there had been called"
    ),
}


def decide(problem: Problem, operations: pa.Table, limits: Limits = UNLIMITED) -> Decision | None:
    """Decide a log's history; None if values repeat, or are not integers.

    Raises:
        MemorySpentError: it takes more memory than the limits allow.
        TimeSpentError: the time is over.
    """
    if problem.start != () or operations["extra"].null_count < operations.num_rows:
        return None
    limits.require_memory(OPERATION_BYTES * operations.num_rows)
    queue = load_queue(operations.cast(OPERATIONS))
    limits.check_time()
    if repeated_value(queue) is not None:
        return None
    limits.check_time()
    found = anomalies(queue, limits)
    return Decision(METHOD, _accusation(queue, found[0]) if found else None)


def _accusation(queue: Queue, anomaly: Anomaly) -> Accusation:
    """Accuse the first operation of an anomaly, with its witness."""
    rows = [int(anomaly.rows[0])]
    if int(anomaly.witnesses[0]) != NO_ROW:
        rows.append(int(anomaly.witnesses[0]))
    ops = tuple(int(op) for op in np.asarray(queue.op)[rows])
    return Accusation(ops, _WHY[anomaly.kind], closed=False)
