"""`run`: a campaign, or several one after the other."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import msgspec
from cyclopts import Parameter

from shaketable.harness import built_in
from shaketable.harness import campaign as campaigns
from shaketable.harness.campaign import Campaign
from shaketable.harness.errors import UsageError
from shaketable.harness.terminal import heal, session
from shaketable.harness.terminal.options import RunOptions
from shaketable.harness.terminal.output import out
from shaketable.harness.verdict import ExitCode, worst_exit

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
