"""Checker "bank": money that is only transferred neither appears nor disappears.

Source: jepsen.tests.bank (wrong-total, negative-value, nil-balance, unexpected-key).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from shaketable.checkers.findings import Findings, gather, settle
from shaketable.harness.contracts.plugins import CheckContext
from shaketable.harness.contracts.verdict import Finding, Verdict

NAME: Final = "bank"
WRONG_TOTAL, NEGATIVE = "wrong-total", "negative-value"
NIL, UNEXPECTED = "nil-balance", "unexpected-key"
KINDS: Final = (WRONG_TOTAL, NEGATIVE, NIL, UNEXPECTED)
ACCOUNTS_SHOWN_MAX: Final = 8


@dataclass(frozen=True, slots=True)
class _Read:
    """A read of all accounts: the operation's id, and the balances by account."""

    op: int
    balances: Mapping[str, Any]


class Bank:
    """Every read of all accounts shows the same total, and no balance is negative.

    f is read (output: a map of balances by account) or transfer. The total and the accounts are
    those of `--initial`, a map of first balances; without it those that most reads show, so that a
    read which differs is wrong, or all those are.
    """

    name = NAME
    tables: tuple[str, ...] = ("operations",)
    partition = "history"
    judges_prefixes = True

    def check(self, tables: Mapping[str, pa.Table], context: CheckContext) -> pa.Table:
        """Compare all reads with the total; an answer that is no map lacks all accounts."""
        reads = list(_reads(tables["operations"]))
        total, accounts = _expected(reads, context.initial)
        wrong: dict[str, list[Finding]] = {kind: [] for kind in KINDS}
        for read in reads:
            for kind, why in _wrong(read, total, accounts):
                message = f"op {read.op} (read) {why}: {_shown(read.balances)}."
                details = {"total": total, "balances": dict(read.balances)}
                wrong[kind].append(Finding(kind, message, None, None, (read.op,), details))
        findings = Findings()
        for kind, found in wrong.items():
            findings.add(kind, range(len(found)), found.__getitem__)
        return findings.table({"reads": len(reads)})

    def conclude(self, findings: pa.Table, context: CheckContext) -> Verdict:
        """Say whether all reads agree."""
        gathered = gather(findings)
        reads = gathered.sums().get("reads", 0)
        doubts = [] if reads else ["no read of known outcome to look at"]
        clean = f"all {reads} reads have the same total, and no account is below 0"
        return settle(NAME, gathered, context, clean=clean, doubts=doubts, doubtful=KINDS)


PLUGIN = Bank()


def _reads(operations: pa.Table) -> Iterator[_Read]:
    is_read = pc.and_(pc.equal(operations["f"], "read"), pc.equal(operations["outcome"], "ok"))
    rows = operations.filter(is_read).sort_by("op")
    for op, text in zip(rows["op"].to_pylist(), rows["extra"].to_pylist(), strict=True):
        balances = json.loads(text).get("output") if text else None
        if isinstance(balances, dict):
            yield _Read(op, balances)
        else:
            yield _Read(op, {})


def _expected(reads: list[_Read], initial: str | None) -> tuple[int, frozenset[str]]:
    """Return the total and the accounts: the first ones, or those that most reads show."""
    try:
        given = json.loads(initial or "null")
    except json.JSONDecodeError:
        given = None
    if isinstance(given, dict):
        return _total(given), frozenset(given)
    totals = Counter(_total(read.balances) for read in reads)
    accounts = Counter(frozenset(read.balances) for read in reads)
    if not reads:
        return 0, frozenset()
    return totals.most_common(1)[0][0], accounts.most_common(1)[0][0]


def _total(balances: Mapping[str, Any]) -> int:
    return sum(value for value in balances.values() if type(value) is int)


def _wrong(read: _Read, total: int, accounts: frozenset[str]) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with a read: kinds, each with a phrase."""
    balances = read.balances
    if others := sorted(balances.keys() ^ accounts):
        what = "has" if others[0] in balances else "lacks"
        yield UNEXPECTED, f"{what} the account {others[0]}"
        return
    if nils := sorted(name for name, value in balances.items() if type(value) is not int):
        yield NIL, f"has no balance of the account {nils[0]}"
        return
    if (found := _total(balances)) != total:
        yield WRONG_TOTAL, f"has a total of {found} instead of {total}"
    if below := sorted(name for name, value in balances.items() if value < 0):
        yield NEGATIVE, f"has less than 0 in the account {below[0]}"


def _shown(balances: Mapping[str, Any]) -> str:
    some = list(balances.items())[:ACCOUNTS_SHOWN_MAX]
    more = ", ..." if len(balances) > len(some) else ""
    return ", ".join(f"{name}: {value}" for name, value in some) + more
