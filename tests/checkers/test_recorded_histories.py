"""Histories that others recorded and published get the verdicts that they are known to have."""

from __future__ import annotations

import csv
import os
from pathlib import Path

import pytest

from shaketable.harness.contracts.verdict import Outcome
from shaketable.harness.judging import engines
from shaketable.harness.judging.checking import CheckSettings, check_path

FOLDER = os.environ.get("SHAKETABLE_HISTORIES")
TABLE = "VERDICTS.tsv"
MODELS = {"kv-partitioned": "kv"}
INITIAL = {"knossos": "0"}
"""What a register begins with, by the folder that its history stands in; nil elsewhere."""


def recorded() -> list[tuple[str, str, str]]:
    if FOLDER is None:
        return []
    with (Path(FOLDER) / TABLE).open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    return [(row["file"], row["model"], row["verdict"]) for row in rows]


def local(_kind: str) -> engines.Engine:
    return engines.Engine(engines.LOCAL, "local[*]")


@pytest.mark.skipif(FOLDER is None, reason="no recorded histories: SHAKETABLE_HISTORIES")
def test_there_are_recorded_histories():
    assert len(recorded()) > 50
    assert {verdict for _, _, verdict in recorded()} == {"valid", "invalid"}


@pytest.mark.parametrize(("file", "model", "verdict"), recorded())
def test_recorded_history(file, model, verdict):
    settings = CheckSettings(
        model=MODELS.get(model, model), initial=INITIAL.get(file.split("/")[0]), engine="local"
    )
    checked = check_path(Path(FOLDER) / file, settings, local, lambda _text: None)
    (found,) = (each for each in checked.verdicts if each.checker == "linearizable")
    assert found.outcome is Outcome[verdict.upper()], found.summary
    for finding in found.findings:
        assert finding.operations
        assert finding.details["could_not"]
