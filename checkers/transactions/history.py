"""Read transactions from rows of OPERATIONS."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import pyarrow as pa

from shaketable.checkers.models.encoding import format_value, freeze

READ, WRITE, APPEND = "r", "w", "append"
NAMES: Final = {"r": READ, "read": READ, "w": WRITE, "write": WRITE, "append": APPEND}
NEVER: Final = 2**63 - 1
"""The end of a transaction of unknown outcome."""
SHOWN_STEPS_MAX: Final = 8


class Step(NamedTuple):
    """A micro-operation: `value` is what was written, or read (None: nothing, or not known)."""

    f: str
    key: Any
    value: Any


@dataclass(frozen=True, slots=True)
class Transaction:
    """A transaction: its operation's id, its session, its times, and what it did, in order.

    `outcome` is ok, fail or info; the reads of one that is not ok are left out.
    """

    op: int
    process: int
    call_ns: int
    end_ns: int
    outcome: str
    steps: tuple[Step, ...]

    @property
    def is_ok(self) -> bool:
        """Whether its client got the answer that it committed."""
        return self.outcome == "ok"

    def describe(self) -> str:
        """Describe it for messages: "op 3 (append x 1, r y [1 2])"."""
        steps = [
            f"{step.f} {key_name(step.key)} {shown(step.value)}"
            for step in self.steps[:SHOWN_STEPS_MAX]
        ]
        more = ", ..." if len(self.steps) > SHOWN_STEPS_MAX else ""
        return f"op {self.op} ({', '.join(steps)}{more})"


class NotTransactionsError(ValueError):
    """An operation is no transaction of reads with writes, or with appends."""


def load_transactions(operations: pa.Table) -> list[Transaction]:
    """Return all transactions, by call and id.

    Every operation must be a list of micro-operations [f key value], f one of NAMES; on one key
    either writes or appends.

    Raises:
        NotTransactionsError: one is not; the message names it.
    """
    columns = ["op", "process", "f", "call_ns", "return_ns", "outcome", "extra"]
    found = [_transaction(row) for row in operations.select(columns).to_pylist()]
    _require_one_kind(found)
    return sorted(found, key=lambda txn: (txn.call_ns, txn.op))


def key_name(key: Any) -> str:
    """Return a key for messages."""
    return key if isinstance(key, str) else format_value(key)


def shown(value: Any) -> str:
    """Return a value for messages: "[1 2]", "nil"."""
    if isinstance(value, tuple):
        first = " ".join(shown(each) for each in value[:SHOWN_STEPS_MAX])
        return f"[{first}{' ...' if len(value) > SHOWN_STEPS_MAX else ''}]"
    return "nil" if value is None else format_value(value)


def _transaction(row: dict[str, Any]) -> Transaction:
    extra = json.loads(row["extra"]) if row["extra"] else {}
    is_ok = row["outcome"] == "ok"
    given = extra.get("output", extra.get("input")) if is_ok else extra.get("input")
    steps = [] if given is None and not is_ok else _steps(given, row)
    if not is_ok:
        steps = [step for step in steps if step.f != READ]
    elif "output" not in extra and any(step.f == READ for step in steps):
        raise NotTransactionsError(f"op {row['op']} ({row['f']}) has no answer to its reads")
    end_ns = NEVER if row["return_ns"] is None or row["outcome"] == "info" else row["return_ns"]
    return Transaction(
        row["op"], row["process"], row["call_ns"], end_ns, row["outcome"], tuple(steps)
    )


def _steps(given: Any, row: dict[str, Any]) -> list[Step]:
    steps = []
    for each in given if isinstance(given, list) else [None]:
        if not isinstance(each, list) or len(each) not in (2, 3) or each[0] not in NAMES:
            raise NotTransactionsError(
                f"op {row['op']} ({row['f']}) is no list of [f key value], f one of"
                f" {', '.join(NAMES)}"
            )
        value = freeze(each[2]) if len(each) == 3 else None
        steps.append(Step(NAMES[each[0]], freeze(each[1]), value))
    return steps


def _require_one_kind(transactions: Sequence[Transaction]) -> None:
    kinds: dict[Any, str] = {}
    for txn in transactions:
        for step in txn.steps:
            if step.f != READ and kinds.setdefault(step.key, step.f) != step.f:
                raise NotTransactionsError(
                    f"op {txn.op} has writes and appends on the key {key_name(step.key)}"
                )
