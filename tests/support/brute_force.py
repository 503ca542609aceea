"""Linearizability by trying every order: slow, plain, and shares no code with the checkers.

Source: Wing & Gong 1993, with the memo of Lowe 2017. Takes rows of OPERATIONS as dicts.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from shaketable.checkers.models.model import UNKNOWN, Call, Model


def hashable(value: Any) -> Any:
    return tuple(hashable(each) for each in value) if isinstance(value, list) else value


def as_call(row: dict[str, Any]) -> Call:
    extra = json.loads(row["extra"] or "{}")
    given, answered = extra.get("input", row["input"]), extra.get("output", row["output"])
    output = hashable(answered) if row["outcome"] == "ok" else UNKNOWN
    return Call(row["f"], hashable(given), output, row["expected"], row["offset"])


def is_linearizable(model: Model, initial: Any, rows: Sequence[dict[str, Any]]) -> bool:
    """Try every order of the operations that real time allows.

    An operation may come next if none that is still to be placed returned before its call.
    Those of unknown outcome return never, and need not be placed at all.
    """
    rows = [row for row in rows if row["outcome"] != "fail"]
    calls = [as_call(row) for row in rows]
    starts = [row["call_ns"] for row in rows]
    ends = [row["return_ns"] if row["outcome"] == "ok" else float("inf") for row in rows]
    must = frozenset(n for n, row in enumerate(rows) if row["outcome"] == "ok")
    seen = set()
    stack = [(frozenset(range(len(rows))), initial)]
    while stack:
        left, state = stack.pop()
        if not must & left:
            return True
        if (left, state) in seen:
            continue
        seen.add((left, state))
        first_end = min(ends[n] for n in left)
        for n in left:
            if starts[n] <= first_end:
                after = model.step(state, calls[n])
                if after is not None:
                    stack.append((left - {n}, after))
    return False
