"""The commands' view of the simulated worlds says what the worlds themselves say."""

from __future__ import annotations

import typing

import pytest

from shaketable.harness.contracts.errors import UsageError
from shaketable.harness.contracts.simulation import RunSpec, Step, Tally, hunt
from shaketable.harness.targets.dledger import PLUGIN
from shaketable.harness.targets.simulators import CORE, INPUTS, ROLES, DLedgerSimulator
from shaketable.system.mutants import catalogue
from shaketable.system.raft.protocol import Message, Role
from shaketable.system.sim import world as core_world

SIMULATOR = DLedgerSimulator()
ASK = RunSpec(seed=3, world=CORE, virtual_s=10.0)


def test_the_states_are_those_of_the_protocol() -> None:
    assert set(ROLES) == {role.value for role in Role}
    messages = {kind.__name__ for kind in typing.get_args(Message)}
    assert set(INPUTS) == {"entered", "tick", *messages}
    reached = SIMULATOR.run(ASK).states
    assert reached
    assert reached <= SIMULATOR.states(CORE)


def test_a_seed_is_the_same_run_each_time_with_and_without_its_trace() -> None:
    lines: list[str] = []
    first, again = SIMULATOR.run(ASK), SIMULATOR.run(ASK, lines.append)
    assert first == again
    assert len(lines) > 100
    assert SIMULATOR.run(RunSpec(seed=4, world=CORE, virtual_s=10.0)).digest != first.digest
    tally = Tally()
    tally.add(first)
    assert tally.operations_per_virtual_s >= 200
    assert tally.faults >= 1


def test_a_replay_takes_the_steps_of_the_trace() -> None:
    lines: list[str] = []
    steps: list[Step] = []
    SIMULATOR.run(ASK, lines.append)
    assert SIMULATOR.replay(ASK, steps.append) is None
    assert [f"{step.at_ms:.3f} {step.what}" for step in steps] == [
        f"{float(line.split()[0]):.3f} {line.strip().partition(' ')[2].strip()}" for line in lines
    ]
    said = {node: state for step in steps for node, state in step.nodes.items()}
    assert any(state.startswith("leader of term ") for state in said.values())


def test_a_planted_bug_is_hunted_down_and_replayed() -> None:
    spec = RunSpec(seed=1, world=CORE, mutant="ack-before-quorum")
    found = hunt(SIMULATOR, spec, seeds_max=20)
    assert found.violation is not None
    guilty = RunSpec(seed=found.first_seed + found.seeds - 1, world=CORE, mutant=spec.mutant)
    assert SIMULATOR.replay(guilty, lambda step: None) == found.violation
    assert SIMULATOR.run(guilty).violation == found.violation
    assert core_world.run_seed(guilty.seed).violation is None, "without the bug it is clean"


def test_a_file_that_is_no_run_is_refused_in_one_line(tmp_path) -> None:
    path = tmp_path / "x.json"
    path.write_text("{}")
    with pytest.raises(UsageError, match=r"x\.json") as told:
        SIMULATOR.replay_file(path, lambda step: None)
    assert "\n" not in str(told.value)


def test_the_target_offers_it_and_the_same_planted_bugs() -> None:
    assert isinstance(PLUGIN.simulator, DLedgerSimulator)
    simulated = {bug.name for bug in catalogue() if bug.is_simulated}
    assert simulated == set(SIMULATOR.mutants)
    assert SIMULATOR.mutants.items() <= PLUGIN.mutants.items()
    assert all(PLUGIN.mutants.values())
