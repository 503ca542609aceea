"""A target whose group runs already: its file, its commands, the keys of its clients."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

import pytest
import trio

from shaketable.harness import described, discovery, run_markers
from shaketable.harness.campaigns.campaign import Campaign, resolve
from shaketable.harness.contracts.abilities import RunsAlready
from shaketable.harness.contracts.capabilities import Capability, needs_of
from shaketable.harness.contracts.errors import HarnessError, UsageError
from shaketable.harness.contracts.plugins import Address
from shaketable.harness.described import running
from shaketable.harness.described.running import RunningTarget, targets_of
from shaketable.harness.described.target_file import read
from shaketable.harness.runtime import availability

ROOT = Path(__file__).parent.parent.parent
CLIENT = """
from pathlib import Path
def read(s, k):
    with Path(__file__).with_name("seen").open("a") as seen: seen.write(f"{k}\\n")
def write(s, k, v): ...
def cas(s, k, e, v): ...
"""
NODES = 'nodes = ["127.0.0.1:7001", "[::1]:7002"]'
COMMANDS = """
[targets.kvs.commands]
kill = ["./act", "kill", "{id}", "{number}", "{client}", "{client_host}", "{client_port}"]
start = ["sh", "-c", "sleep 100 & echo $!"]
cut = ["echo", "{from} {from_host} {to} {to_host}"]
heal = ["no-such-program"]
dropped = ["sh", "-c", "echo 1; echo oh dear >&2; exit 3"]
"""


def target_of(folder: Path, more: str = COMMANDS, nodes: str = NODES) -> RunningTarget:
    (folder / "client.py").write_text(CLIENT)
    file = folder / described.FILE_NAME
    file.write_text(f'[targets.kvs]\n{nodes}\nclient = "client.py"\n{more}\n')
    target = targets_of(file)[0]
    assert isinstance(target, RunningTarget)
    assert isinstance(target, RunsAlready)
    return target


def test_its_addresses_and_what_can_be_done_to_it(tmp_path: Path) -> None:
    target = target_of(tmp_path)
    assert target.addresses == (Address("127.0.0.1", 7001), Address("::1", 7002))
    assert target.why_not(Capability.KILL) is None
    assert target.why_not(Capability.CUT) is None
    assert target.why_not(Capability.PAUSE) == (
        "[targets.kvs.commands] of shaketable.toml does not have pause, resume"
    )
    assert target.why_not(Capability.CLOCK) == (
        "its nodes run already, and no command of shaketable.toml is for this"
    )
    assert target.default_faults == ("kill", "partition")
    assert target_of(tmp_path, "").default_faults == ()


def test_commands_get_the_node_or_the_link(tmp_path: Path) -> None:
    target = target_of(tmp_path)
    act = tmp_path / "act"
    act.write_text('#!/bin/sh\necho "$*"\n')
    act.chmod(0o755)
    printed = trio.run(target.act, "kill", "n1")
    assert printed == "kill n1 1 [::1]:7002 ::1 7002\n"
    assert trio.run(target.act, "cut", "n0", "n1") == "n0 127.0.0.1 n1 ::1\n"


def test_a_command_may_leave_a_server_behind_that_is_not_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(run_markers.VARIABLE, "1.1:/tmp/run")
    server = int(trio.run(target_of(tmp_path).act, "start", "n0"))
    assert run_markers.VARIABLE not in Path(f"/proc/{server}/environ").read_text()
    assert os.getsid(server) != os.getsid(0)  # Ctrl-C is not for it
    os.kill(server, signal.SIGKILL)  # it still ran


@pytest.mark.parametrize(
    ("action", "line"),
    [
        ("heal", "command heal of n0 to n1: no-such-program: No such file or directory"),
        ("dropped", "command dropped of n0 to n1: exit code 3: oh dear"),
    ],
)
def test_a_command_that_fails_is_one_line(tmp_path: Path, action: str, line: str) -> None:
    with pytest.raises(HarnessError) as failed:
        trio.run(target_of(tmp_path).act, action, "n0", "n1")
    assert str(failed.value) == line


def test_a_command_that_is_no_text_of_an_argument_is_one_line(tmp_path: Path) -> None:
    more = '[targets.kvs.commands]\nkill = ["a\\u0000b"]\nstart = ["true"]'
    with pytest.raises(HarnessError, match=r"command kill of n0: .*: embedded null byte"):
        trio.run(target_of(tmp_path, more).act, "kill", "n0")


def test_a_command_that_does_not_end_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "COMMAND_TIMEOUT_S", 0.2)
    deaf = """["sh", "-c", "trap '' TERM; while :; do sleep 0.1; done"]"""
    more = f'[targets.kvs.commands]\nstop = {deaf}\nstart = ["true"]'
    began = time.monotonic()
    with pytest.raises(HarnessError, match=r"command stop of n0: no end within 0\.2 s"):
        trio.run(target_of(tmp_path, more).act, "stop", "n0")
    assert time.monotonic() - began < 4  # trio alone waits for 5 s, and warns on the terminal


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # it still runs
def test_a_late_command_that_must_not_be_ended_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_process: trio.Process) -> None:
        raise PermissionError("it is root's, by sudo")

    monkeypatch.setattr(running, "COMMAND_TIMEOUT_S", 0.2)
    monkeypatch.setattr(running, "TERM_S", 0.1)
    monkeypatch.setattr(trio.Process, "terminate", refuse)
    monkeypatch.setattr(trio.Process, "kill", refuse)
    more = '[targets.kvs.commands]\nstop = ["sleep", "20"]\nstart = ["true"]'
    began = time.monotonic()
    with pytest.raises(HarnessError, match="no end within"):
        trio.run(target_of(tmp_path, more).act, "stop", "n0")
    assert time.monotonic() - began < 10


def test_each_run_has_keys_of_its_own(tmp_path: Path) -> None:
    target = target_of(tmp_path, "")
    addresses = {"n0": target.addresses[0]}

    for run in ("first", "second"):
        client = target.client_of_run(addresses, 1.0, run)
        trio.run(client.get, "0")  # type: ignore[attr-defined]
    assert (tmp_path / "seen").read_text() == "first-0\nsecond-0\n"


@pytest.mark.parametrize(
    ("nodes", "more", "line"),
    [
        ('nodes = ["127.0.0.1"]', "", "nodes: '127.0.0.1' is not host:port"),
        ('nodes = ["a:0"]', "", "nodes: 'a:0' is not host:port"),
        ('nodes = ["a:70000"]', "", "nodes: 'a:70000' is not host:port"),
        ('nodes = ["a:1", "a:1"]', "", "nodes: two of them have the same address"),
        ('start = ["x"]\nnodes = ["a:1"]', "", "give start (a node's command), or nodes"),
        ("", "", "give start (a node's command), or nodes"),
        (NODES, "env = { A = '1' }", "env is for nodes that shaketable starts"),
        (NODES, "one_port = true", "one_port is for nodes that shaketable starts"),
        (
            NODES,
            "one_address = true\nfurther_ports = ['quorum']",
            "one_address is for nodes that shaketable starts",
        ),
        (NODES, "size = 2", "size is for nodes that shaketable starts"),
        (NODES, "ready = { log = 'x' }", "ready.log: the output of nodes that run already"),
        (NODES, "leader = { log = '(?P<a>x)', leads = 'a' }", "leader.log: the output of nodes"),
        (NODES, "ready = { http = 'http://{peer}' }", "unknown placeholder {peer}"),
        (NODES, "commands = { kill = ['x'] }", "commands.kill needs commands.start as well"),
        (NODES, "commands = { cut = ['x'], heal = ['x'] }", "needs commands.dropped as well"),
        (NODES, "commands = { cut = ['{id}'], heal = ['x'], dropped = ['x'] }", "{id}"),
        (NODES, "commands = { pause = ['x'], resume = ['x'] }", "commands.pause needs ready.http"),
        ('start = ["x"]', "commands = { start = ['x'] }", "commands are for a group that runs"),
    ],
)
def test_a_wrong_file_is_one_line(tmp_path: Path, nodes: str, more: str, line: str) -> None:
    file = tmp_path / described.FILE_NAME
    file.write_text(f'[targets.kvs]\n{nodes}\nclient = "client.py"\n{more}\n')
    with pytest.raises(UsageError) as refused:
        read(file)
    assert line in str(refused.value)
    assert "\n" not in str(refused.value)


def test_the_pages_file_has_all_commands(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "your-own-system.md").read_text(encoding="utf-8")
    [shown] = re.findall(r"^```toml\n(\[targets\.orders\].*?)^```$", page, re.DOTALL | re.MULTILINE)
    (tmp_path / "client.py").write_text(CLIENT)
    (tmp_path / described.FILE_NAME).write_text(shown)
    [orders] = targets_of(tmp_path / described.FILE_NAME)
    assert isinstance(orders, RunningTarget)
    assert len(orders.addresses) == 3
    assert orders.default_faults == ("kill", "pause", "partition")
    assert all(orders.why_not(each) is None for each in running.OF_CAPABILITIES)
    faults = discovery.find("faults").values()
    those = {fault.name for fault in faults if not needs_of(fault) - set(running.OF_CAPABILITIES)}
    assert those == {"kill", "crash-loop", "rolling-restart", "pause", "partition", "flap"}
    assert all(f"`{name}`" in page for name in those)


@pytest.fixture
def described_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    discovery.clear_caches()
    target_of(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("described_here")
def test_its_campaign_has_its_world_and_its_size() -> None:
    campaign = resolve(Campaign(target="kvs", seed="1", faults=("default",)))
    assert (campaign.world, campaign.nodes) == ("existing", 2)
    assert campaign.faults == ("kill", "partition")
    assert resolve(campaign) == campaign
    choice = availability.look(
        resolve(Campaign(target="kvs", seed="1", faults=("kill", "pause", "wipe", "clock")))
    )
    assert list(choice.faults) == ["kill"]
    assert set(choice.unavailable) == {"pause", "wipe", "clock"}


@pytest.mark.usefixtures("described_here")
@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"target": "kvs", "world": "netns"}, "--world netns: kvs runs already"),
        ({"target": "kvs", "nodes": 5}, "--nodes 5: kvs has 2"),
        ({"target": "dledger", "world": "existing"}, "--world existing: dledger is started by"),
    ],
)
def test_other_worlds_and_sizes_are_refused(options: dict[str, object], line: str) -> None:
    with pytest.raises(UsageError) as refused:
        resolve(Campaign(seed="1", **options))  # type: ignore[arg-type]
    assert str(refused.value).startswith(line)
