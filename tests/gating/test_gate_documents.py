"""What a gate writes: JUnit by the schema of CI systems, SARIF 2.1.0, Markdown, annotations."""

from __future__ import annotations

import datetime
import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from gated_runs import results, write_run
from lxml import etree, html
from markdown_it import MarkdownIt
from pydantic import ValidationError
from pydantic_sarif.model import StaticAnalysisResultsFormatSarifVersion210JsonSchema as Sarif

from shaketable.harness.contracts.verdict import Outcome
from shaketable.harness.gating import parse_policy
from shaketable.harness.untrusted_text import printable
from shaketable.reports import junit
from shaketable.reports.gating import formats
from shaketable.reports.gating.rulings import (
    Conclusion,
    FaultEffects,
    GateResult,
    Kind,
    RunFacts,
    decide,
)
from shaketable.reports.junit import render_run
from shaketable.reports.run_page.view import build_view

TODAY = datetime.date(2026, 11, 22)
SCHEMA = etree.XMLSchema(etree.parse(Path(__file__).parent / "junit.xsd"))
HOSTILE = (
    "x</td>|<script>alert(1)</script>\n::error::no\r\x1b[2J\x00\ud800 [a](http://b.c) `c` & ]]>%"
)

LOST = Kind("lost-append", 221, "value 7 of q/0 is gone", "q/0", 7, (14, 18))
SEEN = Kind("redelivered-committed", 2, "value 9 came again")
WRONG = RunFacts(
    name="quick/one",
    path="store/quick/one",
    outcome=Outcome.INVALID,
    conclusions=(
        Conclusion("durability", Outcome.INVALID, "221 lost-append", (LOST,), (SEEN,)),
        Conclusion("stats", Outcome.UNKNOWN, "crashed"),
        Conclusion("vacuity", Outcome.VALID, "3 of 3 took effect"),
    ),
    asked=("kill",),
    faults={"kill": FaultEffects(3, 3)},
    measures={"p99_ms": 120.0},
    repeat="./shaketable run --seed 7",
    campaign="ci/my campaign.toml",
    report="store/quick/one/report.html",
    seconds=61.2,
)
RIGHT = replace(WRONG, name="quick/two", outcome=Outcome.VALID, conclusions=WRONG.conclusions[2:])
CRASHED = replace(RIGHT, name="quick/three", outcome=None, failure="a port is in use")
LEFT_OUT = RunFacts(name="m/wipe-sim", path="m", outcome=None, skipped="disks are never lost")
POLICY = """
[floors]
faults = { wipe = 1 }
[ceilings]
p99_ms = 100
[[allow]]
verdict = "unknown"
reason = "issue 12"
until = 2026-12-01
"""


def made(*runs: RunFacts, policy: str = POLICY) -> GateResult:
    return decide(parse_policy(policy, "gate.toml", TODAY), runs, TODAY)


def hostile() -> GateResult:
    kind = Kind(HOSTILE, 1, HOSTILE, HOSTILE, 0, (1,))
    conclusion = Conclusion(HOSTILE, Outcome.INVALID, HOSTILE, (kind,), (kind,))
    run = replace(
        WRONG, name=HOSTILE, path=HOSTILE, conclusions=(conclusion,), mutant=HOSTILE,
        repeat=HOSTILE, campaign=HOSTILE, report=HOSTILE,
    )  # fmt: skip
    return made(run, replace(LEFT_OUT, name=HOSTILE, skipped=HOSTILE))


ALL = made(WRONG, RIGHT, CRASHED, LEFT_OUT)


def parsed(text: str) -> Any:
    root = etree.fromstring(text.encode())
    SCHEMA.assertValid(root)
    return root


@pytest.mark.parametrize("result", [ALL, made(RIGHT, policy=""), made(policy=""), hostile()])
def test_junit_is_what_ci_systems_take(result: GateResult) -> None:
    root = parsed(junit.render_gate(result))
    for name, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suites = root.findall("testsuite")
        assert all(int(one.get(name)) == len(one.findall(f".//{tag}")) for one in suites)
        if name != "skipped":
            assert int(root.get(name)) == len(root.findall(f".//{tag}"))
    assert int(root.get("tests")) == len(root.findall(".//testcase"))
    names = [(one.get("classname"), one.get("name")) for one in root.findall(".//testcase")]
    assert len(set(names)) == len(names)


def test_each_breach_is_a_failure_or_an_error_and_what_is_let_pass_is_skipped() -> None:
    root = parsed(junit.render_gate(ALL))
    ended = {
        (case.get("classname"), case.get("name")): (case[0].tag, case[0].get("type"))
        for case in root.findall(".//testcase")
    }
    assert {case: how for case, how in ended.items() if how[0] != "system-out"} == {
        ("quick/one", "durability"): ("failure", "invalid"),
        ("quick/one", "stats"): ("skipped", "allowed"),
        ("quick/one", "p99_ms"): ("failure", "exceeded"),
        ("quick/two", "p99_ms"): ("failure", "exceeded"),
        ("quick/three", "verdict"): ("error", "crashed"),
        ("all runs together", "fault wipe"): ("error", "unknown"),
        ("m/wipe-sim", "run"): ("skipped", "left-out"),
    }


@pytest.mark.parametrize("kind", [True, False, "unknown"])
def test_the_file_of_each_run_is_what_ci_systems_take(tmp_path: Path, kind: bool | str) -> None:
    lacking = {"kill": "no root"}
    run = write_run(tmp_path / "quick" / "1", results(kind), faults_unavailable=lacking)
    (run / "run.json").write_text(json.dumps({"faults_unavailable": lacking}))
    root = parsed(render_run(build_view(run)))
    assert root.findall(".//skipped")


def test_the_schema_refuses_what_jenkins_refuses() -> None:
    suite = '<testsuite name="a" tests="1" failures="0" errors="0" skipped="1"/>'
    assert SCHEMA.validate(etree.fromstring(f"<testsuites>{suite}</testsuites>"))
    for wrong in (
        f'<testsuites skipped="1">{suite}</testsuites>',
        "<testsuites><testsuite/></testsuites>",
        f"<testsuites>{suite.replace('1', 'many', 1)}</testsuites>",
    ):
        assert not SCHEMA.validate(etree.fromstring(wrong))


@pytest.mark.parametrize("result", [ALL, made(RIGHT, policy=""), made(policy=""), hostile()])
def test_sarif_is_what_the_standard_says(result: GateResult) -> None:
    text = formats.render_sarif(result, "0.1.0")
    Sarif.model_validate_json(text)
    assert "\\ud800" not in text
    (run,) = json.loads(text)["runs"]
    rules = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    assert len(set(rules)) == len(rules)
    assert [rules[one["ruleIndex"]] for one in run["results"]] == [
        one["ruleId"] for one in run["results"]
    ]
    for one in run["results"]:
        uri = one["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
        assert re.fullmatch(r"[A-Za-z0-9/._~%-]+", uri)


def test_sarif_that_is_none_is_refused() -> None:
    log = json.loads(formats.render_sarif(ALL, "0.1.0"))
    log["runs"][0]["results"][0]["level"] = "fatal"
    with pytest.raises(ValidationError):
        Sarif.model_validate_json(json.dumps(log))


def test_sarif_has_a_rule_for_each_anomaly_and_breach() -> None:
    (run,) = json.loads(formats.render_sarif(ALL, "0.1.0"))["runs"]
    assert [(one["ruleId"], one["level"]) for one in run["results"]] == [
        ("anomaly/lost-append", "error"),
        ("gate/p99_ms", "error"),
        ("gate/p99_ms", "error"),
        ("gate/verdict", "error"),
        ("gate/fault wipe", "warning"),
        ("anomaly/redelivered-committed", "note"),
    ]
    lost = run["results"][0]
    assert lost["message"]["text"] == (
        "quick/one: 221 acknowledged appends are lost (durability): value 7 of q/0 is gone"
    )
    place = lost["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"] == "ci/my%20campaign.toml"
    assert lost["properties"]["operations"] == [14, 18]


def test_an_anomaly_stays_one_alert_from_run_to_run() -> None:
    def prints(result: GateResult) -> list[dict[str, str]]:
        (run,) = json.loads(formats.render_sarif(result, "0.1.0"))["runs"]
        return [one["partialFingerprints"] for one in run["results"]]

    moved = replace(LOST, operations=(99,))
    later = replace(
        WRONG,
        name="quick/later",
        conclusions=(replace(WRONG.conclusions[0], kinds=(moved,)), *WRONG.conclusions[1:]),
    )
    one, other = prints(made(WRONG))[0], prints(made(later))[0]
    assert one["primaryLocationLineHash"] == other["primaryLocationLineHash"]
    assert one["shaketableEvidence/v1"] != other["shaketableEvidence/v1"]
    elsewhere = prints(made(replace(WRONG, name="nightly/one")))[0]
    assert elsewhere["primaryLocationLineHash"] != one["primaryLocationLineHash"]


def test_a_planted_bug_that_was_to_be_found_is_no_alert() -> None:
    result = made(replace(WRONG, mutant="ack-before-quorum"), policy="[detection]\n")
    (run,) = json.loads(formats.render_sarif(result, "0.1.0"))["runs"]
    assert result.code == 0
    assert {one["level"] for one in run["results"]} <= {"note"}


def test_markdown_tells_the_worst_first_and_how_to_see_it_again() -> None:
    text = formats.render_markdown(made(RIGHT, WRONG, policy=""))
    assert text.startswith("## shaketable gate failed: something is wrong (exit code 1)\n")
    assert text.index("| quick/one | 3 | durability, stats |") < text.index("| quick/two |")
    assert "- **durability** (broken): 221 lost-append\n" in text
    assert "- **stats** (unknown): unknown&#58; crashed\n" in text
    assert "<code>./shaketable run --seed 7</code>" in text


def test_hostile_values_steer_nothing() -> None:
    text = formats.render_markdown(hostile())
    assert not re.search(r"<(?!/?code>)|[\x00\x1b\r]|http:|\]\(|^::", text, re.MULTILINE)
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert {len(re.findall(r"\|", row)) for row in rows} == {4}
    shown = html.fromstring(MarkdownIt("commonmark", {"html": True}).enable("table").render(text))
    known = "div h2 h3 table thead tbody tr th td ul li p strong code"
    assert {element.tag for element in shown.iter()} <= set(known.split())
    assert shown.find(".//h3").text_content() == printable(HOSTILE)
    for line in formats.render_annotations(hostile()):
        assert re.fullmatch(r"::(error|warning) title=[^:,]*::[^\n\r]*", line)


def test_markdown_fits_into_a_step_summary() -> None:
    runs = [replace(WRONG, name=f"q/{number}", repeat="x" * 800) for number in range(1300)]
    result = made(*runs, policy="")
    text = formats.render_markdown(result)
    assert len(text.encode()) <= formats.SUMMARY_BYTES_MAX
    assert "More does not fit here" in text
    assert len(formats.render_markdown(result, 300).encode()) <= 300
    assert formats.render_markdown(result, 0) == ""


def test_annotations_are_as_many_as_github_shows() -> None:
    runs = [replace(WRONG, name=f"quick/{number}") for number in range(12)]
    lines = formats.render_annotations(made(*runs, policy=""))
    assert len(lines) == formats.SHOWN_MAX
    assert lines[0] == "::error title=quick/0%3A durability::221 lost-append"
    assert lines[-1] == "::error title=gate::and 15 more; see the summary"


def test_sarif_takes_nothing_of_a_message_for_a_link_or_a_placeholder() -> None:
    kind = replace(LOST, message=r"{0} [x](http://b.c) \ {{1}}")
    wrong = replace(
        WRONG,
        campaign=os.fsdecode(b"ci/a b\xe9:c#?.toml"),
        conclusions=(replace(WRONG.conclusions[0], kinds=(kind,)), *WRONG.conclusions[1:]),
    )
    text = formats.render_sarif(made(wrong), "0.1.0")
    Sarif.model_validate_json(text)
    (run,) = json.loads(text)["runs"]
    said = run["results"][0]["message"]["text"]
    assert said.endswith(r"{{0}} \[x\](http://b.c) \\ {{{{1}}}}")
    # By the standard's own rules it reads as it was written.
    shown = re.sub(r"\\([\\\[\]])", r"\1", said).replace("{{", "{").replace("}}", "}")
    assert shown.endswith(kind.message)
    place = run["results"][0]["locations"][0]["physicalLocation"]["artifactLocation"]
    assert place["uri"] == "ci/a%20b%E9%3Ac%23%3F.toml"
