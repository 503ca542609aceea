"""Drawn histories: valid by construction in every model, and wrong ones among the perturbed."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, find, given, settings
from hypothesis import strategies as st

from shaketable.checkers.api import Operation, Outcome, check, to_operations
from shaketable.harness.contracts.errors import UsageError
from shaketable.harness.testing.strategies import (
    OBJECTS,
    Answer,
    Choose,
    Request,
    histories,
    models,
    perturbed_histories,
)
from tests.support.volume import volume

CALM = settings(
    max_examples=volume(60), deadline=None, database=None, suppress_health_check=list(HealthCheck)
)


@pytest.mark.parametrize("model", sorted(OBJECTS))
def test_drawn_histories_are_linearizable(model: str) -> None:
    @CALM
    @given(histories(model))
    def holds(history: list[Operation]) -> None:
        verdict = check(history, model)
        assert verdict.outcome is Outcome.VALID or not history, verdict.summary

    holds()


@pytest.mark.parametrize("model", sorted(OBJECTS))
def test_some_perturbed_histories_are_not(model: str) -> None:
    wrong = []

    @settings(CALM, max_examples=150)
    @given(perturbed_histories(model, clients=2, operations_max=8, with_unknown=False))
    def judge(history: list[Operation]) -> None:
        if history and check(history, model).outcome is Outcome.INVALID:
            wrong.append(history)

    judge()
    assert wrong


@CALM
@given(st.data(), models())
def test_clients_call_one_by_one(data: st.DataObject, model: str) -> None:
    history = data.draw(histories(model, clients=2, operations_max=10))
    assert len(history) <= 10
    ends: dict[int, float] = {}
    for each in history:
        assert ends.get(each.process, -1.0) < each.call_ns
        ends[each.process] = float("inf") if each.return_ns is None else each.return_ns
    assert to_operations(history).num_rows == len(history)


def test_unknown_outcomes_are_drawn_and_can_be_left_out() -> None:
    def has_unknown(history: list[Operation]) -> bool:
        return any(each.return_ns is None for each in history)

    assert has_unknown(find(histories("register"), has_unknown, settings=CALM))

    @CALM
    @given(histories("register", with_unknown=False))
    def has_none(history: list[Operation]) -> None:
        assert not has_unknown(history)

    has_none()


def test_an_object_of_ones_own() -> None:
    class Flag:
        """A register of true and false."""

        def __init__(self, values: int) -> None:
            self.value = 0

        def ask(self, choose: Choose, client: int) -> Request:
            return Request("write", choose(2)) if choose(2) else Request("read")

        def answer(self, asked: Request, choose: Choose, client: int) -> Answer:
            if asked.f == "read":
                return Answer(self.value)
            self.value = asked.input
            return Answer()

    @CALM
    @given(histories(Flag))
    def holds(history: list[Operation]) -> None:
        assert not history or check(history, "register", initial="0").outcome is Outcome.VALID

    holds()


def test_an_unknown_model_is_told() -> None:
    with pytest.raises(UsageError, match="did you mean 'mutex'"):
        find(histories("mutx"), lambda _: True, settings=CALM)
