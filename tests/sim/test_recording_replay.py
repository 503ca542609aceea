"""A recorded node does the same again in a replay, digest by digest; other code does not."""

from __future__ import annotations

import contextlib
import itertools
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
import trio

from shaketable.harness.runtime.processes.ports import find_free
from shaketable.system.client import BrokerGroupClient, OutcomeUnknownError, RefusedError
from shaketable.system.sim.recording import BadRecording, replay

NAMES = ("n0", "n1", "n2")
STOP_WAIT_S = 60
STEPS_MIN = 100


class RecordedGroup:
    """Three node processes that record into their folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        ports = find_free(6)
        self.clients = dict(zip(NAMES, ports[:3], strict=True))
        self.peers = dict(zip(NAMES, ports[3:], strict=True))
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str) -> None:
        listed = ";".join(f"{n}-127.0.0.1:{p}" for n, p in self.peers.items())
        conf = self.folder / f"{name}.conf"
        conf.write_text(
            f"enableDLegerCommitLog=true\ndLegerGroup=g\ndLegerSelfId={name}\ndLegerPeers={listed}\n"
            f"listenPort={self.clients[name]}\nstorePathRootDir={self.folder / name}\n"
            "mappedFileSizeCommitLog=65536\nmappedFileSizeIndex=8192\n"
            "mappedFileSizeConsumeQueue=2000\n"
            f"shaketableRecord={self.folder / name}.recording\n"
        )
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [sys.executable, "-m", "shaketable.system.node", "-c", str(conf)],
                stderr=log,
                stdout=log,
            )

    def kill(self, name: str) -> None:
        self.processes[name].kill()
        self.processes[name].wait(STOP_WAIT_S)

    def stop(self) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in self.processes.values():
            process.wait(STOP_WAIT_S)

    def end(self) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()
            process.wait(STOP_WAIT_S)

    def recordings(self) -> list[Path]:
        return sorted(self.folder.glob("*.recording*"))


@pytest.fixture
def group(tmp_path: Path) -> Iterator[RecordedGroup]:
    nodes = RecordedGroup(tmp_path)
    try:
        for name in NAMES:
            nodes.start(name)
        yield nodes
    finally:
        nodes.end()


def _has_lived_long(group: RecordedGroup, name: str) -> bool:
    """Tell whether the recording of a node's first life has steps enough.

    A node that starts late takes no part in the first sends: counting those alone would not do.
    """
    recording = next(iter(sorted(group.folder.glob(f"{name}.recording*"))), None)
    if recording is None:
        return False
    try:
        return sum(1 for _ in replay(recording)) > STEPS_MIN
    except BadRecording:  # its first record is not written yet
        return False


async def _use(group: RecordedGroup) -> int:
    """Send and read while each node is killed once; return how many sends were acknowledged."""
    addresses = {name: ("127.0.0.1", port) for name, port in group.clients.items()}
    client = BrokerGroupClient(addresses, timeout_s=15.0, rng=Random(1))
    done = 0
    try:
        for name in (*NAMES, None):
            for number in itertools.count(1):
                with contextlib.suppress(OutcomeUnknownError, RefusedError):
                    await client.send("t", number % 2, b"%d" % number * 50)
                    done += 1
                if number % 20 == 0:
                    with contextlib.suppress(OutcomeUnknownError, RefusedError):
                        await client.pull("t", 0, 0)
                if number % 60 == 0 and (name is None or _has_lived_long(group, name)):
                    break
            if name is not None:
                await trio.to_thread.run_sync(group.kill, name)
                group.start(name)
    finally:
        client.close()
    while len(group.recordings()) < 6:  # the last one that was started may be starting still
        await trio.sleep(0.05)
    return done


@pytest.mark.e2e
def test_a_killed_group_does_all_the_same_again_in_replays(group: RecordedGroup) -> None:
    acknowledged = trio.run(_use, group)
    assert acknowledged > 100
    group.stop()
    recordings = group.recordings()
    assert len(recordings) == 6, "each of three nodes was started twice"
    repeated = [list(replay(path)) for path in recordings]
    assert [str(step) for steps in repeated for step in steps if step.difference] == []
    first_lives = [len(steps) for steps in repeated[::2]]
    assert min(first_lives) > STEPS_MIN, "the first life of each was long"
    assert sum("write" in step.text for steps in repeated for step in steps) > 200
