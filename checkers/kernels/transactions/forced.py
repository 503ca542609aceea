"""What weak levels force: t2 commits before t1, since t3 saw t2 and read a key of both from t1.

Edges that others imply are left out: those that agree with the known order of a key's versions,
and (causal) those between transactions of which one happened before the other.

Sources: Biswas & Enea, OOPSLA 2019; AWDIT (arXiv 2504.06975).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from shaketable.checkers.kernels.transactions.reads import INITIAL
from shaketable.harness.compiled import bare, compiled

MONOTONIC, ATOMIC = range(2)
_NONE = -1


class Sources(NamedTuple):
    """Key and writer of external reads; transaction n has the reads starts[n] to starts[n + 1]."""

    key: Any
    writer: Any
    starts: Any


class Places(NamedTuple):
    """What transactions write: n has the entries starts[n] to starts[n + 1], by key.

    `first` and `last`: the places of each entry among the versions of its key, -1 if their order is
    not known.
    """

    starts: Any
    key: Any
    first: Any
    last: Any


class Sessions(NamedTuple):
    """By transaction its session, its place in it, and the transaction before it in it (or -1)."""

    number: Any
    place: Any
    earlier: Any


class Groups(NamedTuple):
    """Writers of one key in one session, by their places there.

    Group n has the transactions txn[starts[n]:starts[n + 1]], and the session session[n]; key k has
    the groups of_key[k] to of_key[k + 1].
    """

    of_key: Any
    session: Any
    starts: Any
    txn: Any


@bare
def _entry(entries: Any, txn: int, key: int) -> Any:
    """Return the entry of a transaction's write of a key; -1 if it wrote none there."""
    starts, keys = entries[0], entries[1]
    low, high = starts[txn], starts[txn + 1]
    while low < high:
        middle = (low + high) // 2
        if keys[middle] < key:
            low = middle + 1
        else:
            high = middle
    return low if low < starts[txn + 1] and keys[low] == key else _NONE


@bare
def _is_implied(entries: Any, entry: int, writer: int, key: int) -> Any:
    """Return whether versions show that an entry's transaction came before another writer."""
    _, _, first, last = entries
    if writer == INITIAL or first[entry] < 0:
        return False
    other = _entry(entries, writer, key)
    return other >= 0 and first[entry] < last[other]


@bare
def _add(found: Any, total: int, edge: Any) -> Any:
    """Add an edge, if there is room; return how many there are."""
    if total < len(found):
        found[total, 0], found[total, 1], found[total, 2], found[total, 3] = edge
    return total + 1


@bare
def _against(writer: int, bounds: Any, reads: Any, entries: Any, notes: Any, found: Any,
             total: int) -> Any:  # fmt: skip
    """Add the edges from a writer that a transaction has seen; return how many there are.

    `bounds`: the transaction, its first read that counts, its first one, the place after its last
    one. `notes` lead from a key to its reads, the last one first. The smaller side is walked: the
    keys of the writer, or the reads.
    """
    txn, first, start, stop = bounds
    keys, writers = reads
    head, following = notes
    entry_starts, entry_keys = entries[0], entries[1]
    if entry_starts[writer + 1] - entry_starts[writer] > stop - first:
        for read in range(first, stop):
            key, other = keys[read], writers[read]
            entry = _entry(entries, writer, key)
            if entry >= 0 and other != writer and not _is_implied(entries, entry, other, key):
                total = _add(found, total, (writer, other, key, txn))
        return total
    for entry in range(entry_starts[writer], entry_starts[writer + 1]):
        key = entry_keys[entry]
        read = head[key] if head[key] >= start else _NONE
        while read >= first:
            other = writers[read]
            if other != writer and not _is_implied(entries, entry, other, key):
                total = _add(found, total, (writer, other, key, txn))
            read = following[read]
    return total


@compiled
def force(level: int, keys: int, reads: Sources, places: Places, before: Any, found: Any) -> Any:
    """Find what monotonic atomic view or read atomic forces.

    Args:
        level: MONOTONIC or ATOMIC.
        keys: how many keys there are.
        reads: the external reads.
        places: what transactions write.
        before: for each read the last writer of its key in the reader's session before it, or -1.
        found: receives t2, t1, key and t3 of each edge, as long as there is room.

    Returns:
        How many there are.
    """
    read_keys, writers, starts = reads
    entries = (places.starts, places.key, places.first, places.last)
    head = np.full(keys, _NONE, np.int64)
    following = np.full(len(read_keys), _NONE, np.int64)
    is_done = np.full(len(starts), _NONE, np.int64)  # by writer: the last reader that was tried
    total = 0
    for txn in range(len(starts) - 1):
        start, stop = starts[txn], starts[txn + 1]
        for read in range(start, stop):
            key = read_keys[read]
            following[read] = head[key] if head[key] >= start else _NONE
            head[key] = read
        for read in range(start, stop):
            key, writer, earlier = read_keys[read], writers[read], before[read]
            if earlier >= 0 and earlier != writer:
                entry = _entry(entries, earlier, key)
                if not _is_implied(entries, entry, writer, key):
                    total = _add(found, total, (earlier, writer, key, txn))
            if writer != INITIAL and is_done[writer] != txn:
                is_done[writer] = txn
                first = read + 1 if level == MONOTONIC else start
                bounds = (txn, first, start, stop)
                total = _against(
                    writer, bounds, (read_keys, writers), entries, (head, following), found, total
                )
    return total


@compiled
def session_writers(
    order: Any, session: Any, keys: int, reads: Sources, places: Places, before: Any
) -> None:
    """Find for each read the last writer of its key in the reader's session before it, or -1.

    `order`: the committed transactions by session, in its order; `session` is by transaction.
    """
    last = np.full(keys, _NONE, np.int64)
    before[:] = _NONE
    for txn in order:
        for read in range(reads.starts[txn], reads.starts[txn + 1]):
            other = last[reads.key[read]]
            if other >= 0 and session[other] == session[txn]:
                before[read] = other
        for entry in range(places.starts[txn], places.starts[txn + 1]):
            last[places.key[entry]] = txn


@compiled
def topological(sources: Any, targets: Any, nodes: int, order: Any) -> Any:
    """Order the nodes of a graph; return how many could be: less than all if there is a cycle."""
    waits = np.zeros(nodes, np.int64)
    starts = np.zeros(nodes + 2, np.int64)
    for edge in range(len(sources)):
        waits[targets[edge]] += 1
        starts[sources[edge] + 2] += 1
    for node in range(nodes):
        starts[node + 2] += starts[node + 1]
    after = np.empty(len(sources), np.int64)
    for edge in range(len(sources)):
        after[starts[sources[edge] + 1]] = targets[edge]
        starts[sources[edge] + 1] += 1
    filled = done = 0
    for node in range(nodes):
        if waits[node] == 0:
            order[filled] = node
            filled += 1
    while done < filled:
        node = order[done]
        done += 1
        for place in range(starts[node], starts[node + 1]):
            waits[after[place]] -= 1
            if waits[after[place]] == 0:
                order[filled] = after[place]
                filled += 1
    return filled


@bare
def _join(clock: Any, other: Any) -> None:
    for place in range(len(clock)):
        clock[place] = max(clock[place], other[place])


@bare
def _newest(groups: Any, group: int, limit: int) -> Any:
    """Return the last transaction of a group at or before a place in its session; -1 if none."""
    starts, txns, places = groups
    low, high = starts[group], starts[group + 1]
    while low < high:
        middle = (low + high) // 2
        if places[txns[middle]] <= limit:
            low = middle + 1
        else:
            high = middle
    return txns[low - 1] if low > starts[group] else _NONE


@bare
def _tick(txn: int, first: int, clocks: Any, sessions: Any, reads: Any) -> None:
    """Set the clock of a transaction: the last place of each session that happened before it."""
    number, place, earlier = sessions
    writers, starts = reads
    clock = clocks[txn]
    clock[:] = _NONE
    if earlier[txn] >= 0:
        _join(clock, clocks[earlier[txn]])
        if 0 <= number[txn] - first < len(clock):
            clock[number[txn] - first] = place[earlier[txn]]
    for read in range(starts[txn], starts[txn + 1]):
        writer = writers[read]
        if writer != INITIAL:
            _join(clock, clocks[writer])
            at = number[writer] - first
            if 0 <= at < len(clock):
                clock[at] = max(clock[at], place[writer])


@compiled
def force_causal(order: Any, first: int, sessions: Sessions, reads: Sources, places: Places,
                 groups: Groups, clocks: Any, found: Any) -> Any:  # fmt: skip
    """Find what causal consistency forces, by sessions and reads without a cycle.

    For some sessions at a time: from number `first` on, as many as a row of `clocks` has places.
    Edges from a writer that happened before the other are left out.

    Args:
        order: the committed transactions, each after all that happened before it.
        first: the first session of this pass.
        sessions: of the transactions.
        reads: the external reads.
        places: what transactions write.
        groups: the writers of each key.
        clocks: receives for each transaction the last place of each session that happened before.
        found: receives the edges, as `force` does.

    Returns:
        How many there are.
    """
    keys, writers, starts = reads
    entries = (places.starts, places.key, places.first, places.last)
    members = (groups.starts, groups.txn, sessions.place)
    total = 0
    for txn in order:
        clock = clocks[txn]
        _tick(
            txn, first, clocks, (sessions.number, sessions.place, sessions.earlier),
            (writers, starts),
        )  # fmt: skip
        for read in range(starts[txn], starts[txn + 1]):
            key, writer = keys[read], writers[read]
            for group in range(groups.of_key[key], groups.of_key[key + 1]):
                at = groups.session[group] - first
                if not 0 <= at < len(clock) or clock[at] < 0:
                    continue
                other = _newest(members, group, clock[at])
                if other < 0 or other in (writer, txn):
                    continue
                is_before = writer != INITIAL and clocks[writer, at] >= sessions.place[other]
                entry = _entry(entries, other, key)
                if not is_before and not _is_implied(entries, entry, writer, key):
                    total = _add(found, total, (other, writer, key, txn))
    return total
