"""The model that docs/models.md shows works as the document says."""

from __future__ import annotations

import importlib.metadata
import re
import types
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pytest

from shaketable.checkers.linearizability.linearizable import Linearizable
from shaketable.harness import cli, discovery
from shaketable.harness.contracts.errors import UsageError
from shaketable.harness.contracts.verdict import Outcome
from tests.support.model_fuzz import judge
from tests.support.model_histories import parse_model_history

DOCUMENT = Path(__file__).parents[3] / "docs" / "models.md"


@pytest.fixture
def thermostat(monkeypatch):
    text = DOCUMENT.read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    module = types.ModuleType("thermostat")
    exec(compile(code, str(DOCUMENT), "exec"), module.__dict__)
    point = EntryPoint("thermostat", "thermostat:PLUGIN", "shaketable.models")
    monkeypatch.setitem(__import__("sys").modules, "thermostat", module)

    def points(**wanted):
        return EntryPoints([point]).select(**wanted)

    monkeypatch.setattr(importlib.metadata, "entry_points", points)
    monkeypatch.setattr(discovery, "entry_points", points)
    discovery.clear_caches()
    yield discovery.get("models", "thermostat")
    discovery.clear_caches()


@pytest.mark.parametrize(("answer", "code"), [(27, 0), (30, 1)])
def test_the_command_that_the_document_shows(
    thermostat, answer, code, tmp_path, monkeypatch, capsys
):
    (tmp_path / "history.jsonl").write_text(
        '{"process": 0, "f": "set", "call_ns": 0, "return_ns": 5, "input": 25}\n'
        '{"process": 0, "f": "nudge", "call_ns": 6, "return_ns": 7, "input": 2, "output": 27}\n'
        f'{{"process": 1, "f": "get", "call_ns": 10, "return_ns": 11, "output": {answer}}}\n'
    )
    monkeypatch.chdir(tmp_path)
    command = "./shaketable check history.jsonl --model thermostat"
    assert command in DOCUMENT.read_text(encoding="utf-8")
    assert cli.run(command.split()[1:]) == code, capsys.readouterr()
    assert "as thermostat" in capsys.readouterr().out or code == 1


def test_the_documented_model_judges(thermostat):
    clean = "0..1 p0 set 40 -> ok\n2..9 p0 nudge -3 -> ok 27\n3..4 p1 get -> ok 30\n"
    verdict = judge(Linearizable(thermostat), parse_model_history(clean))
    assert verdict.outcome is Outcome.VALID, verdict.summary
    verdict = judge(Linearizable(thermostat), parse_model_history(clean + "10..11 p1 get -> ok 30"))
    assert verdict.outcome is Outcome.INVALID
    assert "it answered 30, the thermostat was at 27" in verdict.findings[0].message


def test_the_documented_model_has_a_first_state(thermostat):
    history = parse_model_history("0..1 p0 get -> ok 8")
    assert judge(Linearizable(thermostat, "8"), history).outcome is Outcome.VALID
    assert judge(Linearizable(thermostat), history).outcome is Outcome.INVALID
    with pytest.raises(UsageError, match="no temperature"):
        Linearizable(thermostat, "warm")


def test_the_document_lists_every_model():
    text = DOCUMENT.read_text(encoding="utf-8")
    for name, model in discovery.find("models").items():
        assert f"`{name}`" in text
        (row,) = (
            line for line in text.splitlines() if line.startswith("|") and f"`{name}`" in line
        )
        assert all(f in row for f in model.fs)
