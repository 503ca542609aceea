"""Models of others that raise, or break their promises: UNKNOWN, and one line that says why."""

from __future__ import annotations

import itertools

import pytest

from shaketable.checkers.api import Operation, check
from shaketable.checkers.models.encoding import encode_calls
from shaketable.harness.contracts.verdict import Outcome

RIGHT = [
    Operation(0, "write", 0, 1, input=1),
    Operation(0, "read", 2, 3, output=1),
    Operation(1, "write", 2, 9, input=2),
    Operation(2, "read", 10, 11, output=2),
]
WRONG = [*RIGHT, Operation(2, "read", 12, 13, output=1)]


class Plain:
    """A register; what it says is right."""

    name = "odd"
    fs = frozenset(("read", "write"))
    observers = frozenset(("read",))
    overwriters = frozenset(("write",))

    def initial(self, _text):
        return 0

    def encode(self, operations, initial):
        return encode_calls(self, operations, initial)

    def step(self, state, call):
        if call.f == "write":
            return call.input
        return state if call.output == state else None

    def describe_state(self, state):
        return str(state)

    def describe_call(self, call):
        return call.f

    def why_not(self, _state, _call):
        return "it read something else"


class Raising(Plain):
    def step(self, state, call):
        if call.f == "read":
            raise ValueError("no reads today\nwhatever stands in the second line")
        return super().step(state, call)


class Unhashable(Plain):
    def step(self, state, call):
        return [1]


class Endless(Plain):
    def step(self, state, call):
        return self.step(state, call)


class ChangingObserver(Plain):
    def step(self, state, call):
        return state + 1 if call.f == "read" else super().step(state, call)


class RefusingOverwriter(Plain):
    def step(self, state, call):
        return None if (call.f, state) == ("write", 1) else super().step(state, call)


class RememberingOverwriter(Plain):
    def step(self, state, call):
        return (state, call.input) if call.f == "write" else super().step(state, call)


class Forgetful(Plain):
    """Refuses whatever it is asked for the first time; promises nothing."""

    observers = overwriters = frozenset()

    def __init__(self):
        self.asked = set()

    def step(self, state, call):
        is_new = (state, call) not in self.asked
        self.asked.add((state, call))
        return None if is_new else super().step(state, call)


class Counting(Plain):
    """Gives each answer once."""

    observers = overwriters = frozenset()

    def __init__(self):
        self.number = itertools.count()

    def step(self, state, call):
        return next(self.number)


class NotANumber(Plain):
    observers = overwriters = frozenset()

    def step(self, state, call):
        return float("nan")


def test_a_model_that_keeps_its_promises_decides():
    assert check(RIGHT, Plain()).outcome is Outcome.VALID
    assert check(WRONG, Plain()).outcome is Outcome.INVALID


@pytest.mark.parametrize("history", [RIGHT, WRONG])
@pytest.mark.parametrize(
    ("model", "says"),
    [
        (Raising, "the model raised ValueError: no reads today, when asked for read in the state"),
        (Unhashable, "a state that cannot be kept: TypeError: unhashable type: 'list'"),
        (Endless, "the model raised RecursionError"),
        (ChangingObserver, "promise that an observer changes nothing: it went from"),
        (RefusingOverwriter, "promise that an overwriter is always possible: it went from 1"),
        (RememberingOverwriter, "promise that an overwriter leads to one state from all"),
        (Forgetful, "the model does not answer the same when asked again: from 0 it went to None"),
    ],
)
def test_what_cannot_be_trusted_decides_nothing(model, says, history):
    verdict = check(history, model())
    assert verdict.outcome is Outcome.UNKNOWN
    assert says in verdict.summary
    assert "\n" not in verdict.summary
    assert len(verdict.summary) < 300


@pytest.mark.parametrize("model", [Counting, NotANumber])
def test_a_witness_that_cannot_be_replayed_is_refused(model):
    verdict = check(RIGHT, model())
    assert verdict.outcome is Outcome.UNKNOWN
    assert "\n" not in verdict.summary
