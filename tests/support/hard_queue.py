"""A queue's history that nobody decides soon."""

from __future__ import annotations

from typing import Any


def hard_queue(values: int = 24) -> list[dict[str, Any]]:
    """Return operations that no order explains, and of which most of all subsets are to be tried.

    Each of many values is put in twice and taken twice, all puts at a time and then all takes:
    every order of them will do. Behind them two values come out the other way round.
    """
    rows = []
    for n in range(2 * values):
        value = n % values
        rows += [
            _row(n, "enqueue", n, 1000 + n, input=value),
            _row(100 + n, "dequeue", 1100 + n, 1900 + n, output=value),
        ]
    return [
        *rows,
        _row(200, "enqueue", 2000, 2001, input=values),
        _row(200, "enqueue", 2002, 2003, input=values + 1),
        _row(201, "dequeue", 3000, 3001, output=values + 1),
        _row(201, "dequeue", 3002, 3003, output=values),
    ]


def _row(process: int, f: str, call_ns: int, return_ns: int, **value: int) -> dict[str, Any]:
    return {"process": process, "f": f, "call_ns": call_ns, "return_ns": return_ns, **value}
