"""A fault works only where it took effect just now: sham, broken and lacking ones do not."""

from dataclasses import dataclass

import pytest

from harness import discovery
from harness.doctoring import trials
from harness.doctoring.examination import examine
from harness.doctoring.findings import Examination, Fact, Finding
from harness.plugins import Evidence
from harness.verdict import ExitCode
from harness.words import Word


@dataclass
class Sham:
    """A fault of somebody else's, which is all that it is told to be."""

    name: str
    bit: bool = False
    apply_error: str = ""
    undo_error: str = ""
    plan_error: str = ""
    needs: frozenset = frozenset()
    family: str = "other"

    def configured(self, options):
        return self

    def unavailable(self, target, nodes):
        return None

    def plan(self, rng, nodes, turn):
        if self.plan_error:
            raise RuntimeError(self.plan_error)
        return {"turn": turn}

    def aim(self, plan, nodes, leader):
        return plan

    def describe(self, plan):
        return f"{self.name} in turn {plan['turn']}"

    async def apply(self, plan, world):
        if self.apply_error:
            raise OSError(self.apply_error)
        return plan

    async def probe(self, plan, undo, world):
        return Evidence(self.bit and plan["turn"] == 1, f"looked at in turn {plan['turn']}")

    async def undo(self, undo, world):
        if self.undo_error:
            raise OSError(self.undo_error)


@pytest.fixture
def found(tmp_path, monkeypatch):
    """What trials in the simulated world find of these faults, and of two real ones."""
    shams = [
        Sham("idle"),
        Sham("late", bit=True),
        Sham("broken", apply_error="no such thing"),
        Sham("sticky", bit=True, undo_error="it sticks"),
        Sham("unplanned", plan_error="no dice"),
        Sham("impossible", needs=frozenset({Word.MEMORY})),
    ]
    real = {name: discovery.get("faults", name) for name in ("kill", "pause")}
    faults = real | {sham.name: sham for sham in shams}
    get = discovery.get
    monkeypatch.setattr(discovery, "find", lambda kind: faults)
    monkeypatch.setattr(
        discovery,
        "get",
        lambda kind, name: faults[name] if kind == "faults" else get(kind, name),
    )
    findings: list[Finding] = []
    trials.try_world("sim", tmp_path, findings.append)
    assert sorted(finding.fault for finding in findings) == sorted(faults)
    return {finding.fault: finding for finding in findings}


@pytest.mark.timeout(120)
def test_only_what_took_effect_and_was_undone_works(found):
    assert {fault: finding.state for fault, finding in found.items()} == {
        "kill": "works",
        "pause": "works",
        "late": "works",  # in its second attempt
        "idle": "no-effect",
        "broken": "failed",
        "sticky": "failed",
        "unplanned": "failed",
        "impossible": "lacking",
    }
    assert found["kill"].what.startswith("process of n")
    assert found["late"].what == "looked at in turn 1"
    assert found["idle"].what == "looked at in turn 2"
    assert "no such thing" in found["broken"].what
    assert "could not be undone: OSError: it sticks" in found["sticky"].what
    assert "no dice" in found["unplanned"].what
    assert "a simulated process has none" in found["impossible"].what


def examination(*findings: Finding, is_well: bool = True) -> Examination:
    return Examination(findings, [Fact("Java", "17", is_well)], "root", ("kill", "pause"))


KILL = Finding("kill", "process", "works", "gone")


@pytest.mark.parametrize(
    ("state", "is_well", "code"),
    [
        ("works", True, ExitCode.VALID),
        ("works", False, ExitCode.HARNESS),
        ("no-effect", True, ExitCode.UNKNOWN),
        ("failed", True, ExitCode.UNKNOWN),
        ("untried", True, ExitCode.HARNESS),
    ],
)
def test_the_exit_code_says_how_the_default_campaign_would_end_at_best(state, is_well, code):
    pause = Finding("pause", "process", state, "")
    on_sim = Finding("pause", "sim", "works", "stopped")  # another world does not make up for it
    found = examination(KILL, pause, on_sim, is_well=is_well)
    assert found.exit_code == code
    assert found.to_json()["exit_code"] == code


def test_what_was_not_looked_at_does_not_work_and_is_had_elsewhere_if_anywhere():
    found = examination(KILL, Finding("pause", "sim", "works", "stopped"))
    assert found.exit_code == ExitCode.HARNESS
    assert found.of("pause", "netns").state == "untried"
    found = examination(
        KILL,
        Finding("pause", "process", "lacking", "no signals"),
        Finding("pause", "sim", "works", "stopped"),
    )
    pauses = found.to_json()["faults"]["pause"]
    assert [pauses[world]["works"] for world in ("process", "netns", "sim")] == [False, False, True]
    assert pauses["process"]["advice"] == "use --world sim"
    assert found.to_json()["faults"]["kill"]["netns"]["advice"] == ""  # it was not even tried
    assert found.to_json()["faults"]["kill"]["process"]["advice"] == ""


@pytest.mark.e2e
@pytest.mark.timeout(150)
def test_trials_run_in_a_process_of_their_own_and_leave_no_folder(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    told: list[Finding] = []
    found = examine(told.append, worlds=("sim",))
    assert list(found.findings) == told
    works = {finding.fault for finding in told if finding.works}
    assert works >= {"kill", "pause", "partition", "clock", "disk-errors", "power", "delay"}
    assert found.of("memory", "sim").state == "lacking"
    assert found.of("kill", "process").state == "untried"
    assert list(tmp_path.iterdir()) == []
