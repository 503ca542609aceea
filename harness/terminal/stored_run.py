"""`analyze` and `report`: what is done once more with a run that is stored."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import msgspec
from cyclopts import Parameter

from shaketable.harness import campaign as campaigns
from shaketable.harness import discovery, judge
from shaketable.harness.history import run_folder
from shaketable.harness.terminal import session
from shaketable.harness.terminal.output import out
from shaketable.harness.verdict import ExitCode


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
