"""The ledger says what is still in force, also when its writer was killed in the middle."""

import os

import pytest

from shaketable.harness.contracts.errors import HarnessError
from shaketable.harness.runtime.ledger import Ledger, OpenFault, open_faults


def write(path) -> None:
    ledger = Ledger(path, iter(range(100)).__next__)
    ledger.applying(0, "kill", {"victims": ["n0"]})
    ledger.applied(0, {"incarnations": {"n0": 1}})
    ledger.undone(0)
    ledger.applying(1, "pause", {"victims": ["n1"]})
    ledger.applied(1, {"incarnations": {"n1": 1}})
    ledger.applying(2, "kill", {})
    ledger.failed(2, "OSError: no")
    ledger.applying(3, "partition", {"links": []})
    ledger.applied(3, {"cut": "cut-0"})
    ledger.stuck(3, "RuntimeError: jammed")
    ledger.applying(4, "kill", {"victims": ["n2"]})
    ledger.close()
    ledger.close()


STILL_OPEN = (
    OpenFault(4, "kill", {"victims": ["n2"]}, None, is_applied=False),
    OpenFault(3, "partition", {"links": []}, {"cut": "cut-0"}),
    OpenFault(1, "pause", {"victims": ["n1"]}, {"incarnations": {"n1": 1}}),
)


def test_open_faults_are_those_applied_and_not_undone_newest_first(tmp_path):
    write(tmp_path / "faults.jsonl")
    assert open_faults(tmp_path / "faults.jsonl") == STILL_OPEN
    assert open_faults(tmp_path / "none.jsonl") == ()


def test_a_torn_last_line_is_left_out_at_any_length(tmp_path):
    path = tmp_path / "faults.jsonl"
    write(path)
    whole = path.read_bytes()
    torn = b'{"event":"undone","fault":1,"at_ns":99}\n'
    for size in range(len(torn)):
        path.write_bytes(whole + torn[:size])
        assert open_faults(path) == STILL_OPEN
    path.write_bytes(whole + torn)
    assert open_faults(path) == STILL_OPEN[:2]


def test_a_bad_line_in_the_middle_is_one_clear_error(tmp_path):
    path = tmp_path / "faults.jsonl"
    path.write_bytes(b'{"event": "und\n{"event":"undone","fault":1}\n')
    with pytest.raises(HarnessError, match=r"faults\.jsonl: line 1 is no JSON"):
        open_faults(path)
    with pytest.raises(HarnessError, match="cannot write"):
        Ledger(tmp_path / "no" / "faults.jsonl", lambda: 0)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("[1]", "line 1 is no event of a run"),
        ('{"event":"applied","fault":7,"undo":{}}', "fault 7 was applied, and never begun"),
    ],
)
def test_what_no_harness_writes_is_one_clear_error(tmp_path, line, told):
    path = tmp_path / "faults.jsonl"
    path.write_text(f"{line}\n")
    with pytest.raises(HarnessError, match=told):
        open_faults(path)


def test_nothing_is_written_behind_half_a_line(tmp_path, monkeypatch):
    """A disk that is full takes a part of a line; there is room again for the next one."""
    path = tmp_path / "faults.jsonl"
    ledger = Ledger(path, lambda: 0)
    ledger.applying(0, "kill", {})
    write_all = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write_all(fd, data[: len(data) // 2]))
    with pytest.raises(HarnessError, match="the disk is full"):
        ledger.applied(0, {})
    monkeypatch.undo()
    ledger.undone(0)
    ledger.close()
    assert open_faults(path) == ()
    assert path.read_bytes().count(b"\n") == 4
