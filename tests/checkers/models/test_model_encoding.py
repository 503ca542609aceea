"""How operations become problems: numbering, extras, what is left out, what is refused."""

from __future__ import annotations

from random import Random

import numpy as np
import pyarrow as pa
import pytest

from shaketable.checkers.models import encoding
from shaketable.checkers.models.model import UNKNOWN, Call
from shaketable.checkers.search.problem import NEVER, Access, Family
from shaketable.harness import discovery
from shaketable.harness.contracts.errors import UsageError
from shaketable.harness.history.schema import OPERATIONS
from tests.support.checker_histories import op
from tests.support.model_histories import parse_model_history


def encode(model, text, initial=None):
    found = discovery.get("models", model)
    table = pa.Table.from_pylist(parse_model_history(text), OPERATIONS)
    return found.encode(table, found.initial(initial))


def test_what_needs_no_place_is_left_out():
    problem = encode(
        "cas-register",
        "0..1 p0 write 1 -> fail\n0..? p0 read -> info\n0..? p1 write 2 -> info\n"
        "0..? p1 cas 3 3 -> info\n2..3 p2 read -> ok 2\n",
    )
    assert problem.op.tolist() == [2, 4]
    assert problem.return_ns.tolist() == [NEVER, 3]


def test_kinds_of_a_cas_register():
    problem = encode(
        "cas-register",
        "0..1 p0 cas 1 2 -> ok 1\n0..1 p1 cas 1 2 -> ok\n0..1 p1 cas 1 2 -> ok 0\n"
        "0..1 p2 cas 2 2 -> ok\n0..1 p3 read -> ok 2\n0..1 p4 write 2 -> ok\n",
    )
    assert problem.family is Family.VALUE
    assert problem.kind.tolist() == [0, 0, 1, 2, 2, 3]
    codes = [Access.CAS, Access.NOT, Access.READ, Access.WRITE]
    assert problem.kinds.code.tolist() == codes
    assert problem.kinds.observes.tolist() == [False, True, True, False]
    assert problem.kinds.overwrites.tolist() == [False, False, False, True]
    assert problem.step((1,), 0) == (2,)
    assert problem.step((3,), 0) is None
    assert problem.step((1,), 1) is None


def test_equal_values_have_equal_numbers_wherever_they_stand():
    problem = encode("register", '0..1 p0 write "x" -> ok\n2..3 p1 read -> ok "x"\n', '"x"')
    write, read = problem.kind.tolist()
    assert problem.kinds.b[write] == problem.kinds.a[read] == problem.initial


def test_a_text_and_a_number_are_two_values():
    problem = encode("register", '0..1 p0 write 1 -> ok\n2..3 p1 read -> ok "1"\n')
    write, read = problem.kind.tolist()
    assert problem.kinds.b[write] != problem.kinds.a[read]


def test_a_dequeue_that_found_nothing_changes_nothing():
    text = "0..1 p0 enqueue 1 -> ok\n2..3 p1 dequeue -> ok null\n"
    for model in ("fifo-queue", "unordered-queue"):
        assert encode(model, text).kinds.observes.tolist() == [False, True]
    lost = text + "0..? p2 dequeue -> info\n"
    assert not encode("unordered-queue", lost).kinds.observes.any()
    assert encode("fifo-queue", lost).kinds.observes.tolist() == [False, True, False]


def test_a_transaction_that_only_reads_changes_nothing():
    problem = encode(
        "multi-register",
        '0..1 p0 txn [["r","x",null]] -> ok [["r","x",null]]\n'
        '0..1 p0 txn [["w","x",1]] -> ok [["w","x",1]]\n'
        '0..? p0 txn [["r","x",null]] -> info\n',
    )
    assert problem.op.tolist() == [0, 1]
    assert problem.kinds.observes.tolist() == [True, False]


@pytest.mark.parametrize(
    ("model", "text", "says"),
    [
        ("register", "0..1 p0 wrte 1 -> ok", "operation 0 is a 'wrte'.*did you mean 'write'"),
        ("register", "0..1 p0 cas 1 2 -> ok", "does not know.*it knows: read, write"),
        ("register", "0..1 p0 write -> ok", r"operation 0 \(write\) has no value to write"),
        ("register", "4..1 p0 write 1 -> ok", "operation 0 returned before it was called"),
        ("counter", "0..1 p0 read -> ok", r"operation 0 \(read\) has no sum"),
        ("counter", "0..1 p0 add -> ok", "has no number to add"),
        ("set", "0..1 p0 read -> ok 3", "returned 3, not a list"),
        ("fifo-queue", "0..1 p0 enqueue -> ok", "has no value to enqueue"),
        ("append-log", "0..1 p0 append 3 -> ok", "has no offset"),
        ("append-log", "0..1 p0 end -> ok", "has no offset that it answered"),
        ("multi-register", '0..1 p0 txn [["q","x",1]] -> ok [["q","x",1]]', "is no list of"),
    ],
)
def test_what_a_model_refuses(model, text, says):
    with pytest.raises(UsageError, match=says):
        encode(model, text)


def test_an_answer_without_a_time_is_refused():
    model = discovery.get("models", "register")
    rows = [op(7, "read", 0, None, "ok")]
    with pytest.raises(UsageError, match="operation 7 is ok, but has no time"):
        model.encode(pa.Table.from_pylist(rows, OPERATIONS), model.initial(None))


@pytest.mark.parametrize(
    ("model", "text", "state"),
    [
        ("register", None, (None,)), ("register", "nil", (None,)), ("register", "-3", (-3,)),
        ("register", '"a"', ("a",)), ("mutex", None, "free"), ("mutex", "held", "held"),
        ("counter", "5", 5), ("set", "[1, 2]", frozenset((1, 2))), ("fifo-queue", "[2, 1]", (2, 1)),
        ("append-log", None, ()), ("kv", "ab", "ab"), ("kv", None, ""),
        ("multi-register", '{"x": 1, "y": null}', frozenset((("x", 1),))),
    ],
)  # fmt: skip
def test_first_states(model, text, state):
    assert discovery.get("models", model).initial(text) == state


@pytest.mark.parametrize(
    ("model", "text"),
    [
        ("register", "1.5"), ("mutex", "open"), ("counter", "x"), ("set", "1"),
        ("fifo-queue", "[[1]]"), ("append-log", "{"), ("multi-register", "[1]"),
    ],
)  # fmt: skip
def test_what_is_no_first_state(model, text):
    with pytest.raises(UsageError) as refused:
        discovery.get("models", model).initial(text)
    assert "\n" not in str(refused.value)


def test_a_bag_settles_lost_dequeues_when_it_is_found_empty():
    model = discovery.get("models", "unordered-queue")
    bag = model.initial("[1, 1, 2]")
    bag = model.step(bag, Call("dequeue", output=1))
    assert model.step(bag, Call("dequeue", output=None)) is None
    for _ in range(3):
        bag = model.step(bag, Call("dequeue", output=UNKNOWN))
    empty = model.step(bag, Call("dequeue", output=None))
    assert (empty.size, empty.deferred) == (0, 1)
    assert model.step(empty, Call("dequeue", output=2)) is None


@pytest.mark.parametrize("size", [0, 1, 2, 12, encoding.FEW_ROWS])
def test_few_rows_are_numbered_like_many(monkeypatch, size):
    random = Random(size)
    for widths in ([1], [3], [2, 1, 5], [size + 1, size + 1]):
        columns = [
            np.array([random.randrange(-1, width) for _ in range(size)], dtype=np.int64)
            for width in widths
        ]
        few = encoding.distinct(*columns)
        with monkeypatch.context() as patched:
            patched.setattr(encoding, "FEW_ROWS", -1)
            many = encoding.distinct(*columns)
        for one, other in zip(few, many, strict=True):
            assert one.tolist() == other.tolist()
            assert one.dtype == other.dtype
