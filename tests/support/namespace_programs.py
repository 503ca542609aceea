"""Programs that tests run in network namespaces of their own, by the name of a function."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import trio

from shaketable.harness import guard
from shaketable.harness.campaigns.campaign import Campaign, resolve
from shaketable.harness.contracts.capabilities import Link, LinkShape
from shaketable.harness.history import run_folder
from shaketable.harness.network import probe
from shaketable.harness.network.netns import PacketNetwork
from shaketable.harness.runtime.observer import SilentObserver
from shaketable.harness.runtime.supervisor import run_campaign

NODES = ("n0", "n1", "n2")


class Idle(PacketNetwork):
    """Says that it does everything, and does nothing."""

    def cut(self, links: Sequence[Link]) -> str:
        return super().cut([])

    def shape(self, links: Sequence[Link], shape: LinkShape) -> str:
        return super().shape(links, LinkShape())


def try_words_that_do_nothing() -> None:
    with tempfile.TemporaryDirectory() as folder:
        network = Idle(("a", "b"), Path(folder) / "switch.log")
        try:
            probe.ANSWER_S = 0.3  # type: ignore[misc]
            wire = probe.Wire(network)
            found = {word: trial(wire).works for word, trial in probe.TRIALS.items()}
        finally:
            network.close()
    sys.stdout.write(json.dumps(found))


def live_until_killed() -> None:
    """Wire three nodes, run something in each, tell everybody's pid, and wait."""
    with tempfile.TemporaryDirectory() as folder:
        network = PacketNetwork(NODES, Path(folder) / "switch.log")
        sleepers = [
            subprocess.Popen(
                guard.command((*network.enter_command(node), "sleep", "600"), os.getpid())
            )
            for node in NODES
        ]
        while not all(b"sleep" in Path(f"/proc/{one.pid}/comm").read_bytes() for one in sleepers):
            time.sleep(0.01)
        pids = [os.getpid(), network.pid, *(one.pid for one in sleepers)]
        told = json.dumps({"pids": pids, "spaces": [space(pid) for pid in pids]})
        sys.stdout.write(f"{told}\n")
        sys.stdout.flush()
        for line in sys.stdin:
            if line.strip() == "end":
                break
        for one in sleepers:
            one.kill()
            one.wait()
        network.close()


class Teller(SilentObserver):
    """Writes a line for each fault that began, and for each that ended."""

    def fault_started(self, fault: int, name: str, description: str, at_ns: int) -> None:
        tell("began", name)

    def fault_stopped(
        self, fault: int, name: str, took_effect: bool, evidence: str, at_ns: int
    ) -> None:
        tell("effect" if took_effect else "idle", name, evidence)


def run_a_campaign() -> None:
    """Run a few seconds of a real group, shaken by a fault for as long as they last."""
    fault, store = sys.argv[2:]
    campaign = resolve(
        Campaign(
            world="netns",
            faults=(fault,),
            victims=("leader",),
            time_limit_s=5.0,
            steady_s=1.0,
            nemesis_interval_s=0.5,
            workers=1,
            rate_hz=200,
            seed="7",
            store=store,
        )
    )
    folder = run_folder.create(Path(store), campaign.name, datetime.now(UTC))
    result = trio.run(run_campaign, campaign, folder, Teller())
    tell(
        "ended",
        result.status,
        result.faults.applied,
        result.faults.took_effect,
        list(result.problems),
    )


def tell(*what: object) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def space(pid: int) -> str:
    return str(Path(f"/proc/{pid}/ns/net").readlink())


if __name__ == "__main__":
    globals()[sys.argv[1]]()
