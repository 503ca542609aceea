"""The checker of banks: totals, negative balances, and what reads lack."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from shaketable.checkers.transactions.bank import PLUGIN
from shaketable.harness import cli
from shaketable.harness.contracts.plugins import CheckContext, Promises
from shaketable.harness.contracts.verdict import Outcome, Verdict
from shaketable.harness.history.schema import OPERATIONS

Steps = list[tuple[str, str, int]]


def verdict_on(
    *balances: Mapping[str, Any] | Steps,
    initial: str | None = None,
    asked: Steps | None = None,
    level: str = "strict-serializable",
    **more: Any,
) -> Verdict:
    rows = [
        {"op": n, "process": 0, "f": "read", "call_ns": 2 * n, "return_ns": 2 * n + 1,
         "outcome": "ok", "extra": json.dumps({"output": each, "input": asked})}
        for n, each in enumerate(balances)
    ]  # fmt: skip
    context = CheckContext((), {}, Promises(isolation=level), initial=initial, **more)
    table = pa.Table.from_pylist(rows, OPERATIONS)
    return PLUGIN.conclude(PLUGIN.check({"operations": table}, context), context)


FIRST = {"a": 10, "b": 0}


@pytest.mark.parametrize(
    ("wrong", "kinds"),
    [
        ({"a": 4, "b": 6}, set()),
        ({"a": 4, "b": 5}, {"wrong-total"}),
        ({"a": 11, "b": -1}, {"negative-value"}),
        ({"a": 12, "b": -1}, {"wrong-total", "negative-value"}),
        ({"a": 10, "b": None}, {"nil-balance"}),
        ({"a": 10}, {"unexpected-key"}),
        ({"a": 10, "b": 0, "c": 0}, {"unexpected-key"}),
    ],
)
@pytest.mark.parametrize("initial", [None, '{"a": 10, "b": 0}'])
def test_what_is_wrong_has_its_name(
    wrong: Mapping[str, Any], kinds: set[str], initial: str | None
) -> None:
    verdict = verdict_on(FIRST, FIRST, wrong, initial=initial)
    assert {finding.kind for finding in verdict.findings} == kinds
    assert verdict.outcome is (Outcome.INVALID if kinds else Outcome.VALID)
    assert all(finding.operations == (2, 1) for finding in verdict.findings)


def test_first_balances_count_more_than_most_reads() -> None:
    verdict = verdict_on({"a": 9, "b": 0}, initial='{"a": 10, "b": 0}')
    assert [finding.message for finding in verdict.findings] == [
        "op 0 (read) has a total of 9 instead of 10: a: 9, b: 0."
    ]


def test_accounts_that_the_workload_opened_count_more_than_most_reads() -> None:
    asked = [("balance", "a", 10), ("balance", "b", 10)]
    lost = [("balance", "a", 4), ("balance", "b", 15)]
    verdict = verdict_on(lost, lost, [("balance", "a", 7), ("balance", "b", 13)], asked=asked)
    assert [finding.message for finding in verdict.findings] == [
        f"op {n} (read) has a total of 19 instead of 20: a: 4, b: 15." for n in (0, 1)
    ]


def test_only_steps_of_balances_say_how_accounts_were_opened() -> None:
    asked: Any = {"timeout_ms": 500}
    assert verdict_on(FIRST, FIRST, asked=asked).outcome is Outcome.VALID
    asked = [["r", "a", None]]
    assert verdict_on(FIRST, FIRST, asked=asked).outcome is Outcome.VALID


@pytest.mark.parametrize(
    ("level", "is_promised"),
    [
        ("", False),
        ("read-committed", False),
        ("read-atomic", False),
        ("cursor-stability", False),
        ("consistent-view", True),
        ("repeatable-read", True),
        ("snapshot-isolation", True),
    ],
)
def test_a_wrong_total_breaks_levels_that_keep_it(level: str, is_promised: bool) -> None:
    verdict = verdict_on(FIRST, FIRST, {"a": 4, "b": 5}, level=level)
    assert verdict.outcome is (Outcome.INVALID if is_promised else Outcome.VALID)
    assert [each.kind for each in verdict.findings + verdict.observed] == ["wrong-total"]
    lacking = verdict_on(FIRST, FIRST, {"a": 10}, level=level)
    assert lacking.outcome is Outcome.INVALID


def test_the_transfers_since_the_last_right_read_are_named() -> None:
    operations = [
        (0, "read", 0, 1, FIRST),
        (1, "transfer", 2, 6, None),  # under way while op 2 reads
        (2, "read", 4, 5, FIRST),
        (3, "transfer", 7, None, None),  # its outcome is not known
        (4, "transfer", 20, 21, None),
        (5, "read", 10, 12, {"a": 9, "b": 0}),
    ]
    rows = [
        {"op": op, "process": 0, "f": f, "call_ns": call, "return_ns": returned,
         "outcome": "info" if returned is None else "ok", "extra": json.dumps({"output": output})}
        for op, f, call, returned, output in operations
    ]  # fmt: skip
    context = CheckContext((), {}, Promises(isolation="serializable"))
    table = PLUGIN.check({"operations": pa.Table.from_pylist(rows, OPERATIONS)}, context)
    (finding,) = PLUGIN.conclude(table, context).findings
    assert finding.operations == (5, 2, 1, 3)
    assert finding.message.endswith(
        "a: 9, b: 0. Op 2 had read the right balances; 2 transfers may have come between"
        " (op 1, op 3)."
    )


def test_no_read_proves_nothing() -> None:
    assert verdict_on().outcome is Outcome.UNKNOWN
    assert verdict_on(FIRST, incomplete="line 3 is damaged").outcome is Outcome.UNKNOWN


def test_check_knows_the_bank_of_our_own_workload(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    opened = [["balance", "a", 10], ["balance", "b", 10]]
    found = [["balance", "a", 7], ["balance", "b", 13]]
    moved = [["debit", "a", 3], ["credit", "b", 3]]
    rows = [
        {"process": 0, "f": "transfer", "key": "accounts", "input": moved, "output": moved,
         "call_ns": 0, "return_ns": 1, "outcome": "ok"},
        {"process": 0, "f": "read", "key": "accounts", "input": opened, "output": found,
         "call_ns": 2, "return_ns": 3, "outcome": "ok"},
    ]  # fmt: skip
    path = tmp_path / "bank.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    assert cli.run(["check", str(path)]) == 0
    assert "all 1 reads have the same total" in capsys.readouterr().out
    path.write_text(path.read_text().replace("13", "12"))
    assert cli.run(["check", str(path)]) == 1
    assert "a total of 19 instead of 20" in capsys.readouterr().out


def test_check_knows_a_bank(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "bank.json"
    path.write_text(
        '[{"type":"invoke","f":"transfer","process":1,"value":{"from":0,"to":1,"amount":2}},\n'
        '{"type":"invoke","f":"read","process":0},\n'
        '{"type":"ok","f":"read","process":0,"value":{"0":8,"1":2}},\n'
        '{"type":"ok","f":"transfer","process":1,"value":{"from":0,"to":1,"amount":2}},\n'
        '{"type":"invoke","f":"read","process":0},\n'
        '{"type":"ok","f":"read","process":0,"value":{"0":8,"1":2}}]\n'
    )
    assert cli.run(["check", str(path)]) == 0
    assert "all 2 reads have the same total" in " ".join(capsys.readouterr().out.split())
    path.write_text(path.read_text().replace('"1":2}}]', '"1":3}}]'))
    assert cli.run(["check", str(path)]) == 1


FOLDER = Path(os.environ.get("SHAKETABLE_FRONTIER", "none")).resolve()


@pytest.mark.skipif(not FOLDER.is_dir(), reason="no histories of others: SHAKETABLE_FRONTIER")
@pytest.mark.parametrize("file", ["bank-tidb.edn", "bank-negative-balances.json"])
def test_banks_of_others_get_their_verdicts(file: str) -> None:
    assert cli.run(["check", str(FOLDER / "transactions" / file)]) == 1
