"""Render the view model as JUnit XML: the run is a test suite, each checker a test case.

An invalid verdict is a failure; an unknown one or a checker's crash is an error, as CI systems
distinguish "the software is wrong" from "the test could not decide" (HARNESSES.md section 4). A
checker that found something in one queue and crashed in another is a failure.
"""

from __future__ import annotations

import re
from xml.etree import ElementTree

from shaketable.reports.run_view import CheckerView, RunView

_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML 1.0 cannot represent, not even escaped."""


def render(view: RunView) -> str:
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
            "faults.bit",
            f"{sum(row.window.took_effect for row in view.faults)} of {len(view.faults)}",
        ),
    ]


def xml_text(text: str) -> str:
    """Replace characters that XML cannot represent."""
    return _NOT_XML.sub("\ufffd", text)
