"""Both engines say the same of every checker of anomalies; the page names every anomaly."""

from __future__ import annotations

import re
from dataclasses import asdict
from pathlib import Path

import pytest

from shaketable.checkers.anomalies.log_rules import ANOMALIES
from shaketable.checkers.engine.local import run_local
from shaketable.harness import discovery
from shaketable.harness.contracts.finding_kinds import kinds_where
from tests.support.anomaly_histories import EVERYTHING, ROOT, parse
from tests.support.checker_histories import job

PAGE = Path(__file__).parents[3] / "docs" / "anomalies.md"


@pytest.mark.spark
@pytest.mark.parametrize("name", ["log-anomalies", "transaction-cycles", "consumer-offsets"])
def test_spark_and_local_agree(spark, tmp_path, name):
    texts = [path.read_text() for path in sorted(ROOT.glob("*.txt"))]
    rows = []
    for number, text in enumerate(text for text in texts if text.startswith(f"# {name} ")):
        for row in parse(text):  # each history has keys and operations of its own
            row["op"] += 1000 * number
            rows.append(
                row | {"key": f"{number}.{row['key']}", "process": 100 * number + row["process"]}
            )
    checkers = [discovery.get("checkers", name)]
    work = job(tmp_path, rows, checkers, promises=EVERYTHING)
    [local], [piped] = run_local(work), spark.run(work)
    assert asdict(local) == asdict(piped)
    assert local.findings


def test_the_page_defines_exactly_the_anomalies_there_are():
    rows = [line.split("|") for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    named = {cell.strip() for row in rows for cell in row[1:3]}
    assert named >= ANOMALIES
    defined = {name for name in named if re.fullmatch(r"[A-Za-z0-9]+(-[a-z]+)+|G0|G1[ac]", name)}
    checkers = set(discovery.find("checkers"))
    assert defined - checkers - {"total-queue, set-full"} <= ANOMALIES


def test_promises_speak_of_anomalies_only():
    bound = kinds_where(lambda kind: kind.needs_durability or kind.needs_all_events)
    assert bound <= ANOMALIES
