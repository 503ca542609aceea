"""The operations of the page's table as compact JSON: columns, differences, texts by number. Pure.

{"rows": n, "texts": {"f": [...], ...}, "why": ["named by a finding", ...], "columns":
 {"op": [first, difference, ...], "call": [likewise, in microseconds],
  "took": [microseconds, or -1 where nothing returned], "process": [...], "f": [number of a text],
  "key", "outcome", "node", "error", "extra" likewise (-1: none), "why": [bits],
  "input", "output", "offset": [number or null]}}

The script of the page (templates/operations.js) reads nothing else. Numbers that a script cannot
hold exactly are texts.
"""

from __future__ import annotations

import json
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from shaketable.reports.run_page.chosen_operations import WHY, Chosen

EXACT_MAX: Final = 2**53
"""A script's numbers are exact below."""
TEXT_CHARACTERS_MAX: Final = 160
"""Of an error or of what an operation answered besides; the rest is in the run's files."""
TEXTS: Final = ("f", "key", "outcome", "node", "error", "extra")
NUMBERS: Final = ("input", "output", "offset")
NS_PER_US: Final = 1_000


def pack(chosen: Chosen) -> str:
    """Return the JSON, fit to stand inside a script element."""
    rows = chosen.rows
    texts: dict[str, list[str]] = {}
    call_us = rows["call_ns"].to_numpy() // NS_PER_US
    took = pc.subtract(rows["return_ns"], rows["call_ns"])
    took_us = pc.fill_null(pc.divide(took, NS_PER_US), -1).to_numpy()
    columns: dict[str, list[Any]] = {
        "op": _differences(rows["op"].to_numpy()),
        "call": _differences(call_us),
        "took": took_us.tolist(),
        "process": _exact(rows["process"]),
        "why": chosen.why.tolist(),
    }
    for name in TEXTS:
        columns[name], texts[name] = _coded(rows[name])
    for name in NUMBERS:
        columns[name] = _exact(rows[name])
    packed = {
        "rows": rows.num_rows,
        "texts": texts,
        "why": list(WHY.values()),
        "columns": columns,
    }
    return inside_script(json.dumps(packed, separators=(",", ":")))


def _differences(values: npt.NDArray[np.int64]) -> list[int]:
    """Return the first value and what each adds to the one before: numbers with few digits."""
    return [int(value) for value in np.diff(values, prepend=0)] if len(values) else []


def _coded(column: Any) -> tuple[list[int], list[str]]:
    cut = pc.utf8_slice_codeunits(column, 0, TEXT_CHARACTERS_MAX + 1)  # one more: was it cut?
    codes = cut.combine_chunks().dictionary_encode()
    if isinstance(codes, pa.ChunkedArray):
        codes = codes.combine_chunks()
    numbers = pc.fill_null(codes.indices, -1).to_pylist()
    return numbers, [
        text[:TEXT_CHARACTERS_MAX] + "…" if len(text) > TEXT_CHARACTERS_MAX else text
        for text in codes.dictionary.to_pylist()
    ]


def _exact(column: Any) -> list[int | str | None]:
    return [
        value if value is None or abs(value) < EXACT_MAX else str(value)
        for value in column.to_pylist()
    ]


def inside_script(text: str) -> str:
    """Escape what could end the element, or begin a comment in it, as JSON's own escapes do."""
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text
