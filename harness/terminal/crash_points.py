"""The command `crash-points`: lose power at each call to a disk in turn."""

from __future__ import annotations

import shlex
import shutil
import signal
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import Annotated, Final, Self

import msgspec
import trio
from cyclopts import Parameter
from rich.table import Table
from rich.text import Text

from shaketable.harness import run_markers
from shaketable.harness.campaigns import campaign as campaigns
from shaketable.harness.campaigns.campaign import Campaign, node_names, promises_of, target_of
from shaketable.harness.contracts.capabilities import DISK
from shaketable.harness.contracts.errors import HarnessError, UsageError, unknown_name
from shaketable.harness.contracts.program import PROGRAM_WORDS
from shaketable.harness.contracts.promises import is_promised
from shaketable.harness.contracts.rng import rng_for
from shaketable.harness.contracts.verdict import ExitCode
from shaketable.harness.crash_points.group import ALL, LEADER, POWER, Plan
from shaketable.harness.crash_points.points import parse_calls, parse_points
from shaketable.harness.crash_points.running import GROUPS, Trying, Wanted
from shaketable.harness.history.run_folder import RunFolder, utc_name, write_atomically
from shaketable.harness.terminal import completion, heal, output
from shaketable.harness.terminal.session import logged_to
from shaketable.harness.volatile_disk.disk import why_no_volatile_disk
from shaketable.reports.crash_points_page import (
    BROKEN,
    VALID,
    Tried,
    Tries,
    by_call,
    observed,
    render_crash_points,
    shown_results,
)

NAME: Final = "crash-points"
PAGE, RESULTS = "crash-points.html", "crash-points.json"
LIMITS: Final = {"points": 100_000, "operations": 10_000, "groups": 16}
"""The most of each that can be asked for."""
ONE: Final = "one"
VICTIMS: Final = (ALL, LEADER, ONE)
TOLD_MAX: Final = 10
"""The first points that leave the system broken are told while it runs; the page has all."""
TOLD_EVERY: Final = 50
"""Where there is no terminal, a line says how far it is after so many points."""
ENDING_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
QUEUES: Final = 2
STYLES: Final = {"VALID": "bold green", "INVALID": "bold red", "UNKNOWN": "bold yellow"}
CODES: Final = {
    "VALID": ExitCode.VALID, "INVALID": ExitCode.INVALID, "UNKNOWN": ExitCode.UNKNOWN
}  # fmt: skip


def crash_points(*, options: CrashPointOptions | None = None) -> int:
    """Cut the power at each write, fsync, rename, ... of a node: does the group survive?

    A short workload runs on empty disks, again and again. Each time, the power is cut at another
    disk call of a node, and unsynced writes are lost. Then the nodes restart, clients read what is
    left, and what they saw is checked. Works for every target with a disk that can lose
    power; no other fault is injected.

    Points have names: fsync:17 is the node's seventeenth fsync since its first start.

    Exit codes: 0 all valid; 1 a promise was broken; 2 unknown, or a node does not come back; 254
    bad usage; 255 the harness failed.

    For example:
    ./shaketable crash-points --target etcd --points 500
    ./shaketable crash-points --target etcd --nodes 1 --calls fsync,rename
    ./shaketable crash-points --target etcd --seed 5e1f --point fsync:17

    Args:
        options: What the command line says.
    """
    given = options or CrashPointOptions()
    for name, most in LIMITS.items():
        if not 1 <= (number := getattr(given, name)) <= most:
            raise UsageError(f"--{name} {number}: expected 1 to {most:,}")
    calls = parse_calls(given.calls)
    points = () if given.point is None else parse_points(given.point)
    campaign = _campaign(given)
    plan = _plan(campaign, given.victims, given.operations)
    heal.heal_before_a_run(given.store)
    words = _words(given, campaign.seed or "")
    wanted = Wanted(
        plan=plan,
        folder=given.store.resolve() / NAME / utc_name(datetime.now(UTC)),
        calls=calls,
        count=given.points,
        points=points,
        groups=given.groups,
        repeat=lambda point: shlex.join([*words, "--point", str(point)]),
    )
    chosen = ("--points", str(given.points)) if given.point is None else ("--point", given.point)
    return _try(wanted, shlex.join([*words, *chosen]))


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class CrashPointOptions:
    """What the command line says.

    Attributes:
        target: System under test (`list targets`).
        option: The target's own options (docs/targets.md), such as journal=off,version=0.3.16.
        nodes: Size of the group.
        workload: What clients do (`list workloads`); default: the target's own workload, `log` for
            our own groups.
        mutant: Planted bug to run the target with (`list mutants`).
        promise: Another target whose promises are checked as well, such as etcd.
        victims: Nodes that lose power: all, leader, one (the node that makes the call), or n1.
        calls: Kinds of calls: write, truncate, fallocate, fsync, fsync-dir, create, mkdir, rename,
            link, symlink, mknod, unlink, rmdir; or all.
        points: Number of points; they are spread over the calls if there are more calls.
        point: Try only these points, such as fsync:17,rename:1.
        operations: Number of operations of the workload.
        concurrency: Number of clients: 4, or 3n for three times the nodes.
        groups: Number of groups at once.
        seed: Seed of all random choices; it is printed, so that points can be repeated.
        store: Where to write the page, and to keep the runs that leave the system broken.
    """

    target: Annotated[str, Parameter(metavar="NAME", completer=completion.one_of("targets"))] = (
        "dledger"
    )
    option: Annotated[str | None, Parameter(metavar="NAME=VALUE", show_default=False)] = None
    nodes: Annotated[int, Parameter(metavar="N")] = 3
    workload: Annotated[
        str,
        Parameter(
            name=["--workload", "-w"], metavar="NAME", completer=completion.one_of("workloads")
        ),
    ] = "default"
    mutant: Annotated[str | None, Parameter(metavar="NAME", show_default=False)] = None
    promise: Annotated[
        str | None,
        Parameter(metavar="TARGET", show_default=False, completer=completion.one_of("targets")),
    ] = None
    victims: Annotated[str, Parameter(metavar="NODES")] = ALL
    calls: Annotated[str, Parameter(metavar="NAMES")] = "all"
    points: Annotated[int, Parameter(metavar="N")] = 200
    point: Annotated[str | None, Parameter(metavar="CALL:N", show_default=False)] = None
    operations: Annotated[int, Parameter(metavar="N")] = 100
    concurrency: Annotated[str, Parameter(metavar="N")] = "4"
    groups: Annotated[int, Parameter(metavar="N")] = 2
    seed: Annotated[str | None, Parameter(metavar="SEED", show_default=False)] = None
    store: Annotated[Path, Parameter(metavar="FOLDER")] = Path("store")


MIXED: Final = "combined"
"""A usual workload of several in one: a hundred operations are too few for what they promise."""
OF_CAMPAIGN: Final = (
    "target", "option", "nodes", "workload", "mutant", "promise", "concurrency", "seed", "store",
)  # fmt: skip
"""Options that are keys of a campaign."""
NOT_REPEATED: Final = frozenset({"points", "point", "groups", "store", "seed"})
"""Options that change no point, or that the command that repeats it has in any case."""


def _campaign(given: CrashPointOptions) -> Campaign:
    """Return the campaign of all points, resolved.

    Raises:
        UsageError: it cannot be run like this.
        HarnessError: the target is not installed, or no disk can lose power here.
    """
    values = {name: getattr(given, name) for name in OF_CAMPAIGN}
    fixed = {
        "name": NAME, "faults": [POWER], "scenarios": [], "workers": 1, "rate": 0,
        "queues": QUEUES, "engine": "local", "store": str(given.store),
    }  # fmt: skip
    asked = {name: value for name, value in values.items() if value is not None}
    campaign = campaigns.resolve(campaigns.loads("", "command line", {**asked, **fixed}))
    if given.workload == campaigns.DEFAULT and campaign.workload == MIXED:
        return _campaign(replace(given, workload=campaigns.LOG))
    if campaign.world != "process":
        raise UsageError(f"--target {campaign.target}: its nodes are not started on this machine")
    if (why := why_no_volatile_disk()) is not None:
        raise HarnessError(f"no disk can lose power here: {why}")
    return campaign


def _plan(campaign: Campaign, victims: str, operations: int) -> Plan:
    """Return who loses power, and whose calls are counted. Raises UsageError: no such node."""
    names = node_names(campaign)
    if victims not in (*VICTIMS, *names):
        raise UsageError(f"--victims: {unknown_name('victim', victims, (*VICTIMS, *names))}")
    counted = victims if victims in names else rng_for(campaign.seed or "", NAME).choice(names)
    return Plan(campaign, counted if victims == ONE else victims, counted, operations)


def _words(given: CrashPointOptions, seed: str) -> list[str]:
    """Return the command line that tries points of the same kind again."""
    usual = CrashPointOptions()
    words = [*PROGRAM_WORDS, NAME]
    for each in fields(given):
        value = getattr(given, each.name)
        if each.name not in NOT_REPEATED and value != getattr(usual, each.name):
            words += [f"--{each.name}", str(value)]
    return [*words, "--seed", seed]


def _try(wanted: Wanted, repeat: str) -> int:
    """Try the points, and show what came of them; return the exit code."""
    wanted.folder.mkdir(parents=True)
    campaign, where = wanted.plan.campaign, output.shown(wanted.folder)
    heading = Text("shaketable", style="bold")
    size = f"{campaign.nodes} node{'s' if campaign.nodes != 1 else ''} of {campaign.target}"
    facts = ("crash points", size, campaign.workload, f"seed {campaign.seed}")
    output.out.print(heading.append(f"  {' · '.join(facts)}", "not bold default"), soft_wrap=True)
    output.out.print(Text(where, style="dim"), soft_wrap=True)
    with _Progress() as progress:
        trying = Trying(wanted, progress.tried, progress.planned)
        progress.trying = trying
        with run_markers.working_in(wanted.folder), logged_to(RunFolder(wanted.folder)):
            is_whole = trio.run(_until_signalled, trying)
    if not trying.planned:
        raise KeyboardInterrupt
    tries = _tries(trying, repeat)
    _write(wanted.folder, tries)
    _show(tries, where)
    shutil.rmtree(wanted.folder / GROUPS, ignore_errors=True)
    if not is_whole and tries.verdict == VALID:
        return ExitCode.UNKNOWN
    return CODES[tries.verdict]


async def _until_signalled(trying: Trying) -> bool:
    """Try the points; False if a signal ended that: groups are ended, and the rest is shown."""
    is_whole = True
    with trio.open_signal_receiver(*ENDING_SIGNALS) as signals:
        async with trio.open_nursery() as nursery:

            async def listen() -> None:
                nonlocal is_whole
                async for _ in signals:
                    is_whole = False
                    nursery.cancel_scope.cancel()

            nursery.start_soon(listen)
            await trying.run()
            nursery.cancel_scope.cancel()
    return is_whole


class _Progress:
    """Says how far it is, and what is broken."""

    def __init__(self) -> None:
        self.trying: Trying | None = None
        self._broken = 0
        self._status = output.out.status("  counting calls without a power loss")
        self._began = monotonic()

    def __enter__(self) -> Self:
        if output.out.is_terminal:
            self._status.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._status.stop()

    def planned(self) -> None:
        """Say which calls there are."""
        assert self.trying is not None, "it is what calls this"
        self._began = monotonic()
        there_are = ", ".join(f"{call} {count:,}" for call, count in self.trying.calls.items())
        _say(f"calls without a power loss: {there_are}")
        self._status.update(f"  0 of {len(self.trying.planned):,} points")

    def tried(self, one: Tried) -> None:
        """Say what came of a point, if it is broken, and how far it is."""
        assert self.trying is not None, "it is what calls this"
        if one.result in BROKEN:
            self._broken += 1
            if self._broken <= TOLD_MAX:
                path = f" ({one.path})" if one.path else ""
                text = Text(f"{one.result} ", "red").append(
                    f"{one.name}{path}: {one.why}", "default"
                )
                output.out.print(text, soft_wrap=True)
        done = len(self.trying.tried)
        an_hour = round(done * 3600 / (monotonic() - self._began))
        line = f"{done:,} of {len(self.trying.planned):,} points, {self._broken:,} broken"
        line += f", {an_hour:,} an hour"
        self._status.update(f"  {line}")
        if not output.out.is_terminal and not done % TOLD_EVERY:
            _say(line)


def _tries(trying: Trying, repeat: str) -> Tries:
    plan = trying.wanted.plan
    target = target_of(plan.campaign)
    promises = promises_of(plan.campaign, target) or target.promises
    return Tries(
        target=plan.campaign.target,
        nodes=plan.campaign.nodes,
        workload=plan.campaign.workload,
        victims=plan.victims,
        seed=plan.campaign.seed or "",
        promised=promises.note,
        survives_power=is_promised(promises.durable_under, POWER, DISK),
        calls=trying.calls,
        tried=tuple(trying.tried),
        planned=len(trying.planned),
        took_s=round(trying.took_s, 1),
        repeat=repeat,
    )


def _write(folder: Path, tries: Tries) -> None:
    """Write the page and its data. Raises HarnessError: they cannot be written."""
    try:
        write_atomically(folder / RESULTS, msgspec.json.encode(tries).decode() + "\n")
        write_atomically(folder / PAGE, render_crash_points(tries))
    except OSError as error:
        raise HarnessError(f"cannot write {error.filename}: {error.strerror}") from error


def _show(tries: Tries, where: str) -> None:
    """Print the table of results by kind of call, what was observed, and where the page is."""
    results = shown_results(tries)
    grid = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="bold")
    grid.add_column("call")
    for heading in ("there are", *results):
        grid.add_column(heading, justify="right")
    for call, there_are, counts in by_call(tries):
        cells = [f"{counts[result]:,}" if counts[result] else "" for result in results]
        grid.add_row(call, f"{there_are:,}", *cells)
    output.out.print()
    output.out.print(grid)
    output.out.print()
    for kind, count in observed(tries).items():
        _say(f"found at {count:,} points, and never promised: {kind}")
    if not tries.survives_power:
        _say(f"{tries.target} does not promise to survive a loss of power (--promise NAME does)")
    _say(f"{len(tries.tried):,} of {tries.planned:,} points, {tries.an_hour:,} an hour")
    output.out.print(Text(tries.verdict, STYLES[tries.verdict]))
    _say(f"{where}/{PAGE}")


def _say(text: str) -> None:
    output.out.print(Text(text), soft_wrap=True)
