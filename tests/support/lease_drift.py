"""A leader with a lease whose clock goes too slowly: what its clients read then is stale.

Its lease is over by its own clock long after the others have elected another leader. Cut off from
them, but not from clients, it goes on answering reads by that lease.

Source: Ongaro's dissertation section 6.4.1; DESIGN.md decision 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import trio

from shaketable.harness.campaigns.campaign import Campaign, loads, resolve
from shaketable.harness.contracts.verdict import Outcome, Verdict
from shaketable.harness.history import run_folder
from shaketable.harness.judging import engines, judge
from shaketable.harness.runtime.observer import SilentObserver
from shaketable.harness.runtime.simulated.run import run_simulated
from shaketable.harness.runtime.supervisor import RunResult, run_campaign

LEASE_MS = 200
RATE = 0.05
"""By this clock the lease of 180 ms (a tenth less than asked for) takes 3.6 s."""

CAMPAIGN = """
name = "lease-drift"
seed = "{seed}"
world = "{world}"
workload = "{workload}"
leases_ms = {leases_ms}
faults = []
time_limit = 11.0
steady = 2.0
rate = 200.0
queues = 2
concurrency = "5n"
op_timeout = 1.0

[[script]]
fault = "clock"
at = 0.5
duration = 7.0
victims = ["leader"]
change = {{ rate = {rate}, which = "both" }}

[[script]]
fault = "partition"
at = 1.5
duration = 5.0
shape = "isolate-leader"
heal = "reset"
"""


@dataclass(frozen=True, slots=True)
class Run:
    """What became of one run: `linearizable` is the verdict of the checker of reads."""

    seed: str
    leases_ms: int
    result: RunResult
    verdicts: tuple[Verdict, ...]

    @property
    def linearizable(self) -> Verdict:
        """What the checker of reads says."""
        return next(each for each in self.verdicts if each.checker.startswith("linearizable"))

    @property
    def has_stale_reads(self) -> bool:
        """Whether it found what no order of the operations explains."""
        return self.linearizable.outcome is Outcome.INVALID


def campaign(seed: str, leases_ms: int, world: str, workload: str, rate: float = RATE) -> Campaign:
    """Return the campaign, resolved."""
    text = CAMPAIGN.format(
        seed=seed, leases_ms=leases_ms, world=world, workload=workload, rate=rate
    )
    return resolve(loads(text, "lease-drift"))


def play(asked: Campaign, store: Path) -> Run:
    """Run it and judge it, without Spark."""
    folder = run_folder.create(store, asked.name, datetime.now(UTC))
    if asked.world == "sim":
        result = run_simulated(asked, folder, SilentObserver())
    else:
        result = trio.run(run_campaign, asked, folder, SilentObserver())
    told = judge.judge(folder, asked, engines.Engine(engines.LOCAL, "local[*]"), lambda _: None)
    return Run(str(asked.seed), asked.leases_ms, result, tuple(told.verdicts))
