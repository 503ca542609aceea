"""A described target: its commands, when its nodes are ready, who leads."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import trio

from shaketable.checkers.anomalies.log_rules import why_not_promised
from shaketable.harness import described, discovery
from shaketable.harness.campaigns.campaign import Campaign, check_clients, resolve
from shaketable.harness.contracts.abilities import HasSize
from shaketable.harness.contracts.errors import HarnessError, UsageError
from shaketable.harness.contracts.plugins import (
    NO_ROLE,
    Address,
    FurtherPort,
    NodeLayout,
    NodeStatus,
)
from shaketable.harness.described.running import targets_of
from shaketable.harness.described.target import DescribedTarget, at_path
from shaketable.harness.history.run_folder import RunFolder
from shaketable.harness.runtime import sites
from tests.support.checker_histories import context, struck

CLIENT = "def read(s, k): ...\ndef write(s, k, v): ...\ndef cas(s, k, e, v): ...\n"
TABLE = '[targets.kvs]\nstart = [{start}]\nclient = "client.py"\n{more}\n'


def target_of(folder: Path, more: str = "", start: str = '"true"') -> DescribedTarget:
    (folder / "client.py").write_text(CLIENT)
    file = folder / described.FILE_NAME
    file.write_text(TABLE.format(start=start, more=more))
    return targets_of(file)[0]


def layout_of(folder: Path, port: int = 1, node: str = "n1") -> NodeLayout:
    peers = {f"n{n}": Address("127.0.0.1", 8100 + n) for n in range(3) if f"n{n}" != node}
    here, there = Address("127.0.0.1", port), Address("127.0.0.1", 8001)
    (folder / node).mkdir(exist_ok=True)
    advertised = Address("127.0.0.1", 8201)
    return NodeLayout(node, folder / node, here, there, peers, advertised_address=advertised)


def test_a_command_gets_addresses_and_a_folder(tmp_path: Path) -> None:
    start = '"bin/server", "{id}={client_port}", "{peers}", "{members}", "{number}", "{data}"'
    target = target_of(tmp_path, 'env = { PEER = "{peer_host}" }', start)
    layout = layout_of(tmp_path, 7001)
    launch = target.prepare(layout)
    assert launch.argv == (
        f"{tmp_path}/bin/server",
        "n1=7001",
        "n0=127.0.0.1:8100,n2=127.0.0.1:8102",
        "n0=127.0.0.1:8100,n1=127.0.0.1:8001,n2=127.0.0.1:8102",
        "1",
        f"{tmp_path}/n1/data",
    )
    assert launch.env == {"PEER": "127.0.0.1"}
    assert (tmp_path / "n1" / "data").is_dir()


def test_one_address_for_all_and_its_format(tmp_path: Path) -> None:
    more = 'one_address = true\npeer_format = "http://{host}:{port}"\npeer_separator = " "'
    target = target_of(tmp_path, more, '"server", "{members}"')
    assert target.advertises_addresses
    program, members = target.prepare(layout_of(tmp_path)).argv
    assert program == "server"
    assert members == "http://127.0.0.1:8100 http://127.0.0.1:8201 http://127.0.0.1:8102"


def test_replicas_get_the_address_of_the_first_node(tmp_path: Path) -> None:
    more = 'arguments = ["--a"]\nothers = ["--of", "{first_host} {first_port}"]\none_port = true'
    target = target_of(tmp_path, more, '"server"')
    assert target.listens_once
    assert target.prepare(layout_of(tmp_path, node="n0")).argv == ("server", "--a")
    assert target.prepare(layout_of(tmp_path)).argv == ("server", "--a", "--of", "127.0.0.1 8100")


def test_a_node_learns_its_own_advertised_address(tmp_path: Path) -> None:
    target = target_of(tmp_path, "one_address = true", '"server", "{advertised}", "{peer}"')
    argv = target.prepare(layout_of(tmp_path)).argv
    assert argv == ("server", "127.0.0.1:8201", "127.0.0.1:8001")


SET_UP = """
setup = ["sh", "-c", 'cd "{data}" && test -z "$(ls -A)" && echo setup >> ../did && touch x']
"""


def test_a_set_up_is_run_once_before_the_first_start(tmp_path: Path) -> None:
    start = """"sh", "-c", "echo '{id} starts' >> '{folder}/did'" """
    target, layout = target_of(tmp_path, SET_UP, start), layout_of(tmp_path)
    for _ in range(2):
        subprocess.run(target.prepare(layout).argv, cwd=layout.directory, check=True)
    did = layout.directory / "did"
    assert did.read_text().splitlines() == ["setup", "n1 starts", "n1 starts"]
    assert (layout.directory / "data" / "x").exists()


def test_a_set_up_that_failed_is_run_again_in_an_empty_folder(tmp_path: Path) -> None:
    layout = layout_of(tmp_path)
    target = target_of(tmp_path, SET_UP.replace("touch x", "touch x && false"), '"echo", "starts"')
    argv = target.prepare(layout).argv
    ended = [subprocess.run(argv, cwd=layout.directory, check=False) for _ in range(2)]
    assert [done.returncode for done in ended] == [1, 1]
    assert (layout.directory / "did").read_text().splitlines() == ["setup", "setup"]


def test_a_group_of_one_size(tmp_path: Path) -> None:
    alone = target_of(tmp_path, "size = 1")
    assert isinstance(alone, HasSize)
    assert (alone.group_size, alone.default_faults) == (1, ("kill", "pause"))
    usual = target_of(tmp_path)
    assert (usual.group_size, usual.default_faults) == (None, ("kill", "pause", "partition"))


def test_its_campaigns_have_its_size_and_its_one_port(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    discovery.clear_caches()
    target_of(tmp_path, "size = 2\none_port = true")
    campaign = resolve(Campaign(target="kvs", seed="1"))
    assert campaign.nodes == 2
    with pytest.raises(UsageError, match="--nodes 5: kvs has 2"):
        resolve(Campaign(target="kvs", seed="1", nodes=5))
    site = sites.lay_out(campaign, RunFolder(tmp_path), None, {}, ())
    try:
        for layout in site.layouts.values():
            assert layout.peer_address == layout.client_address
            own = {each.client_address for each in site.layouts.values()}
            assert not own & set(layout.peers.values()), "a link can be cut"
    finally:
        site.network.close()
        discovery.clear_caches()


def test_a_node_learns_where_else_it_listens(tmp_path: Path) -> None:
    start = '"server", "{quorum}", "{quorum_port}", "{quorum_advertised}", "{quorum_members}"'
    more = 'one_address = true\nfurther_ports = ["quorum"]\npeer_format = "{number}@{address}"'
    target = target_of(tmp_path, more, start)
    assert target.further_ports == ("quorum",)
    at = {f"n{n}": Address("127.0.0.1", 8300 + n) for n in range(3)}
    own = Address("127.0.0.1", 8401)
    layout = replace(layout_of(tmp_path), further={"quorum": FurtherPort(own, at)})
    members = "0@127.0.0.1:8300,1@127.0.0.1:8301,2@127.0.0.1:8302"
    argv = ("server", "127.0.0.1:8401", "8401", "127.0.0.1:8301", members)
    assert target.prepare(layout).argv == argv


def test_each_node_has_its_further_ports_and_a_proxy_before_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    discovery.clear_caches()
    target_of(tmp_path, "one_address = true\nfurther_ports = ['quorum', 'admin']")
    campaign = resolve(Campaign(target="kvs", seed="1"))
    site = sites.lay_out(campaign, RunFolder(tmp_path), None, {}, ("names",))
    try:
        layouts = site.layouts.values()
        ports = {
            address
            for each in layouts
            for address in (
                each.client_address,
                each.peer_address,
                *(port.own for port in each.further.values()),
            )
        }
        assert len(ports | set(site.name_servers.values())) == 4 * len(layouts) + 1
        fronts = {each.advertised_address for each in layouts}
        for name in ("quorum", "admin"):
            [reached] = {tuple(each.further[name].reached.items()) for each in layouts}
            assert [node for node, _ in reached] == list(site.layouts)
            fronts |= set(dict(reached).values())
        assert len(fronts) == 3 * len(layouts)
        assert not ports & fronts, "a link can be cut"
    finally:
        site.network.close()
        discovery.clear_caches()


def test_nodes_that_tell_their_own_addresses_are_reached_where_they_listen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    discovery.clear_caches()
    target_of(tmp_path, "own_addresses = true\nfurther_ports = ['admin']")
    campaign = resolve(Campaign(target="kvs", seed="1"))
    site = sites.lay_out(campaign, RunFolder(tmp_path), None, {}, ())
    try:
        own = {node: layout.further["admin"].own for node, layout in site.layouts.items()}
        assert {tuple(each.further["admin"].reached.items()) for each in site.layouts.values()} == {
            tuple(own.items())
        }
        described = discovery.get("targets", "kvs")
        monkeypatch.setattr(described, "tells_own_addresses", False)
        with pytest.raises(HarnessError, match="links to them could not be cut"):
            sites.lay_out(campaign, RunFolder(tmp_path), None, {}, ())
    finally:
        site.network.close()
        discovery.clear_caches()


def test_functions_find_the_options_of_their_target(tmp_path: Path) -> None:
    target = target_of(tmp_path, "options = { stale = true, level = 3 }")
    text = "def open(node): return node.options\ndef read(options, key): return options[key]\n"
    (tmp_path / "client.py").write_text(text)
    client = target.client({"n0": Address("127.0.0.1", 1)}, 5.0)
    assert trio.run(client.get, "level") == 3  # type: ignore[attr-defined]


def test_its_functions_choose_workload_and_promises(tmp_path: Path) -> None:
    target = target_of(tmp_path)
    assert target.default_workload == "register"
    assert target.promises.linearizable == {"read", "write", "cas"}


@pytest.mark.parametrize(
    ("functions", "workload", "loss"),
    [
        ("enqueue(session, key, value) dequeue(session, key)", "work-queue", "lost-element"),
        ("add(session, key, value) elements(session, key)", "set", "lost-element"),
        ("increment(session, key, amount) count(session, key)", "counter", "lost-add"),
    ],
)
def test_a_loss_is_a_breach_whatever_its_client_serves(
    tmp_path: Path, functions: str, workload: str, loss: str
) -> None:
    target = target_of(tmp_path)
    defined = functions.replace(") ", "): ...\n").split("\n")
    client = "".join(f"def {each.removesuffix(': ...')}: ...\n" for each in defined)
    (tmp_path / "client.py").write_text(client)  # it is read when it is asked for
    assert target.default_workload == workload
    promised = context(promises=target.promises, **struck("kill"))
    assert why_not_promised(loss, promised) is None


@pytest.mark.parametrize(
    ("given", "level"),
    [
        ("", "strict-serializable"),
        ('[targets.kvs.promises]\nisolation = "snapshot-isolation"', "snapshot-isolation"),
        ('[targets.kvs.promises]\nisolation = "none"', ""),
        (
            'options = { reads = "old" }\n[targets.kvs.promises_with.reads.old]\n'
            'isolation = "serializable"',
            "serializable",
        ),
        ('options = { reads = "old" }\n[targets.kvs.promises_with.reads.old]\nnote = "Old."',
         "strict-serializable"),
    ],
)  # fmt: skip
@pytest.mark.parametrize(
    ("functions", "workload"),
    [
        ("def transact(session, steps)", "list-append"),
        ("def transact_registers(session, steps)", "rw-register"),
        (
            "def balances(session, accounts, opening): ...\n"
            "def transfer(session, source, destination, amount, opening)",
            "bank",
        ),
    ],
)
def test_transactions_have_the_strongest_level_unless_it_promises_less(
    tmp_path: Path, given: str, level: str, functions: str, workload: str
) -> None:
    target = target_of(tmp_path, given)
    (tmp_path / "client.py").write_text(f"{functions}: ...\n")
    assert target.default_workload == workload
    assert target.promises.isolation == level
    assert target.promises.linearizable == frozenset()


def test_what_it_promises_can_be_given(tmp_path: Path) -> None:
    given = '[targets.kvs.promises]\nlinearizable = ["write"]\nnote = "So it says."'
    assert target_of(tmp_path, given).promises.linearizable == {"write"}


class Answers(BaseHTTPRequestHandler):
    """Answers what the test wants."""

    status, body, posted = 200, b"{}", b""

    def do_POST(self) -> None:
        type(self).posted = self.rfile.read(int(self.headers["Content-Length"]))
        self.do_GET()

    def do_GET(self) -> None:
        self.send_response(self.status if self.path == "/status" else 404)
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, *_arguments: object) -> None: ...


@pytest.fixture
def server() -> Iterator[Any]:
    handler = type("Handler", (Answers,), {})
    with HTTPServer(("127.0.0.1", 0), handler) as http:
        thread = threading.Thread(target=http.serve_forever, args=(0.01,))
        thread.start()
        yield handler, http.server_address[1]
        http.shutdown()
        thread.join()


def asked(target: DescribedTarget, layout: NodeLayout) -> NodeStatus | None:
    return trio.run(target.status, layout, 5.0)


LEADER = '[targets.kvs.leader]\nhttp = "http://{client}/status"\n'


@pytest.mark.parametrize("name", ["n0", "127.0.0.1:8100"])
def test_an_answer_names_the_leader(tmp_path: Path, server: Any, name: str) -> None:
    handler, port = server
    paths = 'leader = "raft.leader"\nterm = "raft.term"\ncommitted = "at.0"\nend = "at.1"\n'
    target = target_of(tmp_path, LEADER + paths)
    handler.body = json.dumps({"raft": {"leader": name, "term": "7"}, "at": [3, 4]}).encode()
    layout = layout_of(tmp_path, port)
    assert asked(target, layout) == NodeStatus("n1", "follower", 7, "n0", 3, 4)
    handler.body = b'{"raft": {"leader": "n1", "term": 8}, "at": [4, 4]}'
    assert asked(target, layout) == NodeStatus("n1", "leader", 8, "n1", 4, 4)
    handler.body = b'{"raft": {"leader": null, "term": 8}, "at": [4, 4]}'
    assert asked(target, layout) == NodeStatus("n1", "candidate", 8, None, 4, 4)
    handler.status = 503
    assert asked(target, layout) is None


def test_an_answer_names_the_leader_by_an_id_of_the_group(tmp_path: Path, server: Any) -> None:
    handler, port = server
    more = 'body = \'{"of": "{id}"}\'\nid = "my.id"\nleader = "leader"\nterm = "term"\n'
    target = target_of(tmp_path, LEADER + more)
    layout, other = layout_of(tmp_path, port), layout_of(tmp_path, port, "n2")
    handler.body = b'{"my": {"id": "71"}}'
    assert asked(target, layout) == NodeStatus("n1", "candidate", 0, None, -1, -1)
    assert handler.posted == b'{"of": "n1"}'
    handler.body = b'{"my": {"id": "72"}, "leader": "71", "term": "3"}'
    assert asked(target, other) == NodeStatus("n2", "follower", 3, "n1", -1, -1)
    handler.body = b'{"my": {"id": "71"}, "leader": "71", "term": "3"}'
    assert asked(target, layout) == NodeStatus("n1", "leader", 3, "n1", -1, -1)
    handler.body = b'{"leader": "71"}'
    with pytest.raises(ValueError, match=r"no 'my\.id'"):
        asked(target, layout)


def test_an_answer_says_whether_its_node_leads(tmp_path: Path, server: Any) -> None:
    handler, port = server
    target = target_of(tmp_path, LEADER + 'leads = "role"\n')
    handler.body = b'{"role": "follower"}'
    assert asked(target, layout_of(tmp_path, port)) == NodeStatus(
        "n1", "candidate", 0, None, -1, -1
    )
    handler.body = b'{"role": "leader"}'
    assert asked(target, layout_of(tmp_path, port, "n2")) == (
        NodeStatus("n2", "leader", 0, "n2", -1, -1)
    )
    handler.body = b'{"role": "follower"}'
    assert asked(target, layout_of(tmp_path, port)) == NodeStatus("n1", "follower", 0, "n2", -1, -1)


def test_an_answer_without_what_is_looked_for(tmp_path: Path, server: Any) -> None:
    handler, port = server
    target = target_of(tmp_path, LEADER + 'leader = "raft.leader"\n')
    handler.body = b'{"raft": [1]}'
    with pytest.raises(ValueError, match=r"no 'raft\.leader'"):
        asked(target, layout_of(tmp_path, port))


def test_a_command_tells_who_leads(tmp_path: Path) -> None:
    more = '[targets.kvs.leader]\ncommand = ["echo", \'{"leads": true}\']\nleads = "leads"\n'
    more += '[targets.kvs.ready]\ncommand = ["true"]\n'
    target = target_of(tmp_path, more)
    assert asked(target, layout_of(tmp_path)) == NodeStatus("n1", "leader", 0, "n1", -1, -1)


def test_a_node_s_output_says_whether_it_leads(tmp_path: Path, server: Any) -> None:
    """The last line counts, of this start; of two that say so the one of the higher term leads."""
    more = "[targets.kvs.leader]\nlog = 'now (?P<role>[A-Z]+) of (?P<term>[0-9]+)'\n"
    target = target_of(tmp_path, more + 'leads = "role"\nterm = "term"\n')
    first, second = (layout_of(tmp_path, server[1], name) for name in ("n1", "n2"))

    def printed(layout: NodeLayout, text: str) -> None:
        with (layout.directory / "node.log").open("a") as log:
            log.write(text)

    assert asked(target, first) is None
    printed(first, "now FOLLOWER of 1\nnow LEADER of 2\nnow FOLL")
    assert asked(target, first) == NodeStatus("n1", "leader", 2, "n1", -1, -1)
    printed(second, "now LEADER of 3\n")
    assert asked(target, second) == NodeStatus("n2", "leader", 3, "n2", -1, -1)
    assert asked(target, first) == NodeStatus("n1", "follower", 2, "n2", -1, -1)
    printed(second, "--- shaketable: n2 incarnation 2 starts at 1.000 s\nstarting\n")
    assert asked(target, second) is None
    assert asked(target, first) == NodeStatus("n1", "leader", 2, "n1", -1, -1)


def test_a_line_that_says_nothing_of_who_leads_is_of_a_node_without_a_role(
    tmp_path: Path, server: Any
) -> None:
    """As of a broker that is up, and has no partition yet: the group is ready nevertheless."""
    more = "[targets.kvs.leader]\nlog = 'now (?P<role>[A-Z]+)|starting'\nleads = \"role\"\n"
    target, layout = target_of(tmp_path, more), layout_of(tmp_path, server[1])
    log = layout.directory / "node.log"
    log.write_text("starting\n")
    assert asked(target, layout) == NodeStatus("n1", NO_ROLE, 0, None, -1, -1)
    log.write_text("starting\nnow LEADER\n")
    assert asked(target, layout) == NodeStatus("n1", "leader", 0, "n1", -1, -1)


def test_a_node_that_does_not_answer_leads_no_more(tmp_path: Path, server: Any) -> None:
    handler, port = server
    target = target_of(tmp_path, LEADER + 'leads = "role"\n')
    handler.body = b'{"role": "leader"}'
    first = layout_of(tmp_path, port)
    assert asked(target, first) == NodeStatus("n1", "leader", 0, "n1", -1, -1)
    assert asked(target, layout_of(tmp_path, 1)) is None  # n1, where nothing listens
    second = layout_of(tmp_path, port, "n2")
    assert asked(target, second) == NodeStatus("n2", "leader", 0, "n2", -1, -1)


@pytest.mark.parametrize("command", ["false", "no-such-program-anywhere"])
def test_a_command_that_fails_means_not_ready(tmp_path: Path, command: str) -> None:
    target = target_of(tmp_path, f'[targets.kvs.ready]\ncommand = ["{command}"]\n')
    assert asked(target, layout_of(tmp_path)) is None


def test_ready_when_it_listens(tmp_path: Path, server: Any) -> None:
    target = target_of(tmp_path)
    assert asked(target, layout_of(tmp_path, server[1])) == NodeStatus(
        "n1", NO_ROLE, 0, None, -1, -1
    )
    assert asked(target, layout_of(tmp_path, 1)) is None


def test_ready_when_a_line_of_this_process_says_so(tmp_path: Path) -> None:
    target = target_of(tmp_path, '[targets.kvs.ready]\nlog = "^ready .* serve$"\n')
    layout = layout_of(tmp_path)
    assert asked(target, layout) is None
    log = layout.directory / "node.log"
    start = "--- shaketable: n1 incarnation 1 starts, 0.1 s into the run\n"
    log.write_text(start + "ready to serve\n")
    assert asked(target, layout) is not None
    log.write_text(log.read_text() + start.replace("1 starts", "2 starts") + "reading files\n")
    assert asked(target, layout) is None


def test_a_node_may_say_that_it_is_ready_no_longer(tmp_path: Path) -> None:
    target = target_of(
        tmp_path, "[targets.kvs.ready]\nlog = 'state: (?:(?P<ready>synced)|disconnected)'\n"
    )
    layout = layout_of(tmp_path)
    log = layout.directory / "node.log"
    log.write_text("--- shaketable: n1 incarnation 1 starts, 0.1 s into the run\n")
    states = []
    for line in ("state: synced", "synced", "state: disconnected", "noise", "state: synced"):
        with log.open("a") as file:
            file.write(f"{line}\n")
        states.append(asked(target, layout) is not None)
    assert states == [True, True, False, False, True]


def test_paths_lead_into_lists_and_objects() -> None:
    assert at_path({"a": [{"b": 3}]}, "a.0.b") == 3
    for path in ("a.1", "b", "a.b", "a.0.b.c"):
        with pytest.raises(ValueError, match="has no"):
            at_path({"a": [{"b": 3}]}, path)


def test_targets_are_found_from_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target_of(tmp_path)
    inner = tmp_path / "tests"
    inner.mkdir()
    discovery.clear_caches()
    monkeypatch.chdir(inner)
    assert discovery.get("targets", "kvs").name == "kvs"
    assert discovery.get("targets", "kvs") is discovery.find("targets")["kvs"]
    with pytest.raises(UsageError, match=r"unknown target 'kv'; did you mean 'kvs'\?"):
        discovery.get("targets", "kv")
    discovery.clear_caches()
    monkeypatch.chdir("/")
    with pytest.raises(UsageError, match=r"no shaketable\.toml is here or in a folder above"):
        discovery.get("targets", "kvs")
    discovery.clear_caches()


def test_a_workload_that_its_clients_lack_is_refused(tmp_path: Path) -> None:
    target = target_of(tmp_path)
    with pytest.raises(UsageError, match="workload log: clients of kvs have no append"):
        check_clients(discovery.get("workloads", "log"), target)
    check_clients(discovery.get("workloads", "register"), target)
