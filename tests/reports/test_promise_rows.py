"""Promise by promise: who judged it, and what was found against it."""

from __future__ import annotations

import json
import pkgutil
from importlib import import_module
from pathlib import Path
from typing import Any

from shaketable import checkers
from shaketable.reports.run_page.view import build_view
from shaketable.reports.run_page.violations import (
    DURABLE,
    JUDGES,
    LINEARIZABLE,
    MEANT,
    promise_rows,
)
from shaketable.reports.run_view import CheckerView

PROMISES = {
    "durable_under": ["kill", "pause"],
    "linearizable": ["append", "read"],
    "committed_prefix": True,
    "excludes": ["duplicate"],
}


def view(name: str, verdict: str, summary: str = "", **totals: int) -> CheckerView:
    kinds = tuple((kind.replace("_", "-"), count) for kind, count in totals.items())
    found = sum(totals.values())
    return CheckerView(name, verdict, summary, (), (), found, found, (), totals=kinds)


def rows(*views: CheckerView, **more: Any) -> dict[str, Any]:
    named = ("offset", "kept", "linearizable", "same, entry", "None of these", "tested")
    found = promise_rows({**PROMISES, **more}, views)
    return {next(name for name in named if name in row.text): row for row in found}


def test_each_promise_has_its_judges_and_their_word() -> None:
    found = rows(
        view("durability", "INVALID", "3 appends are lost", lost_append=3),
        view("linearizable-log", "VALID"),
        view("committed-prefix", "UNKNOWN", "no node could be read"),
        view("vacuity", "VALID"),
        view("stats", "VALID"),
    )
    assert found["kept"].judged_by == (("durability", "INVALID"),)
    assert found["kept"].verdict == "INVALID"
    assert found["kept"].found == "3 acknowledged appends are lost"
    assert found["linearizable"].found == "no violation found"
    assert found["same, entry"].verdict == "UNKNOWN"
    assert found["same, entry"].found == "committed-prefix: no node could be read"
    assert found["tested"].judged_by == (("vacuity", "VALID"), ("stats", "VALID"))


def test_a_promise_that_nobody_judges_is_not_called_held() -> None:
    found = rows(view("linearizable-log", "VALID"))
    assert found["kept"].verdict == ""
    assert found["kept"].judged_by == ()
    assert found["kept"].found == "nothing in this run looks at it"


def test_a_finding_counts_against_the_promise_that_it_is_about() -> None:
    found = rows(
        view("log-anomalies", "INVALID", "1 lost", lost_write=1),
        view("linearizable-log", "VALID"),
    )
    assert found["kept"].verdict == "INVALID"
    assert found["linearizable"].verdict == "VALID"
    assert found["None of these"].verdict == "VALID"


def test_a_checker_of_somebody_else_judges_what_is_excluded() -> None:
    found = rows(view("my-own", "INVALID", "bad", something_odd=2))
    assert found["None of these"].judged_by == (("my-own", "INVALID"),)
    assert found["None of these"].found == "2 something-odd"


def test_a_checker_that_is_invalid_without_findings_says_why() -> None:
    found = rows(view("durability", "INVALID", "the log is gone"))
    assert found["kept"].found == "durability: the log is gone"


def test_what_is_delivered_is_a_promise_of_its_own() -> None:
    found = rows(view("group-delivery", "INVALID", "", lost_message=1), delivered_under=["kill"])
    assert found["offset"].verdict == "INVALID"
    assert found["kept"].verdict == "VALID"


def test_a_target_that_says_nothing_of_messages_is_not_said_to_deliver_them() -> None:
    same = {"durable_under": ["kill"], "delivered_under": ["kill"]}
    assert "offset" not in rows(view("linearizable-register", "VALID"), **same)
    assert "offset" in rows(view("log-anomalies", "VALID"), **same)
    assert "offset" in rows(view("linearizable-register", "VALID"), delivered_under=["kill"])


def test_hostile_promises_promise_nothing() -> None:
    for promises in (None, [], "all", {"durable_under": 7, "linearizable": {"x": 1}}):
        assert promise_rows(promises, ()) == ()


def test_every_checker_of_ours_is_said_to_judge_something() -> None:
    names = set()
    for module in pkgutil.walk_packages(checkers.__path__, "checkers."):
        if ".engine" not in module.name and ".kernels" not in module.name:
            found = vars(import_module(module.name))
            names |= {
                plugin.name
                for plugin in (found.get("PLUGIN"), *found.get("PLUGINS", ()))
                if hasattr(plugin, "check") and hasattr(plugin, "name")
            }
    assert {"durability", "committed-prefix", "vacuity", "stats"} <= names
    # One is made for the model that it judges, the others are the run's own.
    assert set(JUDGES) - names == {"linearizable", "invariants", "online", "run-as-planned"}
    assert DURABLE in JUDGES["durability"]
    assert LINEARIZABLE in JUDGES["linearizable-register"]
    assert JUDGES["vacuity"] == (MEANT,)


def test_what_a_target_documents_is_read_from_the_run_where_results_lack_it(tmp_path: Path) -> None:
    verdict = {"valid": True, "summary": "", "data": {"observed": {"duplicate": 2}}}
    results = {"valid": True, "checkers": {"queue-delivery": verdict}}
    (tmp_path / "results.json").write_text(json.dumps(results))
    run = {"promises": {**PROMISES, "documented": "a send may be stored twice"}}
    (tmp_path / "run.json").write_text(json.dumps(run))
    observed = build_view(tmp_path).observed
    assert observed.endswith(". Documented: a send may be stored twice")
