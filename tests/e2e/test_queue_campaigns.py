"""A whole campaign of a consumer group: a node loses its disk, a planted bug loses offsets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.shaketable_runs import shaketable

pytestmark = pytest.mark.e2e


def test_offsets_that_a_leader_keeps_to_itself_are_found_and_a_lost_disk_is_forgiven(
    tmp_path: Path,
) -> None:
    store = tmp_path / "store"
    done = shaketable(
        "run", "--workload", "queue", "--mutant", "offsets-not-replicated",
        "--faults", "transfer,wipe", "--nemesis-schedule", "sequence",
        "--time-limit", "14", "--steady", "3", "--nemesis-interval", "1",
        "--seed", "e2e", "--engine", "local", "--store", store,
    )  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    run = (store / "latest").resolve()
    results = json.loads((run / "results.json").read_text())
    checkers = results["checkers"]
    kinds = {finding["kind"] for finding in checkers["consumer-offsets"]["findings"]}
    assert kinds & {"offset-lost", "offset-went-back"}, kinds
    for name in ("durability", "committed-prefix", "vacuity"):
        assert checkers[name]["valid"] is True, checkers[name]["summary"]
    assert checkers["group-delivery"]["counts"].get("lost-message", 0) == 0
    rows = map(json.loads, (run / "history.jsonl").read_text().splitlines())
    wipes = [row["value"] for row in rows if row["f"] == "wipe"]
    over = [value for value in wipes if value["phase"] == "stop"]
    lost = [value for value in over if value["took_effect"]]
    assert lost, over
    assert all(value["measures"]["messages"] for value in lost), over
    kept = [value["evidence"] for value in over if not value["took_effect"]]
    reasons = ("kept its disk: ", "not begun: ")  # on a slow machine the one before is not back yet
    assert all(any(map(why.__contains__, reasons)) for why in kept), kept
    conf = [(run / "nodes" / node / "broker.conf").read_text() for node in ("n0", "n1", "n2")]
    assert any("shaketableJoin=true" in text for text in conf), "it came back as a new member"
    assert "offset that a group had committed" in (run / "report.html").read_text()
