"""How a planted bug comes into nodes, name servers and clients of a campaign."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from shaketable.harness import discovery
from shaketable.harness.contracts.abilities import PlantsBugsBeside
from shaketable.harness.contracts.plugins import Address, NodeLayout, Target
from shaketable.harness.runtime.clients.worker import WorkerPlan, _factory
from shaketable.system.mutants import ALL, MASTERS, load
from shaketable.system.node.config import parse
from shaketable.system.node.name_server import main
from shaketable.system.node.process import planted

NODES = {f"n{number}": Address("127.0.0.1", 4000 + number) for number in range(3)}
WITH_NAMES = {**NODES, "ns0": Address("127.0.0.1", 9876)}


@pytest.mark.parametrize("name", ALL)
def test_a_target_s_clients_and_name_servers_can_have_a_bug(name: str) -> None:
    target: Target = discovery.get("targets", name)
    assert isinstance(target, PlantsBugsBeside)
    launch = target.name_server_with("dead-broker-kept", WITH_NAMES["ns0"])
    assert launch.argv[-3:] == ("--mutant", "dead-broker-kept", "--check-invariants")
    client = target.client_of(WITH_NAMES, 1.0, "timeout-is-refusal")
    parts = load("timeout-is-refusal").client
    assert type(client._producer) is parts.producer  # type: ignore[attr-defined]
    healthy = target.client(WITH_NAMES, 1.0)
    assert type(healthy._producer) is not parts.producer  # type: ignore[attr-defined]


def test_a_client_worker_plants_the_campaign_s_bug(tmp_path: Path) -> None:
    def made(mutant: str | None) -> type:
        plan = WorkerPlan(
            "w", "dledger", "log", "1", NODES, (0,), 1, 0.0, 1.0, 0, tmp_path / "s", 1,
            mutant=mutant,
        )  # fmt: skip
        return type(_factory(plan)(NODES, 1.0)._client)  # type: ignore[attr-defined]

    bug = load("sends-again-when-unknown").client.group_client
    assert made("sends-again-when-unknown") is bug
    assert made(None) is not bug
    assert made("ack-before-quorum") is not bug


@pytest.mark.parametrize("name", MASTERS)
def test_a_node_without_a_group_is_told_of_its_bug(name: str, tmp_path: Path) -> None:
    target: Target = discovery.get("targets", name)
    peers = {node: at for node, at in NODES.items() if node != "n0"}
    layout = NodeLayout(
        "n0", tmp_path, NODES["n0"], Address("127.0.0.1", 5000), peers,
        {"mutant": "batch-half-stored"}, (WITH_NAMES["ns0"],),
    )  # fmt: skip
    config = parse(target.prepare(layout).files["broker.conf"])
    assert config.master_slave is not None
    assert planted(config.mutant) is load("batch-half-stored")


def test_a_name_server_refuses_a_bug_that_is_not_there(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        assert main(["--port", "0", "--mutant", "no-such-bug"]) == 2
    assert "no mutant no-such-bug; there are ack-before-fsync, " in caplog.text
