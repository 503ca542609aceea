"""Judge whether the nodes kept their invariants, by the simulated world and the nodes' own reports.

Some evidence is in no history and no log: an invariant that a simulated world saw broken, a node
that stopped because a rule of its own was broken, a node that found its stored data damaged though
no fault had touched it. Each is a violation, whether or not a client noticed it.

In virtual time clients may rely on more while no fault disturbs their group. On a real machine a
busy processor can explain a timeout. In a simulated world only faults make anything slow: an
undisturbed group accepts messages, and every caller learns the outcome.

Source: docs/adr/0037, and Jepsen's log-file-pattern checker, which does this by text patterns.
docs/adr/0045, and Jepsen and Maelstrom, which require a definite error wherever the outcome is
known.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shaketable.checkers.anomalies.observations import NEVER, Bools, Ints, whole_numbers
from shaketable.checkers.queues.quiet_times import quiet_since
from shaketable.harness.contracts.abilities import (
    BROKE_RULE,
    ENDED_UNHARMED,
    FOUND_DAMAGE,
    Broken,
    ExplainsEnds,
    ExplainsRules,
)
from shaketable.harness.contracts.errors import HarnessError
from shaketable.harness.contracts.plugins import CheckContext, Target
from shaketable.harness.contracts.verdict import FINDINGS_KEPT_MAX, Finding, Outcome, Verdict
from shaketable.harness.history.run_folder import RunFolder
from shaketable.harness.history.schema import APPENDING
from shaketable.harness.runtime import liveness

NAME: Final = "invariants"
BROKEN: Final = "invariant-broken"
OWN: Final = "rule-broken"
DAMAGED: Final = "damage-found"
UNHARMED: Final = "ended-unharmed"
KINDS: Final[Mapping[str, str]] = {
    BROKE_RULE: OWN,
    FOUND_DAMAGE: DAMAGED,
    ENDED_UNHARMED: UNHARMED,
}
"""The finding kind for each cause of a node's exit."""
NS_PER_S: Final = 1e9
_ERROR_KEY: Final = " error="
"""Our nodes' last log line has the reason after this key."""


@dataclass(frozen=True, slots=True)
class _Found:
    """A finding, and why it breaks no promise; None if it does break one."""

    finding: Finding
    excuse: str | None


def judge_invariants(
    folder: RunFolder,
    target: Target,
    context: CheckContext,
    client_violations: Sequence[Broken] = (),
) -> Verdict | None:
    """Judge by the broken rules in run.json and by `client_violations`.

    Return None where neither is known: outside the simulated world, if the target's nodes do not
    explain why they end.

    Raises:
        HarnessError: run.json cannot be read.
    """
    facts = folder.facts()
    if facts.get("world") != "sim" and not isinstance(target, ExplainsEnds):
        return None
    if not facts:
        return None  # `run-as-planned` reports it
    try:
        found = _found(facts, target, context, client_violations)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise HarnessError(f"cannot read {folder.run_json}: {error}") from error
    breaches = tuple(each.finding for each in found if each.excuse is None)
    observed = tuple(each.finding for each in found if each.excuse is not None)
    data = {"observed": _counted(observed)} if observed else {}
    if breaches:
        others = len(breaches) - 1
        more = f" (and {others} more broken rule{'s' if others > 1 else ''})" if others else ""
        summary = f"{breaches[0].message.rstrip('.')}{more}"
        outcome = Outcome.INVALID
    else:
        summary = "no node was seen to break its own invariants"
        outcome = Outcome.VALID
    if observed:
        summary += f"; observed, not counted: {len(observed)} ({_excuses(found)})"
    counts: dict[str, int | float] = dict(_counted(breaches))
    return Verdict(
        NAME, outcome, summary, breaches[:FINDINGS_KEPT_MAX], len(breaches), counts, data,
        observed[:FINDINGS_KEPT_MAX],
    )  # fmt: skip


def _found(
    facts: Mapping[str, Any],
    target: Target,
    context: CheckContext,
    client_violations: Sequence[Broken],
) -> list[_Found]:
    """Return the findings in order of time, since later ones may follow from earlier ones."""
    found = [_of_world(each) for each in facts.get("broken", ())]
    found += [_of_world(asdict(each)) for each in client_violations]
    nodes = facts.get("nodes")
    found += [
        _of_process(
            each, target, "Node" if nodes is None or each["node"] in nodes else "Name server"
        )
        for each in facts.get("exits", ())
        if each.get("cause") in KINDS and not each.get("excuse")
    ]
    found.sort(key=lambda finding: finding.details["at_ns"])
    left = tuple(facts.get("left", ()))
    return [_Found(each, _why_excused(each, context, left)) for each in found]


def _why_excused(finding: Finding, context: CheckContext, left: tuple[str, ...]) -> str | None:
    """Return why a finding breaks no promise, or None; `left` are faults that were not undone."""
    invariant = finding.details.get("invariant") if finding.kind == BROKEN else None
    of_liveness = invariant in liveness.OF_NODES | liveness.OF_CALLS | OF_CLIENTS
    if of_liveness and (stuck := sorted({*left} - {liveness.NEW_DISK})):
        return f"{', '.join(stuck)} could not be undone"
    # A node whose disk was replaced begins anew, and its own rules hold for it as before.
    begins_anew = invariant in liveness.OF_NODES or finding.kind in (UNHARMED, OWN)
    withstood = {liveness.NEW_DISK} if begins_anew else frozenset()
    return _why_unpromised(context, finding.details["at_ns"], withstood)


def _of_world(broken: Mapping[str, Any]) -> Finding:
    at_s = broken["at_ns"] / NS_PER_S
    where = f" at {broken['node']}" if broken["node"] else ""
    message = (
        f"The invariant {broken['invariant']} was broken{where}, {at_s:.3f} s into the run:"
        f" {broken['finding']}."
    )
    details = {name: what for name, what in broken.items() if name != "operations"}
    if not broken["node"]:
        del details["node"]
    return Finding(BROKEN, message, operations=tuple(broken.get("operations", ())), details=details)


def _of_process(ended: Mapping[str, Any], target: Target, what_it_is: str) -> Finding:
    kind, at_s = KINDS[ended["cause"]], ended["at_ns"] / NS_PER_S
    who = f"{what_it_is} {ended['node']} (incarnation {ended['incarnation']})"
    reason = ended["last_line"]
    reason = reason.partition(_ERROR_KEY)[2] or reason or "it did not say which"
    what = {
        OWN: f"{who} stopped because a rule of its own was broken, {at_s:.3f} s into the run:"
        f" {reason}",
        DAMAGED: f"{who} would not go on, {at_s:.3f} s into the run, because what it had stored is"
        f" damaged, and no fault had touched that: {reason}",
        UNHARMED: f"{who} ended by itself with status {ended['returncode']}, {at_s:.3f} s into the"
        f" run, and nothing had been done to it that ends a node: {reason}",
    }[kind]
    details = {name: ended[name] for name in ("node", "incarnation", "at_ns", "last_line")}
    details["exit_status"] = ended["returncode"]
    if kind == OWN and isinstance(target, ExplainsRules):
        promise = target.promise_of_rule(reason)
        if promise is not None:
            details["promise"], details["matters"] = promise
    return Finding(kind, f"{what.rstrip('.')}.", details=details)


def _why_unpromised(context: CheckContext, at_ns: int, also: Iterable[str] = ()) -> str | None:
    """Return the excuse by faults that started until `at_ns` and that no promise covers, or None.

    `also` are faults that this promise covers besides those of the target's durability.
    """
    begun = tuple(window for window in context.windows if window.from_ns <= at_ns)
    beyond = replace(context, windows=begun).unpromised_faults(
        context.promises.durable_under.union(also)
    )
    return f"the target does not promise to survive {beyond}" if beyond else None


def _counted(findings: tuple[Finding, ...]) -> dict[str, int]:
    kinds = [finding.kind for finding in findings]
    return {kind: kinds.count(kind) for kind in dict.fromkeys(kinds)}


def _excuses(found: list[_Found]) -> str:
    return "; ".join(dict.fromkeys(each.excuse for each in found if each.excuse is not None))


# What clients may rely on in virtual time while nothing disturbs their group.

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
