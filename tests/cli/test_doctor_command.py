"""`shaketable doctor` shows what was found: at 80 columns, and as JSON."""

import io
import json
from dataclasses import replace

import pytest

from shaketable.harness.contracts.errors import UsageError
from shaketable.harness.contracts.verdict import ExitCode
from shaketable.harness.doctoring.findings import Examination, Fact, Finding
from shaketable.harness.doctoring.survey import Survey
from shaketable.harness.terminal import doctor, output
from shaketable.harness.terminal.output import Output

LACKS = "a stream loses nothing"


def finding(fault: str, world: str, state: str, what: str) -> Finding:
    return Finding(fault, world, state, what)


FOUND = Examination(
    findings=[
        finding("kill", "process", "works", "process of n1 gone; no leader"),
        finding("pause", "process", "works", "process of n0 stopped (state T)"),
        finding("loss", "process", "lacking", LACKS),
        finding("corrupt", "process", "lacking", LACKS),
        finding("kill", "sim", "no-effect", "everybody stayed"),
        finding("pause", "sim", "failed", "it stuck"),
        finding("loss", "sim", "works", "20 packets lost"),
        finding("corrupt", "sim", "works", "[11] packets changed"),
        *(finding(f, "netns", "untried", "no network namespace: not permitted; be root")
          for f in ("kill", "pause", "loss", "corrupt")),
    ],
    facts=[Fact("disk", "0.1 GB free here", False, "free 1 GB")],
    setting="nobody (uid 65534)",
    needed=("kill", "pause"),
    target="dledger",
    worlds=("process", "netns", "sim"),
)  # fmt: skip

SURVEY = Survey(tuple(f"fault-{number}" for number in range(27)), {"broken": "no such door"}, ())

EXPECTED = """\
trying 28 faults on 3 worlds; takes about a minute

Faults tried on dledger, as nobody (uid 65534)
            process   netns       sim
  corrupt   -         not tried   works
  kill      works     not tried   no effect
  loss      -         not tried   works
  pause     works     not tried   failed

Measured on process
  kill   process of n1 gone; no leader
  pause  process of n0 stopped (state T)

Not on process
  corrupt, loss  a stream loses nothing; use --world sim

Not on netns
  all of them  no network namespace: not permitted; be root

Measured on sim
  corrupt  [11] packets changed
  loss     20 packets lost

Not on sim
  kill   everybody stayed; use --world process
  pause  it stuck; use --world process

This machine
  disk  0.1 GB free here; free 1 GB

4 of 12 work; the default campaign cannot run here
"""


@pytest.fixture
def out(monkeypatch):
    """What the command prints, 80 columns wide."""
    file = io.StringIO()
    monkeypatch.setattr(output, "out", Output(file=file, width=80, highlight=False))
    monkeypatch.setattr(
        doctor, "examine", lambda surveyed, _target, worlds: surveyed(SURVEY, worlds) and FOUND
    )
    return file


def test_the_tables_say_what_works_where_what_shows_it_and_how_to_get_the_rest(out):
    assert doctor.doctor() == ExitCode.HARNESS
    said = out.getvalue()
    assert said.partition("\n")[2] == EXPECTED.partition("\n")[2]
    assert said.startswith("trying ")


def test_programs_get_one_json_object_and_nothing_else(out):
    assert doctor.doctor(as_json=True) == ExitCode.HARNESS
    assert json.loads(out.getvalue()) == json.loads(json.dumps(FOUND.to_json()))


@pytest.mark.parametrize(
    ("kill", "pause", "said"),
    [
        ("works", "works", "and each of its faults works"),
        ("works", "no-effect", "but a fault of it has no effect"),
        ("no-effect", "failed", "but a fault of it fails: pause"),
        ("failed", "failed", "but faults of it fail: kill, pause"),
        ("failed", "untried", "the default campaign cannot run here"),
    ],
)
def test_a_default_fault_that_fails_is_not_one_without_effect(out, monkeypatch, kill, pause, said):
    states = {"kill": kill, "pause": pause}
    findings = [finding(name, "process", state, "") for name, state in states.items()]
    found = replace(FOUND, findings=findings, facts=[])
    monkeypatch.setattr(doctor, "examine", lambda *_arguments: found)
    doctor.doctor()
    assert out.getvalue().endswith(f"{said}\n")


def test_a_target_is_tried_where_it_can_run(out, monkeypatch):
    asked = []
    monkeypatch.setattr(doctor, "examine", lambda *arguments: asked.append(arguments) or FOUND)
    doctor.doctor()
    doctor.doctor(world=("sim", "process"))
    doctor.doctor(target="multi-master", world=("netns",))
    tried = [(target.name, worlds) for _surveyed, target, worlds in asked]
    assert tried == [
        ("dledger", ("process", "netns", "sim")),
        ("dledger", ("process", "sim")),
        ("multi-master", ("netns",)),
    ]
    with pytest.raises(UsageError, match=r"^--world hosts: dledger runs in process, netns, sim$"):
        doctor.doctor(world=("hosts",))


def test_the_conclusion_names_another_target(out, monkeypatch):
    found = replace(FOUND, target="mykv", worlds=("hosts",), needed=("kill",))
    monkeypatch.setattr(doctor, "examine", lambda *_arguments: found)
    assert doctor.doctor() == ExitCode.HARNESS
    assert out.getvalue().endswith("4 of 4 work; the default campaign of mykv cannot run here\n")
