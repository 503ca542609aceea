"""Hypothesis strategies for histories of a model.

    @given(histories("cas-register"))
    def test_my_checker_accuses_no_healthy_run(history):
        assert check(history, "cas-register").outcome is Outcome.VALID

`histories` are linearizable by construction: each operation takes effect at one moment between
its call and its return. `perturbed_histories` are the same with one change, which may or may not
make them invalid. Both are lists of `checkers.api.Operation`.

Source: Jepsen's and porcupine's generators of test histories; knossos.model for the objects.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from shaketable.checkers.api import Operation
from shaketable.harness.contracts.errors import UsageError
from shaketable.harness.testing.objects import OBJECTS, Answer, Object, Request

CLIENTS: Final = 3
OPERATIONS_MAX: Final = 16
VALUES: Final = 3


@dataclass(slots=True)
class _Call:
    """A call in progress; `answer` is set once it took effect."""

    request: Request
    call_ns: int
    process: int
    answer: Answer | None = None


@st.composite
def histories(
    draw: DrawFn,
    /,
    model: str | Callable[[int], Object] = "cas-register",
    *,
    clients: int = CLIENTS,
    operations_max: int = OPERATIONS_MAX,
    values: int = VALUES,
    with_unknown: bool = True,
) -> list[Operation]:
    """Draw linearizable histories of one object.

    Args:
        draw: given by Hypothesis.
        model: name of a built-in model, or a factory of your own object
            (`harness.testing.objects.Object`) from a number of values.
        clients: number of concurrent clients.
        operations_max: most operations of a history.
        values: number of different values that are written.
        with_unknown: whether some operations never return.
    """
    model_object = _object(model, values)
    left = draw(st.integers(0, operations_max))

    def choose(below: int) -> int:
        return draw(st.integers(0, below - 1))

    idle = list(range(clients))
    calls: list[_Call] = []
    done: list[Operation] = []
    now, fresh = 0, clients - 1
    while left or calls:
        now += 1
        can_call = bool(left and idle)
        what = choose(len(calls) + can_call)
        if what == len(calls):
            process = idle.pop(choose(len(idle)))
            calls.append(_Call(model_object.ask(choose, process), now, process))
            left -= 1
            continue
        call = calls[what]
        if call.answer is None:
            if with_unknown and choose(12) == 0:  # never takes effect, outcome unknown
                ended: Operation = _operation(call, None)
            else:
                # The linearization point: one moment between the call and its return.
                call.answer = model_object.answer(call.request, choose, call.process)
                continue
        elif with_unknown and choose(12) == 0:  # took effect, outcome unknown
            ended = _operation(call, None)
        else:
            ended = _operation(call, now)
        calls.remove(call)
        done.append(ended)
        if ended.return_ns is None:  # as in Jepsen, its client continues as a new process
            fresh += 1
            idle.append(fresh)
        else:
            idle.append(call.process)
    return sorted(done, key=lambda operation: operation.call_ns)


@st.composite
def perturbed_histories(
    draw: DrawFn, /, model: str | Callable[[int], Object] = "cas-register", **how: Any
) -> list[Operation]:
    """Draw histories with one wrong answer, or one operation moved in time.

    Arguments are those of `histories`. Some results are still linearizable: let a second checker
    decide.
    """
    history = list(draw(histories(model, **how)))
    known = [n for n, each in enumerate(history) if each.return_ns is not None]
    if not known:
        return history
    place = draw(st.sampled_from(known))
    wrong = history[place]
    assert wrong.return_ns is not None
    alike = [each for each in history if each.f == wrong.f and each.return_ns is not None]
    if draw(st.booleans()):
        other = draw(st.sampled_from(alike))
        offset = other.offset if wrong.f == "append" else wrong.offset
        outputs = [each.output for each in alike]
        if isinstance(wrong.output, int):  # or a value that any client wrote
            outputs += [each.input for each in history if isinstance(each.input, int)]
        output = draw(st.sampled_from(outputs))
        history[place] = replace(wrong, output=output, offset=offset)
    else:
        length = wrong.return_ns - wrong.call_ns
        call_ns = draw(st.integers(0, max(each.call_ns for each in history)))
        history[place] = replace(wrong, call_ns=call_ns, return_ns=call_ns + length)
    return sorted(history, key=lambda operation: operation.call_ns)


def models() -> SearchStrategy[str]:
    """Draw the name of a built-in model that `histories` supports."""
    return st.sampled_from(sorted(OBJECTS))


def _object(model: str | Callable[[int], Object], values: int) -> Object:
    if not isinstance(model, str):
        return model(values)
    if model not in OBJECTS:
        nearest = difflib.get_close_matches(model, OBJECTS, n=1, cutoff=0.5)
        meant = f"; did you mean {nearest[0]!r}?" if nearest else ""
        raise UsageError(f"no histories of {model!r}{meant} (there are: {', '.join(OBJECTS)})")
    return OBJECTS[model](values)


def _operation(call: _Call, return_ns: int | None) -> Operation:
    request, answer = call.request, call.answer
    is_known = return_ns is not None and answer is not None
    offset = answer.offset if is_known and answer and answer.offset is not None else request.offset
    return Operation(
        process=call.process,
        f=request.f,
        call_ns=call.call_ns,
        return_ns=return_ns,
        input=request.input,
        output=answer.output if is_known and answer else None,
        expected=request.expected,
        offset=offset,
    )
