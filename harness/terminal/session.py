"""Run and judge one campaign with progress shown, and clean up after it."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Final

import trio
from rich.text import Text

from shaketable.harness import discovery, run_markers
from shaketable.harness.campaigns import campaign as campaigns
from shaketable.harness.campaigns.campaign import Campaign, faults_of, repeat_command
from shaketable.harness.campaigns.schedule import schedule
from shaketable.harness.contracts.errors import HarnessError, NamespaceNeededError
from shaketable.harness.contracts.program import PROGRAM
from shaketable.harness.contracts.verdict import EXIT_BY_OUTCOME, Outcome
from shaketable.harness.history import run_folder
from shaketable.harness.history.run_folder import RunFolder
from shaketable.harness.judging import judge
from shaketable.harness.judging.engines import Engine
from shaketable.harness.runtime import availability
from shaketable.harness.terminal.display import Display, make_display
from shaketable.harness.terminal.output import out, shown

if TYPE_CHECKING:
    from shaketable.harness.runtime.supervisor import RunResult
    from shaketable.reports.run_view import RunView


LOG_FORMAT: Final = "%(asctime)s %(levelname)s %(name)s %(message)s"
QUIET_LOGGERS: Final = ("py4j", "bokeh", "matplotlib")
"""Libraries that log too much at our log level."""
ENDING_SIGNALS: Final = (signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, slots=True)
class Session:
    """The result of one campaign: its exit code, and whether the user ended it early."""

    code: int
    is_interrupted: bool


def enter(campaign: Campaign) -> None:
    """Require a network namespace of our own, if the world needs one.

    Raises:
        HarnessError: none can be created here; one line says why, and what would help.
        NamespaceNeededError: this process must be restarted in one.
    """
    if campaign.world != "netns":
        return
    from shaketable.harness.network import enter as namespaces  # noqa: PLC0415 - the other worlds need none
    from shaketable.harness.network.probe import why_no_namespace  # noqa: PLC0415 - likewise

    if not namespaces.is_inside():
        if (why := why_no_namespace()) is not None:
            raise HarnessError(f"world netns: {why}")
        raise NamespaceNeededError("world netns: this process is not in a namespace of its own")


def run_one(campaign: Campaign, base_port: int | None) -> Session:
    """Run, judge and report one resolved campaign.

    The first Ctrl-C, SIGTERM or SIGHUP ends the campaign in order, and what was recorded is
    judged; the second tears the group down at once; one during the check ends the command without
    a verdict.

    Raises:
        UsageError: no suitable Java, or the store cannot be written.
        HarnessError: the harness failed, such as on a port in use.
        KeyboardInterrupt: interrupted before a verdict; no process is left.
    """
    engine = Engine(campaign.engine, campaign.spark)
    engine.require_java(os.environ)
    choice = availability.choose(campaign)
    schedule(campaign, choice.faults)  # raises on an impossible schedule before anything is created
    if campaign.world == "sim":
        from shaketable.harness.runtime.simulated.run import groups_of  # noqa: PLC0415 - as above

        groups_of(discovery.get("targets", campaign.target))
    folder = run_folder.create(Path(campaign.store), campaign.name, datetime.now(UTC))
    run_folder.write_atomically(folder.campaign_toml, campaigns.to_toml(campaign))
    run_folder.link_latest(folder)
    out.print(_heading(campaign), soft_wrap=True)
    for line in availability.tell(choice.unavailable):
        out.print(Text(line), soft_wrap=True)
    if is_judged_online(campaign):
        from shaketable.harness.runtime.online import coverage_of  # noqa: PLC0415 - its checkers take time to load

        out.print(Text(coverage_of(campaign).line, style="dim"), soft_wrap=True)
    if campaign.world == "sim":
        engine.warm_up()  # now: a start of Spark disturbs no virtual time
    display = make_display(out, engine.warm_up)
    with run_markers.working_in(folder.path), logged_to(folder), _ended_by_signals():
        try:
            with display.shown():
                result = _run(campaign, folder, display, base_port)
                outcome, view = _judged(folder, campaign, engine, display)
        except BaseException:
            if any(folder.segments.glob("worker-*.seg")):
                out.print(
                    Text(f"to judge what was recorded: {PROGRAM} analyze {shown(folder.path)}"),
                    soft_wrap=True,
                )
            raise
        finally:
            engine.stop()
        return Session(conclude(folder, outcome, view), result.status == "interrupted")


def _run(
    campaign: Campaign, folder: RunFolder, display: Display, base_port: int | None
) -> RunResult:
    """Run the campaign in its world, importing only what that world needs."""
    command = [repeat_command(campaign, folder.path)]
    if campaign.world == "sim":
        from shaketable.harness.runtime.simulated.run import run_simulated  # noqa: PLC0415 - see above

        try:
            return run_simulated(
                campaign, folder, display, command=command, on_clock=display.use_clock
            )
        finally:
            display.use_clock(time.monotonic_ns)
    from shaketable.harness.runtime.supervisor import run_campaign  # noqa: PLC0415 - see above

    judge = None
    if is_judged_online(campaign):
        from shaketable.harness.judging.online import run_online  # noqa: PLC0415 - see above

        judge = run_online
    run = partial(
        run_campaign, campaign, folder, display, base_port=base_port, command=command, judge=judge
    )
    return trio.run(run)


def is_judged_online(campaign: Campaign) -> bool:
    """Return whether a campaign is to be judged while it runs, as far as that can be."""
    return campaign.online or campaign.stop_at_first_violation


def judge_stored(
    folder: RunFolder, campaign: Campaign, engine: Engine, *, keeps_promise: bool = False
) -> int:
    """Judge a stored run; return its exit code.

    With `keeps_promise` the campaign, and so its promise, is kept once the run was judged by it.

    Raises:
        UsageError: no suitable Java.
        HarnessError: the recordings cannot be read, or a file cannot be written.
    """
    engine.require_java(os.environ)
    display = make_display(out, engine.warm_up)
    with run_markers.working_in(folder.path):
        try:
            with display.shown():
                outcome, view = _judged(folder, campaign, engine, display)
        finally:
            engine.stop()
        if keeps_promise:
            run_folder.write_atomically(folder.campaign_toml, campaigns.to_toml(campaign))
    return conclude(folder, outcome, view)


def _judged(
    folder: RunFolder, campaign: Campaign, engine: Engine, display: Display
) -> tuple[Outcome, RunView]:
    """Judge a stored run and write its report; return the outcome, and what the report shows."""
    results = judge.judge(folder, campaign, engine, display.checking)
    for verdict in results.verdicts:
        if verdict.checker == judge.AGREEMENT:
            display.note(verdict.summary)
    display.checking("writing the report")
    return results.outcome, judge.render(folder).view


def conclude(folder: RunFolder, outcome: Outcome, view: RunView) -> int:
    """Print the summary of a judged run; return its exit code."""
    from shaketable.harness.terminal import summary  # noqa: PLC0415 - reports take half a second to import

    logging.getLogger(__name__).info("event=verdict verdict=%s why=%r", view.verdict, view.why)
    summary.show(out, view, shown(folder.report_html))
    return EXIT_BY_OUTCOME[outcome]


@contextmanager
def logged_to(folder: RunFolder) -> Iterator[None]:
    """Send the log to the run's shaketable.log for the body of `with`.

    Raises:
        HarnessError: it cannot be written, as in a run of another user.
    """
    try:
        handler = logging.FileHandler(folder.log, encoding="utf-8")
    except OSError as error:
        raise HarnessError(f"cannot write {folder.log}: {error.strerror}") from error
    handler.setFormatter(logging.Formatter(LOG_FORMAT))
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    for name in QUIET_LOGGERS:
        logging.getLogger(name).setLevel(logging.WARNING)
    try:
        yield
    except Exception:
        logging.getLogger(__name__).exception("the command failed")
        raise
    finally:
        root.removeHandler(handler)
        handler.close()


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Treat SIGTERM and SIGHUP like Ctrl-C, so that the nodes are stopped in the same way.

    They are raised as SIGINT, which trio handles safely.
    """

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        signal.raise_signal(signal.SIGINT)

    before = {number: signal.signal(number, interrupt) for number in ENDING_SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _heading(campaign: Campaign) -> Text:
    text = Text("shaketable", style="bold")
    facts = [
        f"{campaign.nodes} nodes of {campaign.target}",
        campaign.workload,
        ", ".join(faults_of(campaign)) or "no faults",
        *([f"mutant {campaign.mutant}"] if campaign.mutant else []),
        f"seed {campaign.seed}",
    ]
    text.append(f"  {' · '.join(facts)}", style="not bold default")
    return text
