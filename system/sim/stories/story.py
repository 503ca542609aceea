"""Explains a failing run to a reader who did not write the test.

First the violated promise, then the planted bug if there is one, then what happened, moment by
moment, beside a space-time diagram: as plain text for a terminal (`Story.text`) and as one
self-contained page (`Story.html`).
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from shaketable.system.mutants import Mutant, catalogue
from shaketable.system.sim.rules.violation import Violation
from shaketable.system.sim.schedules.schedule import Call, Schedule
from shaketable.system.sim.shrinking.shrink import Shrunk, count_events, save
from shaketable.system.sim.stories.promises import Promise, promise_of
from shaketable.system.sim.stories.story_page import Facts, render_page
from shaketable.system.sim.stories.story_rows import Rows, build_rows
from shaketable.system.sim.stories.story_text import LEGEND, draw_text
from shaketable.system.sim.stories.watch import describe_fault, watch

TEXT_WIDTH = 120
SHRUNK_FILE = "shrunk.json"
STORY_FILE = "story.html"
LISTED_MAX = 25
"""Most faults, and most calls, that are listed; a minimal run has fewer."""


class NothingToTell(Exception):  # noqa: N818 - a finding about the run
    """The run violates nothing, so there is no story."""


@dataclass(frozen=True, slots=True)
class Story:
    """The story of a failing run. `text` is for a terminal, `html` is a whole page."""

    violation: Violation
    text: str
    html: str


def tell(schedule: Schedule, mutant: Mutant | None = None, *, width: int = TEXT_WIDTH) -> Story:
    """Run a schedule again and build its story. Raises NothingToTell if nothing is violated."""
    seen = watch(schedule, mutant)
    if seen.violation is None:
        raise NothingToTell(f"seed {schedule.seed} breaks nothing: there is no story to tell")
    rows = build_rows(seen)
    facts = _facts(schedule, seen.violation, mutant)
    return Story(seen.violation, _text(facts, rows, width), render_page(facts, rows))


def save_story(shrunk: Shrunk, story: Story, folder: Path) -> tuple[Path, Path]:
    """Write the run (for replay) and its story's page into a folder; return both paths."""
    folder.mkdir(parents=True, exist_ok=True)
    run, page = folder / SHRUNK_FILE, folder / STORY_FILE
    save(shrunk, run)
    page.write_text(story.html, encoding="utf-8")
    return run, page


def _facts(schedule: Schedule, violation: Violation, mutant: Mutant | None) -> Facts:
    promise: Promise = promise_of(violation.invariant)
    faults = tuple(
        f"fault {number}, at {fault.start_ms} ms: {describe_fault(fault)}"
        for number, fault in enumerate(schedule.faults, start=1)
    )
    return Facts(
        invariant=violation.invariant,
        finding=violation.finding,
        at_ms=violation.at_ms,
        node=violation.node,
        statement=promise.statement,
        impact=promise.impact,
        bug=planted_bug(mutant),
        seed=schedule.seed,
        members=schedule.settings.members,
        events=count_events(schedule),
        faults=_listed(faults, "faults"),
        calls=_listed([describe_call(call) for call in schedule.calls], "calls"),
    )


def _listed(texts: Sequence[str], what: str) -> tuple[str, ...]:
    if len(texts) <= LISTED_MAX:
        return tuple(texts)
    return (*texts[:LISTED_MAX], f"and {len(texts) - LISTED_MAX} more {what}")


def planted_bug(mutant: Mutant | None) -> str:
    """Return a planted bug's name and first line; "" where none is planted."""
    if mutant is None or mutant.name == "none":
        return ""
    breaks = next((bug.breaks for bug in catalogue() if bug.name == mutant.name), "")
    return f"{mutant.name}: {breaks}".rstrip(": ")


def describe_call(call: Call) -> str:
    """Describe a client's call: `client 3, at 120 ms: 2 appends to queue 0`."""
    times = f"{call.count} " if call.count > 1 else ""
    what = {
        "append": f"{times}append{'s' * (call.count > 1)} to",
        "batch": f"{times}append{'s' * (call.count > 1)} in one go to" if times else "append to",
        "pull": "pull from",
        "max_offset": "ask for the end of",
    }.get(call.kind, call.kind)
    return f"client {call.client}, at {call.at_ms} ms: {what} queue {call.queue}"


def _text(facts: Facts, rows: Rows, width: int) -> str:
    lines = [f"BROKEN: {facts.invariant}", ""]
    lines += _wrapped("promised", facts.statement, width)
    if facts.impact:
        lines += _wrapped("why it matters", facts.impact, width)
    lines += _wrapped("seen", f"{facts.finding} ({facts.where})", width)
    if facts.bug:
        lines += _wrapped("planted bug", facts.bug, width)
    lines += _wrapped("the run", facts.run, width)
    for text in (*facts.faults, *facts.calls):
        lines += _wrapped("", text, width)
    lines += ["", draw_text(rows, width=width), "", LEGEND]
    if rows.left_out:
        lines.append(f"{rows.left_out} lesser moments are left out.")
    return "\n".join(lines) + "\n"


def _wrapped(label: str, text: str, width: int) -> list[str]:
    indent = " " * 16
    return textwrap.wrap(
        text, width, initial_indent=f"{label:<16}", subsequent_indent=indent,
        break_on_hyphens=False,
    )  # fmt: skip
