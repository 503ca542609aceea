"""The summary of a run: verdict and reason, what happened, where the report is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import PurePath

from rich.console import Console
from rich.text import Text

from shaketable.harness.terminal.output import INDENT, show_rows
from shaketable.reports import finding_texts
from shaketable.reports.availability import (
    Failover,
    RecoverySummary,
    summarise,
)
from shaketable.reports.run_view import FaultRow, RunView, ViolationGroup

FINDINGS_SHOWN = 3
"""Findings that the summary shows, each of another kind; the report has them all."""
NOTES_SHOWN = 3
NOTE_CHARS_MAX = 140
"""Longer notes are cut here, not in the report."""
NS_PER_S = 1e9
MB = 1e6
COPIED = ("violation", "report", "repeat")
STYLES = {"VALID": "bold green", "INVALID": "bold red", "UNKNOWN": "bold yellow"}


def show(console: Console, view: RunView, report: str) -> None:
    """Print the summary of a judged run; `report` is the path to print."""
    console.print()
    verdict = Text(view.verdict, style=STYLES.get(view.verdict, "bold"))
    verdict.append(f"  {view.why}", style="not bold default")
    console.print(verdict, highlight=False)
    console.print()
    lines = rows(view, report)
    width = max(len(label) for label, _ in lines)
    show_rows(console, [line for line in lines if line[0] not in COPIED], "dim", label_width=width)
    for label, text in lines:
        if label in COPIED:  # never wrapped: users copy and click it
            line = Text(f"{'':{INDENT}}{label:{width}}  ", style="dim").append(text, "not dim")
            console.print(line, highlight=False, soft_wrap=True)


def rows(view: RunView, report: str) -> list[tuple[str, str]]:
    """Return the summary's lines as label and text. Pure."""
    lines = [
        *findings_rows(view),
        ("operations", operations_text(view.outcomes)),
        ("faults", faults_text(view.faults, view.faults_asked, view.faults_unavailable)),
        ("recovery", recovery_text(summarise(row.recovery for row in view.faults))),
        ("failover", failover_text(view.failover)),
        ("leader", leader_text(view.leader_changes)),
        ("memory", memory_text(view.memory)),
        ("observed", f"never promised: {view.observed}" if view.observed else ""),
        *note_rows(view.notes),
        ("seed", view.seed),
        ("violation", page_path(report, view.first_page)),
        ("report", report),
        ("repeat", view.command),
    ]
    return [(label, text) for label, text in lines if text]


def page_path(report: str, page: str) -> str:
    """Return the path of a violation's page, beside the report; "" if there is none."""
    return str(PurePath(report).parent / page) if page else ""


def operations_text(outcomes: tuple[int, int, int]) -> str:
    """Return the number of operations by outcome."""
    ok, fail, info = outcomes
    return f"{sum(outcomes):,}: {ok:,} ok, {fail:,} fail, {info:,} info (outcome unknown)"


def faults_text(
    faults: Sequence[FaultRow],
    requested: Sequence[str],
    unavailable: Sequence[tuple[str, str]] = (),
) -> str:
    """Return how many faults took effect, by name, and which were not available."""
    lacking = [name for name, _ in unavailable]
    requested = [name for name in requested if name not in lacking]
    text = _applied_text(faults, requested)
    return f"{text}; not available: {', '.join(lacking)}" if lacking else text


def _applied_text(faults: Sequence[FaultRow], requested: Sequence[str]) -> str:
    if not requested:
        return "none requested"
    if not faults:
        return f"none applied of {', '.join(requested)}"
    applied = Counter(row.window.name for row in faults)
    took_effect = Counter(row.window.name for row in faults if row.window.took_effect)
    each = ", ".join(
        f"{name} {count}"
        if took_effect[name] == count
        else f"{name} {took_effect[name]} of {count}"
        for name, count in sorted(applied.items())
    )
    never = [name for name in requested if name not in applied]
    rest = f"; never drawn: {', '.join(never)}" if never else ""
    return f"{took_effect.total()} of {applied.total()} took effect ({each}){rest}"


def recovery_text(recovery: RecoverySummary) -> str:
    """Return how long the group took to serve again."""
    if recovery.median_ns is None or recovery.max_ns is None:
        return "the group never served again" if recovery.never else ""
    text = f"median {_seconds(recovery.median_ns)}, worst {_seconds(recovery.max_ns)}"
    if recovery.gap_max_ns is not None:
        text += f"; longest without an acknowledgement {_seconds(recovery.gap_max_ns)}"
    return text + _not_at_all(recovery.never, "fault")


def failover_text(failover: Failover | None) -> str:
    """Return how soon writes continued after kills of the leader, and any goals."""
    if failover is None:
        return ""
    kills = "1 kill" if failover.kills == 1 else f"{failover.kills} kills"
    if failover.median_ns is None or failover.p99_ns is None:
        return f"after {kills} of the leader no write was acknowledged"
    goals = ("", "")
    if failover.goals_s is not None:
        median_s, p99_s = failover.goals_s
        goals = (
            f" (goal {_seconds(int(median_s * 1e9))})",
            f" (goal {_seconds(int(p99_s * 1e9))})",
        )
    return (
        f"{kills} of the leader, next acknowledged write after: median "
        f"{_seconds(failover.median_ns)}{goals[0]}, p99 {_seconds(failover.p99_ns)}{goals[1]}"
    ) + _not_at_all(failover.never, "kill")


def _not_at_all(count: int, what: str) -> str:
    return f"; not at all after {count} {what}{'s' if count > 1 else ''}" if count else ""


def leader_text(changes: int | None) -> str:
    """Return how often the leader changed."""
    if changes is None:
        return "unknown: no node reported one"
    return {0: "never changed", 1: "changed once"}.get(changes, f"changed {changes} times")


def memory_text(memory: Sequence[tuple[str, int, int, int]]) -> str:
    """Return the memory of our processes after the steady phase, at the end, and at most.

    What did not change, in whole MB, is said once.
    """
    return "; ".join(
        _memory_of(name, *(round(size / MB) for size in sizes)) for name, *sizes in memory
    )


def _memory_of(name: str, first: int, last: int, most: int) -> str:
    end = f", at the end {last}" if last != first else ""
    peak = f", at most {most}" if most > max(first, last) else ""
    return f"{name} {first} MB{end}{peak}"


def note_rows(notes: Sequence[str]) -> list[tuple[str, str]]:
    """Return the first notes, shortened, and how many more there are."""
    lines = [
        ("note", note if len(note) <= NOTE_CHARS_MAX else f"{note[: NOTE_CHARS_MAX - 1]}…")
        for note in notes[:NOTES_SHOWN]
    ]
    if len(notes) > NOTES_SHOWN:
        lines.append(("", f"and {len(notes) - NOTES_SHOWN} more in the report"))
    return lines


def findings_rows(view: RunView) -> list[tuple[str, str]]:
    """Return the gravest findings behind the verdict, and how many more there are."""
    of_kind: dict[str, list[ViolationGroup]] = {}
    decisive = [checker for checker in view.checkers if checker.verdict == view.verdict]
    for checker in decisive:
        for group in checker.groups:
            of_kind.setdefault(group.kind, []).append(group)
    totals = finding_texts.merge_totals(checker.totals for checker in decisive)
    kinds = sorted((kind for kind in totals if kind in of_kind), key=finding_texts.rank)
    kinds = kinds[:FINDINGS_SHOWN]
    lines = [("finding", _finding_text(of_kind[kind], totals[kind])) for kind in kinds]
    rest = sum(totals.values()) - len(kinds)  # as the headline counts them
    if rest > 0 and kinds:
        lines.append(("", f"and {rest:,} more; see the report"))
    return lines


def _finding_text(groups: Sequence[ViolationGroup], total: int) -> str:
    """Return one finding of a kind, and how many there are under all faults."""
    count = f" ({total:,} of them)" if total > 1 else ""
    text = next((group.shown[0].message for group in groups if group.shown), groups[0].title)
    page = next((each.page for group in groups for each in group.shown if each.page), "")
    return f"{groups[0].kind}{count}: {text}{f' Page: {page}' if page else ''}"


def _seconds(ns: int) -> str:
    return f"{ns / NS_PER_S:.2f} s"
