"""Check what clients may rely on in virtual time while no fault disturbs their group. Pure.

On a real machine a busy processor can explain a timeout. In a simulated world only faults make
anything slow: an undisturbed group accepts messages, and every caller learns the outcome.

Source: docs/adr/0045; definite and indefinite errors are from Jepsen and Maelstrom, which require a
definite error wherever the outcome is known.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shaketable.checkers.anomalies.observations import NEVER, Bools, Ints, whole_numbers
from shaketable.checkers.queues.quiet_times import quiet_since
from shaketable.harness.contracts.broken_rules import Broken
from shaketable.harness.contracts.plugins import CheckContext
from shaketable.harness.history.schema import APPENDING

KNOWN: Final = "outcomes-are-known"
SUCCEED: Final = "appends-succeed"
SERVED: Final = "calls-are-served"
OF_CLIENTS: Final = frozenset({KNOWN, SUCCEED, SERVED})
SERVED_KINDS: Final = frozenset(
    (
        *("read", "end", "poll", "view", "find", "find-unique", "select"),
        *("subscribe", "rebalance", "fetch", "commit", "commit-oneway", "reset", "unlock"),
        *("delete-topic", "misrequest"),
    )
)
"""Operations, appends aside, that a group serves at any time. Others may fail by themselves: a
handler is interrupted, a value is another one than was expected."""
RECOVERY_NS: Final = 40_000_000_000
"""How long a fault may have effects after its end: a slave notices a dead connection only after
20 s, retries 5 s later and is registered within 10 s; meanwhile its master cannot confirm that a
message is safe (docs/adr/0044)."""
REFUSED_MIN: Final = 5
"""Fewer refused appends may be due to a group that was still being set up."""
SHOWN_MAX: Final = 10
"""Refused operations that a finding shows."""
COLUMNS: Final = ("op", "process", "f", "key", "input", "call_ns", "return_ns", "outcome", "error")
NS_PER_S: Final = 1e9
_PROMISES: Final = {
    KNOWN: (
        "While nothing disturbs a group, each call learns whether it was done.",
        "Clients would have to find out for themselves, or do twice what was refused for good.",
    ),
    SUCCEED: (
        "A group that nothing disturbs takes messages.",
        "No client can use it.",
    ),
    SERVED: (
        "A group that nothing disturbs serves its clients, whatever they ask for.",
        "What depends on these calls does not work, though messages are stored.",
    ),
}


def find_broken(
    operations: pa.Table, given_up: pa.Table, context: CheckContext
) -> tuple[Broken, ...]:
    """Return the rules that a history shows to be broken.

    Args:
        operations: of the clients, with `COLUMNS`.
        given_up: when each process gave up its call: rows of GIVEN_UP.
        context: when faults were in force, leaders were elected and clients stalled.
    """
    end = _ends(operations, given_up)
    is_quiet = _is_quiet(operations, end, context)
    found = (
        _unknown(operations, is_quiet & _is_ever_done(operations), end),
        _refused(operations, is_quiet, end),
        *(_not_served(operations, is_quiet, end, kind) for kind in sorted(SERVED_KINDS)),
    )
    return tuple(each for each in found if each is not None)


def _is_ever_done(operations: pa.Table) -> Bools:
    """Return which operations are of a kind that succeeded at least once on their key.

    A SYNC_MASTER without a slave can confirm no message at all.
    """
    kinds = list(zip(operations["f"].to_pylist(), operations["key"].to_pylist(), strict=True))
    is_ok = pc.equal(operations["outcome"], "ok").to_pylist()
    done = {kind for kind, ok in zip(kinds, is_ok, strict=True) if ok}
    return np.fromiter((kind in done for kind in kinds), dtype=np.bool_, count=len(kinds))


def _is_quiet(operations: pa.Table, end: Ints, context: CheckContext) -> Bools:
    """Return which operations were undisturbed from before their call to their end."""
    since = quiet_since(context, end, recovery_ns=RECOVERY_NS)
    quiet: Bools = (end != NEVER) & (since != NEVER)
    return quiet & (since <= whole_numbers(operations["call_ns"]))


def _ends(operations: pa.Table, given_up: pa.Table) -> Ints:
    """Return when each operation ended or was given up; NEVER if neither."""
    times = dict(zip(given_up["process"].to_pylist(), given_up["time_ns"].to_pylist(), strict=True))
    is_info = pc.equal(operations["outcome"], "info").to_numpy()
    ends = pc.fill_null(operations["return_ns"], NEVER).to_numpy().copy()
    processes = whole_numbers(operations["process"])
    for row in np.flatnonzero(is_info).tolist():
        ends[row] = times.get(int(processes[row]), NEVER)
    return np.asarray(ends, dtype=np.int64)


def _unknown(operations: pa.Table, is_quiet: Bools, end: Ints) -> Broken | None:
    """Return a finding if undisturbed calls had unknown outcomes."""
    rows = np.flatnonzero(is_quiet & pc.equal(operations["outcome"], "info").to_numpy())
    if not len(rows):
        return None
    first = int(rows[np.argmin(end[rows])])
    others = len(rows) - 1
    more = f"; so it was with {others} other call{'s'[: others > 1]}" if others else ""
    description = (
        f"{_described(operations, first, end)}, its outcome unknown{_error(operations, first)}"
    )
    finding = f"{description}, and nothing had disturbed the group{more}"
    return _broken(KNOWN, finding, operations, end, [first])


def _refused(operations: pa.Table, is_quiet: Bools, end: Ints) -> Broken | None:
    """Return a finding if all undisturbed appends were refused."""
    return _all_refused(operations, is_quiet, end, APPENDING, ("appends", SUCCEED))


def _not_served(operations: pa.Table, is_quiet: Bools, end: Ints, kind: str) -> Broken | None:
    """Return a finding if all undisturbed operations of a kind were refused."""
    return _all_refused(operations, is_quiet, end, (kind,), (f"{kind} operations", SERVED))


def _all_refused(
    operations: pa.Table,
    is_quiet: Bools,
    end: Ints,
    kinds: Iterable[str],
    named: tuple[str, str],
) -> Broken | None:
    """Return a finding if all undisturbed operations of some kinds were refused."""
    is_one = pc.is_in(operations["f"], pa.array(kinds)).to_numpy() & is_quiet
    is_failed = is_one & pc.equal(operations["outcome"], "fail").to_numpy()
    is_ok = is_one & pc.equal(operations["outcome"], "ok").to_numpy()
    if is_ok.any() or is_failed.sum() < REFUSED_MIN:
        return None
    what, invariant = named
    rows = np.flatnonzero(is_failed)
    first = int(rows[np.argmin(end[rows])])
    finding = (
        f"none of {int(is_failed.sum())} {what} was done that were called while nothing disturbed"
        f" the group: {_described(operations, first, end)}{_error(operations, first)}"
    )
    return _broken(invariant, finding, operations, end, [first, *rows[rows != first]][:SHOWN_MAX])


def _broken(
    invariant: str, finding: str, operations: pa.Table, end: Ints, rows: Sequence[int]
) -> Broken:
    """Return the finding, at the end of the first of these operations."""
    shown = tuple(operations["op"][int(row)].as_py() for row in rows)
    return Broken(invariant, finding, "", int(end[rows[0]]), *_PROMISES[invariant], shown)


def _described(operations: pa.Table, row: int, end: Ints) -> str:
    """Describe an operation: what, by whom, when it was called and when it ended."""
    one = {name: operations[name][row].as_py() for name in COLUMNS}
    value = "" if one["input"] is None else f" {one['input']}"
    where = "" if one["key"] is None else f" on {one['key']}"
    ended = "given up" if one["outcome"] == "info" else "refused"
    return (
        f"the {one['f']}{value}{where} of process {one['process']} (op {one['op']}), called"
        f" {one['call_ns'] / NS_PER_S:.3f} s into the run, was {ended} at"
        f" {end[row] / NS_PER_S:.3f} s"
    )


def _error(operations: pa.Table, row: int) -> str:
    """Return the client's error of an operation, in parentheses."""
    error = operations["error"][row].as_py()
    return f" ({error})" if error else ""
