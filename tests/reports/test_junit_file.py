from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from shaketable.reports import junit
from shaketable.reports.run_page import html
from shaketable.reports.run_page.view import build_view


def test_each_checker_is_a_case_and_its_verdict_its_result(invalid_run: Any) -> None:
    view = build_view(invalid_run.folder)
    root = ElementTree.fromstring(junit.render_run(view))
    [suite] = root.findall("testsuite")
    assert root.tag == "testsuites"
    counts = [suite.get(name) for name in ("tests", "failures", "errors", "skipped")]
    assert counts == ["4", "2", "1", "0"]
    assert suite.get("name") == "first-shake"
    cases = {case.get("name"): case for case in suite.findall("testcase")}
    assert set(cases) == {"durability[7]", "linearizable-log[7]", "broken[7]", "stats[7]"}
    assert {case.get("classname") for case in cases.values()} == {"log.kill+partition+pause"}
    failure = cases["durability[7]"].find("failure")
    assert failure is not None
    assert failure.get("type") == "invalid"
    assert failure.get("message") == f"{len(invalid_run.lost)} acknowledged appends are lost"
    assert "acknowledged by n0 at offset" in (failure.text or "")
    error = cases["broken[7]"].find("error")
    assert error is not None
    assert error.get("type") == "crashed"
    assert "KeyError" in (error.text or "")
    stats = cases["stats[7]"]
    assert (stats.find("failure"), stats.find("error")) == (None, None)
    for case in cases.values():
        said = case.findtext("system-out") or ""
        assert f"repeat: {view.command}" in said
        assert "--seed 7" in said
        assert f"{invalid_run.folder}/report.html" in said


def test_a_checker_that_found_something_and_crashed_elsewhere_is_a_failure(
    invalid_run: Any,
) -> None:
    view = build_view(invalid_run.folder)
    checkers = tuple(
        replace(checker, crash="KeyError: 'y'") if checker.name == "durability" else checker
        for checker in view.checkers
    )
    view = replace(view, checkers=checkers)
    [suite] = ElementTree.fromstring(junit.render_run(view)).findall("testsuite")
    assert [suite.get(name) for name in ("failures", "errors")] == ["2", "1"]
    assert [len(suite.findall(f"testcase/{tag}")) for tag in ("failure", "error")] == [2, 1]
    failure = suite.find("testcase[@name='durability[7]']/failure")
    assert failure is not None
    assert failure.get("type") == "invalid"
    assert "crashed, in part of its work:\nKeyError: 'y'" in (failure.text or "")
    page = html.render(view)
    assert page.count("in part of its work: what it found is true") == 1
    assert page.count("the crash proves nothing about the group") == 1  # the one of "broken"


def test_a_run_that_was_not_judged_is_an_error(empty_run: Path) -> None:
    suite = ElementTree.fromstring(junit.render_run(build_view(empty_run))).find("testsuite")
    assert suite is not None
    assert (suite.get("tests"), suite.get("errors")) == ("1", "1")
    error = suite.find("testcase/error")
    assert error is not None
    assert "nothing was judged" in (error.get("message") or "")


def test_no_text_breaks_the_xml(clean_run: Any) -> None:
    view = build_view(clean_run.folder)
    hostile = "a\x00\x1b[31m<b>&\"' \ud800 ]]> ü"
    checkers = tuple(
        replace(checker, verdict="INVALID", summary=hostile, crash=hostile)
        for checker in view.checkers
    )
    view = replace(view, name=hostile, seed=hostile, command=hostile, checkers=checkers)
    text = junit.render_run(view)
    root = ElementTree.fromstring(text.encode())
    case = root.find("testsuite/testcase")
    assert case is not None
    assert "<b>&\"' \ufffd ]]> ü" in (case.get("name") or "")


def test_a_fault_that_is_not_available_is_skipped_with_its_reason(clean_run: Any) -> None:
    view = replace(
        build_view(clean_run.folder), faults_unavailable=(("transfer", "nobody can be asked"),)
    )
    suite = ElementTree.fromstring(junit.render_run(view)).find("testsuite")
    assert suite is not None
    assert (suite.get("tests"), suite.get("skipped")) == (str(len(view.checkers) + 1), "1")
    skipped = suite.find("testcase[@classname='log.transfer']/skipped")
    assert skipped is not None
    assert skipped.get("message") == "not available: nobody can be asked"
