"""The order of transactions in real time: one returned before another was called."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from shaketable.checkers.kernels.transactions.time_order import frontier_edges
from shaketable.checkers.transactions.graph import RT, Edges
from shaketable.checkers.transactions.history import NEVER, Transactions

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


def has_order(txns: Transactions, among: Bools) -> bool:
    """Return whether any of some transactions returned before another of them was called."""
    if not among.any():
        return False
    return bool(txns.end_ns[among].min() < txns.call_ns[among].max())


def moments(txns: Transactions, among: Bools, first: int) -> tuple[Edges, int]:
    """Return the order by way of moments, in about three edges for each transaction.

    Each end of a transaction is a node of its own, from `first` on. It comes after that
    transaction, before the next end, and before the transactions that are called next. Also
    returns how many such nodes there are.
    """
    number = np.flatnonzero(among)
    ended = number[txns.end_ns[number] != NEVER]
    ends, of_end = np.unique(txns.end_ns[ended], return_inverse=True)
    node = first + np.arange(len(ends))
    before = np.searchsorted(ends, txns.call_ns[number])  # ends before the call
    is_after = before > 0
    return Edges.joined(
        Edges.of(RT, ended, node[of_end]),
        Edges.of(RT, node[:-1], node[1:]),
        Edges.of(RT, node[before[is_after] - 1], number[is_after]),
    ), len(ends)


def reduced(txns: Transactions, among: Bools) -> Edges:
    """Return the order between some transactions without the edges that others imply."""
    number = np.flatnonzero(among)
    ended = number[txns.end_ns[number] != NEVER]
    time = np.concatenate((txns.call_ns[number], txns.end_ns[ended]))
    is_end = np.arange(len(time)) >= len(number)
    txn = np.concatenate((number, ended))
    order = np.lexsort((txn, is_end, time))  # at one moment calls come first
    found = frontier_edges(txn[order], is_end[order], len(txns))
    return Edges.of(RT, found[:, 0], found[:, 1])
