"""Hypothesis strategies for histories of a model.

    @given(histories("cas-register"))
    def test_my_checker_accuses_no_healthy_run(history):
        assert check(history, "cas-register").outcome is Outcome.VALID

`histories` are linearizable by construction: each operation takes effect at one moment between
its call and its return. `perturbed_histories` are the same with one change, which may or may not
make them invalid. Both are lists of `checkers.api.Operation`.

They are generated from sequential objects that answer calls. These share no code with
checkers.models, so that each can reveal the other's mistakes.

Source: Jepsen's and porcupine's generators of test histories; knossos.model for the objects.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from shaketable.checkers.api import Operation
from shaketable.harness.contracts.errors import UsageError

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
            (`harness.testing.strategies.Object`) from a number of values.
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


# Sequential objects that answer calls.

Choose = Callable[[int], int]
"""Draws an integer from 0 up to its argument, exclusive."""


@dataclass(frozen=True, slots=True)
class Request:
    """A call before its answer."""

    f: str
    input: Any = None
    expected: Any = None
    offset: int | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of a call; `offset` where it is part of it."""

    output: Any = None
    offset: int | None = None


class Object(Protocol):
    """A sequential object that draws calls and answers them one by one."""

    def ask(self, choose: Choose, client: int) -> Request:
        """Draw the next call of a client."""
        ...

    def answer(self, request: Request, choose: Choose, client: int) -> Answer:
        """Apply a call and return its answer."""
        ...


class CasRegister:
    """Read, write and, with `has_cas`, compare-and-set of one value."""

    def __init__(self, values: int, *, has_cas: bool = True) -> None:
        self.values, self.has_cas = values, has_cas
        self.value: int | None = None

    def ask(self, choose: Choose, client: int) -> Request:
        """Draw a read, a write or a cas."""
        what = choose(3 if self.has_cas else 2)
        if what == 0:
            return Request("read")
        if what == 1:
            return Request("write", choose(self.values))
        return Request("cas", choose(self.values), choose(self.values))

    def answer(self, request: Request, choose: Choose, client: int) -> Answer:
        """Apply a call; a cas answers 1 (done) or 0 (not)."""
        if request.f == "read":
            return Answer(self.value)
        if request.f == "cas" and request.expected != self.value:
            return Answer(0)
        self.value = request.input
        return Answer(1 if request.f == "cas" else None)


class Kv:
    """One key with a text value: get, put, append."""

    def __init__(self, values: int) -> None:
        self.values = values
        self.text = ""

    def ask(self, choose: Choose, client: int) -> Request:
        """Draw a get, a put or an append."""
        f = ("get", "put", "append")[choose(3)]
        return Request(f, None if f == "get" else "abcdefghijkl"[choose(self.values) % 12])

    def answer(self, request: Request, choose: Choose, client: int) -> Answer:
        """Apply a call; a get answers the text."""
        if request.f == "get":
            return Answer(self.text)
        self.text = str(request.input) if request.f == "put" else self.text + str(request.input)
        return Answer()


class Mutex:
    """Acquire and release; only a holder releases."""

    def __init__(self, values: int) -> None:
        self.held = False
        self.holders: set[int] = set()

    def ask(self, choose: Choose, client: int) -> Request:
        """Draw a release for a holder, an acquire for any other client."""
        return Request("release" if client in self.holders else "acquire")

    def answer(self, request: Request, choose: Choose, client: int) -> Answer:
        """Apply a call; an acquire of a held mutex answers 0."""
        if request.f == "release":
            self.held = False
            self.holders.discard(client)
            return Answer()
        if self.held:
            return Answer(0)
        self.held = True
        self.holders.add(client)
        return Answer(1)


class Counter:
    """Add and read."""

    def __init__(self, values: int) -> None:
        self.values = values
        self.sum = 0

    def ask(self, choose: Choose, client: int) -> Request:
        """Draw an add, which may be negative, or a read."""
        return Request("add", choose(2 * self.values + 1) - self.values) if choose(2) else (
            Request("read")
        )  # fmt: skip

    def answer(self, request: Request, choose: Choose, client: int) -> Answer:
        """Apply a call; a read answers the sum."""
        if request.f == "read":
            return Answer(self.sum)
        self.sum += request.input
        return Answer()


class SetOfValues:
    """Add, remove and read all."""

    def __init__(self, values: int) -> None:
        self.values = values
        self.held: set[int] = set()

    def ask(self, choose: Choose, client: int) -> Request:
        """Draw an add, a remove or a read."""
        f = ("add", "remove", "read")[choose(3)]
        return Request(f, None if f == "read" else choose(self.values))

    def answer(self, request: Request, choose: Choose, client: int) -> Answer:
        """Apply a call; a read answers the sorted list."""
        if request.f == "read":
            return Answer(sorted(self.held))
        if request.f == "add":
            self.held.add(request.input)
        else:
            self.held.discard(request.input)
        return Answer()


class Queue:
    """Enqueue and dequeue; unless `in_order`, a dequeue takes any value."""

    def __init__(self, values: int, *, in_order: bool = True) -> None:
        self.in_order = in_order
        self.waiting: list[int] = []
        self.next = 0

    def ask(self, choose: Choose, client: int) -> Request:
        """Draw an enqueue of a fresh value or a dequeue."""
        if choose(2):
            return Request("dequeue")
        self.next += 1
        return Request("enqueue", self.next)

    def answer(self, request: Request, choose: Choose, client: int) -> Answer:
        """Apply a call; a dequeue answers a value, or nothing if the queue is empty."""
        if request.f == "enqueue":
            self.waiting.append(request.input)
            return Answer()
        if not self.waiting:
            return Answer()
        return Answer(self.waiting.pop(0 if self.in_order else choose(len(self.waiting))))


class Ends:
    """A list into which some operations put at an end; others take or see the value at one.

    Source: `harness.testing.strategies.Object`; a stack, a deque, and with `key` a priority queue.
    """

    FRONT: Final = 0
    BACK: Final = -1

    def __init__(
        self, puts: dict[str, int], takes: dict[str, int], sees: dict[str, int],
        key: Callable[[int], int] | None = None,
    ) -> None:  # fmt: skip
        """Take the ends by the names of the operations; with `key` the list is kept sorted."""
        self.puts, self.takes, self.sees, self.key = puts, takes, sees, key
        self.held: list[int] = []
        self.next = 0

    def ask(self, choose: Choose, client: int) -> Request:
        """Draw a put of a fresh value, a take, or a look."""
        names = [*self.puts, *self.takes, *self.sees]
        f = names[choose(len(names))]
        if f not in self.puts:
            return Request(f)
        self.next += 1
        return Request(f, self.next if self.key is None else 7 * self.next % 31)

    def answer(self, request: Request, choose: Choose, client: int) -> Answer:
        """Apply a call; a take or look answers a value, or nothing if there is none."""
        if request.f in self.puts:
            self.held.insert(len(self.held) if self.puts[request.f] else 0, request.input)
            if self.key is not None:
                self.held.sort(key=self.key)
            return Answer()
        if not self.held:
            return Answer()
        if request.f in self.sees:
            return Answer(self.held[self.sees[request.f]])
        return Answer(self.held.pop(self.takes[request.f]))


class Permits:
    """A semaphore whose acquire does not wait."""

    def __init__(self, values: int) -> None:
        self.free = 0

    def ask(self, choose: Choose, client: int) -> Request:
        """Draw an acquire or a release."""
        return Request(("acquire", "release")[choose(2)])

    def answer(self, request: Request, choose: Choose, client: int) -> Answer:
        """Apply a call; an acquire answers 0 if no permit is free."""
        if request.f == "acquire" and not self.free:
            return Answer(0)
        self.free += 1 if request.f == "release" else -1
        return Answer(1)


class Members:
    """Add, remove and contains, each of which answers yes or no; of a multiset also count."""

    def __init__(self, values: int, *, is_multiset: bool = False) -> None:
        self.values, self.is_multiset = values, is_multiset
        self.held: list[int] = []

    def ask(self, choose: Choose, client: int) -> Request:
        """Draw an operation on one of the values."""
        fs = ("add", "remove", "contains", "count")[: 4 if self.is_multiset else 3]
        return Request(fs[choose(len(fs))], choose(self.values))

    def answer(self, request: Request, choose: Choose, client: int) -> Answer:
        """Apply a call; answer whether it changed the set, or the element is there."""
        is_there = request.input in self.held
        if request.f == "count":
            return Answer(self.held.count(request.input))
        if request.f == "add":
            if self.is_multiset or not is_there:
                self.held.append(request.input)
            return Answer(None if self.is_multiset else int(not is_there))
        if request.f == "remove" and is_there:
            self.held.remove(request.input)
        return Answer(int(is_there))


class Log:
    """Append, read at an offset, get the end offset."""

    def __init__(self, values: int) -> None:
        self.entries: list[int] = []
        self.next = 0

    def ask(self, choose: Choose, client: int) -> Request:
        """Draw an append of a fresh value, a read, or a query of the end."""
        f = ("append", "read", "end")[choose(3)]
        if f == "read":
            return Request(f, offset=choose(len(self.entries) + 2))
        if f == "end":
            return Request(f)
        self.next += 1
        return Request(f, self.next)

    def answer(self, request: Request, choose: Choose, client: int) -> Answer:
        """Apply a call; an append answers its offset, a read the value there or nothing."""
        if request.f == "append":
            self.entries.append(request.input)
            return Answer(offset=len(self.entries) - 1)
        if request.f == "end":
            return Answer(len(self.entries))
        assert request.offset is not None
        exists = request.offset < len(self.entries)
        return Answer(self.entries[request.offset] if exists else None, request.offset)


class Registers:
    """Transactions over several registers."""

    NAMES: Final = ("x", "y", "z")

    def __init__(self, values: int) -> None:
        self.values = values
        self.held: dict[str, int] = {}

    def ask(self, choose: Choose, client: int) -> Request:
        """Draw a transaction of one to three reads and writes."""
        steps = []
        for _ in range(choose(3) + 1):
            name = self.NAMES[choose(3)]
            steps.append(["w", name, choose(self.values)] if choose(2) else ["r", name, None])
        return Request("txn", steps)

    def answer(self, request: Request, choose: Choose, client: int) -> Answer:
        """Apply a transaction; answer its steps, with the values that were read."""
        done = []
        for f, name, value in request.input:
            if f == "w":
                self.held[name] = value
            done.append([f, name, self.held.get(name)])
        return Answer(done)


OBJECTS: Final[dict[str, Callable[[int], Object]]] = {
    "append-log": Log,
    "cas-register": CasRegister,
    "counter": Counter,
    "deque": lambda _: Ends(
        {"push-front": Ends.FRONT, "push-back": Ends.BACK},
        {"pop-front": Ends.FRONT, "pop-back": Ends.BACK},
        {"peek-front": Ends.FRONT, "peek-back": Ends.BACK},
    ),
    "fifo-queue": Queue,
    "kv": Kv,
    "membership-set": Members,
    "min-priority-queue": lambda _: Ends(
        {"insert": Ends.BACK}, {"poll": Ends.FRONT}, {"peek": Ends.FRONT}, key=int
    ),
    "multi-register": Registers,
    "multiset": lambda values: Members(values, is_multiset=True),
    "mutex": Mutex,
    "priority-queue": lambda _: Ends(
        {"insert": Ends.BACK}, {"poll": Ends.BACK}, {"peek": Ends.BACK}, key=int
    ),
    "register": lambda values: CasRegister(values, has_cas=False),
    "semaphore": Permits,
    "set": SetOfValues,
    "stack": lambda _: Ends({"push": Ends.BACK}, {"pop": Ends.BACK}, {"peek": Ends.BACK}),
    "unordered-queue": lambda values: Queue(values, in_order=False),
}
"""Objects by model name; each is constructed with the number of different values."""
