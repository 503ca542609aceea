"""The schemas: events and operations (DESIGN.md decision 14), log entries, findings, rows.

*Events* have one row for each event, and are what is recorded. *Operations* have one row for each
operation, and are the checkers' contract. *Entries* are what `Target.read_log` yields. Event types
are Jepsen's: invoke, then ok (happened), fail (did not happen) or info (unknown: may take effect at
any later time, or never).
"""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa

NEMESIS_PROCESS = -1
"""The process number of faults in a history (Jepsen's `:nemesis`)."""

APPENDING = ("append", "send")
"""Names of operations that append a value to a log or queue."""
BATCH = "batch"
"""Appends `expected` values to a queue, from `input` on, at consecutive offsets: all or none."""
DELAY = "delay"
"""Sends a value that is appended later: the answer has no offset."""
TRANSACTION = "txn"
"""The name of an operation that is a list of micro-operations, in `extra`."""
WRITING = ("write", "cas", "add")
"""Names of operations that change a register, a set or a counter."""

EVENTS = pa.schema(
    [
        ("index", pa.int64()),
        ("time_ns", pa.int64()),  # monotonic, since the run's start
        ("process", pa.int64()),
        ("type", pa.string()),  # invoke | ok | fail | info
        ("f", pa.string()),
        ("key", pa.string()),
        ("value", pa.string()),  # JSON
        ("error", pa.string()),
        ("node", pa.string()),  # the node that answered, if known
    ]
)

OPERATIONS = pa.schema(
    [
        ("op", pa.int64()),  # index of the invoke event: the operation's id
        ("process", pa.int64()),
        ("f", pa.string()),
        ("key", pa.string()),
        ("input", pa.int64()),  # the value to append or write; null if f takes none
        ("expected", pa.int64()),  # cas: the value that it compares with; else null
        ("output", pa.int64()),  # the value read, or the end offset; null if none
        ("offset", pa.int64()),  # append: the assigned offset (ok only); read: the requested offset
        ("call_ns", pa.int64()),
        ("return_ns", pa.int64()),  # null if the outcome is unknown (info, or no completion)
        ("outcome", pa.string()),  # ok | fail | info
        ("error", pa.string()),
        ("node", pa.string()),
        ("extra", pa.string()),  # JSON; null if the columns hold everything, see below
    ]
)
"""Values that are not int64 are in `extra`, a JSON object: its "input" and "output" replace the
columns of those names, which are null then (texts of a key-value store, the list that a set's read
returns, the micro-operations of a transaction). An "output" of messages, (offset, value), may have
"attempts" beside it: for each message, how often it was delivered before. A "request" says in words
what the number in `input` stands for."""


def request_of(extra: str | None) -> str:
    """Return the "request" in an operation's `extra`; "" if it has none, or is no such JSON."""
    try:
        request = json.loads(extra or "{}").get("request")
    except (ValueError, AttributeError, RecursionError):
        return ""
    return request if isinstance(request, str) else ""


OPERATIONS_CODED = pa.schema(
    [
        pa.field(field.name, pa.dictionary(pa.int32(), pa.string()))
        if field.type == pa.string()
        else field
        for field in OPERATIONS
    ]
)
"""OPERATIONS with dictionary-encoded texts, so that rows are grouped without comparing texts."""

ENTRIES = pa.schema(
    [
        ("node", pa.string()),
        ("index", pa.int64()),  # index in the replicated log, from 0
        ("term", pa.int64()),
        ("position", pa.int64()),  # byte position in the replicated log
        ("size", pa.int64()),
        ("crc", pa.int64()),  # CRC-32 of the entry's whole body, computed by the reader
        ("key", pa.string()),  # the queue; null for entries that are not user messages
        ("offset", pa.int64()),  # offset in that queue; null likewise
        ("value", pa.int64()),  # the value appended; null likewise
        ("problem", pa.string()),  # what is wrong with the stored entry; null if nothing
    ]
)

FINDINGS = pa.schema(
    [
        ("kind", pa.string()),
        ("key", pa.string()),
        ("offset", pa.int64()),
        ("count", pa.int64()),
        ("operations", pa.list_(pa.int64())),
        ("message", pa.string()),
        ("details", pa.string()),  # JSON
    ]
)


# ---- rows --------------------------------------------------------------------------------
#
# Events and operations as fixed-size rows, in which the export handles millions. Texts are numbers
# of a table of texts (`NO_TEXT` for none); `has` has a bit for each optional number that is set.

NO_TEXT = -1
FIRST_TEXTS = ("invoke", "ok", "fail", "info", "")
"""Every table of texts starts with these, so kernels know their numbers."""
INVOKE, OK, FAIL, INFO, EMPTY = range(len(FIRST_TEXTS))

HAS_INPUT, HAS_OUTPUT, HAS_OFFSET, HAS_EXPECTED, HAS_RETURN = 1, 2, 4, 8, 16

EVENT_ROW = np.dtype(
    [
        ("time_ns", np.int64),
        ("process", np.int64),
        ("input", np.int64),
        ("output", np.int64),
        ("offset", np.int64),
        ("expected", np.int64),
        ("type", np.int32),
        ("f", np.int32),
        ("key", np.int32),
        ("error", np.int32),
        ("node", np.int32),
        ("extra", np.int32),
        ("has", np.int64),
    ]
)
"""One event as recorded (harness.history.segments.Event)."""

EVENT_TEXTS = ("type", "f", "key", "error", "node", "extra")
EVENT_NUMBERS = {
    "input": HAS_INPUT,
    "output": HAS_OUTPUT,
    "offset": HAS_OFFSET,
    "expected": HAS_EXPECTED,
}

OPERATION_ROW = np.dtype(
    [
        ("op", np.int64),
        ("process", np.int64),
        ("input", np.int64),
        ("expected", np.int64),
        ("output", np.int64),
        ("offset", np.int64),
        ("call_ns", np.int64),
        ("return_ns", np.int64),
        ("f", np.int32),
        ("key", np.int32),
        ("outcome", np.int32),
        ("error", np.int32),
        ("node", np.int32),
        ("extra", np.int32),
        ("has", np.int64),
    ]
)
"""One row of OPERATIONS."""

OPERATION_TEXTS = ("f", "key", "outcome", "error", "node", "extra")
OPERATION_NUMBERS = {**EVENT_NUMBERS, "return_ns": HAS_RETURN}
