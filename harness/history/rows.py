"""Events and operations as fixed-size rows, in which the export handles millions.

Texts are numbers of a table of texts (`NO_TEXT` for none); `has` has a bit for each optional number
that is set.
"""

from __future__ import annotations

import numpy as np

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
"""One row of schema.OPERATIONS."""

OPERATION_TEXTS = ("f", "key", "outcome", "error", "node", "extra")
OPERATION_NUMBERS = {**EVENT_NUMBERS, "return_ns": HAS_RETURN}
