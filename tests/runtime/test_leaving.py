"""A node that was asked to leave its group counts as out until it is back, whoever else asks."""

from __future__ import annotations

from shaketable.harness.runtime.processes.disks import Leaving


def test_a_node_is_out_from_when_it_is_asked_until_it_is_back() -> None:
    leaving = Leaving()
    assert leaving.why_not_wiped() is None
    with leaving.asked("n1"):
        assert leaving.why_not_wiped() == "n1 may be out of the group"
    assert leaving.why_not_wiped() == "n1 may be out of the group"
    leaving.is_back("n1")
    assert leaving.why_not_wiped() is None


def test_what_one_fault_brings_back_another_may_yet_take_out() -> None:
    leaving = Leaving()
    with leaving.asked("n1"):
        pass
    with leaving.asked("n1"):
        leaving.is_back("n1")
        assert leaving.why_not_wiped() is not None
    assert leaving.why_not_wiped() is not None
    leaving.is_back("n1")
    assert leaving.why_not_wiped() is None
