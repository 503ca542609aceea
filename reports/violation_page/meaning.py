"""What the records of a violation imply about its cause, and what they do not.

Source: the Raft paper, section 5.4: a leader is elected by a majority, and a node that has an
entry votes for no candidate that lacks it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from shaketable.harness.contracts.finding_kinds import base_kind, record_of
from shaketable.harness.history.schema import APPENDING
from shaketable.reports.run_view import OperationRow, RoleSpan, Violation
from shaketable.reports.violation_page.claims import duration_text
from shaketable.reports.violation_page.loss_window import faults_during
from shaketable.reports.violation_page.moments import LEADER, Story, in_term, leader_at, next_leader
from shaketable.reports.violation_page.violation_view import Entries

NS_PER_S: Final = 1e9
_ABOUT_READS: Final = frozenset(
    {"stale-read", "stale-end", "read-went-back", "end-went-back", "unseen"}
)
_DESTRUCTIVE: Final = frozenset({"power", "wipe", "rollback", "damage"})
"""Faults that take away what nodes had stored: power only what was not synced."""
DATA_LOSS_PHRASE: Final = "bytes lost"
"""Phrase in the evidence of other faults that lose data (a kill of a node on a volatile disk)."""
NOT_RECORDED: Final = (
    "Which nodes had the append when it was acknowledged, and who voted for the leader of term"
    " {term}, was not recorded here; what the nodes printed, below, may tell."
)


def meaning_of(violation: Violation, story: Story, moment_ns: int | None) -> str:
    """Return what the records imply about the cause; "" if nothing.

    Args:
        violation: what was found.
        story: the records around it.
        moment_ns: when it was, since the run's start; None if unknown.
    """
    record = record_of(violation.kind)
    kind = record.name
    if record.became and kind != "missing-on-node":
        return " ".join(_why_lost(violation, story, moment_ns))
    if kind == "divergent":
        return (
            "Nodes that disagree about a committed entry give different answers from then on, and"
            " nothing in the protocol ever brings them together again: a committed entry is never"
            " replaced."
        )
    if record.is_seen_live:
        matters = violation.details.get("matters")
        return str(matters) if kind == "invariant-broken" and matters else record.meaning
    if kind == "unexplained-offset":
        return _owner_text(violation, story)
    if kind in _ABOUT_READS:
        return _answerer_text(violation, [step.row for step in story.steps], story.lanes)
    return ""


def _why_lost(violation: Violation, story: Story, moment_ns: int | None) -> Iterator[str]:
    """Compare the term of the leader that acknowledged it with the term of what is stored now.

    Only if a later term replaced the append does anything follow about votes.
    """
    lanes = story.lanes
    led = () if moment_ns is None else leader_at(lanes, moment_ns)
    mine = next((span for span in led if span.node == violation.acknowledged_by), None)
    if mine is None or mine.term is None:
        return
    yield f"{mine.node} led term {mine.term} when it acknowledged the append."
    newer = sorted(term for term in terms_there(story.entries) if term > (mine.term or 0))
    if not newer or base_kind(violation.kind) != "lost-append":
        after = next_leader(lanes, mine, moment_ns or 0)
        if after is not None:
            yield f"{after.node} led term {after.term} after it."
        return
    by = next(
        (span.node for span in lanes if span.term == newer[-1] and span.role == LEADER),
        "another leader",
    )
    same = ", the same node," if by == mine.node else ""
    yield (
        f"The entry at its offset now is of term {newer[-1]}, which {by}{same} led: a leader that"
        " lacked the append put something else in its place."
    )
    yield (
        "A node comes to lead only by the votes of a majority, and a node that has the append votes"
        " for no candidate that lacks it. So either (1) no majority held the append yet when it was"
        " acknowledged, or (2) nodes that held it lost it again, or (3) one that held it voted"
        " against that rule."
    )
    if first := _evidence_for_early_ack(violation, story):
        yield f"Evidence for (1): {first}."
    if second := "; ".join(_evidence_for_later_loss(violation, by, story)):
        yield f"Evidence for (2): {second}."
    yield NOT_RECORDED.format(term=newer[-1])


def _evidence_for_early_ack(violation: Violation, story: Story) -> str:
    """Return evidence that an append was acknowledged before a majority held it; "" if none.

    The evidence is a fault that hit the acknowledging node, as the leader, before the append was
    called.
    """
    called = [
        step.row.call_ns
        for step in story.steps
        if step.row.f in APPENDING and step.row.input == violation.value
    ]
    for row in story.faults if called else ():
        window = row.window
        struck = any(
            span.node == violation.acknowledged_by
            for span in leader_at(story.lanes, window.from_ns)
        )
        if row.hit_leader and struck and window.from_ns <= called[0] <= window.stop_ns:
            return (
                f"it was called {duration_text(called[0] - window.from_ns)} after {window.name}"
                f" {window.fault} had begun, which struck the leader ({window.description})"
            )
    return ""


def _evidence_for_later_loss(violation: Violation, by: str, story: Story) -> Iterator[str]:
    """Yield evidence that nodes had it and lost it again.

    The acknowledging leader had it in any case, and may rightly truncate it for another leader's
    log; if it led again itself (`by`), it must have lost it.
    """
    gone = story.gone
    if gone is None:
        return
    held, read = violation.details.get("held_by"), gone.last_read
    had = "" if read is None or not read.node else read.node
    lacks = isinstance(held, list) and had not in held
    if read is not None and had and lacks and (had != violation.acknowledged_by or had == by):
        yield (
            f"{read.node} still answered a read with it at"
            f" {(read.return_ns or 0) / NS_PER_S:.3f} s, and does not hold it now"
        )
    for row in faults_during(gone, story.faults):
        window = row.window
        if window.from_ns <= gone.since_ns:
            continue  # what it deleted was deleted before
        if window.name in _DESTRUCTIVE or DATA_LOSS_PHRASE in window.evidence:
            what = "stored" if window.name in _DESTRUCTIVE - {"power"} else "not yet durable"
            yield (
                f"{window.name} {window.fault} ({window.description}) came in between, at"
                f" {window.from_ns / NS_PER_S:.3f} s, and takes away what was {what}"
            )
            return


def terms_there(entries: Entries | None) -> set[int]:
    """Return the terms of the entries that any node has at the place."""
    if entries is None:
        return set()
    return {
        entry.term
        for row in entries.rows
        for cell in row.cells
        for entry in cell
        if entry.is_at_place and entry.term is not None
    }


def _owner_text(violation: Violation, story: Story) -> str:
    """Return whose value is at an offset that no append should have taken, by the nodes' logs."""
    rows = () if story.entries is None else story.entries.rows
    there = {
        entry.value for row in rows for cell in row.cells for entry in cell if entry.is_at_place
    } - {None}
    for step in story.steps:
        row = step.row
        if row.f not in APPENDING or row.input not in there:
            continue
        if row.outcome == "fail":
            error = f": {row.error}" if row.error else ""
            return (
                f"The nodes' logs hold {row.input} there. Client {row.process}, which appended it,"
                f" was answered that this had certainly failed{error}. It was answered as failed,"
                " yet stored."
            )
        if row.outcome == "ok" and row.offset not in (None, violation.offset):
            return (
                f"The nodes' logs hold {row.input} there, and client {row.process} was given"
                f" offset {row.offset} for it: the value {row.input} is stored twice."
            )
    return ""


def _answerer_text(
    violation: Violation, rows: Sequence[OperationRow], lanes: Sequence[RoleSpan]
) -> str:
    """Return whether the node that answered was the leader."""
    by_id = {row.op: row for row in rows if row.f not in APPENDING}
    read = next((by_id[op] for op in violation.named if op in by_id), None)
    if read is None or read.node is None or read.return_ns is None:
        return ""
    led = leader_at(lanes, read.return_ns)
    if not led:
        return f"{read.node} answered; no leader was seen at that moment."
    first = led[0]
    if first.node == read.node:
        return (
            f"{read.node} answered, which led{in_term(first)} then, as polled: it answered without"
            " what had been acknowledged before."
        )
    others = f"{first.node} led{in_term(first)} then, as polled"
    return f"{read.node} answered, although {others}: it answered from what it had itself."
