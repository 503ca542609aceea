"""Some hundreds of random histories of each model; tests/benchmarks/fuzz_models.py runs more."""

from __future__ import annotations

from collections import Counter

import pytest

from shaketable.harness import compiled, discovery
from tests.support.model_fuzz import compare
from tests.support.random_objects import OBJECTS
from tests.support.volume import volume

HISTORIES = volume(400)
METHODS = {
    "register": {"by_zones"},
    "cas-register": {"by_zones"},
    "fifo-queue": {"by_fifo", "by_pairs"},
    "kv": {"by_texts"},
    "unordered-queue": {"by_bag"},
    "set": {"by_set-levels"},
    "append-log": {"by_log-offsets"},
    "stack": {"by_bottoms", "by_words"},
    "priority-queue": {"by_priorities"},
    "min-priority-queue": {"by_priorities"},
    "semaphore": {"by_permits"},
    "membership-set": {"by_elements"},
    "multiset": {"by_elements"},
}
NEVER_SEARCHED = {"kv", "stack"}
"""Their special cases decide everything within the budget; `compare` searches besides."""


@pytest.mark.parametrize("name", sorted(OBJECTS))
def test_agrees_with_brute_force_and_the_search_alone(name, monkeypatch):
    model = discovery.get("models", name)
    seen = Counter()
    for seed in range(HISTORIES):
        if seed % 2:  # as the first check of a process: its kernels run as Python
            monkeypatch.setattr(compiled, "_left", compiled.INTERPRETED_MAX)
        seen.update(compare(model, 1_000_000 + seed))
    assert seen["histories"] == HISTORIES
    assert seen["invalid"] > HISTORIES / 5
    assert seen["valid"] > HISTORIES / 5
    assert seen["with_unknown"] > HISTORIES / 5
    searched = set() if name in NEVER_SEARCHED else {"by_search"}
    for method in METHODS.get(name, set()) | searched:
        assert seen[method] > HISTORIES / 20


def test_every_model_has_random_histories():
    assert set(OBJECTS) == set(discovery.find("models"))
