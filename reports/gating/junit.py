"""Render a gate's result as one JUnit file: a run is a test suite, a rule on it a test case.

A failure means that something is wrong, an error that it is not shown to be right. What the
policy allows, and what was not run, is skipped with the reason. Jenkins, GitLab, Azure and
GitHub's reporters read it: elements and attributes follow the schema of Jenkins' xUnit plug-in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal
from xml.etree import ElementTree

from shaketable.harness.contracts.verdict import ExitCode
from shaketable.reports.gating.policy import CEILINGS
from shaketable.reports.gating.rulings import GateResult, Ruling, RunFacts, RunRulings
from shaketable.reports.junit import xml_text

ALL: Final = "all runs together"
"""The suite of the rules on all runs together."""
NAME: Final = "shaketable gate"

Tag = Literal["", "failure", "error", "skipped"]


@dataclass(frozen=True, slots=True)
class _Case:
    """A test case: `tag` is how it ended, "" for passed."""

    name: str
    tag: Tag
    type: str
    message: str


def render(result: GateResult) -> str:
    """Render the file; deterministic."""
    root = ElementTree.Element("testsuites", {"name": NAME})
    cases: list[_Case] = []
    for run in result.runs:
        of_run = [_case(ruling) for ruling in run.rulings]
        cases += of_run
        _suite(root, run.facts.name, of_run, run.facts.seconds, _reproduction(run))
    if result.overall:
        of_all = [_case(ruling) for ruling in result.overall]
        cases += of_all
        _suite(root, ALL, of_all, 0.0, "")
    for facts in result.skipped:
        left_out = [_Case("run", "skipped", "left-out", facts.skipped)]
        cases += left_out
        _suite(root, facts.name, left_out, 0.0, "")
    counts = _counts(cases)
    del counts["skipped"]  # the schema has it only for suites
    root.attrib.update(counts, time=_seconds(sum(run.facts.seconds for run in result.runs)))
    ElementTree.indent(root)
    body = ElementTree.tostring(root, encoding="unicode")
    return f'<?xml version="1.0" encoding="utf-8"?>\n{body}\n'


def _suite(
    root: ElementTree.Element, name: str, cases: Sequence[_Case], seconds: float, output: str
) -> None:
    """Add a suite; class and name identify each case, as GitLab requires."""
    named = {"name": xml_text(name), **_counts(cases), "time": _seconds(seconds)}
    suite = ElementTree.SubElement(root, "testsuite", named)
    for number, case in enumerate(cases):
        # The run took its time once: the first case has all of it, so that sums are right.
        took = _seconds(seconds if number == 0 else 0.0)
        names = {"classname": xml_text(name), "name": xml_text(case.name), "time": took}
        element = ElementTree.SubElement(suite, "testcase", names)
        if case.tag:
            message = xml_text(case.message)
            kind = {"type": case.type, "message": message}
            ElementTree.SubElement(element, case.tag, kind).text = message
        else:
            ElementTree.SubElement(element, "system-out").text = xml_text(case.message)
    if output:
        ElementTree.SubElement(suite, "system-out").text = xml_text(output)


def _case(ruling: Ruling) -> _Case:
    if ruling.allowed is not None:
        text = f"{ruling.message}; allowed until {ruling.allowed.until}: {ruling.allowed.reason}"
        return _Case(ruling.rule, "skipped", "allowed", text)
    if ruling.code == ExitCode.VALID:
        return _Case(ruling.rule, "", "", ruling.message)
    if ruling.code == ExitCode.INVALID:
        kind = "exceeded" if ruling.rule in CEILINGS else "invalid"
        return _Case(ruling.rule, "failure", kind, ruling.message)
    kind = "unknown" if ruling.code == ExitCode.UNKNOWN else "crashed"
    return _Case(ruling.rule, "error", kind, ruling.message)


def _reproduction(run: RunRulings) -> str:
    """Return what helps to reproduce the run."""
    rows = [*_rows(run.facts), *((f"page of {kind}", page) for kind, page in run.pages)]
    return "\n".join(f"{label}: {text}" for label, text in rows if text)


def _rows(facts: RunFacts) -> list[tuple[str, str]]:
    return [
        ("run", facts.path),
        ("planted bug", facts.mutant or ""),
        ("repeat", facts.repeat),
        ("report", facts.report),
    ]


def _counts(cases: Sequence[_Case]) -> dict[str, str]:
    tags = [case.tag for case in cases]
    return {
        "tests": str(len(cases)),
        "failures": str(tags.count("failure")),
        "errors": str(tags.count("error")),
        "skipped": str(tags.count("skipped")),
    }


def _seconds(seconds: float) -> str:
    return f"{max(0.0, seconds):.3f}"
