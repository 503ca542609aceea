"""The model that docs/models.md shows works as the document says."""

from __future__ import annotations

import re
import types
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from checkers.linearizability.linearizable import Linearizable
from harness import discovery
from harness.errors import UsageError
from harness.verdict import Outcome
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

    def points(*, group):
        return [point] if group == point.group else []

    monkeypatch.setattr(discovery, "entry_points", points)
    discovery.find.cache_clear()
    yield discovery.get("models", "thermostat")
    discovery.find.cache_clear()


def test_the_documented_model_judges(thermostat):
    clean = "0..1 p0 set 40 -> ok\n2..9 p0 nudge -3 -> ok 27\n3..4 p1 get -> ok 30\n"
    verdict = judge(Linearizable(thermostat), parse_model_history(clean))
    assert verdict.outcome is Outcome.VALID, verdict.summary
    verdict = judge(Linearizable(thermostat), parse_model_history(clean + "10..11 p1 get -> ok 30"))
    assert verdict.outcome is Outcome.INVALID
    assert "it answered 30, the thermostat stood at 27" in verdict.findings[0].message


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
