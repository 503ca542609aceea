"""A fault works only where it took effect just now: sham, broken and lacking ones do not."""

import json
import shlex
import subprocess
import sys
from dataclasses import asdict, dataclass, replace

import pytest
import trio
from foreign_faults import put_in

from shaketable.harness import discovery
from shaketable.harness.contracts.capabilities import Capability
from shaketable.harness.contracts.errors import HarnessError
from shaketable.harness.contracts.plugins import Evidence
from shaketable.harness.contracts.verdict import ExitCode
from shaketable.harness.doctoring import examination as examination_module
from shaketable.harness.doctoring import survey as survey_module
from shaketable.harness.doctoring import trials
from shaketable.harness.doctoring.examination import examine
from shaketable.harness.doctoring.findings import Examination, Fact, Finding
from shaketable.harness.doctoring.survey import Known
from shaketable.harness.doctoring.trials import Task
from shaketable.harness.runtime.processes import children
from shaketable.harness.targets.dledger import PLUGIN as DLEDGER
from shaketable.harness.terminal import doctor, output
from shaketable.harness.terminal.commands import app
from shaketable.harness.terminal.output import Output

WORLDS = ("process", "netns", "sim")


@dataclass
class Sham:
    """A fault of somebody else's, which is all that it is told to be."""

    name: str
    took_effect: bool = False
    apply_error: str = ""
    undo_error: str = ""
    plan_error: str = ""
    plan_error_turn: int = 0
    hangs: bool = False
    leaves: bool = False
    asks: bool = True
    probes: bool = True
    keeps: bool = False
    breaks: bool = False
    undos: int = 0
    needs: frozenset = frozenset()
    family: str = "other"

    def configured(self, options):
        return self if self.asks else {}["options"]

    def unavailable(self, target, nodes):
        return None

    def plan(self, rng, nodes, turn):
        if self.plan_error and turn == self.plan_error_turn:
            raise RuntimeError(self.plan_error)
        return {"turn": turn}

    def aim(self, plan, nodes, leader):
        return plan

    def describe(self, plan):
        return f"{self.name} in turn {plan['turn']}"

    async def apply(self, plan, world):
        if self.apply_error:
            raise OSError(self.apply_error)
        if self.leaves:
            await world.cut([("n0", "n1"), ("n1", "n0")])
        if self.breaks:
            world.group_status.is_ready = lambda since: False
        return {**plan, "keys": {1}} if self.keeps else plan

    async def probe(self, plan, undo, world):
        if not self.probes:
            return None
        return Evidence(self.took_effect and plan["turn"] == 1, f"looked at in turn {plan['turn']}")

    async def undo(self, undo, world):
        self.undos += 1
        if self.undo_error:
            raise OSError(self.undo_error)
        if self.hangs:
            await trio.sleep_forever()


@pytest.fixture
def found(tmp_path, monkeypatch):
    """What trials in the simulated world find of these faults, and of two real ones."""
    shams = [
        Sham("idle"),
        Sham("late", took_effect=True),
        Sham("broken", apply_error="no such thing"),
        Sham("sticky", took_effect=True, undo_error="it sticks"),
        Sham("unplanned", plan_error="no dice"),
        Sham("moody", plan_error="no more dice", plan_error_turn=1),
        Sham("hanging", took_effect=True, hangs=True),
        Sham("forgetful", leaves=True),
        Sham("impossible", needs=frozenset({Capability.MEMORY})),
        Sham("unasked", asks=False),
        Sham("vague", probes=False),
        Sham("keeper", keeps=True),
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
    trials.try_world(Task("sim", str(tmp_path), tuple(faults)), findings.append)
    assert sorted(finding.fault for finding in findings) == sorted(faults)
    assert faults["hanging"].undos == trials.UNDO_ATTEMPTS_MAX, "what hangs is done once"
    return {finding.fault: finding for finding in findings}


def test_only_what_took_effect_and_was_undone_works(found):
    assert {fault: finding.state for fault, finding in found.items()} == {
        "kill": "works",
        "pause": "works",
        "late": "works",  # in its second attempt
        "idle": "no-effect",
        "broken": "failed",
        "sticky": "failed",
        "unplanned": "failed",
        "moody": "failed",
        "hanging": "failed",
        "forgetful": "failed",
        "impossible": "lacking",
        "unasked": "failed",
        "vague": "no-effect",
        "keeper": "failed",
    }
    assert found["kill"].what.startswith("process of n")
    assert found["late"].what == "looked at in turn 1"
    assert found["idle"].what == "looked at in turn 2"
    assert "no such thing" in found["broken"].what
    assert "could not be undone: OSError: it sticks" in found["sticky"].what
    assert "no dice" in found["unplanned"].what
    assert "its plan fails: RuntimeError: no more dice" in found["moody"].what
    assert "could not be undone: not undone within 15 s" in found["hanging"].what
    assert "looked at in turn 0; it was not undone: cut" in found["forgetful"].what
    assert found["forgetful"].what.endswith("was not healed")
    assert "a simulated process has none" in found["impossible"].what
    assert found["unasked"].what == "its configured fails: KeyError: 'options'"
    assert "its probe returned None in place of evidence" in found["vague"].what
    assert "its apply returned what is no JSON: TypeError" in found["keeper"].what


@pytest.mark.parametrize(
    "evidence", ["much " * 60, "its log says (2026-11-22T10:00:00.000Z WARN no quorum)"]
)
def test_long_evidence_does_not_hide_why_a_fault_was_not_undone(tmp_path, evidence):
    reason = "; it was not undone: the group did not come back in 15 s: n1 has no leader"
    what = f"{evidence}{reason} (2026-11-22T10:00:00.000Z INFO event=vote)"
    shown = trials._without(Finding("mine", "sim", "failed", what), tmp_path).what
    assert shown.endswith(reason)
    assert shown.startswith(evidence[:12])
    assert len(shown) <= trials.WHAT_CHARS_MAX + len("...")
    alone = trials._without(Finding("mine", "sim", "no-effect", "much " * 60), tmp_path).what
    assert alone == f"{'much ' * 36}..."


def test_behind_what_broke_the_group_nothing_is_tried(tmp_path, monkeypatch):
    """What came of the next fault would be told of that one."""
    kill = discovery.get("faults", "kill")
    faults = {"breaker": Sham("breaker", breaks=True), "kill": kill}
    get = discovery.get
    monkeypatch.setattr(discovery, "find", lambda kind: faults)
    monkeypatch.setattr(
        discovery,
        "get",
        lambda kind, name: faults[name] if kind == "faults" else get(kind, name),
    )
    told = []
    with pytest.raises(HarnessError, match=r"^breaker broke the group: the group did not come"):
        trials.try_world(Task("sim", str(tmp_path), tuple(faults)), told.append)
    assert [(finding.fault, finding.state) for finding in told] == [("breaker", "failed")]


def test_what_a_plug_in_prints_is_no_finding(tmp_path):
    """Its own words, and those of programs that it starts, do not get in among ours."""
    program = (
        "import os, sys, subprocess\n"
        "from shaketable.harness.doctoring import trials\n"
        "from shaketable.harness.doctoring.findings import Finding\n"
        "def try_world(task, tell, begin):\n"
        "    begin('loud')\n"
        "    print('a plug-in says something', flush=True)\n"
        "    subprocess.run(['echo', 'and its program'])\n"
        "    tell(Finding('loud', task.world, 'works', 'it was heard'))\n"
        "trials.try_world = try_world\n"
        "task = trials.msgspec.json.encode(trials.Task('sim', sys.argv[1], ())).decode()\n"
        "trials.main([str(os.getppid()), task])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True
    )
    name, finding = (json.loads(line) for line in done.stdout.splitlines())
    assert name == "loud"
    assert Finding(**finding) == Finding("loud", "sim", "works", "it was heard")
    assert "a plug-in says something\nand its program\n" in done.stderr


@pytest.mark.parametrize(
    ("error", "said"),
    [
        ("HarnessError('the group has no leader')", "the group has no leader"),
        ("ValueError('odd')", "a fault of the harness: ValueError: odd"),
    ],
)
def test_what_ended_the_trials_is_the_last_line_whatever_group_it_is_in(tmp_path, error, said):
    program = (
        "import os, sys\n"
        "from shaketable.harness.doctoring import trials\n"
        "from shaketable.harness.contracts.errors import HarnessError\n"
        "def run(resolved, run, trials):\n"
        f"    raise ExceptionGroup('outer', [ExceptionGroup('inner', [{error}])])\n"
        "trials._run = run\n"
        "task = trials.msgspec.json.encode(trials.Task('sim', sys.argv[1], ('kill',))).decode()\n"
        "sys.exit(trials.main([str(os.getppid()), task]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == said


def test_where_spark_does_not_start_it_is_said_how_to_judge_without_it(tmp_path, monkeypatch):
    failed = children.Answer(False, 1, b"", b"a stack\nno gateway\n")
    monkeypatch.setattr(children, "ask", lambda *_, **__: failed)
    fact = examination_module._spark(tmp_path)
    assert (fact.what, fact.is_ok) == ("no gateway", False)
    command = shlex.split(fact.advice.partition("./shaketable ")[2])
    app.parse_args(command, exit_on_error=False, print_error=False)
    assert command == ["analyze", "RUN", "--engine", "local"]


@pytest.fixture
def scratch(tmp_path, monkeypatch):
    """A folder for scratch folders of this test alone, and nothing to see of the machine."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    monkeypatch.setattr(examination_module, "run_checks", lambda _: [])
    yield folder
    discovery.clear_caches()


def test_a_fault_that_ends_the_trials_is_named_and_the_rest_tried_anew(scratch, monkeypatch):
    asked = []

    async def run(task, log, heard):
        asked.append(task.faults)
        if len(asked) == 1:
            heard.take(b'"kill"')
            heard.take(json.dumps(asdict(Finding("kill", "sim", "works", "gone"))).encode())
            heard.take(b'"pause"')
            return "it hangs"
        return "the group has no leader"

    monkeypatch.setattr(examination_module, "_run", run)
    found = examine(lambda _survey, _worlds: lambda _finding: None, DLEDGER, ("sim",))
    assert found.of("kill", "sim").works
    assert found.of("pause", "sim") == Finding("pause", "sim", "failed", "it hangs")
    assert found.of("cpu", "sim") == Finding("cpu", "sim", "untried", "the group has no leader")
    first, second = asked  # and no third: nothing came of the second
    assert set(first) - set(second) == {"kill", "pause"}


FAULTS = {
    "blocks": """
    async def apply(self, plan, world):
        time.sleep(300)  # no timeout of trio's ends that
""",
    "breaks": """
    async def apply(self, plan, world):
        world.group_status.is_ready = lambda since: False
        return {}
""",
    "dies": """
    async def apply(self, plan, world):
        os._exit(4)
""",
    "ends": """
    async def undo(self, undo, world):
        sys.exit(3)
""",
    "loud": "print('a plug-in is imported'); subprocess.run(['echo', 'and a program'])",
    "stiff": """
    def plan(self, rng, nodes, turn):
        time.sleep(300)
""",
    "unasked": """
    def unavailable(self, target, nodes):
        raise KeyError("door")
""",
    "broken": "raise ImportError('no such door')",
    "frozen": "time.sleep(300)",
    "leaves": "os._exit(5)",
    "kill": "",
}
"""Faults of somebody else's, each of which would take others with it."""


def test_plug_ins_that_hang_print_or_end_python_are_told_and_take_nothing_with_them(
    tmp_path, scratch, monkeypatch, capfd
):
    put_in(tmp_path / "site", monkeypatch, FAULTS)
    monkeypatch.setattr(survey_module, "IMPORT_TIMEOUT_S", 6.0)
    monkeypatch.setattr(examination_module, "FAULT_TIMEOUT_S", 20.0)
    look = survey_module.find_faults
    names = {"kill", "pause", *FAULTS}
    monkeypatch.setattr(
        survey_module,
        "find_faults",
        lambda folder: replace(
            found := look(folder), names=tuple(name for name in found.names if name in names)
        ),
    )
    monkeypatch.setattr(output, "out", Output(highlight=False))
    code = doctor.doctor(world=("sim",), as_json=True)
    assert code == ExitCode.HARNESS  # most faults of the default campaign were not tried
    faults = json.loads(capfd.readouterr().out)["faults"]
    on_sim = {name: worlds["sim"] for name, worlds in faults.items()}
    said = {name: (finding["state"], finding["what"]) for name, finding in on_sim.items()}
    hangs = "it hangs: it was under way for longer than 20 s"
    assert said["blocks"] == said["stiff"] == ("failed", hangs)
    state, what = said["breaks"]
    assert state == "failed"
    assert "the group did not come back" in what
    state, what = said["dies"]
    assert (state, what.startswith("it ended the trials (exit status 4): ")) == ("failed", True)
    state, what = said["ends"]
    assert (state, "could not be undone: SystemExit: 3" in what) == ("failed", True)
    assert said["unasked"] == ("failed", "its unavailable fails: KeyError: 'door'")
    assert said["broken"] == ("failed", "cannot be imported: ImportError: no such door")
    assert said["frozen"] == ("failed", "cannot be imported: it hangs: longer than 6 s")
    assert said["leaves"] == ("failed", "cannot be imported: it ends Python (exit status 5)")
    assert said["kill = foreign_kill:PLUGIN"] == ("failed", "another fault is named kill, too")
    assert [said[name][0] for name in ("kill", "pause", "loud")] == ["works"] * 3
    assert list(scratch.iterdir()) == []


def test_broken_plug_ins_of_one_name_are_rows_of_their_own(tmp_path, monkeypatch):
    found = [
        Known("kill"),
        Known("door", "door = north:PLUGIN", "cannot be imported: no hinges"),
        Known("door", "door = south:PLUGIN", "cannot be imported: no lock"),
        Known("gate", "gate = gates:PLUGIN", "cannot be imported: no key"),
        Known("kill", "kill = theirs:PLUGIN", "another fault is named kill, too"),
    ]

    async def look_once(log, without):
        return found, None

    monkeypatch.setattr(survey_module, "_import_once", look_once)
    survey = survey_module.find_faults(tmp_path)
    assert survey.broken == {
        "door = north:PLUGIN": "cannot be imported: no hinges",
        "door = south:PLUGIN": "cannot be imported: no lock",
        "gate": "cannot be imported: no key",
        "kill = theirs:PLUGIN": "another fault is named kill, too",
    }
    assert survey.rows == 5


def examination(*findings: Finding, is_ok: bool = True) -> Examination:
    facts = [Fact("Java", "17", is_ok)]
    return Examination(findings, facts, "root", ("kill", "pause"), "dledger", WORLDS)


KILL = Finding("kill", "process", "works", "gone")


@pytest.mark.parametrize(
    ("state", "is_ok", "code"),
    [
        ("works", True, ExitCode.VALID),
        ("works", False, ExitCode.HARNESS),
        ("no-effect", True, ExitCode.UNKNOWN),
        ("failed", True, ExitCode.UNKNOWN),
        ("untried", True, ExitCode.HARNESS),
    ],
)
def test_the_exit_code_says_how_the_default_campaign_would_end_at_best(state, is_ok, code):
    pause = Finding("pause", "process", state, "")
    on_sim = Finding("pause", "sim", "works", "stopped")  # another world does not make up for it
    found = examination(KILL, pause, on_sim, is_ok=is_ok)
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
def test_trials_run_in_a_process_of_their_own_and_leave_no_folder(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    told: list[Finding] = []
    found = examine(lambda _survey, _worlds: told.append, DLEDGER, ("sim",))
    assert list(found.findings) == told
    works = {finding.fault for finding in told if finding.works}
    assert works >= {"kill", "pause", "partition", "clock", "disk-errors", "power", "delay"}
    assert found.of("memory", "sim").state == "lacking"
    assert found.of("kill", "process").state == "untried"
    assert works >= {*found.needed} - {"wipe"}, "the default campaign's faults, by their names"
    assert list(tmp_path.iterdir()) == []
