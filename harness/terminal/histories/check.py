"""The command `check`: judge any recorded history and show the result."""

from __future__ import annotations

import json
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from cyclopts import Group, Parameter
from rich.console import Console
from rich.text import Text

from shaketable.checkers.linearizability.model_choice import model_named
from shaketable.harness.budget_clock import is_compiling
from shaketable.harness.campaigns.durations import to_seconds
from shaketable.harness.contracts.errors import HarnessError, UsageError
from shaketable.harness.contracts.program import PROGRAM
from shaketable.harness.contracts.verdict import EXIT_BY_OUTCOME, Outcome, Verdict, join, worst_exit
from shaketable.harness.error_output import print_harness_error
from shaketable.harness.history.run_folder import write_atomically
from shaketable.harness.judging import checking, engines
from shaketable.harness.judging.checking import CheckSettings, EngineKind
from shaketable.harness.terminal import completion
from shaketable.harness.terminal.output import INDENT, Output, show_rows
from shaketable.harness.untrusted_text import printable
from shaketable.harness.without_pandas import leave_pandas_out
from shaketable.reports.check_page.checked_history import (
    CheckedHistory,
    failing_part,
    shown_findings,
)
from shaketable.reports.check_page.pictures import text_lines

TIME_BUDGET_S_MAX: Final = 7 * 24 * 3600.0
MEMORY_BYTES_MIN: Final = 1 << 20
LINE_EVERY_S: Final = 10.0
"""Without a terminal the current step is printed at this interval."""
STDOUT: Final = "-"

WHAT: Final = Group("What to check it against", sort_key=1)
SPENDING: Final = Group("Limits", sort_key=2)
OUTPUT: Final = Group("Where results go", sort_key=3)

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)i?b?", re.IGNORECASE)
_UNITS: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def _option(
    group: Group, metavar: str, *, dash: bool = False, completer: completion.Completer | None = None
) -> Parameter:
    return Parameter(
        group=group,
        metavar=metavar,
        show_default=False,
        allow_leading_hyphen=dash,
        converter=to_seconds if metavar == "S" else None,
        completer=completer,
    )


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class CheckOptions:
    """What the command line says about a check.

    Attributes:
        model: Sequential model (`list models`); default: inferred from the operations.
        initial: Initial state of each object, in the model's form: 0, [1, 2], held.
        partition_by: key: values are [key value], each key an object; none: all is one object.
        checkers: Comma-separated checkers of anomalies (`list checkers`): alone, or beside a model.
        against: porcupine: check each object with it too, and show where verdicts differ; needs Go.
        time_budget: Seconds for each history, 60 by default; what is undecided then is unknown.
        memory_budget: Memory for the search of one object: 512MB, 2GB.
        engine: local, spark, or auto: spark for more than 2 million operations.
        spark_master: Spark that checks: local[*], spark://HOST:PORT, yarn.
        spark_remote: Spark Connect server that checks: sc://HOST:PORT.
        json: Write the verdicts there; - prints them instead of text.
        html: Write a page there that shows the failing parts.
    """

    model: Annotated[str | None, _option(WHAT, "NAME", completer=completion.one_of("models"))] = (
        None
    )
    initial: Annotated[str | None, _option(WHAT, "STATE")] = None
    partition_by: Annotated[Literal["key", "none"] | None, _option(WHAT, "HOW")] = None
    checkers: Annotated[str | None, _option(WHAT, "NAMES")] = None
    against: Annotated[str | None, _option(WHAT, "NAME")] = None
    time_budget: Annotated[float | None, _option(SPENDING, "S")] = None
    memory_budget: Annotated[str, Parameter(group=SPENDING, metavar="SIZE")] = "512MB"
    engine: Annotated[EngineKind, Parameter(group=SPENDING, metavar="NAME")] = "auto"
    spark_master: Annotated[str | None, _option(SPENDING, "URL")] = None
    spark_remote: Annotated[str | None, _option(SPENDING, "URL")] = None
    json: Annotated[Path | None, _option(OUTPUT, "FILE", dash=True)] = None
    html: Annotated[Path | None, _option(OUTPUT, "FILE")] = None

    @property
    def is_for_programs(self) -> bool:
        """Return whether stdout gets JSON instead of text."""
        return str(self.json) == STDOUT

    def settings(self) -> CheckSettings:
        """Return the settings of the check.

        Raises:
            UsageError: the options are invalid or contradict each other; one line.
        """
        if self.time_budget is not None and not 0 < self.time_budget <= TIME_BUDGET_S_MAX:
            raise UsageError(f"--time-budget {self.time_budget:g}: expected more than 0 seconds")
        if self.spark_master is not None and self.spark_remote is not None:
            raise UsageError("--spark-master and --spark-remote exclude each other")
        if self.spark_remote is not None and not self.spark_remote.startswith("sc://"):
            raise UsageError(f"--spark-remote {self.spark_remote}: expected sc://HOST:PORT")
        given = self.spark_remote or self.spark_master
        if given is not None and self.engine == "local":
            raise UsageError("--engine local uses no Spark: leave out where Spark is")
        return CheckSettings(
            model=self.model,
            initial=self.initial,
            partition_by=self.partition_by,
            checkers=tuple(
                each.strip() for each in (self.checkers or "").split(",") if each.strip()
            ),
            time_budget_s=self.time_budget,
            memory_budget_bytes=bytes_of(self.memory_budget),
            engine="spark" if given is not None else self.engine,
            spark_master=given or "local[*]",
        )


def check(
    *paths: Annotated[Path, Parameter(name="PATH")], options: CheckOptions | None = None
) -> int:
    """Check recorded histories: did the clients see what a sequential object could have answered?

    Reads a run's folder, Parquet, JSON (events or operations), Jepsen's history.edn and console
    logs, and other formats (docs/checking.md). Each PATH is a history of its own; the worst verdict
    decides the exit code.

    For example:
    ./shaketable check history.edn
    ./shaketable check history.edn --partition-by key --html page.html
    ./shaketable check queue.jsonl --model fifo-queue --time-budget 5
    ./shaketable check events.jsonl --checkers total-queue --json -
    ./shaketable check history.edn --against porcupine

    Args:
        paths: Files or folders that hold a history each.
        options: What the command line says about the check.
    """
    given = options or CheckOptions()
    settings = given.settings()
    if not paths:
        raise UsageError(f"check takes the PATH of a history; see {PROGRAM} check --help")
    checking.require_checkers(settings.checkers)
    if given.against is not None:
        from shaketable.harness.judging.against import require_reference  # noqa: PLC0415 - few checks ask a reference

        require_reference(given.against)
    for path in (given.json, given.html):
        _require_writable(path, paths)
    if given.json is not None and given.html is not None:
        _require_other(given.json, given.html)
    if settings.model is not None:
        model_named(settings.model)
    if given.against is not None:
        settings = _with_reference(settings)
    leave_pandas_out()
    out = Output(highlight=False, quiet=given.is_for_programs)
    checked: list[CheckedHistory] = []
    refused: list[Refused] = []
    codes: list[int] = []
    try:
        codes = _check_all(paths, settings, given, out, checked, refused)
    finally:  # after Ctrl-C the results so far are kept
        left = paths[len(checked) + len(refused) :]
        refused += [Refused(str(path), "not checked: the check ended before") for path in left]
        if checked or refused:
            codes += _write(out, checked, refused, given)
    return worst_exit(codes)


def _with_reference(settings: CheckSettings) -> CheckSettings:
    from shaketable.harness.installing import cache_folder  # noqa: PLC0415 - as above
    from shaketable.harness.judging.against import build  # noqa: PLC0415 - as above

    with _progress() as progress:
        return replace(settings, against=build(cache_folder(), progress))


def _check_all(
    paths: Sequence[Path],
    settings: CheckSettings,
    given: CheckOptions,
    out: Output,
    checked: list[CheckedHistory],
    refused: list[Refused],
) -> list[int]:
    """Check the histories one by one into `checked`; return their exit codes.

    One that cannot be checked does not stop the others: its error is printed, counts, and is added
    to `refused`.

    Raises:
        UsageError, HarnessError: the only history cannot be checked.
    """
    codes: list[int] = []
    engines = _Engines(settings.spark_master)
    try:
        for path in paths:
            try:
                with _progress() as progress:
                    one = checking.check_path(path, settings, engines, progress)
            except (UsageError, HarnessError) as error:
                refused.append(Refused(str(path), str(error)))
                if len(paths) == 1:
                    raise
                codes.append(print_harness_error(error))
                continue
            checked.append(one)
            codes.append(EXIT_BY_OUTCOME[one.outcome])
            show_one(out, one, is_alone=len(paths) == 1, has_page=given.html is not None)
    finally:
        engines.stop()
    if len(paths) > 1 and checked:
        show_checked(out, checked, len(paths) - len(checked))
    return codes


def _write(
    out: Output, checked: Sequence[CheckedHistory], refused: Sequence[Refused], given: CheckOptions
) -> list[int]:
    """Write the requested files, each even if another fails; return the exit codes of failures."""
    codes: list[int] = []
    try:
        if given.json is not None and (checked or len(refused) > 1 or not given.is_for_programs):
            where = None if given.is_for_programs else given.json
            write_json(out, checked, refused, where)
    except HarnessError as error:
        codes.append(print_harness_error(error))
    try:
        if given.html is not None and checked:
            write_page(out, checked, given.html)
    except HarnessError as error:
        codes.append(print_harness_error(error))
    return codes


def bytes_of(text: str) -> int:
    """Parse a size such as 512MB, 2GiB or 1048576; units are powers of 1024.

    Raises:
        UsageError: it is no size, or less than a search needs.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"--memory-budget {text}: expected a size such as 512MB or 2GB")
    size = int(float(match[1]) * _UNITS[match[2].lower()])
    if size < MEMORY_BYTES_MIN:
        raise UsageError(f"--memory-budget {text}: a search needs 1MB at least")
    return size


def _require_other(path: Path, other: Path) -> None:
    """Refuse to overwrite another file with a result.

    Raises:
        UsageError: both are the same file; one line.
    """
    if path.resolve() == other.resolve():
        raise UsageError(f"{path}: a result would be written over {other}")


def _require_writable(path: Path | None, histories: Sequence[Path]) -> None:
    """Check before the run that its result can be written.

    Raises:
        UsageError: it cannot; one line.
    """
    if path is None or str(path) == STDOUT:
        return
    if path.is_dir():
        raise UsageError(f"{path}: a folder; give the name of a file in it")
    if not path.parent.is_dir():
        raise UsageError(f"{path}: no folder {path.parent}")
    if not os.access(path.parent, os.W_OK):
        raise UsageError(f"{path}: nothing can be written to the folder {path.parent}")
    for history in histories:
        _require_other(path, history)


class _Engines:
    """The engines of one command: Spark is started once, for the first history that needs it."""

    def __init__(self, spark_master: str) -> None:
        self._master = spark_master
        self._made: dict[str, engines.Engine] = {}

    def __call__(self, kind: str) -> engines.Engine:
        if kind not in self._made:
            self._made[kind] = engines.Engine(kind, self._master)
        return self._made[kind]

    def stop(self) -> None:
        """Stop all engines."""
        for engine in self._made.values():
            engine.stop()


@contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """Show the current step on stderr: a spinner on a terminal, else a line now and then."""
    console = Console(stderr=True, highlight=False)
    if console.is_terminal and not console.is_dumb_terminal:
        start_s = time.monotonic()
        with console.status("") as status:
            step = [""]
            stop = threading.Event()

            def redraw() -> None:
                while not stop.wait(0.5):
                    elapsed = time.monotonic() - start_s
                    line = f"{step[0]}{_compiling()}, {elapsed:.0f} s"
                    status.update(Text(line, style="dim"))

            def set_step(text: str) -> None:
                step[0] = text
                status.update(Text(text, style="dim"))

            thread = threading.Thread(target=redraw, name="progress", daemon=True)
            thread.start()
            try:
                yield set_step
            finally:
                stop.set()
                thread.join()
        return
    with _periodic_lines() as set_printed_step:
        yield set_printed_step


def _compiling() -> str:
    return "; compiling what it needs, once for this version" if is_compiling() else ""


@contextmanager
def _periodic_lines() -> Iterator[Callable[[str], None]]:
    step = [""]
    stop = threading.Event()
    start_s = time.monotonic()

    def print_line() -> None:
        while not stop.wait(LINE_EVERY_S):
            elapsed = time.monotonic() - start_s
            line = f"shaketable: {step[0]}{_compiling()} ({elapsed:.0f} s)"
            print(line, file=sys.stderr, flush=True)  # noqa: T201 - this is the CLI

    def set_step(text: str) -> None:
        step[0] = text

    thread = threading.Thread(target=print_line, name="progress", daemon=True)
    thread.start()
    try:
        yield set_step
    finally:
        stop.set()
        thread.join()


# The output of `check`: one line for the verdict, the checkers, the failing part.

FORMAT: Final = 1
"""Of the JSON; incremented when a reader of older files would misread newer ones."""
STYLES: Final = {"VALID": "bold green", "INVALID": "bold red", "UNKNOWN": "bold yellow"}
WIDTH_WITHOUT_TERMINAL: Final = 100
FINDINGS_SHOWN_MAX: Final = 3
"""Findings that the text shows, each of another kind or key; page and JSON have all."""
TRACE_LINES: Final = 4
"""Last lines of a crashed checker's traceback that the text shows."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A history that was not checked, and why."""

    path: str
    why: str


def show_one(out: Console, one: CheckedHistory, *, is_alone: bool, has_page: bool) -> None:
    """Print the verdict on one history; the failing part only if it is the only history."""
    verdict = one.outcome.name
    line = Text(verdict, style=STYLES[verdict])
    line.append(printable(f"  {one.path}: {_why(one)}"), style="not bold default")
    out.print(line, soft_wrap=not out.is_terminal)
    if not is_alone:
        return
    out.print()
    show_rows(out, _rows(one), "dim")
    _show_findings(out, one)
    if verdict != "VALID" and not has_page:
        out.print()
        out.print(Text("  page: add --html FILE", style="dim"))


def show_checked(out: Console, checked: Sequence[CheckedHistory], refused: int) -> None:
    """Print how many histories had each verdict, and how many could not be checked."""
    counts = {name: sum(one.outcome.name == name for one in checked) for name in STYLES}
    counts_text = ", ".join(f"{count} {name.lower()}" for name, count in counts.items() if count)
    worst = join(verdict for one in checked for verdict in one.verdicts).name
    line = Text(worst, style=STYLES[worst])
    more = f"; {refused} could not be checked" if refused else ""
    line.append(f"  {len(checked)} histories: {counts_text}{more}", style="not bold default")
    out.print()
    out.print(line)


def write_json(
    out: Output, checked: Sequence[CheckedHistory], refused: Sequence[Refused], path: Path | None
) -> None:
    """Write the verdicts as JSON, to stdout where `path` is None.

    Raises:
        HarnessError: they cannot be written.
    """
    text = json.dumps(to_json(checked, refused), indent=2, default=str) + "\n"
    if path is None:
        out.write(text)
    else:
        write_atomically(path, text)


def write_page(out: Console, checked: Sequence[CheckedHistory], path: Path) -> None:
    """Write the page and print its path.

    Raises:
        HarnessError: it cannot be written.
    """
    from shaketable.reports.check_page.page import render_page  # noqa: PLC0415 - its templates take time to load

    write_atomically(path, render_page(checked))
    out.print()
    shown = Text("  page: ", style="dim").append(printable(str(path)), "not dim")
    out.print(shown, soft_wrap=True)


def to_json(checked: Sequence[CheckedHistory], refused: Sequence[Refused] = ()) -> dict[str, Any]:
    """Return the content of --json; unchecked histories make the result unknown at best."""
    outcome = join(verdict for one in checked for verdict in one.verdicts)
    if refused:
        outcome = max(outcome, Outcome.UNKNOWN)
    return {
        "format": FORMAT,
        "valid": outcome.json_value,
        "histories": [_history_json(one) for one in checked],
        "refused": [asdict(one) for one in refused],
    }


def _history_json(one: CheckedHistory) -> dict[str, Any]:
    return {
        "path": one.path,
        "valid": one.outcome.json_value,
        "recognised": one.format,
        "model": one.model,
        "engine": one.engine,
        "seconds": round(one.seconds, 3),
        "operations": dict(one.outcomes),
        "keys": one.keys,
        "clients": one.clients,
        "incomplete": one.incomplete,
        "timed": one.is_timed,
        "notes": list(one.notes),
        "checkers": {verdict.checker: _verdict_json(verdict) for verdict in one.verdicts},
    }


def _verdict_json(verdict: Verdict) -> dict[str, Any]:
    return {
        "valid": verdict.outcome.json_value,
        "summary": verdict.summary,
        "counts": verdict.counts,
        "findings_total": max(verdict.findings_total, len(verdict.findings)),
        "findings": [asdict(finding) for finding in verdict.findings],
        "observed": [asdict(finding) for finding in verdict.observed],
        "data": verdict.data,
    }


def _why(one: CheckedHistory) -> str:
    """Return the reason of the verdict in one line."""
    worst = max(one.verdicts, key=lambda verdict: verdict.outcome)
    if worst.findings:
        first, more = worst.findings[0], max(worst.findings_total, len(worst.findings)) - 1
        is_alike = all(finding.kind == first.kind for finding in worst.findings)
        others = f"{more} more like it" if is_alike else f"{more} more, of other kinds too"
        return first.message + (f" ({others})" if more else "")
    return worst.summary


def _rows(one: CheckedHistory) -> list[tuple[str, str | Text]]:
    counts = one.outcomes
    ended = ", ".join(f"{counts[name]:,} {name}" for name in ("ok", "fail", "info"))
    clients = "1 client" if one.clients == 1 else f"{one.clients:,} clients"
    keys = "" if one.keys <= 1 else f", {one.keys:,} keys"
    rows: list[tuple[str, str | Text]] = [
        ("recognised", one.format + (f", model {one.model}" if one.model else "")),
        ("operations", f"{one.operations:,}: {ended}; {clients}{keys}"),
    ]
    for verdict in one.verdicts:
        text = Text(verdict.outcome.name.lower(), style=STYLES[verdict.outcome.name])
        text.append(printable(f"  {verdict.summary}"), "not bold default")
        rows.append((verdict.checker, text))
        if trace := verdict.data.get("traceback"):
            last = str(trace).strip().splitlines()[-TRACE_LINES:]
            rows.append(("", Text("\n".join(map(printable, last)), style="dim")))
    if one.incomplete:
        rows.append(("incomplete", printable(one.incomplete)))
    rows += [("note", printable(note)) for note in one.notes]
    rows.append(("took", f"{one.seconds:.2f} s, engine {one.engine}"))
    return rows


def _show_findings(out: Console, one: CheckedHistory) -> None:
    """Print the failing parts; what the first line says is not said again."""
    said = _why(one)
    width = (out.width if out.is_terminal else WIDTH_WITHOUT_TERMINAL) - 2 * INDENT
    shown = 0
    printed: set[tuple[str, str | None]] = set()
    for verdict in one.verdicts:
        for finding in shown_findings(verdict):
            if (finding.kind, finding.key) in printed or shown >= FINDINGS_SHOWN_MAX:
                continue
            part = failing_part(finding, one.rows)
            if part is None:
                continue
            printed.add((finding.kind, finding.key))
            shown += 1
            out.print()
            title = Text(f"{'':{INDENT}}{finding.kind}", style="bold")
            if finding.message not in said:
                title.append(printable(f"  {finding.message}"), "not bold")
            out.print(title, soft_wrap=not out.is_terminal)
            out.print()
            for line in text_lines(part, width, finding.message):
                text = printable(f"{'':{2 * INDENT}}{line}").rstrip()
                out.print(Text(text), soft_wrap=True)
