"""SIGKILL of the harness while nodes are stopped or cut off: after `heal` nothing is left.

All faults on all worlds: tests/soaks/killed_harness.py.
"""

import tempfile
from pathlib import Path

import pytest
from killed_harness import mounts_of, try_one

from shaketable.harness.network.probe import why_no_namespace

pytestmark = pytest.mark.e2e


def test_a_trial_answers_for_mounts_of_its_own_and_outside_of_temporary_folders():
    place = Path(tempfile.gettempdir()).resolve()
    where = [f"{place}/a\\040b/n1/disk", f"{place}/other/n1/disk", "/mnt", f"{place}/a"]
    lines = [f"{n} 27 7:{n} / {at} rw - ext4 /dev/loop{n} rw" for n, at in enumerate(where)]
    assert [line.split()[3] for line in mounts_of(place / "a b", "\n".join(lines))] == [
        where[0],
        where[2],
    ]


@pytest.mark.parametrize(
    ("fault", "world", "variant"),
    [
        ("pause", "process", "unguarded"),  # stopped nodes outlive it, and obey no SIGTERM
        ("kill", "process", "applying"),  # the ledger has a plan, and perhaps no undo
        ("clock", "netns", "unguarded"),  # namespaces are held by nodes that were given orders
    ],
)
def test_nothing_is_left_of_a_killed_run_after_heal(fault, world, variant, tmp_path):
    if world == "netns" and (why := why_no_namespace()) is not None:
        pytest.skip(why)
    trial = try_one(fault, world, variant, tmp_path)
    assert trial.problem == ""
    assert trial.left == ()
    assert trial.codes == [0, 0]
    if variant == "applying":  # what there was could not be looked at in time
        assert trial.survived > 0
        assert any(f"({fault})" in line for line in trial.healed)
        return
    processes, spaces = trial.before
    assert processes >= 6  # the harness, two workers, three nodes
    assert spaces >= (4 if world == "netns" else 0)
    assert (trial.survived > 0) == (variant == "unguarded")
    ended = [line for line in trial.healed if line.startswith("ended process")]
    assert len(ended) == trial.survived
    assert any(f"({fault})" in line for line in trial.healed)
    orders = sum(line.startswith("took the orders") for line in trial.healed)
    assert orders == (3 if fault == "clock" else 0)
