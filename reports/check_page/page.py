"""Render the result of `check` as one self-contained HTML page that explains what fails and why.

The page stays small for histories of any length: only failing parts are drawn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment

from shaketable.harness.contracts.verdict import Finding, Verdict, join
from shaketable.reports import templating
from shaketable.reports.check_page.checked_history import (
    CheckedHistory,
    FailingPart,
    describe,
    failing_part,
    shown_findings,
    visible,
)
from shaketable.reports.check_page.pictures import (
    NAMES,
    CycleGraph,
    Picture,
    cycle_graph_of,
    lay_out,
    role_of,
)
from shaketable.reports.finding_texts import phrase

TEMPLATES: Final = Path(__file__).parents[1] / "templates"
PARTS_MAX: Final = 6
"""Failing parts that a page draws; other findings have only their message."""
PARTS_OF_CHECKER_MAX: Final = 4
EVIDENCE_MAX: Final = 8
"""Resolved indeterminate operations for which a page gives the evidence."""
BLOCKED_MAX: Final = 8
"""Operations that could not come next for which a page gives the reason."""
FINDINGS_LISTED_MAX: Final = 30
"""Findings of a checker that are listed by their messages."""
HISTORIES_MAX: Final = 500
"""Histories that the table lists; the worst come first."""
HISTORIES_DETAILED_MAX: Final = 12
"""Histories with a section of their own."""
ORDER_MAX: Final = 200
"""Maximum steps of an order in a finding (checkers.linearizability.refutation)."""
TEXT_MAX: Final = 300
STATE_MAX: Final = 120
TRACE_MAX: Final = 8_000
"""Characters of a message, a state and a traceback; the JSON has them in full."""


@dataclass(frozen=True, slots=True)
class DrawnFinding:
    """One finding with its part; `picture` is None if there is no operation to draw.

    `cycle` is set for a cycle of dependencies.
    """

    finding: Finding
    part: FailingPart | None
    picture: Picture | None
    story: tuple[str, ...]
    cycle: CycleGraph | None = None


@dataclass(frozen=True, slots=True)
class ShownVerdict:
    """One checker's verdict: drawn findings, listed messages, and how many more there are."""

    verdict: Verdict
    drawn: tuple[DrawnFinding, ...]
    messages: tuple[str, ...]
    more: int


@dataclass(frozen=True, slots=True)
class ShownHistory:
    """One history on the page; `anchor` links to it."""

    history: CheckedHistory
    anchor: str
    verdicts: tuple[ShownVerdict, ...]


def render_page(checked: Sequence[CheckedHistory]) -> str:
    """Render the page of one invocation of `check`; at least one history."""
    assert checked, "a page shows at least one history"
    # the worst first, else in the given order
    ordered = sorted(enumerate(checked, 1), key=lambda numbered: -int(numbered[1].outcome))
    left = PARTS_MAX
    shown = []
    for number, history in ordered[:HISTORIES_MAX]:
        verdicts = []
        for verdict in history.verdicts:
            one = _shown_verdict(verdict, history, left)
            left -= len(one.drawn)
            verdicts.append(one)
        shown.append(ShownHistory(history, f"history-{number}", tuple(verdicts)))
    outcome = join(verdict for history in checked for verdict in history.verdicts)
    return (
        _environment()
        .get_template("check.html.j2")
        .render(
            verdict=outcome.name,
            histories=shown,
            detailed=shown[:HISTORIES_DETAILED_MAX],
            count=len(checked),
            why=_headline(checked),
            role_of=role_of,
            cut=_cut,
            cut_state=_cut_state,
            cut_trace=_cut_trace,
            names=NAMES,
            blocked_max=BLOCKED_MAX,
            evidence_max=EVIDENCE_MAX,
            title=_title,
        )
    )


def _headline(checked: Sequence[CheckedHistory]) -> str:
    if len(checked) > 1:
        counts = {
            name: sum(one.outcome.name == name for one in checked)
            for name in ("INVALID", "UNKNOWN", "VALID")
        }
        sentences = ", ".join(f"{n} {name.lower()}" for name, n in counts.items() if n)
        return f"{len(checked)} histories: {sentences}"
    worst = max(checked[0].verdicts, key=lambda verdict: verdict.outcome)
    if worst.findings:
        first = worst.findings[0]
        total = max(worst.findings_total, len(worst.findings))
        is_alike = all(finding.kind == first.kind for finding in worst.findings)
        counted = phrase(first.kind, total) if is_alike else f"{total:,} findings"
        more = f"; {counted} in all" if total > 1 else ""
        return (_cut(first.message).removesuffix(".") if more else _cut(first.message)) + more
    return _cut(worst.summary)


def _shown_verdict(verdict: Verdict, history: CheckedHistory, left: int) -> ShownVerdict:
    drawn: list[DrawnFinding] = []
    messages: list[str] = []
    findings = shown_findings(verdict)
    seen: set[tuple[str, str | None]] = set()
    for finding in findings:
        place = (finding.kind, finding.key)
        has_room = len(drawn) < min(left, PARTS_OF_CHECKER_MAX)
        part = failing_part(finding, history.rows) if has_room and place not in seen else None
        if part is not None and part.operations:
            seen.add(place)
            picture = lay_out(part, is_timed=history.is_timed, faults=history.faults)
            cycle = cycle_graph_of(finding.details, partial(_of_operation, history.rows))
            drawn.append(DrawnFinding(finding, part, picture, story(part, history), cycle))
        else:
            messages.append(_cut(finding.message))
    total = max(verdict.findings_total, len(findings))
    listed = messages[:FINDINGS_LISTED_MAX]
    return ShownVerdict(verdict, tuple(drawn), tuple(listed), total - len(drawn) - len(listed))


def _of_operation(rows: Mapping[int, Mapping[str, Any]], op: int) -> tuple[str, str]:
    """Return what an operation did, and which client did it."""
    row = rows.get(op)
    return ("", "") if row is None else (describe(row), f"client {row['process']}")


def story(part: FailingPart, history: CheckedHistory) -> tuple[str, ...]:
    """Explain what fails, and why, to a reader who did not write the test."""
    return part_story(part, is_timed=history.is_timed)


def part_story(part: FailingPart, *, is_timed: bool) -> tuple[str, ...]:
    """Explain a failing part; `is_timed`: its times are more than event numbers."""
    if part.stuck is None:
        return ()
    if part.is_accusation:
        return _accusation(part, is_timed=is_timed)
    sentences = []
    if part.before:
        verb = "operation had" if part.before == 1 else "operations had"
        sentences.append(
            f"{part.before:,} {verb} returned before this part, and all of them can be explained."
        )
    if part.states:
        states = " or ".join(map(_cut, part.states[:8])) + (" or more" if part.states[8:] else "")
        whatever = "" if len(part.states) == 1 else ", depending on the order that is chosen"
        sentences.append(f"At first the object held {states}{whatever}.")
    count = len(part.prefix)
    if count:
        _, state = part.prefix[-1]
        steps = "1 operation" if count == 1 else f"{count} operations"
        which = "An order that was found and" if part.undecided else "The longest order that"
        ends = f"at least {steps}, of which these are the last" if count >= ORDER_MAX else steps
        sentences.append(
            f"{which} explains the answers has {ends} (numbered circles); after it"
            f" the object holds {_cut(state)}."
        )
    elif not part.undecided:
        sentences.append("No operation of this part can come first.")
    stuck = part.by_id(part.stuck)
    if stuck is not None:
        when = f" before it returned{_returned(stuck.return_ns, is_timed=is_timed)}"
        if stuck.resolved:
            when = f", for its effect is known ({stuck.resolved.removesuffix('.')})"
        sentences.append(
            f"Then “{stuck.call}” of client {stuck.process} would have to take effect"
            f"{when}, and cannot{' after that order' if part.undecided else ''}."
        )
    if part.undecided:
        sentences.append(
            f"Whether another order works was not decided: {part.undecided} was used up."
            " The verdict is unknown, which is neither valid nor invalid."
        )
    elif part.could_not:
        sentences.append(
            "All other orders end no later. So no way to let each operation take effect at one"
            " moment between its call and its return gives these answers."
        )
    return tuple(sentences)


def _accusation(part: FailingPart, *, is_timed: bool) -> tuple[str, ...]:
    """Explain a finding that a rule made without trying any order."""
    sentences = []
    if part.before:
        verb = "operation had" if part.before == 1 else "operations had"
        sentences.append(f"{part.before:,} {verb} returned before what is shown here began.")
    stuck = part.by_id(part.stuck) if part.stuck is not None else None
    if stuck is not None:
        sentences.append(
            f"“{stuck.call}” of client {stuck.process} has no place in any order:"
            f" {_cut(part.could_not[0][1])}{_returned(stuck.return_ns, is_timed=is_timed)}."
        )
    return tuple(sentences)


def _title(finding: Finding) -> str:
    """Return the heading of a finding; its message may start with the key."""
    prefix = "" if finding.key is None else f"{finding.key}: "
    message = finding.message.removeprefix(prefix)
    if message.startswith(finding.kind):
        return _cut(f"{prefix}{message}")
    place = "" if finding.key is None else f", key {finding.key}"
    return _cut(f"{finding.kind}{place}: {message}")


def _returned(return_ns: int | None, *, is_timed: bool) -> str:
    if return_ns is None:
        return ""
    return f" at {return_ns / 1e9:.6f} s" if is_timed else f" (event {return_ns})"


def _cut(text: str) -> str:
    text = visible(text)
    return text if len(text) <= TEXT_MAX else text[: TEXT_MAX - 1] + "…"


def _cut_state(text: str) -> str:
    text = visible(text)
    return text if len(text) <= STATE_MAX else text[: STATE_MAX - 1] + "…"


def _cut_trace(text: str) -> str:
    return text if len(text) <= TRACE_MAX else "…" + text[1 - TRACE_MAX :]


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,.2f}"


@cache
def _environment() -> Environment:
    environment = templating.environment(TEMPLATES)
    environment.filters.update(number=_number)
    return environment
