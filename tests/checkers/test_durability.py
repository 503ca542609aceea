"""Durability and committed prefixes, judged from logs that the test writes as files."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shaketable.checkers.engine.local import run_local
from shaketable.checkers.logs import committed_prefix, durability
from shaketable.harness.contracts.plugins import FaultWindow
from shaketable.harness.contracts.verdict import Outcome
from shaketable.harness.targets.logs.dledger_files import read_entries
from tests.support.checker_histories import PROMISES, job, op, struck
from tests.support.dledger_encoder import write_log

NODES = ("n0", "n1", "n2")
CHECKERS = (durability.PLUGIN, committed_prefix.PLUGIN)
WINDOW = FaultWindow(3, "partition", "isolate leader n0", 5, 60, True, "held 10 bytes")
BASE = [(None, b""), ("q/0", 1), ("q/0", 2), ("q/1", 3), ("q/0", 4), (None, b"", 2), ("q/1", 5, 2)]


def acks(values=(1, 2, 3, 4, 5)):
    places = {1: ("q/0", 0), 2: ("q/0", 1), 3: ("q/1", 0), 4: ("q/0", 2), 5: ("q/1", 1)}
    rows = []
    for value in values:
        key, offset = places[value]
        row = op(value, "append", value * 10, value * 10 + 5, input=value, offset=offset, key=key)
        rows.append({**row, "node": "n0"})
    return rows


def judge(tmp_path, logs, rows=None, **more):
    """Write each node's entries as files and judge them; return both verdicts."""
    directories = {}
    for node, entries in logs.items():
        directories[node] = tmp_path / node
        directories[node].mkdir(parents=True)
        write_log(directories[node], node, entries, file_bytes=1024)
    more.setdefault("committed", {node: len(BASE) - 1 for node in logs})
    rows = acks() if rows is None else rows
    more.setdefault("windows", (WINDOW,))
    task = job(tmp_path, rows, CHECKERS, logs=directories, read_log=read_entries, **more)
    return run_local(task)


def kinds(verdict):
    return [finding.kind for finding in verdict.findings]


def test_whole_logs_are_valid(tmp_path):
    durable, prefix = judge(tmp_path, dict.fromkeys(NODES, BASE))
    assert durable.outcome is Outcome.VALID, durable.summary
    assert prefix.outcome is Outcome.VALID, prefix.summary
    assert durable.counts["acknowledged"] == durable.counts["standing"] == 5
    assert prefix.counts["entries"] == 21


def test_dead_minority_is_no_fault(tmp_path):
    logs = {"n0": BASE, "n1": BASE, "n2": BASE[:2]}
    durable, prefix = judge(tmp_path, logs, committed={"n0": 6, "n1": 6})
    assert durable.outcome is Outcome.VALID, durable.summary
    assert prefix.outcome is Outcome.VALID, prefix.summary


def test_overwritten_append_is_lost_and_says_by_what(tmp_path):
    """The leader acknowledged 2 alone; the next leader gave its offset to 9."""
    other = [*BASE[:2], ("q/0", 9), *BASE[3:]]
    rows = [*acks(), op(9, "append", 90, None, "info", input=9, key="q/0")]
    durable, prefix = judge(tmp_path, {"n0": BASE, "n1": other, "n2": other}, rows)
    assert durable.outcome is Outcome.INVALID
    assert kinds(durable) == ["lost-append"]
    finding = durable.findings[0]
    assert (finding.key, finding.offset, finding.operations) == ("q/0", 1, (2,))
    assert finding.details["acknowledged_by"] == "n0"
    assert finding.details["acknowledged_ns"] == 25
    assert finding.details["fault"] == 3
    assert finding.details["faults"] == ["partition 3 (isolate leader n0)"]
    assert finding.details["instead"] == {
        "n0": "it (entry 2)",
        "n1": "9 (op 9, entry 2)",
        "n2": "9 (op 9, entry 2)",
    }
    assert "is lost: 1 of 3 nodes hold it; n1 has 9 (op 9, entry 2) there" in finding.message
    assert prefix.outcome is Outcome.INVALID
    assert kinds(prefix) == ["divergent"]
    assert "n0 holds q/0 offset 1 value 2 of term 1" in prefix.findings[0].message


def test_append_that_vanished_everywhere_is_lost(tmp_path):
    durable, prefix = judge(
        tmp_path, dict.fromkeys(NODES, BASE[:-1]), committed=dict.fromkeys(NODES, 5)
    )
    assert kinds(durable) == ["lost-append"]
    assert durable.findings[0].details["instead"] == dict.fromkeys(NODES, "nothing")
    assert prefix.outcome is Outcome.VALID


def test_no_entries_at_all_are_all_lost(tmp_path):
    durable, prefix = judge(tmp_path, {key: [] for key in NODES})
    assert kinds(durable) == ["lost-append"] * 5
    assert kinds(prefix) == ["gap"] * 3


def test_append_missing_on_one_live_node(tmp_path):
    durable, prefix = judge(tmp_path, {"n0": BASE, "n1": BASE, "n2": BASE[:-1]})
    assert kinds(durable) == ["missing-on-node"]
    assert "2 of 3 nodes hold it; n2 has nothing there" in durable.findings[0].message
    assert kinds(prefix) == ["gap"]
    assert prefix.findings[0].details == {"node": "n2", "first": 6, "last": 6}


def test_live_node_that_is_only_behind_is_a_doubt(tmp_path):
    logs = {"n0": BASE, "n1": BASE, "n2": BASE[:-1]}
    durable, prefix = judge(tmp_path, logs, committed={"n0": 6, "n1": 6, "n2": 5})
    assert durable.outcome is Outcome.UNKNOWN
    assert "had not reached" in durable.summary
    assert prefix.outcome is Outcome.VALID


def test_append_that_nobody_called_committed_is_a_doubt(tmp_path):
    durable, _ = judge(tmp_path, dict.fromkeys(NODES, BASE), committed=dict.fromkeys(NODES, 5))
    assert durable.outcome is Outcome.UNKNOWN
    assert durable.counts["uncommitted"] == 1


def test_entry_held_but_not_yet_known_as_committed_is_a_copy(tmp_path):
    committed = {"n0": 6, "n1": 5, "n2": 5}
    durable, _ = judge(tmp_path, dict.fromkeys(NODES, BASE), committed=committed)
    assert durable.outcome is Outcome.VALID, durable.summary


def test_value_that_nobody_appended_is_altered(tmp_path):
    other = [*BASE[:2], ("q/0", 77), *BASE[3:]]
    durable, _ = judge(tmp_path, dict.fromkeys(NODES, other))
    assert kinds(durable) == ["altered"]
    assert "n0 has 77 (which no client appended, entry 2) there" in durable.findings[0].message


@pytest.mark.parametrize("outcome", ["ok", "info"])
def test_value_that_was_handed_over_to_come_later_is_no_stranger(tmp_path, outcome):
    """A delayed message came to where an acknowledged one had been: lost, and to whom is told."""
    other = [*BASE[:2], ("q/0", 9), *BASE[3:]]
    later = op(9, "delay", 15, 18, outcome, input=9, key="q/0", expected=1000)
    durable, _ = judge(tmp_path, dict.fromkeys(NODES, other), [*acks(), later])
    assert kinds(durable) == ["lost-append"]
    assert "n0 has 9 (op 9, entry 2) there" in durable.findings[0].message
    assert durable.counts["acknowledged"] == 5


def test_value_that_came_later_twice_is_duplicated(tmp_path):
    twice = [*BASE[:4], ("q/0", 9), ("q/0", 9)]
    rows = [*acks((1, 2, 3)), op(9, "delay", 15, 18, input=9, key="q/0", expected=1000)]
    durable, _ = judge(
        tmp_path, dict.fromkeys(NODES, twice), rows, committed=dict.fromkeys(NODES, 5)
    )
    assert kinds(durable) == ["duplicated"]
    assert durable.findings[0].operations == (9,)


def test_each_message_of_a_batch_is_an_append(tmp_path):
    rows = [
        op(1, "batch", 10, 15, input=1, key="q/0", expected=2, offset=0),
        op(3, "append", 30, 35, input=3, key="q/1", offset=0),
        op(4, "batch", 40, None, "info", input=4, key="q/0", expected=2),
    ]
    durable, _ = judge(tmp_path / "whole", dict.fromkeys(NODES, BASE), rows)
    assert durable.outcome is Outcome.VALID, durable.summary
    assert durable.counts["acknowledged"] == durable.counts["standing"] == 3
    half = [*BASE[:2], ("q/0", 5), *BASE[3:]]
    durable, _ = judge(tmp_path / "half", dict.fromkeys(NODES, half), rows)
    assert kinds(durable) == ["lost-append"]
    assert "the append of 2 (op 1)" in durable.findings[0].message
    assert "n0 has 5 (op 4, entry 2) there" in durable.findings[0].message
    rows[0]["expected"] = 1 << 50
    durable, _ = judge(tmp_path / "damaged", dict.fromkeys(NODES, BASE), rows)
    assert durable.outcome is Outcome.UNKNOWN
    assert "a batch of 1,125,899,906,842,624 values, at most 100,000" in durable.summary


def test_append_that_stands_at_another_offset_is_reordered(tmp_path):
    """The group kept 1 and 2, but not in the order that it had acknowledged."""
    other = [BASE[0], ("q/0", 2), ("q/0", 1), *BASE[3:]]
    durable, _ = judge(tmp_path, dict.fromkeys(NODES, other))
    assert durable.outcome is Outcome.INVALID
    assert kinds(durable) == ["reordered"] * 2
    first = durable.findings[0]
    assert (first.offset, first.operations) == (0, (1,))
    assert first.details["value_stands_at"] == {node: [1] for node in NODES}
    assert "is at another offset than the client was given: 0 of 3 nodes" in first.message
    assert "; n0 has 2 (op 2, entry 1)" in first.message


def test_append_that_only_a_minority_has_elsewhere_is_lost(tmp_path):
    other = [*BASE[:2], ("q/0", 9), *BASE[3:], ("q/0", 2, 2)]
    logs = {"n0": other, "n1": [*other[:-1], ("q/0", 8, 2)], "n2": [*other[:-1], ("q/0", 8, 2)]}
    rows = [*acks(), op(9, "append", 90, None, "info", input=9, key="q/0")]
    durable, _ = judge(tmp_path, logs, rows, committed=dict.fromkeys(NODES, 7))
    assert kinds(durable) == ["lost-append"]
    assert durable.findings[0].details["value_stands_at"] == {"n0": [3]}


def test_value_at_two_offsets_is_duplicated(tmp_path):
    logs = {key: [*BASE, ("q/1", 3, 2)] for key in NODES}
    durable, prefix = judge(tmp_path, logs, committed=dict.fromkeys(NODES, 7))
    assert kinds(durable) == ["duplicated"]
    assert durable.findings[0].details["offsets"] == {node: [0, 2] for node in NODES}
    assert durable.findings[0].operations == (3,)
    assert prefix.outcome is Outcome.VALID


def test_damaged_entry_on_a_live_node(tmp_path):
    directories = {}
    for node in NODES:
        directories[node] = tmp_path / node
        directories[node].mkdir(parents=True)
        log = write_log(directories[node], node, BASE)
    path = next((tmp_path / "n1").glob("store/*/data/*"))
    content = bytearray(path.read_bytes())
    content[log.places[3] - 4] ^= 1  # in the properties' length or topic of entry 2
    path.write_bytes(content)
    task = job(
        tmp_path, acks(), CHECKERS, logs=directories, read_log=read_entries,
        committed=dict.fromkeys(NODES, 6),
    )  # fmt: skip
    durable, prefix = run_local(task)
    assert sorted(kinds(durable)) == ["damaged", "missing-on-node"]
    damaged = durable.findings[0]
    assert damaged.message.startswith("entry 2 at position")
    assert damaged.details["node"] == "n1"
    assert prefix.outcome is Outcome.UNKNOWN
    assert "1 damaged" in prefix.summary
    beyond = replace(task, context=replace(task.context, committed={"n0": 6, "n1": 1, "n2": 6}))
    durable, _ = run_local(beyond)
    assert "damaged" not in kinds(durable)
    assert durable.counts["damaged_beyond_commit"] == 1


@pytest.mark.parametrize("committed", [{}, {"n0": 6}])
def test_too_few_answers_are_no_verdict(tmp_path, committed):
    durable, prefix = judge(tmp_path, dict.fromkeys(NODES, BASE), committed=committed)
    for verdict in (durable, prefix):
        assert "nodes reported what they had committed, at least 2 must" in verdict.summary
    assert durable.outcome is prefix.outcome is Outcome.UNKNOWN


@pytest.mark.parametrize("committed", [{}, {"n0": 6}])
def test_what_stands_nowhere_is_lost_whoever_was_silent(tmp_path, committed):
    """Once all logs were empty, 8,394 acknowledged appends gone, and the verdict was unknown."""
    durable, prefix = judge(tmp_path, dict.fromkeys(NODES, BASE[:1]), committed=committed)
    assert durable.outcome is Outcome.INVALID
    assert kinds(durable) == ["lost-append"] * 5
    assert durable.summary.startswith("5 lost-append; only ")
    assert prefix.outcome is (Outcome.INVALID if committed else Outcome.UNKNOWN)


def test_too_few_copies_are_a_loss_whoever_was_silent(tmp_path):
    logs = {"n0": BASE, "n1": BASE[:-1], "n2": BASE[:-1]}
    durable, _ = judge(tmp_path, logs, committed={})
    assert (durable.outcome, kinds(durable)) == (Outcome.INVALID, ["lost-append"])


@pytest.mark.parametrize("fault", ["wipe", "members", "somebodys-own"])
def test_one_copy_is_enough_where_a_fault_took_the_others_and_nobody_saw_them_come_back(
    tmp_path, fault
):
    promises = replace(PROMISES, durable_under=frozenset(("wipe", "members", "kill", "pause")))
    more = struck(fault) | {"families": {"somebodys-own": "process"}}
    logs = {"n0": BASE, "n1": [], "n2": BASE[:-1]}
    durable, _ = judge(tmp_path, logs, committed={}, promises=promises, **more)
    assert durable.outcome is Outcome.UNKNOWN
    assert kinds(durable) == []
    assert "1 acknowledged appends are on fewer nodes than must have them" in durable.summary


def test_nothing_acknowledged_is_no_verdict(tmp_path):
    durable, _ = judge(tmp_path, dict.fromkeys(NODES, BASE), rows=[])
    assert durable.outcome is Outcome.UNKNOWN
    assert "no append was acknowledged" in durable.summary


def test_loss_that_was_not_promised_away_is_observed(tmp_path):
    promises = replace(PROMISES, durable_under=frozenset(("kill",)), committed_prefix=False)
    logs = {"n0": BASE, "n1": BASE[:-1], "n2": BASE[:-1]}
    durable, prefix = judge(tmp_path, logs, promises=promises, **struck("kill", "partition"))
    assert durable.outcome is Outcome.VALID
    assert [finding.kind for finding in durable.observed] == ["lost-append"]
    assert "promises no durability under partition" in durable.summary
    assert prefix.outcome is Outcome.VALID
    assert prefix.observed


def test_loss_under_promised_faults_counts(tmp_path):
    promises = replace(PROMISES, durable_under=frozenset(("kill",)))
    logs = dict.fromkeys(NODES, BASE[:-1])
    durable, _ = judge(tmp_path, logs, promises=promises, **struck("kill"))
    assert durable.outcome is Outcome.INVALID


def test_unreadable_log_is_no_loss(tmp_path):
    def broken(directory, node):
        if node == "n2":
            raise OSError("no disk")
        return read_entries(directory, node)

    for node in NODES:
        (tmp_path / node).mkdir()
        write_log(tmp_path / node, node, BASE)
    logs = {node: tmp_path / node for node in NODES}
    committed = dict.fromkeys(NODES, 6)
    task = job(tmp_path, acks(), CHECKERS, logs=logs, read_log=broken, committed=committed)
    for verdict in run_local(task):
        assert verdict.outcome is Outcome.UNKNOWN
        assert "the log of n2: OSError: no disk" in verdict.summary


@pytest.mark.parametrize("engine", [run_local])
def test_an_unreadable_log_hides_no_loss_that_the_others_prove(tmp_path, engine):
    def broken(directory, node):
        if node == "n2":
            raise OSError("no disk")
        return read_entries(directory, node)

    other = [*BASE[:-1], ("q/1", 9, 2)]
    for node, entries in zip(NODES, (BASE[:3], other, BASE), strict=True):
        (tmp_path / node).mkdir()
        write_log(tmp_path / node, node, entries)
    logs = {node: tmp_path / node for node in NODES}
    task = job(
        tmp_path, acks(), CHECKERS, logs=logs, read_log=broken,
        committed={"n0": 2, "n1": 6, "n2": 6},
    )  # fmt: skip
    durable, prefix = engine(task)
    assert durable.outcome is Outcome.INVALID
    lost = [finding.details["value"] for finding in durable.findings]
    assert lost == [5], "3 and 4 stand on n1, and n2 may have them"
    assert "the log of n2: OSError: no disk" in durable.summary
    assert prefix.outcome is Outcome.UNKNOWN, "what is there agrees"


def test_logs_without_an_entry_show_nothing_if_their_target_vouches_for_none(tmp_path):
    logs = {node: [] for node in NODES}
    told, _ = judge(tmp_path, logs, committed={})
    assert told.outcome is Outcome.INVALID, "its logs can be read, and are empty"
    (tmp_path / "again").mkdir()
    untold, _ = judge(tmp_path / "again", logs, committed={}, logs_declared=False)
    assert (untold.outcome, kinds(untold)) == (Outcome.UNKNOWN, [])
    assert untold.summary.startswith("not judged: no log of any node has an entry")
    (tmp_path / "unpromised").mkdir()
    promises = replace(PROMISES, durable_under=frozenset())
    more = {"committed": {}, "logs_declared": False, "promises": promises}
    unpromised, _ = judge(tmp_path / "unpromised", logs, **more)
    assert (unpromised.outcome, unpromised.observed) == (Outcome.VALID, ())


def test_term_that_falls_and_index_twice(tmp_path):
    entries = [("q/0", 1, 3), ("q/0", 2, 3), ("q/0", 4, 2)]
    rows = acks((1, 2, 4))
    logs = dict.fromkeys(NODES, entries)
    durable, prefix = judge(tmp_path, logs, rows, committed=dict.fromkeys(NODES, 2))
    assert durable.outcome is Outcome.VALID
    assert kinds(prefix) == ["term-fell"] * 3
    assert prefix.findings[0].message == "n0: the term falls from 3 to 2 at index 2."
