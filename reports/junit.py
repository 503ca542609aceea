"""Render a run, or the result of a gate, as JUnit XML.

Of a run, the run is a test suite, each checker a test case. An invalid verdict is a failure; an
unknown one or a checker's crash is an error, as CI systems distinguish "the software is wrong" from
"the test could not decide" (HARNESSES.md section 4). A checker that found something in one queue
and crashed in another is a failure.

Of a gate, a run is a test suite, a rule on it a test case. A failure means that something is wrong,
an error that it is not shown to be right. What the policy allows, and what was not run, is skipped
with the reason. Jenkins, GitLab, Azure and GitHub's reporters read it: elements and attributes
follow the schema of Jenkins' xUnit plug-in.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal
from xml.etree import ElementTree

from shaketable.harness.contracts.verdict import ExitCode
from shaketable.reports.gating.policy import CEILINGS
from shaketable.reports.gating.rulings import GateResult, Ruling, RunFacts, RunRulings
from shaketable.reports.run_view import CheckerView, RunView

_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML 1.0 cannot represent, not even escaped."""


def render_run(view: RunView) -> str:
    """Render the JUnit file. A run that was never judged has one case, an error."""
    checkers = view.checkers or (_unjudged(view),)
    verdicts = [checker.verdict for checker in checkers]
    seconds = f"{view.duration_ns / 1e9:.3f}"
    numbers = {
        "tests": str(len(checkers) + len(view.faults_unavailable)),
        "failures": str(verdicts.count("INVALID")),
        "errors": str(verdicts.count("UNKNOWN")),
        "skipped": str(len(view.faults_unavailable)),
        "time": seconds,
    }
    of_all = {key: number for key, number in numbers.items() if key != "skipped"}
    # Jenkins' schema has `skipped` for a suite, but not for all suites together.
    root = ElementTree.Element("testsuites", {"name": "shaketable", **of_all})
    suite = ElementTree.SubElement(
        root,
        "testsuite",
        {"name": xml_text(view.name), **numbers, "timestamp": xml_text(view.started)},
    )
    properties = ElementTree.SubElement(suite, "properties")
    for name, value in _properties(view):
        ElementTree.SubElement(properties, "property", {"name": name, "value": xml_text(value)})
    faults = "+".join(view.faults_asked) or "none"
    for checker in checkers:
        case = ElementTree.SubElement(
            suite,
            "testcase",
            {
                "classname": xml_text(f"{view.workload}.{faults}"),
                "name": xml_text(f"{checker.name}[{view.seed}]"),
                "time": seconds if len(checkers) == 1 else "0.000",
            },
        )
        _add_verdict(case, checker, view.folder)
        out = ElementTree.SubElement(case, "system-out")
        out.text = xml_text(
            f"{checker.summary}\nrepeat: {view.command}\nreport: {view.folder}/report.html"
        )
    for fault, why in view.faults_unavailable:
        names = {
            "classname": xml_text(f"{view.workload}.{fault}"),
            "name": xml_text(f"fault[{view.seed}]"),
        }
        case = ElementTree.SubElement(suite, "testcase", {**names, "time": "0.000"})
        ElementTree.SubElement(case, "skipped", {"message": xml_text(f"not available: {why}")})
    ElementTree.indent(root)
    body = ElementTree.tostring(root, encoding="unicode")
    return f'<?xml version="1.0" encoding="utf-8"?>\n{body}\n'


def _add_verdict(case: ElementTree.Element, checker: CheckerView, folder: str) -> None:
    if checker.verdict == "VALID":
        return
    tag, kind = ("failure", "invalid") if checker.verdict == "INVALID" else ("error", "unknown")
    if checker.crash is not None and tag == "error":
        kind = "crashed"
    element = ElementTree.SubElement(
        case, tag, {"type": kind, "message": xml_text(checker.summary)}
    )
    lines = []
    for group in checker.groups:
        lines.append(group.title)
        for violation in group.shown:
            lines.append(f"  {violation.message}")
            if violation.page:
                lines.append(f"    page: {folder}/{violation.page}")
        if group.total > len(group.shown) > 0:
            lines.append(f"  and {group.total - len(group.shown)} more")
    if checker.findings_total > checker.findings_kept:
        lines.append(f"{checker.findings_total} findings in all, {checker.findings_kept} kept")
    if checker.crash:
        lines += ["The checker crashed, in part of its work:", checker.crash]
    element.text = xml_text("\n".join(lines))


def _unjudged(view: RunView) -> CheckerView:
    return CheckerView("run", "UNKNOWN", view.why, (), (), 0, 0, ())


def _properties(view: RunView) -> list[tuple[str, str]]:
    ok, fail, info = view.outcomes
    return [
        ("verdict", view.verdict),
        ("target", view.target),
        ("world", view.world),
        ("mutant", view.mutant or "none"),
        ("nodes", str(len(view.nodes))),
        ("seed", view.seed),
        ("operations", f"ok={ok} fail={fail} info={info}"),
        (
            "faults.took_effect",
            f"{sum(row.window.took_effect for row in view.faults)} of {len(view.faults)}",
        ),
    ]


def xml_text(text: str) -> str:
    """Replace characters that XML cannot represent."""
    return _NOT_XML.sub("\ufffd", text)


# A gate's result.

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


def render_gate(result: GateResult) -> str:
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
