"""Prints a digest of the findings on random histories of each model, half of them about texts.

python -m tests.support.findings_digest [HISTORIES]
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator
from random import Random
from typing import Any

import pyarrow as pa

from shaketable.checkers.linearizability.linearizable import Linearizable
from shaketable.harness import discovery
from shaketable.harness.history.schema import OPERATIONS
from tests.support.checker_histories import context, op
from tests.support.random_objects import OBJECTS, Row, random_history

OF_ANY_VALUE = frozenset(("register", "set", "fifo-queue", "unordered-queue"))
SEEN = ("one", "two", "three", "four", "five", "six")


def as_texts(row: Row) -> Row:
    """Put texts in the place of the values of a row."""

    def text(value: Any) -> Any:
        if isinstance(value, list):
            return [text(each) for each in value]
        return value if value is None else f"text {value}"

    extra = json.loads(row["extra"] or "{}")
    for name in ("input", "output"):
        value = extra.get(name, row[name])
        if value is not None:
            extra[name] = text(value)
    return row | {"input": None, "output": None, "extra": json.dumps(extra) if extra else None}


def some(name: str, histories: int) -> Iterator[list[Row]]:
    for seed in range(histories):
        rows = random_history(name, Random(seed), size_max=14)
        is_text = seed % 2 and name in OF_ANY_VALUE
        yield [as_texts(row) for row in rows] if is_text else rows
    if name == "set":
        yield torn_set()


def torn_set() -> list[Row]:
    """Reads of a set of which each saw what no other saw."""
    rows = [op(n, "add", 0, 1, extra=json.dumps({"input": text})) for n, text in enumerate(SEEN)]
    for n, text in enumerate(SEEN):
        seen = json.dumps({"output": [text]})
        rows.append(op(len(SEEN) + n, "read", 0, 2 + n, extra=seen))
    return rows


def digests(histories: int) -> dict[str, str]:
    found = {}
    for name in OBJECTS:
        model, digest = discovery.get("models", name), hashlib.sha256()
        for rows in some(name, histories):
            tables = {"operations": pa.Table.from_pylist(rows, OPERATIONS)}
            for use_special_cases in (True, False):
                checker = Linearizable(model, use_special_cases=use_special_cases)
                digest.update(json.dumps(checker.check(tables, context()).to_pylist()).encode())
        found[name] = digest.hexdigest()
    return found


if __name__ == "__main__":
    sys.stdout.write(json.dumps(digests(int(sys.argv[1]))))
