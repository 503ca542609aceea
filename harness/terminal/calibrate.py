"""The command `calibrate`: hunt planted bugs, and check that the correct system stays clean.

Source: DESIGN.md decision 17; mutation testing's score.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from statistics import median
from typing import Annotated, Final

import msgspec
from cyclopts import Parameter
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table
from rich.text import Text

from shaketable.harness import calibration, discovery
from shaketable.harness.calibration import (
    METHODS,
    Effort,
    Hunt,
    HuntOutcome,
    Plan,
    make_plan,
    run_hunt,
)
from shaketable.harness.campaigns.durations import to_seconds
from shaketable.harness.contracts.abilities import planted_bugs
from shaketable.harness.contracts.errors import HarnessError, UsageError, unknown_name
from shaketable.harness.contracts.program import PROGRAM
from shaketable.harness.contracts.simulation import VIRTUAL_S_DEFAULT as SEED_S
from shaketable.harness.contracts.verdict import ExitCode
from shaketable.harness.history.run_folder import utc_name, write_atomically
from shaketable.harness.runtime.seed_workers import JOBS_MAX, SeedWorkers
from shaketable.harness.terminal import completion, output
from shaketable.reports.calibration_page import BugRow, Score, Scorecard

PLAN: Final = "plan.json"
SCORECARD: Final = "scorecard.json"
PAGE: Final = "scorecard.html"
REPEATS_MAX: Final = 99
RUNS_MAX: Final = 1_000
CLEAN_DEFAULT: Final = 5
VIRTUAL_S_DEFAULT: Final = 600.0
VIRTUAL_MAX_S: Final = 100_000.0
SEEDS: Final = 1 << 31
MESSAGE_CHARS_MAX: Final = 150


def _plain_number(metavar: str) -> Parameter:
    return Parameter(
        metavar=metavar,
        show_default=lambda value: f"{value:g}",
        converter=to_seconds if metavar == "S" else None,
    )


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrateOptions:
    """Who is hunted, how, and what it may cost.

    Attributes:
        mutant: Hunt only these planted bugs.
        family: Hunt only bugs of these families; see ./shaketable list bugs.
        by: By these methods: default, default-sim, sim, family.
        repeats: How often each method hunts each bug.
        runs: Maximum number of campaigns of a hunt.
        virtual_time: Maximum number of virtual seconds of a hunt in each simulated world.
        clean: Runs of the correct system, by each method, on each target.
        seed: Seed of all random choices; default: a fresh one, which is printed.
    """

    mutant: Annotated[
        str | None,
        Parameter(
            metavar="NAME,...", show_default=False, completer=completion.several_of("mutants")
        ),
    ] = None
    family: Annotated[str | None, Parameter(metavar="NAME,...", show_default=False)] = None
    by: Annotated[str, Parameter(metavar="METHOD,...")] = ",".join(METHODS)
    repeats: Annotated[int, Parameter(metavar="N")] = 3
    runs: Annotated[int, Parameter(metavar="N")] = 5
    virtual_time: Annotated[float, _plain_number("S")] = VIRTUAL_S_DEFAULT
    clean: Annotated[int, Parameter(metavar="N")] = CLEAN_DEFAULT
    seed: Annotated[int | None, Parameter(metavar="N", show_default=False)] = None

    def plan(self) -> Plan:
        """Return the plan for these options.

        Raises:
            UsageError: there is no such bug, family or method, or a number is out of range.
        """
        _check_number("--repeats", self.repeats, 1, REPEATS_MAX)
        _check_number("--runs", self.runs, 1, RUNS_MAX)
        _check_number("--clean", self.clean, 0, RUNS_MAX)
        _check_number("--virtual-time", self.virtual_time, SEED_S, VIRTUAL_MAX_S)
        methods = _names("--by", "method", self.by, METHODS)
        bugs = planted_bugs(discovery.find("targets").values())
        names = _names("--mutant", "planted bug", self.mutant, [bug.name for bug in bugs])
        known = list(dict.fromkeys(bug.family for bug in bugs))
        families = _names("--family", "family", self.family, known)
        bugs = [bug for bug in bugs if bug.name in names and bug.family in families]
        if not bugs:
            raise UsageError("calibrate: no planted bug is in all that --mutant and --family name")
        return make_plan(
            bugs,
            dict.fromkeys((bug.targets[0] for bug in bugs), self.clean),
            [method for method in METHODS if method in methods],
            self.repeats,
            Effort(runs_max=self.runs, virtual_s_max=self.virtual_time),
            secrets.randbelow(SEEDS) if self.seed is None else self.seed,
        )


def calibrate(
    *,
    options: CalibrateOptions = CalibrateOptions(),
    jobs: Annotated[int, Parameter(metavar="N")] = 1,
    require: Annotated[float, _plain_number("SHARE")] = 1.0,
    resume: Annotated[Path | None, Parameter(metavar="FOLDER", show_default=False)] = None,
    store: Annotated[Path, Parameter(metavar="FOLDER")] = Path("store"),
) -> int:
    """Hunt the planted bugs, and run the correct system: what is found, what is missed?

    Each bug is hunted by the default campaign (up to --runs of them), by the simulated worlds (10
    virtual minutes in each) and by the campaign of its family. The scorecard is printed,
    and kept as JSON and as a page. --resume continues an interrupted calibration.

    For example:
    ./shaketable calibrate --mutant ack-before-quorum --repeats 1
    ./shaketable calibrate --family storage --by sim
    ./shaketable calibrate --jobs 2

    Exit codes: 0 enough bugs were found and no correct system was accused, 1 otherwise, 254 bad
    usage, 255 the harness failed.

    Args:
        options: Who is hunted, and how.
        jobs: Hunts at once.
        require: Share of the bugs that at least one method must find.
        resume: Folder of an interrupted calibration to continue.
        store: Where to create its folder.
    """
    _check_number("--jobs", jobs, 1, JOBS_MAX)
    if not 0 <= require <= 1:
        raise UsageError(f"--require {require:g}: expected a share, 0 to 1")
    if resume is not None:
        return _run(resume, _read_plan(resume), jobs, require)
    plan = (options or CalibrateOptions()).plan()
    folder = store / "calibrate" / utc_name(datetime.now(UTC))
    _make(folder, plan)
    return _run(folder, plan, jobs, require)


def _check_number(option: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:
        raise UsageError(f"{option} {value:g}: expected {least:g} to {most:,g}")


def _names(option: str, what: str, text: str | None, known: Sequence[str]) -> Sequence[str]:
    """Parse a list of names; None means all known names.

    Raises:
        UsageError: a name is unknown, or the list is empty.
    """
    if text is None:
        return known
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in known:
            raise UsageError(f"{option}: {unknown_name(what, name, known)}")
    if not names:
        raise UsageError(f"{option}: expected some of {', '.join(known)}")
    return names


def _make(folder: Path, plan: Plan) -> None:
    try:
        folder.mkdir(parents=True)
        write_atomically(folder / PLAN, msgspec.json.encode(plan).decode() + "\n")
    except OSError as error:
        raise UsageError(f"cannot write {folder}: {error.strerror}") from error


def _read_plan(folder: Path) -> Plan:
    try:
        return msgspec.json.decode((folder / PLAN).read_bytes(), type=Plan)
    except OSError as error:
        raise UsageError(f"--resume {folder}: no calibration: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise UsageError(f"--resume {folder}: its {PLAN} is damaged: {error}") from error


def _run(folder: Path, plan: Plan, jobs: int, require: float) -> int:
    """Run the remaining hunts, show the scorecard and return the exit code."""
    with _locked(folder):
        done = _hunt(folder, plan, jobs)
    shown = output.shown(folder)
    ended = [done[hunt.id] for hunt in plan.hunts if hunt.id in done]
    card = calibration.add_up(ended, plan.seed, len(plan.hunts))
    _write(folder, card)
    show(card, f"{shown}/{PAGE}")
    found = 1 - len(card.missed) / len(card.bugs) if card.bugs else 1.0
    is_good = found >= require and not card.alarms
    return ExitCode.VALID if is_good else ExitCode.INVALID


def _hunt(folder: Path, plan: Plan, jobs: int) -> dict[str, HuntOutcome]:
    """Run the remaining hunts; return the outcomes of all by hunt id."""
    shown = output.shown(folder)
    done = calibration.read_outcomes(folder, plan)
    todo = [hunt for hunt in plan.hunts if hunt.id not in done]
    _print_heading(plan, len(todo), jobs, shown)
    try:
        for outcome in _hunts(folder, plan, todo, jobs):
            calibration.keep_outcome(folder, outcome)
            done[outcome.hunt.id] = outcome
    except KeyboardInterrupt:
        output.out.print(Text(f"to go on: {PROGRAM} calibrate --resume {shown}"))
        raise
    return done


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Lock a calibration's folder: two processes would overwrite each other's runs.

    Raises:
        UsageError: another process holds the lock.
    """
    try:
        held = os.open(folder / PLAN, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise UsageError(f"cannot read {folder / PLAN}: {error.strerror}") from error
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(held)
        raise UsageError(f"{folder}: another process goes on with this calibration") from error
    try:
        yield
    finally:
        os.close(held)


def _hunts(folder: Path, plan: Plan, todo: Sequence[Hunt], jobs: int) -> Iterator[HuntOutcome]:
    """Run hunts and print each outcome, with a progress bar on a terminal."""
    bar = Progress(
        BarColumn(36, complete_style="cyan"),
        MofNCompleteColumn(),
        TextColumn("hunts"),
        TimeElapsedColumn(),
        console=output.out,
        transient=True,
        disable=not output.out.is_terminal,
    )
    task = bar.add_task("", total=len(todo))
    with bar, SeedWorkers(partial(run_hunt, folder.resolve(), plan.effort), jobs) as workers:
        for number, outcome in enumerate(workers.run(todo), 1):
            text = Text(f"{number:>4} of {len(todo)}  ", "dim").append(_outcome_text(outcome))
            output.out.print(text, soft_wrap=True)
            bar.update(task, completed=number)
            yield outcome


def _write(folder: Path, card: Scorecard) -> None:
    from shaketable.reports.calibration_page import render_scorecard  # noqa: PLC0415 - only at the end

    try:
        text = json.dumps(calibration.to_json(card), indent=1)
        write_atomically(folder / SCORECARD, text + "\n")
        write_atomically(folder / PAGE, render_scorecard(card))
    except OSError as error:
        raise HarnessError(f"cannot write {error.filename}: {error.strerror}") from error


# ---- output ------------------------------------------------------------------------------------


def _print_heading(plan: Plan, todo: int, jobs: int, folder: str) -> None:
    bugs = len({hunt.bug for hunt in plan.hunts if hunt.bug})
    facts = [
        f"{bugs} planted bugs" if bugs != 1 else "1 planted bug",
        f"{todo} of {len(plan.hunts)} hunts to do",
        f"{jobs} at once",
        f"seed {plan.seed}",
    ]
    text = Text("shaketable", style="bold")
    text.append(f"  calibrate · {' · '.join(facts)}", "not bold default")
    output.out.print(text, soft_wrap=True)
    output.out.print(Text(folder, style="dim"), soft_wrap=True)
    output.out.print()


def _outcome_text(outcome: HuntOutcome) -> Text:
    hunt, found = outcome.hunt, outcome.found
    text = Text(f"{hunt.bug or f'no bug, {hunt.target}':<34} {hunt.method:<12}", "not dim")
    if hunt.bug:
        style, label = ("green", "found") if found else ("yellow", "missed")
    else:
        style, label = ("bold red", "ACCUSED") if found else ("green", "clean")
    text.append(f"{label:<8}", style)
    text.append(f"{_runs_text(outcome.runs)}, {outcome.took_s:,.0f} s")
    if found:
        text.append(f"  {', '.join(found.by)}: {found.says}"[:MESSAGE_CHARS_MAX], "dim")
    elif why := [*outcome.failed, *outcome.unknown]:
        text.append(f"  {why[0]}"[:MESSAGE_CHARS_MAX], "dim")
    return text


def show(card: Scorecard, page: str) -> None:
    """Print the scorecard: a row for each bug, missed bugs, false alarms, totals."""
    output.out.print()
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold", pad_edge=False)
    table.add_column("family", style="dim")
    table.add_column("planted bug")
    for method in card.methods:
        table.add_column(method)
    for row in card.bugs:
        cells = [_score_text(row.scores.get(method)) for method in card.methods]
        table.add_row(row.family, row.bug, *cells)
    output.out.print(table)
    output.out.print()
    for line in summary_lines(card):
        output.out.print(Text(line), soft_wrap=True)
    output.out.print(Text(f"page: {page}", style="dim"), soft_wrap=True)


def _score_text(score: Score | None) -> Text:
    if score is None:
        return Text("")
    if score.failed and not score.found:
        return Text("not run", "magenta")
    if not score.found:
        return Text("missed", "yellow")
    cost = (
        f"{score.found}/{score.hunts}, {median(score.runs):g} runs, {median(score.took_s):,.0f} s"
    )
    return Text(cost, "green" if score.is_in_time else "cyan")


def _runs_text(count: float) -> str:
    return f"{count:g} run" if count == 1 else f"{count:g} runs"


def summary_lines(card: Scorecard) -> list[str]:
    """Return the summary of a scorecard, line by line."""
    total = len(card.bugs)
    lines = [f"{total - len(card.missed)} of {total} planted bugs found"]
    lines += [f"  by {method}: {card.found_by(method)}" for method in card.methods]
    if card.missed:
        lines.append(f"missed: {', '.join(_name(row) for row in card.missed)}")
    late = [row.bug for row in card.bugs if row.is_found and not _is_in_time(row)]
    if late:
        lines.append(f"found, and not within a minute or 10 simulated ones: {', '.join(late)}")
    runs = sum(row.runs for row in card.clean)
    unknown_runs = sum(len(row.unknown) for row in card.clean)
    alarms = "1 false alarm" if card.alarms == 1 else f"{card.alarms} false alarms"
    lines.append(
        f"the correct system: {alarms} in {_runs_text(runs)}"
        + (f", {unknown_runs} of unknown verdict" if unknown_runs else "")
    )
    if card.done < card.hunts:
        lines.append(f"{card.hunts - card.done} of {card.hunts} hunts were not done")
    return lines


def _name(row: BugRow) -> str:
    return f"{row.bug} ({row.family})"


def _is_in_time(row: BugRow) -> bool:
    return any(score.is_in_time for score in row.scores.values())
