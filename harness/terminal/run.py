"""`run`: a campaign, or several one after the other."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec
from cyclopts import Parameter

from shaketable.harness import discovery
from shaketable.harness.campaigns import built_in
from shaketable.harness.campaigns import campaign as campaigns
from shaketable.harness.campaigns.campaign import Campaign
from shaketable.harness.contracts.errors import UsageError
from shaketable.harness.contracts.verdict import ExitCode, worst_exit
from shaketable.harness.history import run_folder
from shaketable.harness.judging import judge
from shaketable.harness.terminal import heal, session
from shaketable.harness.terminal.options import RunOptions
from shaketable.harness.terminal.output import out

TEST_COUNT_MAX: Final = 10_000


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
            out.print(f"\ncampaign {number + 1} of {given.test_count}")
        ended = session.run_one(_of_number(resolved, wanted, number), given.base_port)
        codes.append(ended.code)
        if ended.code != ExitCode.VALID or ended.is_interrupted:
            break
    return worst_exit(codes)


def _of_number(resolved: Campaign, wanted: Campaign, number: int) -> Campaign:
    """Give each of several campaigns a seed of its own: SEED, SEED.1, SEED.2; or fresh ones."""
    if number == 0:
        return resolved
    if wanted.seed is None:
        return campaigns.resolve(wanted)
    return msgspec.structs.replace(resolved, seed=f"{wanted.seed}.{number}")


# `analyze` and `report`: what is done once more with a run that is stored.


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


def report(run: Annotated[Path, Parameter(name="RUN")], /) -> int:
    """Write the report of a stored run again, from the verdicts that it has.

    Example: ./shaketable report store/latest

    Args:
        run: Folder of a run.
    """
    folder = run_folder.open_existing(run)
    with session.logged_to(folder):
        for path in judge.render(folder):
            out.print(str(path), soft_wrap=True)
    return ExitCode.VALID
