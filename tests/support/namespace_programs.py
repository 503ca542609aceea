"""Programs that tests run in network namespaces of their own, by the name of a function."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from harness.network import probe
from harness.network.netns import PacketNetwork
from harness.runtime import guard
from harness.words import Link, LinkShape

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
            subprocess.Popen(guard.command((*network.entered(node), "sleep", "600"), os.getpid()))
            for node in NODES
        ]
        while not all(b"sleep" in Path(f"/proc/{one.pid}/comm").read_bytes() for one in sleepers):
            time.sleep(0.01)
        pids = [os.getpid(), network._process.pid, *(one.pid for one in sleepers)]
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


def space(pid: int) -> str:
    return str(Path(f"/proc/{pid}/ns/net").readlink())


if __name__ == "__main__":
    globals()[sys.argv[1]]()
