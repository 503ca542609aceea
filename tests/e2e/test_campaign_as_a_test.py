"""Campaigns in a project's own tests, by the decorator: each is one test of pytest and of JUnit."""

from __future__ import annotations

import pytest
from check_samples import WITH_PLUGIN
from lxml import etree

import shaketable
from shaketable.harness import discovery
from shaketable.harness.testing.campaigns import _words

pytestmark = pytest.mark.e2e
pytest_plugins = ("pytester",)

TESTS = """
from datetime import timedelta

import shaketable

QUICK = dict(
    world="sim", workload="log", faults=["partition"], concurrency="4n", engine="local", seed="1",
    rate=100,
)

@shaketable.campaign(time_limit=timedelta(seconds=6), **QUICK)
def test_sound(campaign_run):
    assert campaign_run.outcome is shaketable.Outcome.VALID
    assert campaign_run.report.exists()

@shaketable.campaign(mutant="ack-before-quorum", time_limit="15s", **QUICK)
def test_broken():
    raise AssertionError("this line is never reached")

@shaketable.campaign(target="dlegder")
def test_mistyped():
    raise AssertionError("nor is this")

def test_by_value(tmp_path):
    wanted = shaketable.Campaign(world="sim", workload="log", faults=(), time_limit_s=3.0,
                                 steady_s=1.0, engine="local")
    run = shaketable.run_campaign(wanted, store=tmp_path, seed="7")
    assert run.is_valid, run.summary
    assert 'seed = "7"' in (run.folder / "campaign.toml").read_text()
"""


def test_a_campaign_is_a_test(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(TESTS)
    result = pytester.runpytest_subprocess(*WITH_PLUGIN, "--junitxml=junit.xml", timeout=390)
    result.assert_outcomes(passed=2, failed=2)
    result.stdout.fnmatch_lines(["INVALID *acknowledged append*", "*did you mean 'dledger'?*"])
    shown = result.stdout.str()
    assert "pytest_plugin" not in shown
    assert "never reached" not in shown
    cases = {case.get("name"): case for case in etree.parse("junit.xml").iter("testcase")}
    assert [name for name, case in cases.items() if case.find("failure") is not None] == [
        "test_broken", "test_mistyped",
    ]  # fmt: skip
    told = {each.get("name"): each.get("value") for each in cases["test_broken"].iter("property")}
    assert told["shaketable-verdict"] == "INVALID"
    assert (pytester.path / told["shaketable-run"] / "report.html").exists()


def test_values_stand_for_words() -> None:
    assert _words("faults", [discovery.get("faults", "kill"), "pause"]) == [
        "--faults",
        "kill,pause",
    ]
    assert _words("record_inputs", True) == ["--record-inputs"]
    assert _words("mutant", None) == []


def test_public_names_are_imported_when_they_are_used() -> None:
    assert set(shaketable.__all__) == set(shaketable._PLACES) <= set(dir(shaketable))
    for name in shaketable.__all__:
        assert getattr(shaketable, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        shaketable.nothing  # noqa: B018 - it is asked for
