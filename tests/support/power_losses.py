"""Power losses of all nodes at once, under load: is what was acknowledged still there?"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import trio
from ext4_machine import Ext4, Ext4Power

from shaketable.harness import discovery
from shaketable.harness.campaigns.campaign import loads, node_names, resolve
from shaketable.harness.contracts.verdict import Verdict
from shaketable.harness.history import run_folder
from shaketable.harness.judging import engines, judge
from shaketable.harness.runtime.observer import SilentObserver
from shaketable.harness.runtime.supervisor import RunResult, run_campaign

DOWN_S, UP_S, STEADY_S = 0.5, 4.5, 2.5
_NUMBERS = re.compile(r"(?<![\w,])\d[\d,]*")

CAMPAIGN = """
name = "power-loss"
seed = "{seed}"
workload = "log"
ack = "{ack}"
disk = "{disk}"
faults = ["{fault}"]
victims = ["all"]
nemesis_schedule = "periodic"
nemesis_interval = {up}
fault_duration_min = {down}
fault_duration_max = {down}
steady = {steady}
time_limit = {limit}
rate = {rate}
"""


@dataclass(slots=True)
class _Tape(SilentObserver):
    """Keeps what faults did."""

    evidence: list[tuple[bool, str]] = field(default_factory=list)

    def fault_stopped(
        self, number: int, fault: str, took_effect: bool, evidence: str, at_ns: int
    ) -> None:
        self.evidence.append((took_effect, evidence))


@dataclass(frozen=True, slots=True)
class Run:
    """What became of one run.

    Attributes:
        losses: power losses, and how many of them took unsynced bytes.
        vanished_bytes: how many in all, as measured.
        acknowledged: appends that were acknowledged.
    """

    ack: str
    losses: int
    biting: int
    vanished_bytes: int
    acknowledged: int
    result: RunResult
    verdicts: tuple[Verdict, ...]

    @property
    def durability(self) -> Verdict:
        """What the checker of durability says."""
        return next(each for each in self.verdicts if each.checker == "durability")

    @property
    def lost(self) -> int:
        """How many acknowledged appends are gone, by its findings."""
        return int(self.durability.counts.get("lost-append", self.durability.findings_total))


def play(
    ack: str, losses: int, seed: str, store: Path, disk: Ext4 | None = None, rate_hz: float = 800.0
) -> Run:
    """Run so many power losses of all nodes, on the volatile disk or on a real file system."""
    text = CAMPAIGN.format(
        seed=seed,
        ack=ack,
        disk="volatile" if disk is None else "real",
        fault="power" if disk is None else Ext4Power.name,
        up=UP_S,
        down=DOWN_S,
        steady=STEADY_S,
        limit=STEADY_S + losses * (UP_S + DOWN_S) + 1.0,
        rate=rate_hz,
    )
    faults = cast("dict[str, Any]", discovery.find("faults"))
    if disk is not None:
        faults[Ext4Power.name] = Ext4Power(disk)
        target = discovery.get("targets", "dledger")
        promised = target.promises.durable_under | {Ext4Power.name}  # as it stands any power loss
        target.promises = replace(target.promises, durable_under=promised)
    asked = resolve(loads(text, "power-losses"))
    folder = run_folder.create(store, asked.name, datetime.now(UTC))
    if disk is not None:
        for node in node_names(asked):
            kept = disk.mount / f"{folder.path.name}-{node}"
            kept.mkdir()
            folder.node(node).mkdir(parents=True)
            (folder.node(node) / "store").symlink_to(kept)
    tape = _Tape()
    result = trio.run(run_campaign, asked, folder, tape)
    told = judge.judge(folder, asked, engines.Engine(engines.LOCAL, "local[*]"), lambda _: None)
    vanished = sum(
        int(number.replace(",", ""))
        for _, what in tape.evidence
        for number in _NUMBERS.findall(what)
    )
    biting = sum(took_effect for took_effect, _ in tape.evidence)
    done = tuple(told.verdicts)
    return Run(ack, len(tape.evidence), biting, vanished, result.counts.ok, result, done)
