"""Explain a violation's claim to a reader who did not write the test."""

from __future__ import annotations

import re
from typing import Final

from shaketable.harness.contracts.finding_kinds import record_of
from shaketable.harness.contracts.plugins import FaultWindow
from shaketable.reports.run_view import FaultRow, OperationRow, Violation
from shaketable.reports.violation_page.violation_view import Claim

NS_PER_S: Final = 1e9
TERM_BEGAN: Final = "its term began"
"""The only known time of an entry that no client was told about."""
_PROCESS: Final = re.compile(r"\bprocess ([0-9]+)")
"""Checkers say process, as histories do; pages say client, as their tables do."""
_NAMES_FIRST: Final = re.compile(r"\S+(, \S+)*: ")


def claim_of(
    violation: Violation,
    marked: tuple[OperationRow, ...],
    nodes: tuple[str, ...],
    faults: tuple[FaultRow, ...] = (),
    moment: tuple[int | None, str] = (None, ""),
    gone: str = "",
    target_note: str = "",
) -> Claim:
    """Put a violation into two or three sentences.

    Args:
        violation: what was found.
        marked: the operations that it names.
        nodes: of the group.
        faults: those that were active around it.
        moment: when it was, if known, and what happened then (`moments.moment_label`).
        gone: when it went missing, as text (`meaning.loss_text`).
        target_note: the target's own note on its promises.
    """
    record = record_of(violation.kind)
    rule = violation.details.get("promise")
    names_rule = record.is_seen_live and isinstance(rule, str) and rule
    promised = str(rule) if names_rule else record.promise
    instead = ""
    if record.became and violation.value is not None:
        instead = _durable(violation, record.became, marked, nodes)
    where = _where(violation, faults, *moment)
    return Claim(
        promised,
        instead or _sentence(violation),
        where,
        gone,
        target_note if record.became else "",
    )


def _durable(
    violation: Violation, became: str, marked: tuple[OperationRow, ...], nodes: tuple[str, ...]
) -> str:
    """Return what became of an acknowledged append: who acknowledged it, and who has it."""
    append = next((row for row in marked if row.input == violation.value), None)
    who = "A client" if append is None else f"Client {append.process}"
    text = f"{who} appended the value {violation.value} to {violation.key or 'the queue'}."
    by = violation.acknowledged_by or "A node that is not named"
    at = (
        ""
        if violation.acknowledged_ns is None
        else f", {violation.acknowledged_ns / NS_PER_S:.3f} s into the run"
    )
    text += f" {by} acknowledged it at offset {violation.offset}{at}."
    text += f" At the end of the run this append {became}"
    held = violation.details.get("held_by")
    if isinstance(held, list) and nodes:
        holders = [str(node) for node in held]
        verb = "holds" if len(holders) == 1 else "hold"
        text += (
            f": of the {len(nodes)} nodes only {', '.join(holders)} {verb} it there"
            if holders
            else f": none of the {len(nodes)} nodes holds it there"
        )
    return f"{text}."


def _sentence(violation: Violation) -> str:
    """Return the checker's own message without the queue's name, which is shown elsewhere."""
    text = violation.message or violation.kind
    if violation.key and text.startswith(f"{violation.key}: "):
        text = text[len(violation.key) + 2 :]
    text = _PROCESS.sub(r"client \1", text)
    # "n0: its log lacks ..." starts with a name, which is not capitalized.
    return text if _NAMES_FIRST.match(text) else text[:1].upper() + text[1:]


def _on(faults: tuple[FaultRow, ...], moment_ns: int | None) -> list[FaultWindow]:
    """Return the faults that were active at a moment; none if the moment is not known."""
    if moment_ns is None:
        return []
    return [row.window for row in faults if row.window.from_ns <= moment_ns <= row.window.stop_ns]


def _since(on: list[FaultWindow], moment_ns: int | None) -> str:
    """Return how long the fault had been active; "" if there was none, or more than one."""
    if moment_ns is None:
        return ""
    return (
        f", which had begun {duration_text(moment_ns - on[0].from_ns)} before"
        if len(on) == 1
        else ""
    )


def duration_text(length_ns: int) -> str:
    """Print a length of time in a fitting unit."""
    if length_ns < NS_PER_S:
        return f"{length_ns / 1e6:.0f} ms"
    return f"{length_ns / NS_PER_S:.2f} s"


def _where(
    violation: Violation, faults: tuple[FaultRow, ...], moment_ns: int | None, moment_label: str
) -> str:
    """Return under which fault it happened, and how long after its start; "" if unknown."""
    fault_text, on = violation.fault_text, _on(faults, moment_ns)
    since = _since(on, moment_ns)
    if not fault_text and moment_ns is None:
        return ""
    if not fault_text:
        return _at_moment(on, moment_ns, moment_label)
    if fault_text.startswith("under ") and record_of(violation.kind).became:
        return f"It was acknowledged under a fault: {fault_text.removeprefix('under ')}{since}."
    if fault_text.startswith("under "):
        return f"This happened under a fault: {fault_text.removeprefix('under ')}{since}."
    if fault_text.startswith("seen under "):
        return f"It was seen under a fault: {fault_text.removeprefix('seen under ')}{since}."
    return f"This happened {fault_text}."


def _at_moment(on: list[FaultWindow], moment_ns: int | None, moment_label: str) -> str:
    """Return which faults were active at a moment, if the finding itself names none."""
    named = ", ".join(f"{one.name} {one.fault} ({one.description})" for one in on)
    if moment_label == TERM_BEGAN and moment_ns is not None:
        began = f"the entry's term began {moment_ns / NS_PER_S:.3f} s into the run, as polled"
        faults = f"with {named} on" if on else "with no fault on"
        return f"It is not known when it happened; {began}, {faults}."
    if on:
        return f"Faults that were on at that moment: {named}."
    when = f"when it was {moment_label}" if moment_label else "at that moment"
    return f"No fault was on {when}, as far as the history shows."
