"""Check before anything is run which cells of a matrix can be run, and why others cannot.

A cell that its world or target does not support stays in the plan with the reason. What no run
could accept (an unknown name, an invalid number, no room for the faults) is a mistake in the file,
and refused.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from shaketable.harness import discovery
from shaketable.harness.campaigns import campaign as campaigns
from shaketable.harness.campaigns.campaign import (
    Campaign,
    check_numbers,
    node_names,
    target_of,
    toml_value,
)
from shaketable.harness.campaigns.schedule import schedule
from shaketable.harness.contracts.capabilities import family_of
from shaketable.harness.contracts.errors import UsageError, unknown_name
from shaketable.harness.contracts.rng import new_seed
from shaketable.harness.faults.victims import UnknownVictimError, is_victim
from shaketable.harness.matrix.plan import Cell, CellSpec, Matrix, Plan, expand, read_matrix
from shaketable.harness.runtime import availability

FAMILIES = ("process", "network", "clock", "disk", "rollback", "membership", "resources")
"""The order of the built-in fault families; others follow by name."""


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan, and the campaign of each cell that will be run, by cell id."""

    plan: Plan
    campaigns: dict[str, Campaign]


def load(path: Path, notify: Callable[[str], None]) -> Planned:
    """Read a matrix file and check its cells; `notify` is called before a slow step.

    Raises:
        UsageError: the file is invalid, or none of its cells can be run.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "not UTF-8 text"
        raise UsageError(f"cannot read the matrix {path}: {why}") from error
    matrix = read_matrix(text, str(path), _by_family(), _seeds())
    if "netns" in (*matrix.axes.get("worlds", ()), matrix.campaign.get("world")):
        notify("looking at what network namespaces can do here")
    return check_cells(matrix, str(path))


def check_cells(matrix: Matrix, where: str) -> Planned:
    """Check each cell of a matrix. Raises as `load` does."""
    own_seed = new_seed()
    cells: list[Cell] = []
    resolved: dict[str, Campaign] = {}
    expanded = expand(matrix)
    each = [_campaign(spec, f"{where}: {spec.id}", own_seed) for spec in expanded]
    nodes = {node for campaign in each for node in node_names(campaign)}
    for spec, campaign in zip(expanded, each, strict=True):
        skipped = spec.excluded or _why_not(campaign, f"{where}: {spec.id}", nodes)
        if skipped is None:
            resolved[spec.id] = campaign
        cells.append(
            Cell(
                id=spec.id,
                target=campaign.target,
                workload=campaign.workload,
                faults=campaigns.faults_of(campaign),
                world=campaign.world,
                seed=campaign.seed or "",
                family=_family(campaign),
                skipped=skipped or "",
            )
        )
    if not resolved:
        raise UsageError(f"{where}: no cell can be run: {cells[0].id}: {cells[0].skipped}")
    return Planned(
        Plan(name=matrix.name, effects_min=matrix.effects_min, cells=tuple(cells)), resolved
    )


def _seeds() -> Iterator[str]:
    while True:
        yield new_seed()


def _by_family() -> list[str]:
    """Return the names of all faults, sorted by family."""

    def place(name: str) -> tuple[int, str, str]:
        family = family_of(known[name])
        known_family = family in FAMILIES
        return (FAMILIES.index(family) if known_family else len(FAMILIES)), family, name

    known = discovery.find("faults")
    return sorted(known, key=place)


def _family(campaign: Campaign) -> str:
    return " ".join(dict.fromkeys(availability.families(campaign).values()))


def _campaign(spec: CellSpec, where: str, seed: str) -> Campaign:
    """Return the campaign of a cell; refuse what no world and no target supports."""
    lines = [f"{key} = {toml_value(value)}" for key, value in spec.campaign.items()]
    campaign = campaigns.loads("\n".join(lines), where)
    campaign = msgspec.structs.replace(campaign, name=spec.id, seed=campaign.seed or seed)
    try:
        check_numbers(msgspec.to_builtins(campaign))
        campaign = campaigns.with_seed(campaign)
        campaigns.clients(campaign)
        workload = campaigns.workload_of(campaign, target_of(campaign))
        campaign = msgspec.structs.replace(campaign, workload=workload)
        names = [("workloads", workload)]
        names += [("faults", fault) for fault in campaigns.faults_of(campaign)]
        for kind, name in names:
            discovery.get(kind, name)
        _refuse_mistakes(campaign)
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from error
    return campaign


def _refuse_mistakes(campaign: Campaign) -> None:
    """Refuse mistakes, as opposed to what a world or a target does not support.

    Raises:
        UsageError: a mutant of no target, a promise of no target, an invalid address.
    """
    if campaign.promise is not None:
        discovery.get("targets", campaign.promise)
    if campaign.mutant is not None:
        known = {name for target in discovery.find("targets").values() for name in target.mutants}
        if campaign.mutant not in known:
            raise UsageError(unknown_name("mutant", campaign.mutant, known))
    campaigns.require_remote(campaign.spark_remote)


def _why_not(campaign: Campaign, where: str, nodes: Collection[str]) -> str | None:
    """Return why the world or the target cannot run a cell; None if they can.

    `nodes` are those of all cells: a victim that only another cell has makes this one unavailable.

    Raises:
        UsageError: no schedule is possible, or it names victims that no cell has.
    """
    try:
        resolved = campaigns.resolve(campaign)
        if (why := _lacks_world(resolved)) is not None:
            return why
        choice = availability.look(resolved)
    except UnknownVictimError as error:
        if all(is_victim(victim, nodes) for victim in campaign.victims):
            return str(error)
        raise UsageError(f"{where}: {error}") from error
    except UsageError as error:
        return str(error)
    if choice.unavailable and not choice.faults:
        reasons = dict.fromkeys(choice.unavailable.values())
        return "; ".join(reasons)
    try:
        schedule(resolved, choice.faults)
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from error
    return None


def _lacks_world(campaign: Campaign) -> str | None:
    if campaign.world == "netns":
        from shaketable.harness.network.probe import why_no_namespace  # noqa: PLC0415 - others need none

        why = why_no_namespace()
        return None if why is None else f"world netns: {why}"
    if campaign.world == "sim":
        from shaketable.harness.runtime.simulated.run import groups_of  # noqa: PLC0415 - others need none

        groups_of(target_of(campaign))
    return None
