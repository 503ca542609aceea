"""Sequential objects that answer calls, from which histories of a model are generated.

They share no code with checkers.models, so that each can reveal the other's mistakes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

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

    Source: `harness.testing.objects.Object`; a stack, a deque, and with `key` a priority queue.
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
