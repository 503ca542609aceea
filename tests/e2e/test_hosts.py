"""A group on three machines: started by ssh, shaken, cut off, left; nothing of it stays there."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.further_targets import NOT_IN_CI
from tests.support.host_lab import Lab, lab, missing, why_no_power
from tests.support.volume import whole

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(bool(missing()), reason=f"no hosts can be made: {missing()}"),
]

needs_power = pytest.mark.skipif(
    bool(why_no_power()), reason=f"{NOT_IN_CI}: hosts cannot lose power here: {why_no_power()}"
)
needs_etcd = pytest.mark.skipif(
    shutil.which("etcd") is None, reason="no etcd here: Debian's package etcd-server has it"
)
ROOT = Path(__file__).parent.parent.parent
EXAMPLE = ROOT / "examples" / "kvs"
WAIT_S = 60.0
FILE = """
[targets.kvs]
start = ["{python}", "{server}", "--id={{id}}", "--client={{client}}", "--peer={{peer}}",
         "--members={{members}}", "--data={{data}}"]
client = "client.py"

[targets.kvs.hosts]
ssh = ["root@10.77.0.1", "root@10.77.0.2:22", "root@10.77.0.3"]
options = ["-i", "{{here}}/../key", "-o", 'UserKnownHostsFile="{{here}}/../known_hosts"']
fetch_data = true
"""
RUN = (
    f"exec {sys.executable} -P -m shaketable run --target kvs --engine local --seed 3 --rate 100"
    " --steady 2"
)


class Project:
    """A project of a user in the lab."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.folder = lab.folder / "my project"
        self.folder.mkdir(exist_ok=True)
        self.latest = self.folder / "store" / "latest"
        shutil.copy(EXAMPLE / "client.py", self.folder)
        text = FILE.format(python=sys.executable, server=EXAMPLE / "server.py")
        (self.folder / "shaketable.toml").write_text(text)

    def shell(self, script: str) -> subprocess.CompletedProcess[str]:
        return self.lab.run(f"cd '{self.folder}' && {script}")

    def started(self, script: str) -> subprocess.Popen[str]:
        """Start the harness; its pid in the lab is in the file pid."""
        (self.folder / "pid").unlink(missing_ok=True)
        return subprocess.Popen(
            self.lab.argv(f"cd '{self.folder}' && echo $$ >pid && {script} >out 2>&1"),
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def faults(self) -> list[dict[str, object]]:
        """Return the ledger, as far as it is written."""
        path = self.latest / "faults.jsonl"
        if not path.exists():
            return []
        return [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]

    def has(self, event: str) -> bool:
        """Return whether that was noted of the first fault."""
        return any(row["event"] == event and row["fault"] == 0 for row in self.faults())

    def output(self) -> str:
        return (self.folder / "out").read_text()


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with lab(tmp_path_factory.mktemp("hosts")) as built:
        yield built


@pytest.fixture
def project(hosts: Lab) -> Iterator[Project]:
    project = Project(hosts)
    yield project
    shutil.rmtree(project.folder)


def until(project: Project, what: Callable[[], bool], run: subprocess.Popen[str]) -> None:
    end_s = time.monotonic() + WAIT_S
    while not what():
        assert run.poll() is None, (project.folder / "out").read_text()
        assert time.monotonic() < end_s
        time.sleep(0.05)


def is_clean(lab: Lab) -> bool:
    return [lab.left_on(node) for node in lab.nodes] == [{}, {}, {}]


def stopped(lab: Lab, node: str) -> int:
    return int(lab.run("grep -l '^State:.T' /proc/[0-9]*/status | wc -l", node).stdout)


def test_a_group_on_three_hosts_is_shaken(project: Project) -> None:
    done = project.shell(f"{RUN} --time-limit 15")
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads((project.latest / "results.json").read_text())
    assert results["valid"] is True
    for fault in ("kill", "pause", "partition"):
        assert results["faults"]["by_name"][fault]["took_effect"] > 0, results["faults"]
    assert is_clean(project.lab)
    assert not (project.latest / "hosts.json").exists()
    for node in project.lab.nodes:
        assert f"{node} is ready" in (project.latest / "nodes" / node / "node.log").read_text()
    assert (project.latest / "nodes" / "n0" / "data.tar").stat().st_size > 0


ETCD = """
[targets.etcds]
start = ["etcd", "--name={id}", "--data-dir={data}/etcd", "--listen-client-urls=http://{client}",
         "--advertise-client-urls=http://{client}", "--listen-peer-urls=http://{peer}",
         "--initial-advertise-peer-urls=http://{peer}", "--initial-cluster={members}"]
client = "etcd.py"
peer_format = "{id}=http://{address}"

[targets.etcds.promises]
durable_under = ["process", "network", "power"]

"""


@needs_etcd
@needs_power
def test_a_loss_of_power_takes_what_a_node_has_not_synced(project: Project) -> None:
    file = project.folder / "shaketable.toml"
    hosts = file.read_text().replace("[targets.kvs.hosts]", "[targets.etcds.hosts]")
    file.write_text(ETCD + hosts[hosts.index("[targets.etcds.hosts]") :])
    shutil.copy(ROOT / "examples" / "http" / "client.py", project.folder / "etcd.py")
    run = RUN.replace("--target kvs", "--target etcds").replace("--rate 100", "--rate 400")
    done = project.shell(
        f"{run} --faults power,kill --nemesis-schedule sequence --nemesis-interval 1"
        " --time-limit 15"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads((project.latest / "results.json").read_text())
    assert results["valid"] is True
    for fault in ("power", "kill"):
        assert results["faults"]["by_name"][fault]["took_effect"] > 0, results["faults"]
    assert re.search(r"took effect: unsynced bytes lost: .*n\d [1-9]", done.stdout), done.stdout
    assert is_clean(project.lab)
    assert (project.latest / "nodes" / "n0" / "data.tar").stat().st_size > 0


BROKERS = ROOT / "examples" / "dledger"


@needs_power
def test_our_own_group_on_three_hosts(project: Project) -> None:
    file = project.folder / "shaketable.toml"
    hosts = file.read_text().replace("[targets.kvs.hosts]", "[targets.brokers.hosts]")
    brokers = (BROKERS / "shaketable.toml").read_text().replace("python3", sys.executable)
    of_this_tree = f'env = {{ PYTHONPATH = "{ROOT / "src"}" }}\nclient ='
    brokers = brokers.replace("client =", of_this_tree)
    file.write_text(brokers + hosts[hosts.index("[targets.brokers") :])
    shutil.copy(BROKERS / "client.py", project.folder)
    run = RUN.replace("--target kvs", "--target brokers")
    done = project.shell(f"{run} --faults kill,pause,partition,power --time-limit 20")
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads((project.latest / "results.json").read_text())
    assert results["valid"] is True
    for fault in ("kill", "pause", "partition", "power"):
        assert results["faults"]["by_name"][fault]["took_effect"] > 0, results["faults"]
    assert is_clean(project.lab)
    assert "role=leader" in "".join(
        (project.latest / "nodes" / node / "node.log").read_text() for node in project.lab.nodes
    )


def test_doctor_tries_the_faults_on_the_hosts(project: Project) -> None:
    done = project.shell(f"{sys.executable} -P -m shaketable doctor --target kvs --json")
    found = json.loads(done.stdout)
    states = {fault: worlds["hosts"]["state"] for fault, worlds in found["faults"].items()}
    for fault in ("kill", "pause", "partition"):
        assert states[fault] == "works", found["faults"][fault]
    assert states["power"] in ("works", "no-effect")  # an example that may have synced all
    assert states["loss"] == "lacking"
    assert "failed" not in states.values(), found
    assert (done.returncode, found["exit_code"]) == (0, 0), done.stderr
    assert is_clean(project.lab)


def test_a_killed_harness_is_healed(project: Project) -> None:
    holds = "--faults pause,partition --faults-at-once 2 --scenarios none --time-limit 60"
    holds += " --fault-duration-min 30 --fault-duration-max 40 --nemesis-interval 0.1"
    with project.started(f"{RUN} {holds}") as run:
        until(project, lambda: sum(row["event"] == "applied" for row in project.faults()) == 2, run)
        project.shell("kill -KILL $(cat pid)")
    left = [project.lab.left_on(node) for node in project.lab.nodes]
    assert all("processes" in each for each in left), left
    assert any("tables" in each for each in left), left
    assert any(stopped(project.lab, node) for node in project.lab.nodes)
    healed = project.shell(f"exec {sys.executable} -P -m shaketable heal")
    assert healed.returncode == 0, healed.stdout + healed.stderr
    assert "ended its processes" in healed.stdout
    assert "ended its cut links" in healed.stdout
    assert is_clean(project.lab)
    assert "n0 is ready" in (project.latest / "nodes" / "n0" / "node.log").read_text()
    again = project.shell(f"exec {sys.executable} -P -m shaketable heal")
    assert "ended" not in again.stdout


def test_a_host_that_is_away_for_a_while(project: Project) -> None:
    lab = project.lab
    holds = "--faults pause --victims n1 --time-limit 20 --nemesis-interval 3"
    holds += " --fault-duration-min 3 --fault-duration-max 4"
    with project.started(f"{RUN} {holds}") as run:
        until(project, lambda: project.has("applied"), run)
        with lab.unplugged("n1"):
            time.sleep(10)  # longer than the fault lasts
            assert not project.has("undone")
            assert stopped(lab, "n1")
        until(project, lambda: project.has("undone"), run)
        run.wait()
    said = project.output()
    assert run.returncode == 0, said
    assert "host root@10.77.0.2:22 of n1 cannot be reached" in said
    assert "host root@10.77.0.2:22 of n1 is reached again" in said
    assert is_clean(lab)


@whole
def test_a_host_that_stays_away_is_told_and_healed_later(project: Project) -> None:
    lab = project.lab
    with project.started(f"{RUN} --faults kill --victims n0 --time-limit 60") as run:
        until(project, lambda: project.has("undone"), run)
        with lab.unplugged("n2"):
            for _ in range(2):  # the second one ends all at once
                project.shell("kill -INT $(cat pid)")
                time.sleep(1)
            run.wait()
    assert "n2 may still run on its host" in project.output()
    assert "processes" in lab.left_on("n2")
    healed = project.shell(f"exec {sys.executable} -P -m shaketable heal")
    assert healed.returncode == 0, healed.stdout + healed.stderr
    assert is_clean(lab)


@pytest.mark.parametrize(
    ("given", "instead", "line"),
    [
        ("root@10.77.0.3", "root@10.77.0.9", "host root@10.77.0.9 of n2 cannot be reached"),
        ("root@10.77.0.3", "nobody@10.77.0.3", "it must let you in without a password"),
        ("../known_hosts", "none", "connect once by hand, so that its key is known"),
        pytest.param(str(EXAMPLE), "/no-such", "/no-such/server.py", id="no server"),
        pytest.param(
            sys.executable, "/no/python", "/no/python: no such program there", id="no python"
        ),
        ("fetch_data", "client_port = 22\nfetch_data", "port 22 is in use there"),
        ("fetch_data", "folder = '/proc/x'\nfetch_data", "/proc/x: root cannot write there"),
    ],
)
def test_what_is_wrong_with_a_host_is_one_line(
    project: Project, given: str, instead: str, line: str
) -> None:
    file = project.folder / "shaketable.toml"
    file.write_text(file.read_text().replace(given, instead))
    done = project.shell(f"{RUN} --time-limit 5")
    assert done.returncode == 255, done.stdout + done.stderr
    assert line in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert is_clean(project.lab)
