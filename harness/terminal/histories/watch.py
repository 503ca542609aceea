"""The command `watch`: judge a history while another program appends to it."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Annotated, Final, Literal, Self

from cyclopts import Parameter
from rich.console import Console
from rich.text import Text

from shaketable.checkers.engine.compiling import Compiling, are_cached
from shaketable.checkers.online import Violation
from shaketable.harness.campaigns.durations import to_seconds
from shaketable.harness.compiled import interpret_again
from shaketable.harness.contracts.errors import UsageError
from shaketable.harness.contracts.verdict import EXIT_BY_OUTCOME, Outcome
from shaketable.harness.judging.checking import explain, impossible_read
from shaketable.harness.judging.watching import TOLD_MAX, Watch, WatchSettings
from shaketable.harness.judging.watching_in_parallel import ParallelWatch
from shaketable.harness.judging.watching_on_spark import SparkWatch
from shaketable.harness.terminal.histories.check import STYLES, show_one, write_page
from shaketable.harness.terminal.output import Output
from shaketable.harness.untrusted_text import printable
from shaketable.reports.check_page.checked_history import CheckedHistory

POLL_S: Final = 0.2
"""How often a file is looked at where nothing is new; a violation is told so much later."""
LINE_EVERY_S: Final = 10.0
"""Without a terminal progress is printed at this interval, and on one redrawn twice a second."""
REDRAWN_EVERY_S: Final = 0.5
READY_AFTER_S: Final = 2.0
"""A watch that lasts so long gets ready to explain violations, even if it is never idle."""
READY_WAIT_S: Final = 0.5
"""How long a violation may wait to be told with its explanation."""
ModelName = Literal["register", "cas-register", "kv", "counter", "mutex"]
AnyWatch = Watch | ParallelWatch | SparkWatch
JOBS_MAX: Final = 64


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class JudgeOptions:
    """Who judges.

    Attributes:
        jobs: Processes that check, each its own keys.
        spark_master: Check with Structured Streaming on this Spark (local[*]); --checkpoint is a
            folder then.
    """

    jobs: Annotated[int, Parameter(metavar="N")] = 1
    spark_master: Annotated[str | None, Parameter(metavar="URL", show_default=False)] = None

    def watch(self, given: WatchSettings) -> AnyWatch:
        """Begin a watch; on Spark it takes some seconds until it has started."""
        if not 1 <= self.jobs <= JOBS_MAX:
            raise UsageError(f"--jobs {self.jobs}: from 1 to {JOBS_MAX}")
        if self.spark_master is not None:
            if self.jobs != 1:
                raise UsageError("--jobs and --spark-master exclude each other")
            return SparkWatch(given, self.spark_master, _print_line)
        return Watch(given) if self.jobs == 1 else ParallelWatch(given, self.jobs)


ONE_PROCESS: Final = JudgeOptions()


def watch(
    path: Annotated[Path, Parameter(allow_leading_hyphen=True)],
    *,
    model: Annotated[ModelName, Parameter(metavar="NAME")],
    initial: Annotated[str | None, Parameter(metavar="STATE", show_default=False)] = None,
    partition_by: Annotated[
        Literal["key", "none"] | None, Parameter(metavar="HOW", show_default=False)
    ] = None,
    checkpoint: Annotated[Path | None, Parameter(metavar="FILE", show_default=False)] = None,
    until_quiet: Annotated[
        float | None, Parameter(metavar="S", show_default=False, converter=to_seconds)
    ] = None,
    html: Annotated[Path | None, Parameter(metavar="FILE", show_default=False)] = None,
    judge: JudgeOptions = ONE_PROCESS,
) -> int:
    """Check a history while another program appends to it; report the first violation at once.

    The history is a file of JSON lines (docs/checking.md), an event each, in the order of their
    times; or a pipe. Memory is bounded. Ctrl-C ends the watch; the verdict is that of `check` on
    what was read. A key with too many unknown outcomes is unknown.

    For example:
    ./shaketable watch history.jsonl --model cas-register --checkpoint watch.state
    ./my-test | ./shaketable watch - --model counter --initial 0

    Args:
        path: The file; - reads from standard input.
        model: Sequential model of each key.
        initial: Initial state of each key, in the model's form, such as 0.
        partition_by: key: values are [key value], each key an object; none: as the events say.
        checkpoint: File that keeps the state: a killed watch continues from it.
        until_quiet: End after so long without new data; default: only at Ctrl-C.
        html: Write a page there that shows the first violations.
        judge: Who judges.
    """
    given = WatchSettings(
        path=path, model=model, initial=initial, partition_by=partition_by, checkpoint=checkpoint
    )
    if html is not None and not html.parent.is_dir():
        raise UsageError(f"{html}: no folder {html.parent}")
    out = Output(highlight=False)
    with _ended_by_ctrl_c() as is_over, judge.watch(given) as watched:
        shown = Shown(out, given, html)
        if watched.was_continued:
            out.print(Text(f"goes on after line {watched.lines:,}", style="dim"))
        with shown:
            _follow(watched, shown, is_over, until_quiet)
            watched.save(is_due=True)
            shown.take(watched, watched.finish(is_whole=not is_over))
            shown.end(watched)
        _show_end(out, given.path, watched)
        return EXIT_BY_OUTCOME[watched.outcome]


def _follow(
    watched: AnyWatch, shown: Shown, is_over: list[bool], until_quiet_s: float | None
) -> None:
    """Judge what comes until Ctrl-C, the end of a pipe, or a time without anything new."""
    with _progress(watched) as progress:
        while not is_over:
            lines, found = watched.step(POLL_S)
            if found:
                shown.take(watched, found)
            watched.save(is_due=bool(found))
            progress()
            shown.get_ready(watched, is_idle=not lines)
            if lines:
                continue
            is_quiet = until_quiet_s is not None and watched.quiet_s >= until_quiet_s
            if watched.is_ended or is_quiet:
                return
            if not watched.is_pipe:
                time.sleep(POLL_S)


class Shown:
    """Shows violations as `check` shows them, and collects those of the page."""

    def __init__(self, out: Output, given: WatchSettings, html: Path | None) -> None:
        self._out = out
        self._given = given
        self._html = html
        self._checked: list[CheckedHistory] = []
        self._unexplained: list[Violation] = []
        self._began_s = time.monotonic()
        self._loading = threading.Thread(target=self._load)
        self._is_loaded, self._is_over = threading.Event(), threading.Event()
        self._are_cached: bool | None = None  # the kernels; None: not known yet
        self._compiling: Compiling | None = None

    def get_ready(self, watched: AnyWatch, *, is_idle: bool) -> None:
        """Load what explains a violation, beside the judging, and show those that wait for it."""
        is_due = is_idle or time.monotonic() - self._began_s >= READY_AFTER_S
        if self._loading.ident is None and is_due:
            self._loading.start()
        if self._are_cached is False and self._compiling is None:
            self._compiling = Compiling()  # it ends with the thread that started it: this one
        if self._unexplained and self._is_loaded.is_set():
            self._explain(watched)

    def take(self, watched: AnyWatch, found: list[Violation]) -> None:
        """Show these, in a few words if what explains them is not loaded yet."""
        room = TOLD_MAX - watched.told - len(self._unexplained)
        found = found[: max(0, room)]
        self._unexplained += found
        is_loading = bool(found) and self._loading.ident is not None
        if not is_loading or self._is_loaded.wait(READY_WAIT_S):
            self._explain(watched)
            return
        for violation in found:
            self._show_unexplained(violation, "; why is said when it can be")

    def end(self, watched: AnyWatch) -> None:
        """Show what is left to be explained."""
        self._stop_loading()
        self._explain(watched)

    def __enter__(self) -> Self:
        """Return it."""
        return self

    def __exit__(self, *_: object) -> None:
        """End what was begun to be loaded and compiled."""
        self._stop_loading()
        if self._compiling is not None:
            self._compiling.stop()

    def _stop_loading(self) -> None:
        self._is_over.set()
        if self._loading.ident is not None:
            self._loading.join()

    def _load(self) -> None:
        """Load what explains, and if the watch lasts, what compiles for larger violations."""
        try:
            explain(impossible_read(self._given.model), self._given.model)
        finally:
            self._is_loaded.set()
        if not self._is_over.wait(max(0.0, self._began_s + READY_AFTER_S - time.monotonic())):
            self._are_cached = are_cached()

    def _explain(self, watched: AnyWatch) -> None:
        """Explain what was found, and keep what was said."""
        before, found = len(self._checked), self._unexplained
        self._unexplained = []
        for violation in found:
            if not self._are_cached and (self._compiling is None or self._compiling.is_running()):
                interpret_again()  # compiling takes most of a minute
            one = explain(violation, self._given.model)
            if one is None:
                sentence = self._show_unexplained(violation, "")
            else:
                one = replace(one, path=self._where(violation))
                sentence = f"{one.path}: {one.verdicts[0].summary}"
                show_one(self._out, one, is_alone=True, has_page=self._html is not None)
                self._checked.append(one)
            watched.tell(violation, sentence)
        if self._html is not None and len(self._checked) > before:
            write_page(self._out, self._checked, self._html)

    def _show_unexplained(self, violation: Violation, more: str) -> str:
        said = f"{self._where(violation)}: no order lets operation {violation.op} return"
        self._out.print(Text("INVALID", style=STYLES["INVALID"]), Text(f" {said}{more}"))
        return said

    def _where(self, violation: Violation) -> str:
        key = "" if violation.key is None else f", key {violation.key}"
        return printable(f"{self._given.path}{key}")


def counted(number: int, what: str) -> str:
    """Return "1 operation", "2 operations"."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _show_end(out: Output, path: Path, watched: AnyWatch) -> None:
    verdict = watched.outcome
    keys = counted(watched.keys, "key")
    are = "is" if watched.operations == 1 else "are"
    said = {
        Outcome.VALID: f"{counted(watched.operations, 'operation')} on {keys} {are} linearizable",
        Outcome.INVALID: f"{watched.found:,} of {keys} cannot be put in order",
        Outcome.UNKNOWN: "; ".join(watched.doubts()) or "there is no operation",
    }[verdict]
    line = Text(verdict.name, style=STYLES[verdict.name])
    line.append(printable(f"  {path}: {said}"), style="not bold default")
    out.print(line, soft_wrap=not out.is_terminal)
    if verdict is Outcome.INVALID:
        for doubt in watched.doubts():
            out.print(Text(f"  not judged: {printable(doubt)}", style="dim"), soft_wrap=True)


@contextmanager
def _ended_by_ctrl_c() -> Iterator[list[bool]]:
    """Give a list that gets an element at the first Ctrl-C; the second one interrupts."""
    is_over: list[bool] = []

    def note(_number: int, _frame: FrameType | None) -> None:
        if is_over:
            raise KeyboardInterrupt
        is_over.append(True)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield is_over
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _progress(watched: AnyWatch) -> Iterator[_Progress]:
    """Show on stderr how far the watch is."""
    console = Console(stderr=True, highlight=False)
    if console.is_terminal and not console.is_dumb_terminal:
        with console.status("") as status:

            def redraw(text: str) -> None:
                status.update(Text(text, style="dim"))

            yield _Progress(watched, REDRAWN_EVERY_S, redraw)
    else:
        yield _Progress(watched, LINE_EVERY_S, _print_line)


def _print_line(text: str) -> None:
    print(f"shaketable: {text}", file=sys.stderr, flush=True)  # noqa: T201 - this is the CLI


class _Progress:
    """Says how far a watch is, when it is called and it is time."""

    def __init__(self, watched: AnyWatch, every_s: float, show: Callable[[str], None]) -> None:
        self._watched = watched
        self._show = show
        self._every_s = every_s
        self._began_s = self._said_s = time.monotonic()
        self._operations = watched.operations

    def __call__(self) -> None:
        """Say it if it is time."""
        now_s = time.monotonic()
        passed_s = now_s - self._said_s
        if passed_s < self._every_s:
            return
        watched = self._watched
        rate_hz = (watched.operations - self._operations) / passed_s
        self._said_s, self._operations = now_s, watched.operations
        behind = watched.behind_bytes
        late = f", {behind / 1e6:,.1f} MB behind" if behind > 1e5 else ""
        self._show(
            f"{now_s - self._began_s:.0f} s  {counted(watched.operations, 'operation')},"
            f" {rate_hz:,.0f}/s, {counted(watched.keys, 'key')}, {watched.open:,} open{late};"
            f" {watched.outcome.name.lower()} so far"
        )
