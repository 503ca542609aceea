"""The checker of isolation levels: each anomaly by name, and small histories by brute force."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from shaketable.checkers.transactions import forbidden_cycles
from shaketable.checkers.transactions.isolation import PLUGIN
from shaketable.harness import cli
from shaketable.harness.contracts import isolation
from shaketable.harness.contracts.isolation import STRONGEST
from shaketable.harness.contracts.plugins import CheckContext, Promises
from shaketable.harness.contracts.verdict import Outcome, Verdict
from shaketable.harness.history.foreign import read_history
from shaketable.harness.history.schema import OPERATIONS
from tests.soaks.isolation_levels import compare
from tests.support.volume import volume

HISTORIES = volume(300)


@pytest.mark.parametrize("lists", [False, True])
def test_small_histories_agree_with_exhaustive_search(*, lists: bool) -> None:
    seen: Counter[str] = Counter()
    for seed in range(1_000_000, 1_000_000 + HISTORIES):
        seen.update(compare(seed, lists=lists))
    assert seen["histories"] == HISTORIES
    assert seen["not plain"] < HISTORIES / 4
    for level in ("strong-session-monotonic-atomic-view", "causal"):
        assert min(seen[f"{level} holds"], seen[f"{level} broken"]) > HISTORIES / 20


def verdict_on(*texts: str, initial: str | None = None, **context: Any) -> Verdict:
    """Judge transactions, each "process call..end steps -> outcome" of Elle's short notation.

    `ax1` appends 1 to x, `wx1` writes it, `rx1` reads it, `rx_` reads nothing, `rx12` reads a list.
    """
    rows = []
    for number, text in enumerate(texts):
        process, times, steps, outcome = text.split()
        call, _, end = times.partition("..")
        lists = any(" a" in each or each.split()[2].startswith("a") or "a" in each.split()[2]
                    for each in texts)  # fmt: skip
        done = [_step(step, lists=lists) for step in steps.split(",")]
        extra: dict[str, Any] = {"input": [[f, k, None if f == "r" else v] for f, k, v in done]}
        if outcome == "ok":
            extra["output"] = done
        rows.append(
            {"op": number, "process": int(process), "f": "txn", "call_ns": int(call),
             "return_ns": None if outcome == "info" else int(end), "outcome": outcome,
             "extra": json.dumps(extra)}
        )  # fmt: skip
    given = CheckContext((), {}, Promises(isolation=STRONGEST), initial=initial, **context)
    table = pa.Table.from_pylist(rows, OPERATIONS)
    return PLUGIN.conclude(PLUGIN.check({"operations": table}, given), given)


def _step(text: str, *, lists: bool) -> list[Any]:
    f, key, value = text[0], text[1], text[2:]
    if f != "r":
        return ["append" if f == "a" else "w", key, int(value)]
    if value == "_":
        return ["r", key, None]
    return ["r", key, [int(each) for each in value] if lists else int(value)]


KINDS = {
    "G0": ["0 0..9 ax1,ay1 ok", "1 0..9 ax2,ay2 ok", "2 0..9 rx12,ry21 ok"],
    "G1a": ["0 0..9 wx1 fail", "1 0..9 rx1 ok"],
    "G1b": ["0 0..9 wx1,wx2 ok", "1 0..9 rx1 ok"],
    "G1c": ["0 0..9 wx1,ry1 ok", "1 0..9 wy1,rx1 ok"],
    "G1c-process": ["0 0..9 rx1 ok", "0 10..19 wy1 ok", "1 0..30 ry1 ok", "1 31..39 wx1 ok"],
    "G1c-realtime": ["0 0..9 rx1 ok", "1 10..19 ax1 ok"],
    "internal": ["0 0..9 wx1 ok", "1 0..9 wx2 ok", "2 0..9 rx1,rx2 ok"],
    "future-read": ["0 0..9 rx1,ax1 ok"],
    "thin-air-read": ["0 0..9 ax1 ok", "1 0..9 rx17 ok"],
    "duplicate-elements": ["0 0..9 ax1 ok", "1 0..9 rx11 ok"],
    "incompatible-order": ["0 0..9 ax1 ok", "1 0..9 ax2 ok", "2 0..9 rx12 ok", "3 0..9 rx21 ok"],
    "dirty-update": ["0 0..9 ax1 fail", "1 0..9 ax2 ok", "2 0..9 rx12 ok"],
    "nonmonotonic-read": ["0 0..9 wx1,wy1 ok", "1 0..9 rx1,ry_ ok"],
    "fractured-read": ["0 0..9 wx1,wy1 ok", "1 0..9 ry_,rx1 ok"],
    "fractured-read-process": ["0 0..9 wx1 ok", "0 10..19 rx_ ok"],
    "causality-violation": [
        "0 0..9 wx1 ok", "1 0..9 rx1,wy1 ok", "2 0..9 ry1,rx_ ok",
    ],
    "lost-update": ["0 0..9 rx_,wx1 ok", "1 0..9 rx_,wx2 ok"],
    "G-single-item": ["0 0..9 ax1,ay1 ok", "1 0..9 ry_,ax2 ok", "2 0..9 rx12 ok"],
    "G-single-item-realtime": ["0 0..9 ax1 ok", "1 10..19 rx_ ok", "2 30..39 rx1 ok"],
    "G-nonadjacent-item": [
        "0 0..9 ax1 ok", "1 0..9 rx1,ry_ ok", "2 0..9 ay1 ok", "3 0..9 ry1,rx_ ok",
    ],
    "G2-item": ["0 0..9 rx_,ay1 ok", "1 0..9 ry_,ax1 ok"],
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_each_anomaly_has_its_name_and_what_it_breaks(kind: str) -> None:
    verdict = verdict_on(*KINDS[kind], initial="{}")
    assert verdict.outcome is Outcome.INVALID
    found = {finding.kind: finding for finding in verdict.findings}
    assert kind in found, verdict.summary
    assert found[kind].details["breaks"] == list(isolation.BREAKS[kind])
    assert found[kind].operations
    assert set(isolation.BREAKS[kind]) <= set(verdict.data["broken"])
    assert not set(verdict.data["broken"]) & set(verdict.data["holds"])


def test_each_edge_of_a_cycle_has_its_evidence() -> None:
    verdict = verdict_on(*KINDS["nonmonotonic-read"], initial="{}")
    (message,) = [f.message for f in verdict.findings if f.kind == "nonmonotonic-read"]
    assert "since op 1 (r x 1, r y nil) had seen the former and read y" in message
    verdict = verdict_on(*KINDS["G2-item"])
    (message,) = [f.message for f in verdict.findings if f.kind == "G2-item"]
    assert "op 0 (r x nil, append y 1) did not see what op 1 (r y nil, append x 1) wrote" in message


@pytest.mark.parametrize(
    "texts",
    [
        ["0 0..9 wx1 info", "1 10..19 rx1 ok"],  # seen, so it committed
        ["0 0..9 ax1 info", "1 10..19 rx_ ok"],  # not seen: it may never have
        ["0 0..9 ax1 ok", "1 0..9 rx_ ok", "2 10..19 rx1,ax2,rx12 ok"],
        ["0 0..9 wx1,rx1,wx2 ok", "1 10..19 rx2 ok"],
    ],
)
def test_what_is_right_is_not_accused(texts: list[str]) -> None:
    verdict = verdict_on(*texts)
    assert verdict.outcome is Outcome.VALID, verdict.summary
    assert verdict.findings == ()


def test_what_is_not_known_is_neither_valid_nor_invalid() -> None:
    twice = verdict_on("0 0..9 wx1 ok", "1 0..9 wx1 ok", "2 10..19 rx1 ok")
    assert twice.outcome is Outcome.UNKNOWN
    assert "written more than once" in twice.summary
    assert verdict_on("0 0..9 wx1 info").outcome is Outcome.UNKNOWN
    lacking = verdict_on(*KINDS["G2-item"], incomplete="line 3 is damaged")
    assert lacking.outcome is Outcome.UNKNOWN
    assert lacking.data["holds"] == []


def test_a_first_value_that_is_not_told_may_be_the_one_that_nobody_wrote() -> None:
    texts = ["0 0..9 rx3 ok", "1 10..19 wx2 ok", "2 20..29 rx2 ok"]
    assert verdict_on(*texts).outcome is Outcome.VALID
    assert verdict_on(*texts, initial='{"x": 3}').outcome is Outcome.VALID
    assert verdict_on(*texts, initial="{}").outcome is Outcome.INVALID
    two = verdict_on(*texts, "3 0..9 rx4 ok")
    assert {finding.kind for finding in two.findings} == {"thin-air-read"}


def test_nothing_and_another_value_are_not_both_there_at_first() -> None:
    verdict = verdict_on("0 0..9 rx_ ok", "1 0..9 rx3 ok")
    assert {finding.kind for finding in verdict.findings} == {"thin-air-read"}


def test_keys_written_once_show_a_long_fork() -> None:
    verdict = verdict_on(
        "0 0..9 wx1 ok", "1 0..9 wy1 ok", "2 0..9 rx1,ry_ ok", "3 0..9 ry1,rx_ ok", initial="{}"
    )
    kinds = {finding.kind for finding in verdict.findings}
    assert kinds == {"G-nonadjacent-item", "no-prefix-order"}
    assert "causal" in verdict.data["holds"]


def test_values_that_are_read_before_they_are_written_over_are_in_order() -> None:
    chain = ["0 0..9 rx_,wx1 ok", "1 10..19 rx1,wx2 ok", "2 20..29 rx2 ok"]
    assert verdict_on(*chain, initial="{}").data["strongest"] == ["strict-serializable"]
    late = verdict_on(*chain, "3 30..39 rx1 ok", initial="{}")
    assert {finding.kind for finding in late.findings} == {"G-single-item-realtime"}
    blind = verdict_on(*chain, "3 0..39 wx3 ok", initial="{}")
    assert blind.data["strongest"] == ["strict-serializable"], "it may be the last one"


def test_lists_start_empty() -> None:
    verdict = verdict_on("0 0..9 ax1 ok", "1 10..19 rx1 ok", initial='{"x": [7]}')
    assert verdict.outcome is Outcome.UNKNOWN
    assert "holds a list at first" in verdict.summary


def test_a_part_of_a_transaction_may_be_unread() -> None:
    """Element 2 is after all that was read, so the reader came before its transaction's end."""
    verdict = verdict_on("0 0..9 ax1,ax2 ok", "1 0..9 rx1 ok")
    assert {finding.kind for finding in verdict.findings} == {"G1b", "G-single-item"}


def test_messages_are_short() -> None:
    appends = ",".join(f"ax{n}" for n in range(10))
    verdict = verdict_on(f"0 0..9 {appends} fail", "1 0..9 rx0123456789 ok")
    assert all(len(finding.message) < 400 for finding in verdict.findings)
    assert "[0 1 2 3 4 5 6 7 ...]" in str(verdict.findings)


def test_unread_appends_are_in_some_order() -> None:
    """Both append to z unread: one of them must have seen the other, or neither may commit."""
    verdict = verdict_on("0 0..9 rx_,ay1,az1 ok", "1 0..9 ry_,ax1,az2 ok")
    assert {finding.kind for finding in verdict.findings} == {"G2-item", "no-snapshot-order"}
    assert "snapshot-isolation" in verdict.data["broken"]
    assert "causal" in verdict.data["holds"]
    (found,) = [f for f in verdict.findings if f.kind == "no-snapshot-order"]
    said = "no order of the writes of z satisfies snapshot-isolation: if op 0 (r x nil,"
    assert found.message.startswith(said)
    assert len(found.details["cycles"]) == 2


def test_a_cycle_is_drawn_where_all_of_it_is_transactions() -> None:
    (drawn,) = [f for f in verdict_on(*KINDS["G2-item"]).findings if f.kind == "G2-item"]
    assert [(edge["from"], edge["to"], edge["edge"]) for edge in drawn.details["cycle"]] == [
        (0, 1, "rw"), (1, 0, "rw"),
    ]  # fmt: skip


def test_levels_imply_each_other_without_a_circle() -> None:
    for level in isolation.LEVELS:
        assert level in isolation.implied(level)
        for weaker in isolation.implied(level) - {level}:
            assert level not in isolation.implied(weaker)
    assert isolation.implied(isolation.STRONGEST) == set(isolation.LEVELS)
    for named in isolation.BREAKS.values():
        assert set(named) <= set(isolation.LEVELS)
    assert forbidden_cycles.weakest(["causal", "read-atomic", "repeatable-read"]) == (
        "read-atomic",
    )
    assert forbidden_cycles.strongest(["causal", "read-atomic"]) == ("causal",)


def test_check_judges_transactions_that_append_and_those_without_times(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "h.edn"
    path.write_text(
        "{:type :invoke, :process 0, :value [[:append :x 1] [:r :y]]}\n"
        "{:type :invoke, :process 1, :value [[:append :y 1] [:r :x]]}\n"
        "{:type :ok, :process 0, :value [[:append :x 1] [:r :y []]]}\n"
        "{:type :ok, :process 1, :value [[:append :y 1] [:r :x []]]}\n"
    )
    assert cli.run(["check", str(path)]) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert "weakest broken: repeatable-read" in said
    sessions = tmp_path / "h.txt"
    sessions.write_text("w x 1\n=====\nr x 1\n")
    assert cli.run(["check", str(sessions)]) == 0
    assert "strongest that hold: strong-session-serializable; stronger" in " ".join(
        capsys.readouterr().out.split()
    )
    assert cli.run(["check", str(path), "--model", "set"]) == 254


def test_reads_and_writes_may_be_transactions_by_their_values(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "long-fork.edn"
    path.write_text(
        "{:type :invoke, :f :write, :process 0, :value [[:w 0 1]]}\n"
        "{:type :ok, :f :write, :process 0, :value [[:w 0 1]]}\n"
        "{:type :invoke, :f :read, :process 1, :value [[:r 0 nil] [:r 1 nil]]}\n"
        "{:type :ok, :f :read, :process 1, :value [[:r 0 1] [:r 1 nil]]}\n"
    )
    assert cli.run(["check", str(path)]) == 0
    assert "strongest that hold: strict-serializable" in " ".join(capsys.readouterr().out.split())


def test_what_is_not_strict_serializable_may_be_isolated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "h.edn"
    path.write_text(
        "{:type :invoke, :f :txn, :process 0, :value [[:w :x 1] [:w :x 2]]}\n"
        "{:type :ok, :f :txn, :process 0, :value [[:w :x 1] [:w :x 2]]}\n"
        "{:type :invoke, :f :txn, :process 1, :value [[:r :x nil]]}\n"
        "{:type :ok, :f :txn, :process 1, :value [[:r :x 1]]}\n"
    )
    assert cli.run(["check", str(path)]) == 1
    assert "there are: --checkers isolation" in " ".join(capsys.readouterr().out.split())
    assert cli.run(["check", str(path), "--model", "multi-register"]) == 1
    assert "--checkers isolation" not in capsys.readouterr().out
    assert cli.run(["check", str(path), "--checkers", "isolation"]) == 1
    assert "1 G1b" in capsys.readouterr().out


@pytest.mark.parametrize(("end", "valid"), [("", False), ("{:type :invoke, :pro", False)])
def test_what_is_broken_before_a_cut_is_broken(tmp_path: Path, end: str, *, valid: bool) -> None:
    path = tmp_path / "h.edn"
    path.write_text(
        "{:type :invoke, :process 0, :value [[:append :x 1] [:append :x 2]]}\n"
        "{:type :ok, :process 0, :value [[:append :x 1] [:append :x 2]]}\n"
        "{:type :invoke, :process 1, :value [[:r :x]]}\n"
        "{:type :ok, :process 1, :value [[:r :x [2 1]]]}\n" + end
    )
    assert (cli.run(["check", str(path)]) == 0) is valid
    right = tmp_path / "right.edn"
    right.write_text(path.read_text().replace("[2 1]", "[1 2]"))
    assert cli.run(["check", str(right)]) == (2 if end else 0)


# Histories of others, which are not part of this repository.

FOLDER = Path(os.environ.get("SHAKETABLE_FRONTIER", "none")).resolve()
REASON = "no histories of others: SHAKETABLE_FRONTIER"


def lines_of(name: str) -> list[dict[str, str]]:
    head, *lines = (FOLDER / name / "VERDICTS.tsv").read_text().splitlines()
    names = head.split("\t")
    return [dict(zip(names, line.split("\t"), strict=True)) for line in lines]


def judged(path: Path) -> Verdict:
    history = read_history(path)
    context = CheckContext((), {}, Promises(isolation=STRONGEST), initial=history.initial)
    return PLUGIN.conclude(PLUGIN.check({"operations": history.operations}, context), context)


LADDER = {
    "read-committed": "strong-session-monotonic-atomic-view",
    "read-atomic": "strong-session-read-atomic",
    "causal": "causal",
}
"""The reference's levels, which all respect sessions, by our names."""


@pytest.mark.skipif(not FOLDER.is_dir(), reason=REASON)
def test_sessions_of_others_are_as_isolated_as_the_reference_says() -> None:
    for line in lines_of("isolation"):
        holds = judged(FOLDER / "isolation" / line["file"]).data["holds"]
        passed = [name for name, level in LADDER.items() if level in holds]
        assert (passed or ["none"])[-1] == line["verdict"], line["file"]
    dgraph = judged(FOLDER / "isovista" / "dgraph_si.txt").data
    assert "strong-session-read-atomic" in dgraph["holds"]
    assert {"causal", "strong-session-snapshot-isolation"} <= set(dgraph["broken"])
    yugabyte = judged(FOLDER / "isovista" / "yugabyte_tcc.txt").data
    assert "strong-session-monotonic-atomic-view" in yugabyte["holds"]
    assert {"strong-session-read-atomic", "causal"} <= set(yugabyte["broken"])


@pytest.mark.skipif(not FOLDER.is_dir(), reason=REASON)
def test_anomalies_of_others_have_their_names() -> None:
    for line in lines_of("elle-tests"):
        verdict = judged(FOLDER / "elle-tests" / line["file"])
        found = {finding.kind.removesuffix("-item") for finding in verdict.findings}
        named = {kind.removesuffix("-item") for kind in line["anomalies"].split()}
        assert named <= found, line["file"]
        broken, holds = set(verdict.data["broken"]), verdict.data["holds"]
        assert set(line["weakest levels broken"].split()) <= broken, line["file"]
        for level in line["levels that hold"].split(" ")[0].split():
            assert level == "-" or level in holds, line["file"]


@pytest.mark.skipif(not FOLDER.is_dir(), reason=REASON)
@pytest.mark.parametrize("file", ["list-append-gh-30.edn", "paper-example.edn"])
def test_lists_of_others_get_their_verdicts(file: str) -> None:
    verdict = judged(FOLDER / "transactions" / file)
    assert verdict.outcome is Outcome.INVALID
    assert "serializable" in verdict.data["broken"]
