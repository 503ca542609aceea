"""The commands: each a function whose docstring is its help."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec
from cyclopts import App, Group, Parameter
from rich.text import Text

from harness import built_in, discovery, judge
from harness import campaign as campaigns
from harness.campaign import Campaign
from harness.errors import UsageError
from harness.history import run_folder
from harness.scenarios.catalog import SCENARIOS
from harness.terminal import (
    calibrate,
    check,
    compare,
    doctor,
    gate,
    heal,
    matrix,
    serve,
    session,
    simulation,
    up,
)
from harness.terminal.bug_list import list_bugs
from harness.terminal.grid import show_rows
from harness.terminal.help import CalmFormatter
from harness.terminal.options import RunOptions
from harness.terminal.output import Output
from harness.verdict import ExitCode, worst_exit

TEST_COUNT_MAX: Final = 10_000
KINDS: Final = (*discovery.PACKAGES, "scenarios")

HELP: Final = """Shakes a replicated broker group and proves with PySpark
whether it kept its promises.

Start with:
./shaketable run

It runs three brokers here for about a minute while they are killed, paused and cut off from
each other, checks everything that their clients saw, and writes a report.

Exit codes: 0 valid, 1 invalid, 2 unknown, 254 bad usage, 255 the harness failed.

./shaketable test runs the project's own tests."""

app = App(
    name="shaketable",
    console=Output(highlight=False),
    version=importlib.metadata.version("shaketable"),
    help=HELP,
    help_format="plaintext",
    help_formatter=CalmFormatter(),
    usage="Usage: ./shaketable COMMAND [OPTIONS]",
    suppress_keyboard_interrupt=False,  # the entry turns it into a line and our exit code
    group_commands=Group("Commands", sort_key=0),
    group_arguments=Group("Arguments", sort_key=0),
    group_parameters=Group("Options", sort_key=1),
)


@app.command(usage="Usage: ./shaketable run [CAMPAIGN.toml] [OPTIONS]")
def run(
    campaign: Annotated[Path | None, Parameter(name="CAMPAIGN", show_default=False)] = None,
    /,
    *,
    options: RunOptions | None = None,
) -> int:
    """Run a campaign: start a group, shake it, heal it, check what its clients saw, report.

    Without a campaign file: the built-in one, a 3-node DLedger group for about a minute.
    An option wins over the campaign file, and that over the defaults. Ctrl-C ends the
    shaking early, and what was recorded until then is judged; a second one stops at once.

    For example:
    ./shaketable run
    ./shaketable run --nodes 5 --faults kill,partition --time-limit 60 --seed 7
    ./shaketable run --mutant ack-before-quorum

    Args:
        campaign: A campaign file, whose keys are the options below with underscores; or the name
            of a built-in one (docs/campaigns.md).
        options: What the command line says about the campaign.
    """
    given = options or RunOptions()
    if not 1 <= given.test_count <= TEST_COUNT_MAX:
        raise UsageError(f"--test-count {given.test_count}: expected 1 to {TEST_COUNT_MAX}")
    file = built_in.find(campaign or campaigns.BUILT_IN, built_in.CAMPAIGNS, "campaign")
    wanted = campaigns.load(file, given.given())
    resolved = campaigns.resolve(wanted)
    heal.heal_before_a_run(Path(resolved.store))
    session.enter(resolved)
    codes: list[int] = []
    for number in range(given.test_count):
        if number:
            session.out.print(f"\ncampaign {number + 1} of {given.test_count}")
        ended = session.run_one(_of_number(resolved, wanted, number), given.base_port)
        codes.append(ended.code)
        if ended.code != ExitCode.VALID or ended.is_interrupted:
            break
    return worst_exit(codes)


@app.command(usage="Usage: ./shaketable analyze RUN [OPTIONS]")
def analyze(
    run: Annotated[Path, Parameter(name="RUN")],
    /,
    *,
    engine: Literal["spark", "local"] = "spark",
    promise: Annotated[str | None, Parameter(metavar="TARGET", show_default=False)] = None,
    spark_master: Annotated[str | None, Parameter(metavar="URL", show_default=False)] = None,
    spark_remote: Annotated[str | None, Parameter(metavar="URL", show_default=False)] = None,
) -> int:
    """Judge a stored run again: export its history, check it, write the report.

    Works for a run that was interrupted or whose harness was killed, too.

    For example:
    ./shaketable analyze store/latest
    ./shaketable analyze store/latest --promise dledger

    Args:
        run: Folder of a run.
        promise: Hold it to what that target promises as well; kept in its campaign.toml.
        engine: The Spark pipeline, or the same checks in one process, without Java.
        spark_master: Spark that checks the history; default: the one of the campaign.
        spark_remote: Spark Connect server that checks it instead: sc://HOST:PORT.
    """
    campaigns.require_remote(spark_remote)
    folder = run_folder.open_existing(run)
    campaign = judge.stored_campaign(folder)
    if promise is not None:
        campaign = msgspec.structs.replace(campaign, promise=promise)
        discovery.get("targets", promise)  # refuses what is none
        run_folder.write_atomically(folder.campaign_toml, campaigns.to_toml(campaign))
    with session.logged_to(folder):
        spark = spark_remote or spark_master or campaign.spark
        return session.judge_stored(folder, campaign, judge.Engine(engine, spark))


@app.command(usage="Usage: ./shaketable report RUN")
def report(run: Annotated[Path, Parameter(name="RUN")], /) -> int:
    """Write the report of a stored run again, from the verdicts that it has.

    Example: ./shaketable report store/latest

    Args:
        run: Folder of a run.
    """
    folder = run_folder.open_existing(run)
    with session.logged_to(folder):
        for path in judge.render(folder):
            session.out.print(str(path), soft_wrap=True)
    return ExitCode.VALID


@app.command(
    name="list",
    usage="Usage: ./shaketable list [KIND]",
)
def list_(
    kind: Annotated[
        Literal["targets", "faults", "scenarios", "workloads", "checkers", "models", "bugs"] | None,
        Parameter(name="KIND", show_default=False),
    ] = None,
    /,
) -> int:
    """List what there is: targets, faults, scenarios, workloads, ...; or the planted bugs.

    Example: ./shaketable list faults

    Args:
        kind: One kind of them; default: all but bugs. "bugs" says of each planted bug of which
            family and targets it is, and after which real one it is modelled.
    """
    if kind == "bugs":
        list_bugs()
        return ExitCode.VALID
    for name in (kind,) if kind else KINDS:
        rows = _scenario_rows() if name == "scenarios" else _plugin_rows(name)
        session.out.print(Text(name.capitalize(), style="bold"))
        show_rows(session.out, rows)
        session.out.print()
    return ExitCode.VALID


def _plugin_rows(kind: str) -> list[tuple[str, str]]:
    rows = []
    for name, plugin in discovery.find(kind).items():
        rows.append((name, discovery.summary(plugin)))
        mutants = getattr(plugin, "mutants", {})
        if mutants:
            rows.append(("  with --mutant:", "its planted bugs"))
        rows += [(f"  {mutant}", breaks) for mutant, breaks in mutants.items()]
    return rows


def _scenario_rows() -> list[tuple[str, str]]:
    return [
        (name, f"{scenario.summary} Made of {', '.join(sorted(scenario.faults))}.")
        for name, scenario in SCENARIOS.items()
    ]


app.command(check.check, usage="Usage: ./shaketable check PATH... [OPTIONS]")
app.command(gate.gate, usage="Usage: ./shaketable gate RUN... [OPTIONS]")
app.command(compare.compare, usage="Usage: ./shaketable compare A B [OPTIONS]")
app.command(serve.serve, usage="Usage: ./shaketable serve [OPTIONS]")
app.command(calibrate.calibrate, usage="Usage: ./shaketable calibrate [OPTIONS]")
app.command(matrix.matrix, usage="Usage: ./shaketable matrix [FILE.toml] [OPTIONS]")
app.command(doctor.doctor, usage="Usage: ./shaketable doctor [--json]")
app.command(heal.heal, usage="Usage: ./shaketable heal [STORE|RUN]")
app.command(up.up, usage="Usage: ./shaketable up [OPTIONS]")
app.command(simulation.simulate, usage="Usage: ./shaketable simulate [OPTIONS]")
app.command(simulation.replay, usage="Usage: ./shaketable replay SEED|FILE [OPTIONS]")
app.command(simulation.shrink, usage="Usage: ./shaketable shrink [SEED|FILE] [OPTIONS]")


def _of_number(resolved: Campaign, wanted: Campaign, number: int) -> Campaign:
    """Give each of several campaigns a seed of its own: SEED, SEED.1, SEED.2; or fresh ones."""
    if number == 0:
        return resolved
    if wanted.seed is None:
        return campaigns.resolve(wanted)
    return msgspec.structs.replace(resolved, seed=f"{wanted.seed}.{number}")
