"""Errors over time by kind: texts that differ in numbers and nodes alone are one kind. Pure."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from shaketable.reports.plotting.series import bucket_ns

KINDS_MAX: Final = 5
"""Kinds that are shown by themselves, the commonest; the others are one more."""
TEXTS_MAX: Final = 5_000
"""Different texts that are told apart by kind; the rarer ones are of the kind `OTHERS`."""
KIND_CHARACTERS_MAX: Final = 70
OTHERS: Final = "others"
_NODE: Final = re.compile(r"\bn\d+\b")
_NUMBER: Final = re.compile(r"\d+(?:\.\d+)?")

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ErrorKinds:
    """Errors a second of each kind, by slices of `width_s`; `kinds` are (name, total, rates)."""

    width_s: float
    starts_s: Floats
    kinds: tuple[tuple[str, int, Floats], ...]


def error_kinds(operations: pa.Table, duration_ns: int) -> ErrorKinds | None:
    """Count errors by kind over [0, duration]; None if there was none.

    An operation counts when it returned or, where its outcome stayed unknown, when it was called.
    """
    failed = operations.filter(pc.is_valid(operations["error"]))
    if not failed.num_rows:
        return None
    width_ns = bucket_ns(duration_ns)
    slices = max(1, -(-duration_ns // width_ns))
    times = pc.coalesce(failed["return_ns"], failed["call_ns"]).to_numpy()
    places = np.clip(times // width_ns, 0, slices - 1)
    codes = failed["error"].combine_chunks().dictionary_encode()
    if isinstance(codes, pa.ChunkedArray):
        codes = codes.combine_chunks()
    texts = codes.dictionary.to_pylist()
    numbers = codes.indices.to_numpy()
    counts = np.bincount(numbers, minlength=len(texts))
    kind_of = _kinds(texts, counts)
    totals: Counter[str] = Counter()
    for kind, count in zip(kind_of, counts, strict=True):
        totals[kind] += int(count)
    rest = totals.pop(OTHERS, 0)
    shown = [kind for kind, _ in totals.most_common(KINDS_MAX)]
    is_whole = not rest and len(totals) <= KINDS_MAX
    names = shown if is_whole else [*shown, OTHERS]
    row = {kind: place for place, kind in enumerate(names)}
    rows = np.array([row.get(kind, len(names) - 1) for kind in kind_of], dtype=np.int64)
    counted = np.zeros((len(names), slices))
    np.add.at(counted, (rows[numbers], places), 1)
    return ErrorKinds(
        width_ns / 1e9,
        np.arange(slices, dtype=np.float64) * (width_ns / 1e9),
        tuple(
            (name, int(counted[place].sum()), counted[place] / (width_ns / 1e9))
            for place, name in enumerate(names)
        ),
    )


def _kinds(texts: list[str], counts: npt.NDArray[np.int64]) -> list[str]:
    """Return each text's kind."""
    common = set(np.argsort(-counts, kind="stable")[:TEXTS_MAX].tolist())
    return [kind_of(text) if place in common else OTHERS for place, text in enumerate(texts)]


def kind_of(text: str) -> str:
    """Return the kind of an error: its text without nodes and numbers, cut to what can be read."""
    first = text.strip().partition("\n")[0]
    kind = _NUMBER.sub("N", _NODE.sub("a node", first))
    if len(kind) > KIND_CHARACTERS_MAX:
        kind = kind[: KIND_CHARACTERS_MAX - 1] + "…"
    return kind or OTHERS
