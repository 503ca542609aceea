"""Checker "bank": money that is only transferred neither appears nor disappears.

Source: jepsen.tests.bank (wrong-total, negative-value, nil-balance, unexpected-key).
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from shaketable.checkers.findings import Findings, gather, settle
from shaketable.checkers.linearizability.model_choice import balances_in
from shaketable.checkers.logs.durability import why_unpromised
from shaketable.harness.contracts.isolation import implied
from shaketable.harness.contracts.plugins import CheckContext
from shaketable.harness.contracts.verdict import Finding, Verdict

NAME: Final = "bank"
WRONG_TOTAL, NEGATIVE = "wrong-total", "negative-value"
NIL, UNEXPECTED = "nil-balance", "unexpected-key"
KINDS: Final = (WRONG_TOTAL, NEGATIVE, NIL, UNEXPECTED)
ACCOUNTS_SHOWN_MAX: Final = 8
TRANSFERS_SHOWN_MAX: Final = 8
NEVER_NS: Final = (1 << 63) - 1
SUFFICIENT: Final = frozenset(("consistent-view", "repeatable-read"))
"""Levels of which each alone keeps the total."""


@dataclass(frozen=True, slots=True)
class _Read:
    """A read of all accounts: the operation's id, the balances by account, and the first ones."""

    op: int
    call_ns: int
    return_ns: int
    balances: Mapping[str, Any]
    opened: Mapping[str, Any]


class Bank:
    """Every read of all accounts shows the same total, and no balance is negative.

    f is read (output: a map of balances by account, or steps as workload `bank` records them) or
    transfer. The total and the accounts are those of `--initial`, a map of first balances, or those
    that the workload opened; without either those that most reads show, so that a read which
    differs is wrong, or all those are. A wrong total breaks the promise of an isolation level that
    implies consistent view or repeatable read.
    """

    name = NAME
    tables: tuple[str, ...] = ("operations",)
    partition = "history"
    judges_prefixes = True

    def check(self, tables: Mapping[str, pa.Table], context: CheckContext) -> pa.Table:
        """Compare all reads with the total; an answer that is no map lacks all accounts."""
        reads = list(_reads(tables["operations"]))
        total, accounts = _expected(reads, context.initial)
        wrong: dict[str, list[tuple[_Read, str]]] = {kind: [] for kind in KINDS}
        right: list[_Read] = []
        for read in sorted(reads, key=lambda each: each.return_ns):
            faults = tuple(_wrong(read, total, accounts))
            for kind, why in faults:
                wrong[kind].append((read, why))
            if not faults:
                right.append(read)
        transfers = _transfers(tables["operations"])
        findings = Findings()
        for kind, found in wrong.items():
            describe = partial(_finding, kind, found, total, right, transfers)
            findings.add(kind, range(len(found)), describe)
        return findings.table({"reads": len(reads)})

    def conclude(self, findings: pa.Table, context: CheckContext) -> Verdict:
        """Say whether all reads agree."""
        gathered = gather(findings)
        reads = gathered.sums().get("reads", 0)
        doubts = [] if reads else ["no read of known outcome to look at"]
        clean = f"all {reads} reads have the same total, and no account is below 0"
        return settle(
            NAME, gathered, context, clean=clean, doubts=doubts, doubtful=KINDS,
            observed=partial(_why_not_promised, context=context),
        )  # fmt: skip


PLUGIN = Bank()


def _why_not_promised(kind: str, context: CheckContext) -> str | None:
    """Return why a finding breaks no promise of the target; None if it breaks one.

    Reads with different totals need transactions that see others whole, and no lost updates: a
    level below consistent view (PL-2+) and repeatable read (PL-2.99) has neither.
    """
    level = context.promises.isolation
    promised = implied(level) if level else frozenset()
    if kind in (WRONG_TOTAL, NEGATIVE) and SUFFICIENT.isdisjoint(promised):
        return "the target does not promise it"
    return why_unpromised(context)


def _reads(operations: pa.Table) -> Iterator[_Read]:
    is_read = pc.and_(pc.equal(operations["f"], "read"), pc.equal(operations["outcome"], "ok"))
    columns = ("op", "call_ns", "return_ns", "extra")
    rows = operations.filter(is_read).sort_by("op")
    for op, call_ns, return_ns, text in zip(
        *(rows[name].to_pylist() for name in columns), strict=True
    ):
        said = json.loads(text) if text else {}
        opened = balances_in(said.get("input")) or {}
        yield _Read(op, call_ns, return_ns, _balances(said.get("output")), opened)


def _finding(
    kind: str,
    wrong: Sequence[tuple[_Read, str]],
    total: int,
    right: Sequence[_Read],
    transfers: pa.Table,
    row: int,
) -> Finding:
    """Describe a wrong read, and what may have changed the balances since the last right one."""
    read, why = wrong[row]
    message = f"op {read.op} (read) {why}: {_shown(read.balances)}."
    operations = [read.op]
    before = _before(read, right)
    since = _between(before, read, transfers)
    message += _said_of(before, since)
    operations += [] if before is None else [before.op]
    operations += since[-TRANSFERS_SHOWN_MAX:]
    details = {"total": total, "balances": dict(read.balances)}
    return Finding(kind, message, None, None, tuple(operations), details)


def _transfers(operations: pa.Table) -> pa.Table:
    """Return the transfers that may have been done: id, call and return."""
    may_be = pc.not_equal(operations["outcome"], "fail")
    found = operations.filter(pc.and_(pc.equal(operations["f"], "transfer"), may_be))
    return found.select(["op", "call_ns", "return_ns"]).sort_by("call_ns")


def _before(read: _Read, right: Sequence[_Read]) -> _Read | None:
    """Return the last read with the right balances that had ended when this one was called."""
    place = bisect_right(right, read.call_ns, key=lambda each: each.return_ns)
    return right[place - 1] if place else None


def _between(before: _Read | None, read: _Read, transfers: pa.Table) -> list[int]:
    """Return the transfers that may have taken effect after one read and not after another."""
    is_between = pc.less(transfers["call_ns"], read.return_ns)
    if before is not None:
        lasts = pc.greater(pc.fill_null(transfers["return_ns"], NEVER_NS), before.call_ns)
        is_between = pc.and_(is_between, lasts)
    found: list[int] = transfers.filter(is_between)["op"].to_pylist()
    return found


def _said_of(before: _Read | None, since: Sequence[int]) -> str:
    """Return what may have changed the balances since the last right read."""
    had = "" if before is None else f" Op {before.op} had read the right balances"
    if not since:
        return had and f"{had}, and no transfer came between."
    count = "one transfer" if len(since) == 1 else f"{len(since)} transfers"
    names = ", ".join(f"op {op}" for op in since[-TRANSFERS_SHOWN_MAX:])
    first = "..., " if len(since) > TRANSFERS_SHOWN_MAX else ""
    between = f"{count} may have come between ({first}{names})"
    return f"{had}; {between}." if had else f" Before it {between.replace('between ', '')}."


def _balances(said: object) -> Mapping[str, Any]:
    """Return balances by account: of a map, or of steps as workload `bank` records them."""
    if isinstance(said, dict):
        return said
    return balances_in(said) or {}


def _expected(reads: list[_Read], initial: str | None) -> tuple[int, frozenset[str]]:
    """Return the total and the accounts.

    They are the given ones; or those that reads say were opened; or those that most reads show.
    """
    try:
        given = json.loads(initial or "null")
    except json.JSONDecodeError:
        given = None
    if isinstance(given, dict):
        return _total(given), frozenset(given)
    opened = {account: balance for read in reads for account, balance in read.opened.items()}
    if opened:
        return _total(opened), frozenset(opened)
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
