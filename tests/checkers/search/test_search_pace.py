"""How long a search stays where it is stuck; and long histories in which much can go wrong."""

from __future__ import annotations

import pytest
import synthetic_histories as made

from shaketable.checkers.models.register import CasRegister
from shaketable.checkers.search import driver
from shaketable.checkers.search.driver import Pace, search
from shaketable.harness.contracts.verdict import Outcome

CAS_REGISTER = CasRegister()
NODES_MAX = 600_000
"""A tenth of what the search looked at before it knew how to leave a place."""


def test_it_goes_back_ever_further_and_then_stays_longer(monkeypatch):
    monkeypatch.setattr(driver, "STALL_NODES", 10)
    monkeypatch.setattr(driver, "BACK_EVENTS", 4)
    monkeypatch.setattr(driver, "BACK_EVENTS_MAX", 16)
    here = Pace()
    seen = [(here.stuck(100), here.stall, here.back) for _ in range(9)]
    assert seen == [
        (True, 10, 4), (False, 10, 8), (False, 10, 16),
        (True, 20, 0), (False, 20, 4), (False, 20, 8), (False, 20, 16),
        (True, 40, 0), (False, 40, 4),
    ]  # fmt: skip
    assert (here.stuck(101), here.stall, here.back) == (True, 10, 4), "a new place"


@pytest.mark.parametrize(("clients", "seed"), [(50, 10_057), (50, 10_050), (20, 70_024)])
def test_many_clients_that_swap_do_not_hold_it_up(clients, seed):
    """Wrong swaps show long after they were chosen: some 10 million nodes, depth first."""
    operations = made.cas_register(seed, 10_000, clients, 0.0)
    problem = CAS_REGISTER.encode(made.as_table(operations), CAS_REGISTER.initial(None))
    nodes = [0]

    def is_over() -> bool:
        nodes[0] += 1
        return nodes[0] > NODES_MAX // 20_000

    found = search(problem, is_over=is_over, memory_bytes_max=1 << 28)
    assert found.outcome is Outcome.VALID
    assert found.nodes < NODES_MAX
