"""A target whose nodes are started on other machines: its file, its launch, its world."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from shaketable.harness import described, discovery
from shaketable.harness.campaigns.campaign import Campaign, resolve
from shaketable.harness.contracts.abilities import Hosts, RunsAlready, RunsOnHosts
from shaketable.harness.contracts.capabilities import Capability, needs_of
from shaketable.harness.contracts.errors import UsageError
from shaketable.harness.contracts.plugins import Address, NodeLayout
from shaketable.harness.described.running import CAPABILITIES, TargetOnHosts, targets_of
from shaketable.harness.runtime import availability

ROOT = Path(__file__).parent.parent.parent
CLIENT = "def read(s, k): ...\ndef write(s, k, v): ...\ndef cas(s, k, e, v): ...\n"
START = 'start = ["/opt/kvs/server", "--listen={client}", "--members={members}", "--data={data}"]'
HOSTS = '[targets.kvs.hosts]\nssh = ["root@10.0.0.1", "db2"]'


def target_of(folder: Path, hosts: str = HOSTS, start: str = START) -> TargetOnHosts:
    (folder / "client.py").write_text(CLIENT)
    file = folder / described.FILE_NAME
    file.write_text(f'[targets.kvs]\n{start}\nclient = "client.py"\n{hosts}\n')
    [target] = targets_of(file)
    assert isinstance(target, TargetOnHosts)
    assert isinstance(target, RunsOnHosts)
    assert not isinstance(target, RunsAlready)
    return target


def test_how_a_node_is_started_there(tmp_path: Path) -> None:
    target = target_of(tmp_path)
    there = Path("/var/tmp/shaketable/st1/n0")
    peers = {"n1": Address("fd00::2", 7001)}
    layout = NodeLayout("n0", there, Address("a", 7000), Address("a", 7001), peers)
    assert target.prepare(layout).argv == (
        "/opt/kvs/server",
        "--listen=a:7000",
        "--members=n0=a:7001,n1=[fd00::2]:7001",
        "--data=/var/tmp/shaketable/st1/n0/data",
    )
    assert not there.exists()


def test_options_may_name_files_beside_its_file(tmp_path: Path) -> None:
    hosts = target_of(tmp_path, f'{HOSTS}\noptions = ["-i", "{{here}}/key"]').hosts
    assert hosts.options == ("-i", f"{tmp_path}/key")


@pytest.mark.parametrize(
    ("given", "address", "arguments"),
    [
        ("db1", "db1", ("db1",)),
        ("root@10.0.0.1", "10.0.0.1", ("root@10.0.0.1",)),
        ("root@10.0.0.1:2222", "10.0.0.1", ("-p", "2222", "root@10.0.0.1")),
        ("me@[fd00::1]", "fd00::1", ("me@fd00::1",)),
        ("[fd00::1]:22", "fd00::1", ("-p", "22", "fd00::1")),
    ],
)
def test_destinations(given: str, address: str, arguments: tuple[str, ...]) -> None:
    hosts = Hosts(ssh=(given,))
    assert hosts.address(0) == address
    assert hosts.destination(0) == arguments
    assert Hosts(ssh=(given,), addresses=("[fd00::9]",)).address(0) == "fd00::9"


@pytest.mark.parametrize(
    ("start", "hosts", "line"),
    [
        (START, "[targets.kvs.hosts]\nssh = []", "ssh: name at least one host"),
        (START, '[targets.kvs.hosts]\nssh = ["-oProxyCommand=x"]', "is not user@host"),
        (START, '[targets.kvs.hosts]\nssh = ["a b"]', "is not user@host"),
        (START, '[targets.kvs.hosts]\nssh = ["fd00::1"]', "is not user@host"),
        (START, '[targets.kvs.hosts]\nssh = ["a", "root@a"]', "two nodes have the same host"),
        (START, f"{HOSTS}\naddresses = ['10.0.0.1']", "addresses: give 2, one for each of ssh"),
        (START, f"{HOSTS}\nfolder = 'there'", "folder: give an absolute path"),
        (START, f"{HOSTS}\nclient_port = 7001", "client_port and peer_port are the same"),
        (START, f"{HOSTS}\npeer_port = 70000", "70000 is no port"),
        (START, f"{HOSTS}\noptions = ['{{id}}']", "hosts.options has an unknown placeholder {id}"),
        ('start = ["./server"]', HOSTS, "start: './server' is on the hosts: give an absolute path"),
        ('start = ["{here}/server"]', HOSTS, "start has an unknown placeholder {here}"),
        (f"{START}\nready = {{ log = 'x' }}", HOSTS, "ready.log: nodes' output is on their hosts"),
        (
            f"{START}\nleader = {{ log = '(?P<a>x)', leads = 'a' }}",
            HOSTS,
            "leader.log: nodes' output is on their hosts",
        ),
        (
            f"{START}\none_address = true\nfurther_ports = ['quorum']",
            HOSTS,
            "further_ports is for nodes on this machine",
        ),
        ('nodes = ["a:1"]', HOSTS, "hosts: nodes that run already are not started"),
    ],
)
def test_a_wrong_file_is_one_line(tmp_path: Path, start: str, hosts: str, line: str) -> None:
    with pytest.raises(UsageError) as refused:
        target_of(tmp_path, hosts, start)
    assert line in str(refused.value)
    assert "\n" not in str(refused.value)


def test_its_world_its_size_and_what_it_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    target_of(tmp_path)
    discovery.clear_caches()
    campaign = resolve(Campaign(target="kvs", seed="1"))
    assert (campaign.world, campaign.nodes) == ("hosts", 2)
    with pytest.raises(UsageError, match="--world netns: kvs runs on other machines"):
        resolve(Campaign(target="kvs", world="netns"))
    with pytest.raises(UsageError, match="--world hosts: dledger is started by"):
        resolve(Campaign(target="dledger", world="hosts"))
    target = discovery.get("targets", "kvs")
    target.lacks[Capability.CUT] = "host db2 of n1: nft is not there: install nftables"
    faults = ("kill", "pause", "partition", "wipe", "clock")
    choice = availability.look(resolve(Campaign(target="kvs", seed="1", faults=faults)))
    assert list(choice.faults) == ["kill", "pause"]
    assert choice.unavailable["partition"].startswith("host db2 of n1: nft is not there")
    assert choice.unavailable["clock"] == "nothing is done for this by ssh"


def test_the_pages_file_has_all_keys(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "your-own-system.md").read_text(encoding="utf-8")
    [shown] = re.findall(
        r"^```toml\n(\[targets\.kvs\][^`]*?\[targets\.kvs\.hosts\].*?)^```$",
        page,
        re.DOTALL | re.MULTILINE,
    )
    (tmp_path / "client.py").write_text(CLIENT)
    (tmp_path / described.FILE_NAME).write_text(shown)
    [kvs] = targets_of(tmp_path / described.FILE_NAME)
    assert isinstance(kvs, TargetOnHosts)
    for key in Hosts.__struct_fields__:
        assert f"\n{key} = " in shown
    assert kvs.hosts.destination(1) == ("-p", "2222", "root@10.0.0.2")
    assert kvs.hosts.options == ("-i", f"{tmp_path}/key")
    faults = discovery.find("faults").values()
    there = {fault.name for fault in faults if not needs_of(fault) - CAPABILITIES}
    assert there == {
        "kill", "crash-loop", "rolling-restart", "pause", "partition", "flap", "power",
    }  # fmt: skip
    assert all(f"`{name}`" in page for name in there)
