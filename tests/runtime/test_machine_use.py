"""What of the machine other work took, from the kernel's account and ours."""

from __future__ import annotations

import pytest

from shaketable.harness.runtime.facts import Reading, machine_use_between, parse, read_machine

STAT = "cpu  100 0 50 800 30 5 5 10 0 0\ncpu0 1 2 3\n"


def test_the_kernels_account_is_read() -> None:
    assert parse(STAT, 100) == pytest.approx((10.0, 1.7))
    for odd in ("intr 1 2 3\n", "cpu 1 2\n", "cpu a b c d e f g h\n"):
        with pytest.raises(ValueError, match=r"."):
            parse(odd, 100)


def test_what_is_neither_idle_nor_ours_is_others() -> None:
    facts = machine_use_between(Reading(100, 40, 10), Reading(200, 110, 40))
    assert facts["busy_with_others"] == pytest.approx(0.4)
    assert machine_use_between(Reading(100, 40, 10), Reading(200, 50, 40))["busy_with_others"] == 0
    assert machine_use_between(None, Reading(200, 50, 40))["busy_with_others"] is None


def test_this_machine_has_an_account() -> None:
    now = read_machine()
    assert now is not None
    assert now.total_s >= now.busy_s > 0
