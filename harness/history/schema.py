"""THE schema: two tables (DESIGN.md decision 14), the entries of the nodes' logs, the findings.

*Events* have one row an event and are for recording. *Operations* have one row an
operation and are the checkers' contract. *Entries* are what `Target.read_log` yields.
Event types are Jepsen's: invoke, then ok (happened), fail (certainly did not) or info
(unknown: may take effect at any later time, or never).
"""

from __future__ import annotations

import pyarrow as pa

NEMESIS_PROCESS = -1
"""The process number under which faults stand in a history (Jepsen's `:nemesis`)."""

APPENDING = ("append", "send")
"""Operations that put a value at the end of a log or queue, as workloads name them."""

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
        ("node", pa.string()),  # which node answered, where known
    ]
)

OPERATIONS = pa.schema(
    [
        ("op", pa.int64()),  # index of the invoke event: the operation's id
        ("process", pa.int64()),
        ("f", pa.string()),
        ("key", pa.string()),
        ("input", pa.int64()),  # the value to append or write; null where f takes none
        ("expected", pa.int64()),  # cas: the value that must stand there; null elsewhere
        ("output", pa.int64()),  # the value read, or the end offset; null where none was
        ("offset", pa.int64()),  # append: the offset given (ok only); read: the offset asked for
        ("call_ns", pa.int64()),
        ("return_ns", pa.int64()),  # null where the outcome stayed unknown (info, or no end)
        ("outcome", pa.string()),  # ok | fail | info
        ("error", pa.string()),
        ("node", pa.string()),
        ("extra", pa.string()),  # JSON; null where the columns say everything, see below
    ]
)
"""What is no int64 stands in `extra`, a JSON object: its "input" and "output" take the place of
the columns of those names, which are null then (texts of a key-value store, the list that a set's
read returns, the micro-operations of a transaction). Beside an "output" of messages, (offset,
value), may stand "attempts": of each of them, how often it had come before."""

OPERATIONS_CODED = pa.schema(
    [
        pa.field(field.name, pa.dictionary(pa.int32(), pa.string()))
        if field.type == pa.string()
        else field
        for field in OPERATIONS
    ]
)
"""OPERATIONS with its texts as codes of a dictionary, to be grouped without being touched."""

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
        ("problem", pa.string()),  # what is wrong with the entry as stored; null if nothing is
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
