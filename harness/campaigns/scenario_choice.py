"""Which scenarios a campaign draws from, and why it does not draw from others."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from shaketable.harness import discovery
from shaketable.harness.campaigns.campaign import Campaign
from shaketable.harness.campaigns.scenarios import SCENARIOS, Scenario
from shaketable.harness.contracts.abilities import TransfersLeadership
from shaketable.harness.contracts.plugins import Target

ALL: Final = ("all",)
"""What `scenarios` says for all that can be made of the faults that a campaign draws from."""


def chosen(campaign: Campaign, faults: Collection[str]) -> list[Scenario]:
    """Return the scenarios that a campaign's schedule has, in the order of their names.

    Those named, as far as they can be made of the faults that are there; under "all" none where
    the campaign itself says whom to strike, or in which order and at which times.

    Args:
        campaign: resolved.
        faults: names of those that it draws from, and that there are.
    """
    if campaign.scenarios == ALL and (campaign.victims or campaign.nemesis_schedule != "random"):
        return []
    return [
        SCENARIOS[name]
        for name in sorted(_asked(campaign))
        if why_not(SCENARIOS[name], campaign, faults) is None
    ]


def why_not(scenario: Scenario, campaign: Campaign, faults: Collection[str]) -> str | None:
    """Say in a few words why a campaign cannot have a scenario; None if it can."""
    lacking = sorted(scenario.faults - set(faults))
    if lacking:
        return f"it needs {', '.join(lacking)}"
    if campaign.nodes < scenario.nodes_min:
        return f"it needs {scenario.nodes_min} nodes"
    target: Target = discovery.get("targets", campaign.target)
    if scenario.elects and not (
        target.promises.committed_prefix or isinstance(target, TransfersLeadership)
    ):
        return f"{target.name} elects no leader"
    if scenario.is_last and not scenario.faults <= target.promises.durable_under:
        return f"{target.name} promises nothing under {', '.join(sorted(scenario.faults))}"
    return None


def _asked(campaign: Campaign) -> Iterable[str]:
    return SCENARIOS if campaign.scenarios == ALL else campaign.scenarios
