"""Network namespaces: each word tried by doing it, with rights and without; nothing stays."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from shaketable.harness import discovery, namespaces
from shaketable.harness.campaigns.campaign import Campaign
from shaketable.harness.contracts.capabilities import Capability
from shaketable.harness.contracts.errors import HarnessError, NamespaceNeededError, UsageError
from shaketable.harness.controlled_process import ControlledProcess
from shaketable.harness.network import probe
from shaketable.harness.network.netns import PacketNetwork
from shaketable.harness.network.probe import CAPABILITIES, Probed
from shaketable.harness.network.switch import Switch
from shaketable.harness.runtime import availability
from shaketable.harness.terminal import session

PATIENCE_S = 30.0
PROGRAMS = Path(__file__).parent.parent / "support" / "namespace_programs.py"
WITHOUT_RIGHTS = """
import ctypes, os, sys
for number in range(64):
    if number != 31:  # CAP_SETFCAP: who is uid 0 needs it to be root anywhere else
        ctypes.CDLL(None).prctl(24, number, 0, 0, 0)  # PR_CAPBSET_DROP
os.execv(sys.argv[1], sys.argv[1:])
"""
"""Root's rights are given up here; without them a namespace is one inside a user namespace."""
RIGHTS = pytest.mark.parametrize(
    "rights", [(), (sys.executable, "-c", WITHOUT_RIGHTS)], ids=["as we are", "without"]
)


def in_namespace(name: str, rights: tuple[str, ...] = (), **options) -> subprocess.Popen[str]:
    argv = [*rights, *namespaces.new([sys.executable, str(PROGRAMS), name])]
    return subprocess.Popen(argv, text=True, stdout=subprocess.PIPE, **options)


@RIGHTS
def test_every_word_is_tried_and_works(rights) -> None:
    argv = [
        *rights,
        *namespaces.new([sys.executable, "-P", "-m", "shaketable.harness.network.probe"]),
    ]
    done = subprocess.run(argv, text=True, capture_output=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert set(found) == set(CAPABILITIES)
    assert all(one["works"] for one in found.values()), found


def test_a_late_answer_is_not_taken_for_that_to_the_next_question() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    process, network = object.__new__(ControlledProcess), object.__new__(PacketNetwork)
    process._name, process._control, process._asked = "the switch", ours, 0
    process._answer_timeout_s = 0.01
    network._switch = process
    with ours, theirs:
        switch = Switch((), theirs)
        with pytest.raises(HarnessError, match=r"the switch has been silent for 0\.01 s"):
            network.open_cuts()
        with pytest.raises(HarnessError, match="silent"):
            network.held("no such cut")
        process._answer_timeout_s = PATIENCE_S
        answers = threading.Thread(target=lambda: [switch._answer() for _ in range(3)])
        answers.start()
        try:
            assert network.counts() == {"sent": 0, "unsent": 0, "unread": 0}
        finally:
            answers.join()


def test_words_that_do_nothing_are_not_said_to_work() -> None:
    with in_namespace("try_words_that_do_nothing") as process:
        said, _ = process.communicate(timeout=PATIENCE_S)
    assert json.loads(said) == dict.fromkeys(CAPABILITIES, False)


@RIGHTS
@pytest.mark.parametrize("how", ["in order", "killed"])
def test_no_process_and_no_namespace_is_left(rights, how: str) -> None:
    links = set(interfaces())
    with in_namespace("live_until_killed", rights, stdin=subprocess.PIPE) as process:
        assert process.stdout is not None
        told = json.loads(process.stdout.readline())
        assert len(set(told["spaces"])) == 4, "the harness's own, where the switch is; one a node"
        assert str(Path("/proc/self/ns/net").readlink()) not in told["spaces"]
        if how == "killed":
            process.send_signal(signal.SIGKILL)
        else:
            process.communicate("end\n", timeout=PATIENCE_S)
    deadline = time.monotonic() + PATIENCE_S
    while (left := [*alive(told["pids"]), *(set(told["spaces"]) & set(spaces()))]) != []:
        assert time.monotonic() < deadline, left
        time.sleep(0.02)
    assert set(interfaces()) == links
    named = Path("/run/netns")
    assert not named.is_dir() or not any(named.iterdir())


def alive(pids: list[int]) -> Iterator[int]:
    for pid in pids:
        with suppress(OSError):
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
            if state != "Z":
                yield pid


def spaces() -> Iterator[str]:
    """The network namespaces that any process is in, or holds open."""
    for path in [*Path("/proc").glob("[0-9]*/ns/net"), *Path("/proc").glob("[0-9]*/fd/*")]:
        with suppress(OSError):
            yield str(path.readlink())


def interfaces() -> list[str]:
    return [path.name for path in Path("/sys/class/net").iterdir()]


def test_a_command_in_a_new_namespace_has_loopback_and_knows_where_it_is() -> None:
    program = (
        "import socket; from shaketable.harness import namespaces; "
        "server = socket.create_server(('127.0.0.1', 0)); "
        "socket.create_connection(server.getsockname()); "
        "print(namespaces.is_inside(), [name for _, name in socket.if_nameindex()])"
    )
    done = subprocess.run(
        namespaces.new([sys.executable, "-c", program]), text=True, capture_output=True, check=True
    )
    assert done.stdout == "True ['lo']\n"
    assert not namespaces.is_inside()


@pytest.mark.parametrize(
    ("arguments", "code", "line"),
    [
        (["new"], 127, "usage"),
        (["new", "--"], 127, "usage"),
        (["elsewhere", "--", "true"], 127, "usage"),
        (["into", "/nowhere", "--", "true"], 125, "no network namespace: No such file"),
        (["into", "/proc/self/ns/uts", "--", "true"], 125, "no network namespace: Invalid arg"),
        (["new", "--", "no-such-program"], 127, "cannot run no-such-program"),
    ],
)
def test_what_cannot_be_entered_is_told_in_one_line(arguments, code: int, line: str) -> None:
    argv = [sys.executable, "-I", "-S", namespaces.__file__, *arguments]
    done = subprocess.run(argv, text=True, capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (code, "")
    assert line in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_word_that_does_not_work_here_is_told_with_what_was_seen(monkeypatch) -> None:
    seen = {word: Probed(word is not Capability.LOSS, "0 of 60 lost") for word in CAPABILITIES}
    monkeypatch.setattr(probe, "probed", lambda: seen)
    target = discovery.get("targets", "dledger")
    assert availability.why_unsupported("netns", Capability.DELAY, target, {}) is None
    choice = availability.choose(Campaign(world="netns", faults=("loss", "delay", "kill")))
    assert choice.unavailable == {"loss": "0 of 60 lost"}


def test_a_command_starts_again_in_a_namespace_or_says_why_it_cannot(monkeypatch) -> None:
    monkeypatch.setattr(probe, "why_no_namespace", lambda: None)
    session.enter(Campaign(world="process"))
    with pytest.raises(NamespaceNeededError):
        session.enter(Campaign(world="netns"))
    monkeypatch.setattr(probe, "why_no_namespace", lambda: "no network namespace: refused")
    with pytest.raises(HarnessError, match=r"^world netns: no network namespace: refused$"):
        session.enter(Campaign(world="netns"))
    monkeypatch.setattr(namespaces, "is_inside", lambda: True)
    session.enter(Campaign(world="netns"))


def test_a_spark_server_is_out_of_reach() -> None:
    from shaketable.harness.campaigns.campaign import resolve  # noqa: PLC0415

    with pytest.raises(UsageError, match="netns no server can be reached"):
        resolve(Campaign(world="netns", spark_remote="sc://somewhere:15002"))
