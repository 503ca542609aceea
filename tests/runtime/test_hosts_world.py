"""Nodes on other machines: the scripts that are run there, and what a lost connection means.

`ssh` is a script that runs everything here, and fails while there is a file `down`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import trio

from shaketable.harness.contracts.abilities import Hosts
from shaketable.harness.contracts.capabilities import Capability
from shaketable.harness.contracts.errors import HarnessError
from shaketable.harness.contracts.plugins import (
    NO_ROLE,
    UNTOUCHED,
    Launch,
    NodeLayout,
    NodeStatus,
)
from shaketable.harness.history.run_folder import RunFolder
from shaketable.harness.runtime.hosts import scripts
from shaketable.harness.runtime.hosts import world as worlds
from shaketable.harness.runtime.hosts.scripts import Place, bytes_dropped
from shaketable.harness.runtime.hosts.ssh import Host, UnreachableError
from shaketable.harness.runtime.hosts.world import HostGroup, HostsWorld, clean_up_after
from shaketable.harness.runtime.ledger import Lines
from shaketable.harness.runtime.observer import SilentObserver
from shaketable.harness.runtime.processes.ports import find_free
from tests.support.further_targets import NOT_IN_CI
from tests.support.host_lab import why_no_power

needs_power = pytest.mark.skipif(
    bool(why_no_power()), reason=f"{NOT_IN_CI}: hosts cannot lose power here: {why_no_power()}"
)
SSH = """#!/bin/sh
printf '%s\\n' "$*" >> {folder}/asked
[ ! -e {folder}/down ] || {{ cat {folder}/down >&2; exit 255; }}
case "$*" in *"sh -s") exec sh -s ;; esac
exec sleep 1000
"""
IPTABLES = """#!/bin/sh
rules={folder}/{name}.rules
touch $rules
shift
case $1 in
    -C) shift; grep -qxF -e "-A $*" $rules ;;
    -I) shift; echo "-A $*" >> $rules ;;
    -S) cat $rules ;;
    -D) shift; grep -vxF -e "-A $*" $rules > $rules.new; mv $rules.new $rules ;;
    *) sed 's|.*comment \\([^ ]*\\) .*|  3  180 DROP 0 -- * * 10.0.0.1 0/0 /* \\1 */|' $rules ;;
esac
"""
SERVER = """
import os, socket, sys, time
server = socket.create_server(("127.0.0.1", int(sys.argv[1])))
print(sys.argv[2:], os.environ["ODD"], flush=True)
time.sleep(1000)
"""
ODD = 'it\'s "odd"; $HOME `x` \\ *\n'


def run(script: str) -> str:
    done = subprocess.run(["sh", "-s"], input=script, text=True, capture_output=True, check=True)
    assert done.stderr == ""
    return done.stdout


def without_nft(script: str) -> str:
    """Return a script that finds no nft."""
    return script.replace("command -v nft", "false")


def line_of(script: str) -> str:
    return run(script).partition("\n")[0]


RUN = f"st12x{os.getpid()}x"
"""Processes of a run are found by its name: other workers' tests must not have the same."""


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(str(tmp_path / "a 'folder'"), RUN, "n1")
    yield place
    run(scripts.kill(place))


def wait_for(place: Place, state: str) -> None:
    end_s = time.monotonic() + 20
    while line_of(scripts.state(place)) != state:
        assert time.monotonic() < end_s
        time.sleep(0.05)


def test_a_nodes_life_on_its_host(place: Place) -> None:
    argv = ("sh", "-c", f"{sys.executable} -c 'import time; time.sleep(100)' & wait", ODD)
    run(scripts.start(place, argv, {"ODD": ODD}))
    run(scripts.start(place, argv, {}))  # it runs already
    assert line_of(scripts.state(place)) == "running"
    assert run(scripts.pause(place)) == "paused\n"
    assert line_of(scripts.state(place)) == "paused"
    run(scripts.resume(place))
    assert line_of(scripts.state(place)) == "running"
    run(scripts.pause(place))
    assert run(scripts.kill(place)) == "killed\n"  # also what was stopped
    assert run(scripts.kill(place)) == "\n"
    assert line_of(scripts.state(place)) == "gone"


def test_what_left_the_nodes_session_is_found_by_its_mark(place: Place, tmp_path: Path) -> None:
    away = "import os, sys, time; open('pid2', 'w').write(str(os.getpid())); time.sleep(100)"
    run(scripts.start(place, ("sh", "-c", f'setsid {sys.executable} -c "{away}"; exit 3'), {}))
    file = Path(place.directory) / "pid2"
    while not file.exists() or not file.read_text():
        time.sleep(0.02)
    assert run(scripts.kill(place)) == "killed\n"
    assert not Path(f"/proc/{file.read_text()}/exe").exists()


def test_how_a_node_ended_by_itself(place: Place) -> None:
    run(scripts.start(place, ("sh", "-c", "echo oh dear; exit 7"), {}))
    wait_for(place, "ended 7")
    assert run(scripts.state(place)) == "ended 7\noh dear\n"
    run(scripts.start(place, ("no-such-program",), {}))
    wait_for(place, "ended 127")
    assert "not found" in run(scripts.log(place))


def test_a_node_is_asked_to_end_first(place: Place) -> None:
    program = "trap 'echo good bye; exit 0' TERM; echo hello; while :; do sleep 0.05; done"
    run(scripts.start(place, ("sh", "-c", program), {}))
    while not run(scripts.log(place)).endswith("hello\n"):  # before that a signal ends it at once
        time.sleep(0.02)
    assert run(scripts.stop(place)) == "stopped\n"
    assert run(scripts.log(place)).endswith("good bye\n")
    run(scripts.remove(place))
    assert not Path(place.run_directory).exists()


def test_a_pid_of_another_process_is_not_the_nodes(place: Place) -> None:
    run(scripts.start(place, ("true",), {}))
    wait_for(place, "ended 0")
    (Path(place.directory) / "pid").write_text(f"{os.getpid()} 1\n")
    assert run(scripts.kill(place)) == "\n"
    assert run(scripts.pause(place)) == ""


WRITER = """
import os, time
def write(name, text, sync):
    with open(name, "a") as file:  # ext4 soon writes what was truncated
        file.write(text)
        file.flush()
        if sync:
            os.fsync(file.fileno())
write("synced", "a" * 10_000, True)
os.fsync(os.open(".", 0))
write("fresh", "b" * 10_000, True)
os.rename("synced", "renamed")
write("unsynced", "c", False)
print("written", flush=True)
while True:  # something unsynced at any time
    write("unsynced", "c" * 5_000, False)
    time.sleep(0.01)
"""


@needs_power
def test_a_loss_of_power_takes_what_is_not_synced(place: Place) -> None:
    place = replace(place, disk_gib=1)
    data = Path(place.directory) / "data"
    argv = ("sh", "-c", 'cd "$1" && exec "$2" -c "$3"', "sh", str(data), sys.executable, WRITER)
    try:
        assert run(scripts.power(place)) == ""  # it does not run
        run(scripts.start(place, argv, {}))
        while not run(scripts.log(place)).endswith("written\n"):
            time.sleep(0.02)
        lost = dict(line.split() for line in run(scripts.power(place)).splitlines())
        assert int(lost["lost_bytes"]) >= 4_096
        assert line_of(scripts.state(place)) == "gone"
        assert (data / "synced").read_text() == "a" * 10_000  # its new name was not synced
        assert not (data / "unsynced").exists() or not (data / "unsynced").stat().st_size
        run(scripts.start(place, ("ls", str(data)), {}))
        wait_for(place, "ended 0")
        assert "synced" in run(scripts.log(place)).split()
        names = subprocess.run(
            ["tar", "-tf", "-"], input=archive(place), capture_output=True, check=True
        ).stdout.decode()
        assert "data/synced" in names.split()
    finally:
        run(scripts.kill(place))
        run(scripts.remove(place))
    assert place.run not in Path("/proc/mounts").read_text()
    assert not Path(place.run_directory).exists()


def archive(place: Place) -> bytes:
    script = scripts.data(place).encode()
    return subprocess.run(["sh", "-s"], input=script, capture_output=True, check=True).stdout


@needs_power
@pytest.mark.parametrize("ends", ["kill", "power"])
def test_a_node_without_its_environment_is_ended(place: Place, ends: str) -> None:
    place = replace(place, disk_gib=1)
    child = f"env -i {sys.executable} -c 'import time; time.sleep(100)'"
    program = f"{child} & echo $! >child; exec sleep 100"
    run(scripts.start(place, ("sh", "-c", program), {}))
    file = Path(place.directory) / "child"
    while not file.exists() or not file.read_text().strip():
        time.sleep(0.02)
    child = file.read_text().strip()
    try:
        run({"kill": scripts.kill, "power": scripts.power}[ends](place))
        assert not Path(f"/proc/{child}/exe").exists()
        assert line_of(scripts.state(place)) == "gone"
    finally:
        run(scripts.kill(place))
        run(scripts.remove(place))


def test_a_group_whose_shell_is_gone_is_still_the_nodes(place: Place) -> None:
    program = f"env -i {sys.executable} -c 'import time; time.sleep(100)' & echo $! >child; exit 3"
    run(scripts.start(place, ("sh", "-c", program), {}))
    wait_for(place, "ended 3")
    child = (Path(place.directory) / "child").read_text().strip()
    assert run(scripts.kill(place)) == "killed\n"
    assert not Path(f"/proc/{child}/exe").exists()


@needs_power
def test_a_child_that_stays_does_not_keep_a_node_from_its_disk(place: Place) -> None:
    place = replace(place, disk_gib=1)
    leaves = 'cd "$1" && sleep 100 & exit 3'
    argv = ("sh", "-c", leaves, "sh", str(Path(place.directory) / "data"))
    try:
        for _ in range(2):
            run(scripts.start(place, argv, {}))
            wait_for(place, "ended 3")
    finally:
        run(scripts.kill(place))
        run(scripts.remove(place))


@needs_power
def test_a_first_start_that_was_cut_off_is_completed_or_removed(place: Place) -> None:
    place = replace(place, disk_gib=1)
    cut_off = scripts.start(place, ("true",), {}).replace("unmount new  #", "exit 7  #")
    for ends in (False, True):
        done = subprocess.run(["sh", "-s"], input=cut_off, text=True, check=False)
        assert done.returncode == 7
        assert place.run in Path("/proc/mounts").read_text()
        if not ends:
            run(scripts.start(place, ("ls", "data/"), {}))
            wait_for(place, "ended 0")
            assert (Path(place.directory) / "data").is_symlink()
        run(scripts.remove(place))
        assert place.run not in Path("/proc/mounts").read_text()


@needs_power
def test_what_a_host_lacks_for_losses_of_power_is_told(place: Place) -> None:
    asked = scripts.check(replace(place, disk_gib=1), "sh", ())
    assert "power" not in run(asked)
    for tool, instead, why in (
        ("for tool in mkfs.ext4", "for tool in no-such-tool", "no-such-tool is not there"),
        ("mkfs.ext4 -q", "false", "no disk can be made: "),
        ("mount -o loop", "mount -o no-loop", "cannot be mounted"),
        ("syscall(451", "syscall(9999", "from 6.5 on"),
    ):
        (line,) = (
            line for line in run(asked.replace(tool, instead)).splitlines() if "power" in line
        )
        assert why in line
    assert not list(Path(place.run_directory).iterdir())
    assert "power" not in run(scripts.check(place, "sh", ()))


def test_links_are_cut_by_the_addresses_of_their_senders() -> None:
    place = Place("/srv", "st12", "n1")
    script = scripts.cut(place, {"n0": ["10.0.0.1", "fd00::1"]})
    assert "'add rule inet shaketable_st12 from_n0 ip saddr 10.0.0.1 counter drop'" in script
    assert "'add rule inet shaketable_st12 from_n0 ip6 saddr fd00::1 counter drop'" in script
    listing = """table inet shaketable_st12 {
        chain from_n0 {
                ip saddr 10.0.0.1 counter packets 3 bytes 180 drop
                ip6 saddr fd00::1 counter packets 1 bytes 20 drop
        }
        chain from_n2 {
                ip saddr 10.0.0.3 counter packets 0 bytes 0 drop
        }
    }"""
    assert bytes_dropped(listing) == {"n0": 200, "n2": 0}
    assert bytes_dropped("") == {}


def test_without_nft_links_are_cut_by_iptables(fake_ssh: Path, tmp_path: Path) -> None:
    for name in ("iptables", "ip6tables"):
        (fake_ssh / name).write_text(IPTABLES.format(folder=fake_ssh, name=name))
        (fake_ssh / name).chmod(0o755)
    place = Place("/srv", "st12", "n1")
    for script in (scripts.cut(place, {"n0": ["10.0.0.1"], "n10": ["fd00::1"]}),) * 2:
        run(without_nft(script))
    rules = (fake_ssh / "iptables.rules").read_text()
    assert rules == "-A INPUT -s 10.0.0.1 -m comment --comment shaketable_st12_n0_ -j DROP\n"
    assert "shaketable_st12_n10_" in (fake_ssh / "ip6tables.rules").read_text()
    listing = run(without_nft(scripts.dropped(place)))
    assert bytes_dropped(listing) == {"n0": 180, "n10": 180}
    assert bytes_dropped(run(without_nft(scripts.heal(place, "n0")))) == {"n0": 180}
    assert (fake_ssh / "iptables.rules").read_text() == ""
    end = without_nft(scripts.end(place, gently=False, with_links=True))
    assert run(end) == "its cut links\n"
    assert run(end) == ""


def test_what_needs_root_is_done_by_sudo(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(scripts.start(place, ("sleep", "100"), {}))
    asked = tmp_path / "asked"
    for name, text in {
        "id": "echo 1000",
        "nft": f"echo nft $* >> {asked}; cat >> {asked}",
        "sudo": f'echo sudo $1 $2 $3 >> {asked}; shift 2; exec "$@"',
    }.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    run(scripts.cut(place, {"n0": ["10.0.0.1"]}))
    assert asked.read_text().startswith("sudo -n -- nft\nnft -f -\nadd table inet shaketable_st12")
    asked.unlink()
    # A node of another user: the shell's own kill is refused, so the one of sudo is asked.
    refused = "\nkill() { return 1; }\n"
    killed = run(f"{refused}{scripts.kill(place)}")
    assert killed == "killed\n"
    assert asked.read_text().startswith("sudo -n -- kill\n")
    (tmp_path / "sudo").write_text("#!/bin/sh\necho a password is required >&2; exit 1\n")
    run(scripts.start(place, ("sleep", "100"), {}))
    script = f"{refused}{scripts.kill(place)}"
    done = subprocess.run(["sh", "-s"], input=script, text=True, capture_output=True, check=False)
    assert done.returncode == 1
    assert done.stderr.rstrip().endswith("does not end, even by SIGKILL")


@pytest.fixture
def fake_ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "fake"
    folder.mkdir()
    (folder / "ssh").write_text(SSH.format(folder=folder))
    (folder / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("SSH_CONNECTION", "192.0.2.1 1 127.0.0.1 22")
    return folder


class Target:
    """Starts a server of the test's."""

    status_timeout_s = 0.3

    def __init__(self, port: int) -> None:
        self.port = port
        self._argv = (sys.executable, "-c", SERVER, str(port), ODD)

    def prepare(self, layout: NodeLayout) -> Launch:
        return Launch(self._argv, {"ODD": ODD})

    async def status(self, layout: NodeLayout, timeout_s: float) -> NodeStatus | None:
        with trio.move_on_after(timeout_s):
            try:
                stream = await trio.open_tcp_stream("127.0.0.1", self.port)
            except OSError:
                return None
            await stream.aclose()
            return NodeStatus(layout.node, NO_ROLE, 0, None, -1, -1)
        return None


def group_of(tmp_path: Path, told: list[str]) -> tuple[HostGroup, Target]:
    client, peer = find_free(2)
    hosts = Hosts(
        ssh=("root@127.0.0.1",), folder=f"{tmp_path}/there", client_port=client, peer_port=peer
    )
    (tmp_path / "run").mkdir(exist_ok=True)
    group = HostGroup(RUN, hosts, RunFolder(tmp_path / "run"), told.append)
    return group, Target(client)


def test_an_undo_is_repeated_until_the_host_is_back(fake_ssh: Path, tmp_path: Path) -> None:
    told: list[str] = []
    group, target = group_of(tmp_path, told)

    async def back() -> None:
        await trio.sleep(1)
        (fake_ssh / "down").unlink()

    async def main() -> None:
        await group.check(target)  # type: ignore[arg-type]
        await group.start_all()
        await group.act("pause", "n0")
        (fake_ssh / "down").write_text("Connection reset by peer\n")
        with pytest.raises(UnreachableError):
            await group.act("kill", "n0")  # an undo it is not
        async with trio.open_nursery() as nursery:
            nursery.start_soon(back)
            await group.act("resume", "n0")
        assert (await group.act("state", "n0")).startswith("running\n")
        assert await group.end(gently=True)

    trio.run(main)
    host = "host root@127.0.0.1 of n0"
    assert told[0] == f"{host} is ready"
    assert told[1].startswith(f"{host} cannot be reached: Connection reset by peer; check that")
    assert told[2:] == [f"{host} is reached again"]
    assert not (tmp_path / "run" / "hosts.json").exists()
    assert not (tmp_path / "there" / RUN).exists()
    assert repr([ODD]) in (tmp_path / "run" / "nodes" / "n0" / "node.log").read_text()


def test_a_host_that_stays_away_is_cleaned_later(
    fake_ssh: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worlds, "UNREACHABLE_MAX_S", 0.5)
    group, target = group_of(tmp_path, [])
    folder = RunFolder(tmp_path / "run")

    async def main() -> None:
        await group.check(target)  # type: ignore[arg-type]
        await group.start_all()
        (fake_ssh / "down").write_text("")
        with pytest.raises(UnreachableError, match="the connection was closed"):
            await group.act("start", "n0")
        assert await group.end(gently=False) == ()
        assert list(group.left) == ["n0"]

    trio.run(main)
    did, [left] = trio.run(clean_up_after, folder)
    assert not did
    assert left.startswith("n0 may be left: host root@127.0.0.1 of n0 cannot be reached")
    (fake_ssh / "down").unlink()
    assert trio.run(clean_up_after, folder) == (
        ("host root@127.0.0.1 of n0: ended its processes",), ()
    )  # fmt: skip
    assert trio.run(clean_up_after, folder) == ((), ())


def test_traces_that_cannot_be_read_are_told(tmp_path: Path) -> None:
    (tmp_path / "hosts.json").write_text("{")
    with pytest.raises(HarnessError, match=r"cannot read .*hosts\.json"):
        trio.run(clean_up_after, RunFolder(tmp_path))


def test_this_machine_must_not_be_a_host_whose_links_are_cut(
    fake_ssh: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSH_CONNECTION", "127.0.0.1 1 127.0.0.1 22")
    nft = fake_ssh / "nft"
    nft.write_text("#!/bin/sh\n")
    nft.chmod(0o755)
    group, target = group_of(tmp_path, [])
    why = trio.run(group.check, target)
    assert why.keys() == {Capability.CUT}
    told = "this machine is the host of n0, as host root@127.0.0.1 of n0 sees it: a cut would"
    assert why[Capability.CUT].startswith(told)
    nft.write_text("#!/bin/sh\necho Operation not permitted >&2; exit 1\n")
    why = trio.run(group_of(tmp_path, [])[0].check, target)
    assert why == {Capability.CUT: "host root@127.0.0.1 of n0: nft: Operation not permitted"}


def test_the_users_options_come_first(tmp_path: Path) -> None:
    arguments = ("-o", "ConnectTimeout=99", "-p", "22", "me@h")
    words = Host("n0", "me@h", arguments, tmp_path, print).argv("x")
    assert words.index("ConnectTimeout=99") < words.index("ConnectTimeout=5")
    assert words[-1] == "x"
    assert not any("StrictHostKeyChecking" in word for word in words)
    assert f"ControlPath={tmp_path}/n0" in words
    deep = tmp_path / ("x" * 100)
    assert "ControlPath=none" in Host("n0", "me@h", arguments, deep, print).argv()


def test_without_ssh_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(HarnessError, match=r"ssh: No such file.*: install OpenSSH's client"):
        trio.run(Host("n0", "h", ("h",), None, print).run, "true")


def test_traces_are_read_as_they_were_written() -> None:
    traces = worlds.Traces(run="st1", hosts=Hosts(ssh=("a", "b"), options=("-v",)), cuts=("n1",))
    assert msgspec.json.decode(msgspec.json.encode(traces), type=worlds.Traces) == traces


class Teller(SilentObserver):
    """Keeps the notes."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, line: str) -> None:
        self.notes.append(line)


@pytest.mark.usefixtures("fake_ssh")
def test_a_node_that_ends_by_itself_is_seen_and_started_again_at_the_end(tmp_path: Path) -> None:
    observer = Teller()
    group, target = group_of(tmp_path, observer.notes)
    lines = Lines(tmp_path / "status.jsonl")
    trio.run(group.check, target)
    world = HostsWorld(group, RunFolder(tmp_path / "run"), lines, observer, 0)

    shell = tmp_path / "there" / RUN / "n0" / "pid"

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            await nursery.start(world.run)
            assert await world.until_ready(10)
            run(
                "kill -SEGV $(cat /proc/{0}/task/{0}/children)".format(shell.read_text().split()[0])
            )
            with trio.fail_after(20):
                while not world.exits:
                    await trio.sleep(0.05)
            assert not world.is_running("n0")
            assert await world.kill("n0") == {"incarnation": UNTOUCHED}
            assert await world.put_back() == ("node n0 was down",)
            assert await world.until_ready(10)
            assert world.incarnation("n0") == 2
            assert (await world.pause("n0"))["incarnation"] == 2
            assert world.is_paused("n0")  # the kernel says so
            nursery.cancel_scope.cancel()

    trio.run(main)
    lines.close()
    [ended] = world.exits
    assert ended.how == "was ended by SIGSEGV"
    assert any(line.startswith("node n0 (incarnation 1) was ended by") for line in observer.notes)
    assert not world.remarks()
    assert not (tmp_path / "run" / "hosts.json").exists()


class ThreeHosts:
    """A group on three hosts, on the first of which the power cannot be cut."""

    left: dict[str, str] = {}  # noqa: RUF012 - nothing is ever left

    def __init__(self, tmp_path: Path) -> None:
        hosts = Hosts(ssh=("a", "b", "c"), addresses=("127.0.0.1", "127.0.0.2", "127.0.0.3"))
        self.layouts = HostGroup(RUN, hosts, RunFolder(tmp_path), print).layouts
        self.acts: list[tuple[str, str]] = []
        self.status_timeout_s = 0.1

    async def act(self, action: str, node: str, to: str = "") -> str:
        await trio.lowlevel.checkpoint()
        self.acts.append((action, node))
        if (action, node) == ("power", "n0"):
            raise HarnessError("power cannot be cut")
        return "lost_bytes 8192\n"

    async def status(self, layout: NodeLayout, timeout_s: float) -> None:
        await trio.lowlevel.checkpoint()


def test_where_power_cannot_be_cut_all_that_were_cut_are_started_again(tmp_path: Path) -> None:
    group, lines = ThreeHosts(tmp_path), Lines(tmp_path / "status.jsonl")
    world = HostsWorld(group, RunFolder(tmp_path), lines, SilentObserver(), 0)  # type: ignore[arg-type]

    async def main() -> None:
        with pytest.raises(HarnessError, match="power cannot be cut"):
            await world.lose_power(("n0", "n1", "n2"))
        assert all(world.is_running(node) for node in world.nodes)
        undo = await world.lose_power(("n1", "n2"))
        assert undo == {
            "incarnations": {"n1": 2, "n2": 2}, "lost_bytes": {"n1": 8192, "n2": 8192}
        }  # fmt: skip
        assert (await world.lose_power(("n1",)))["incarnations"] == {"n1": UNTOUCHED}

    trio.run(main)
    lines.close()
    assert {node for action, node in group.acts if action == "start"} == {"n0", "n1", "n2"}
