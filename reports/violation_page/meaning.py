"""What the records of a violation imply about its cause, and what they do not.

When something acknowledged was last seen and first seen gone is judged only by answers to clients:
reads that still found it, and the first answer that is impossible while it is stored. An append
acknowledged without any fault may be lost under a later one.

Source: the Raft paper, section 5.4: a leader is elected by a majority, and a node that has an
entry votes for no candidate that lacks it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from shaketable.harness.contracts.finding_kinds import base_kind, record_of
from shaketable.harness.history.schema import APPENDING
from shaketable.reports.plain_json import whole
from shaketable.reports.run_page.violations import OperationLookup, polled_messages, rows_of
from shaketable.reports.run_view import FaultRow, OperationRow, RoleSpan, Violation
from shaketable.reports.violation_page.claims import duration_text
from shaketable.reports.violation_page.moments import LEADER, Story, in_term, leader_at, next_leader
from shaketable.reports.violation_page.violation_view import Entries, LossWindow

FAULTS_LISTED_MAX: Final = 3
"""Faults in the loss window that are listed."""
NS_PER_S: Final = 1e9


def loss_window_of(
    violation: Violation, lookup: OperationLookup, current: frozenset[str]
) -> LossWindow | None:
    """Find between which answers it went missing; None for violations of other kinds.

    Args:
        violation: what was lost.
        lookup: the run's operations.
        current: the operations that the target promises to be linearizable. Others may be stale, so
            they do not show that something is gone.
    """
    acknowledged_ns, offset = whole(violation.acknowledged_ns), whole(violation.offset)
    value = whole(violation.value)
    kind = record_of(violation.kind)
    if not (kind.became and kind.lost) or violation.key is None:
        return None
    if acknowledged_ns is None or offset is None or value is None:
        return None
    queue = lookup.queue(violation.key)
    answered = queue.filter(pc.equal(queue["outcome"], "ok"))
    polls = _polled(answered, offset)
    since = pc.greater_equal(answered["return_ns"], acknowledged_ns)
    is_read = _all(_is(answered, "read"), pc.equal(answered["offset"], offset), since)
    reads = answered.filter(_all(is_read, pc.equal(answered["output"], value)))
    found = _of_polls(polls, offset, lambda message: message == value)
    last = _last(pa.concat_tables([reads, found]))
    last_ns = acknowledged_ns if last is None else max(acknowledged_ns, last.return_ns or 0)
    later = answered.filter(pc.greater(answered["call_ns"], acknowledged_ns))
    signs = _signs(later, offset, value, last_ns, current)
    others = _of_polls(polls, offset, lambda message: message != value)
    signs.append(others.filter(pc.greater(others["call_ns"], acknowledged_ns)))
    sign = _first(pa.concat_tables(signs))
    until_ns = None if sign is None else sign.return_ns
    # Two leaders may answer at the same time; then the first sign may precede the last read.
    since_ns = last_ns if until_ns is None or last_ns <= until_ns else acknowledged_ns
    return LossWindow(since_ns, last, sign)


def _signs(
    later: pa.Table, offset: int, value: int, last_ns: int, current: frozenset[str]
) -> list[pa.Table]:
    """Return answers that are impossible while the value is stored at its offset.

    A read called too early may have been answered before it: reads count from when it was last
    seen.
    """
    is_late = pc.greater(later["call_ns"], last_ns)
    is_there = pc.fill_null(pc.equal(later["output"], value), False)
    is_append = pc.is_in(later["f"], value_set=pa.array(APPENDING))
    is_other = pc.fill_null(pc.not_equal(later["input"], value), False)
    masks = [_all(is_append, pc.less_equal(later["offset"], offset), is_other)]
    if "read" in current:
        is_read = _all(_is(later, "read"), pc.equal(later["offset"], offset), is_late)
        masks.append(_all(is_read, pc.invert(is_there)))
    if "end" in current:
        masks.append(_all(_is(later, "end"), pc.less_equal(later["output"], offset), is_late))
    return [later.filter(mask) for mask in masks]


def _polled(answered: pa.Table, offset: int) -> pa.Table:
    """Return the polls that may have returned the message at an offset, by their text."""
    text = pc.fill_null(answered["extra"], "")
    pattern = rf"\[\s*{offset}\s*,"
    return answered.filter(_all(_is(answered, "poll"), pc.match_substring_regex(text, pattern)))


def _of_polls(polls: pa.Table, offset: int, is_wanted: Callable[[int], bool]) -> pa.Table:
    """Return the polls that returned a wanted value at an offset."""
    return polls.filter(
        pa.array(
            [
                any(at == offset and is_wanted(message) for at, message in polled_messages(extra))
                for extra in polls["extra"].to_pylist()
            ],
            pa.bool_(),
        )
    )


def _is(table: pa.Table, f: str) -> Any:
    return pc.equal(table["f"], f)


def _all(*masks: Any) -> Any:
    every = pc.fill_null(masks[0], False)
    for mask in masks[1:]:
        every = pc.and_(every, pc.fill_null(mask, False))
    return every


def _last(table: pa.Table) -> OperationRow | None:
    return _at(table, pc.max(table["return_ns"]))


def _first(table: pa.Table) -> OperationRow | None:
    return _at(table, pc.min(table["return_ns"]))


def _at(table: pa.Table, return_ns: pa.Scalar) -> OperationRow | None:
    """Return the operation that returned at that time; None if none did."""
    if not return_ns.is_valid:
        return None
    return next(iter(rows_of(table.filter(pc.equal(table["return_ns"], return_ns)), set())), None)


def faults_during(gone: LossWindow, faults: Sequence[FaultRow]) -> tuple[FaultRow, ...]:
    """Return the faults active in the loss window that may have taken effect."""
    until_ns = gone.until_ns
    return tuple(
        row
        for row in faults
        if row.window.may_have_taken_effect
        and row.window.stop_ns >= gone.since_ns
        and (until_ns is None or row.window.from_ns <= until_ns)
    )


def loss_text(gone: LossWindow, violation: Violation, faults: Sequence[FaultRow]) -> str:
    """Describe when it was last seen, what first showed it gone, and the faults in between.

    Args:
        gone: the result of `loss_window_of`.
        violation: what was lost.
        faults: all faults of the run.
    """
    sentences = [_last_read_text(gone), _first_sign_text(gone, violation)]
    during = faults_during(gone, faults)
    between = "In between" if gone.until_ns is not None else "After that"
    for row in during[:FAULTS_LISTED_MAX]:
        window, until_ns = row.window, gone.until_ns
        did = f" ({window.evidence})" if window.evidence else ""
        what = f"{window.name} {window.fault}, {window.description}, from {_s(window.from_ns)} to"
        what += f" {_s(window.stop_ns)}{did}"
        if window.from_ns > gone.since_ns:
            sentences.append(f"{between} came {what}.")
        elif until_ns is not None and window.stop_ns >= until_ns:
            sentences.append(f"All the while there was {what}.")
        else:
            sentences.append(f"At first there was {what}.")
    if (more := len(during) - FAULTS_LISTED_MAX) > 0:
        sentences.append(
            f"{more} more {'fault' if more == 1 else 'faults'} struck {between.lower()}."
        )
    if not during:
        sentences.append(f"{between} no fault is known to have struck anything.")
    return " ".join(sentences)


def _last_read_text(gone: LossWindow) -> str:
    look = gone.last_read
    if look is None or look.return_ns is None:
        return "No client is known to have read it afterwards."
    by = f", answered by {look.node}" if look.node else ""
    aside = ""
    if gone.until_ns is not None and look.return_ns > gone.until_ns:
        aside = (
            ", after another client had been given an answer that contradicts it: two nodes"
            " answered side by side"
        )
    return f"Client {look.process} still read it at {_s(look.return_ns)}{by}{aside}."


def _first_sign_text(gone: LossWindow, violation: Violation) -> str:
    sign = gone.first_sign
    if sign is None or sign.return_ns is None:
        return (
            "No answer to a client is known to show it gone: that was seen in the nodes' logs when"
            " the run was over."
        )
    by = f"{sign.node} " if sign.node else "the group "
    if sign.f in APPENDING:
        where = "the same offset" if sign.offset == violation.offset else f"offset {sign.offset}"
        did = f"{by}gave {where} to client {sign.process}'s {sign.f} of {sign.input}"
    elif sign.f == "end":
        did = f"{by}answered client {sign.process} that the queue ends at {sign.output}"
    else:
        found = sign.output_text or ("nothing" if sign.output is None else str(sign.output))
        did = f"{by}answered client {sign.process}'s {sign.f} of it with {found}"
    return f"The first sign that it was gone came at {_s(sign.return_ns)}: {did}."


def _s(time_ns: int) -> str:
    return f"{time_ns / NS_PER_S:.3f} s"


# What the records imply about the cause.

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
        return " ".join(filter(None, (str(violation.details.get("matters", "")), record.meaning)))
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
