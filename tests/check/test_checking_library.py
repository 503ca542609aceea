"""checkers.api: histories as objects, tables and paths; what it refuses; models recognised."""

from __future__ import annotations

from pathlib import Path

import pytest
from check_samples import stale_read
from hard_queue import hard_queue

from shaketable.checkers.api import (
    Event,
    NotLinearizableError,
    Operation,
    Outcome,
    assert_linearizable,
    check,
    to_operations,
)
from shaketable.checkers.linearizability.model_choice import (
    model_named,
    model_names,
    recognise_model,
)
from shaketable.harness.contracts.errors import UsageError


def test_events_operations_tables_and_paths_are_histories(tmp_path: Path) -> None:
    table = to_operations(stale_read())
    lines = tmp_path / "h.edn"
    lines.write_text(
        "\n".join(
            f"{{:process {e.process}, :type :{e.type}, :f :{e.f},"
            f" :value {'nil' if e.value is None else e.value}}}"
            for e in stale_read()
        )
    )
    operations = [
        Operation(0, "write", 0, 1, input=3), Operation(1, "write", 2, 5, input=4),
        Operation(2, "read", 3, 4, output=4), Operation(2, "read", 6, 7, output=3),
    ]  # fmt: skip
    for history in (stale_read(), iter(stale_read()), table, lines, str(lines), operations):
        verdict = check(history, "register")
        assert verdict.outcome is Outcome.INVALID
        assert verdict.findings[0].details["stuck"] in verdict.findings[0].operations


def test_each_key_is_an_object_of_its_own() -> None:
    def one(key: str, wrong: int) -> list[Event]:
        return [Event(e.process, e.type, e.f, wrong if e.value == 3 and e.f == "read" else e.value,
                      key) for e in stale_read()]  # fmt: skip

    assert check([*one("a", 4), *one("b", 4)]).outcome is Outcome.VALID
    verdict = check([*one("a", 4), *one("b", 3), *one("c", 4)])
    assert [finding.key for finding in verdict.findings] == ["b"]


def test_a_model_of_ones_own() -> None:
    class Evens(type(model_named("register"))):
        """A register that reads as twice what was written."""

        name = "evens"

        def step(self, state: object, call: object) -> object:
            if call.f == "read" and call.output not in (None, state):  # type: ignore[attr-defined]
                return None
            return super().step(state, call)

    assert check(stale_read(), Evens()).outcome is Outcome.INVALID


def test_time_that_is_over_is_unknown() -> None:
    verdict = check([Operation(**row) for row in hard_queue()], "fifo-queue", time_s=0.1)
    assert verdict.outcome is Outcome.UNKNOWN
    assert verdict.data["undecided"]


def test_nothing_to_check_is_no_success() -> None:
    assert check([]).outcome is Outcome.UNKNOWN
    unknown = [Event(0, "invoke", "write", 1), Event(0, "info", "write")]
    assert check(unknown).outcome is Outcome.VALID
    with pytest.raises(NotLinearizableError, match="nothing to object to"):
        assert_linearizable(unknown)


def test_a_history_that_lacks_an_invoke_proves_nothing() -> None:
    assert check(stale_read()[1:], "register").outcome is Outcome.UNKNOWN


def test_the_error_says_why() -> None:
    with pytest.raises(NotLinearizableError, match="read 3 by process 2") as caught:
        assert_linearizable(stale_read(), "cas-register")
    assert caught.value.verdict.outcome is Outcome.INVALID


@pytest.mark.parametrize(
    ("history", "model", "told"),
    [
        (stale_read(), "registre", "did you mean 'register'?"),
        (stale_read(), "mutex", "the model mutex has no read, write"),
        ([Event(0, "began", "read")], None, "'began' is no type of an event"),
        ([3], None, "3 is neither an Event nor an Operation"),
        ([Operation(0, "read", 5, 3)], None, "before its call"),
        ([Event(0, "invoke", "cas", 3)], None, "the value of a cas is [old new]"),
        ([Event(0, "invoke", "read", time_ns=3), Event(0, "ok", "read")], None, "have none"),
    ],
)
def test_what_is_no_history_gets_one_line(history: object, model: str | None, told: str) -> None:
    with pytest.raises(UsageError) as caught:
        check(history, model)  # type: ignore[arg-type]
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


RECOGNISED = {
    "register": [Operation(0, "write", 0, 1, input=1), Operation(0, "read", 2, 3, output=1)],
    "cas-register": [Operation(0, "cas", 0, 1, input=1, expected=0, output=0)],
    "kv": [Operation(0, "append", 0, 1, input="a"), Operation(0, "get", 2, 3, output="a")],
    "append-log": [Operation(0, "append", 0, 1, input=5, offset=0)],
    "mutex": [Operation(0, "acquire", 0, 1)],
    "set": [Operation(0, "add", 0, 1, input=1), Operation(0, "read", 2, 3, output=[1])],
    "counter": [Operation(0, "add", 0, 1, input=1), Operation(0, "read", 2, 3, output=1)],
    "multi-register": [Operation(0, "txn", 0, 1, input=[["w", "x", 1]], output=[["w", "x", 1]])],
}


@pytest.mark.parametrize("name", RECOGNISED)
def test_models_are_recognised_by_their_operations(name: str) -> None:
    assert recognise_model(to_operations(RECOGNISED[name])).name == name
    assert check(RECOGNISED[name]).outcome is Outcome.VALID


@pytest.mark.parametrize(
    ("history", "told"),
    [
        ([Operation(0, "enqueue", 0, 1, input=1)], "--model fifo-queue or --model unordered-queue"),
        ([Operation(0, "add", 0, 1, input=1)], "--model multiset or --model set"),
        ([Operation(0, "fly", 0, 1)], "no model has all of the operations fly"),
        ([Operation(0, "txn", 0, 1, input=[["append", "x", 1]])], "--checkers isolation"),
    ],
)
def test_what_tells_no_model_is_asked_for(history: list[Operation], told: str) -> None:
    with pytest.raises(UsageError) as caught:
        recognise_model(to_operations(history))
    assert told in str(caught.value)


def test_every_model_has_its_name() -> None:
    assert all(model_named(name).name == name for name in model_names())
