"""Sequential objects that answer calls: what histories of a model are drawn from.

They share nothing with checkers.models, so that each can find the other's mistakes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

Choose = Callable[[int], int]
"""Draws a whole number from 0 to below its argument."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A call before its answer."""

    f: str
    input: Any = None
    expected: Any = None
    offset: int | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """What a call answered; `offset` where it is part of the answer."""

    output: Any = None
    offset: int | None = None


class Object(Protocol):
    """One object: draws calls, and answers them one by one."""

    def ask(self, choose: Choose, client: int) -> Asked:
        """Draw what a client calls next."""
        ...

    def answer(self, asked: Asked, choose: Choose, client: int) -> Answer:
        """Do it, and answer."""
        ...


class CasRegister:
    """Read, write and, if asked to, compare-and-set of one value."""

    def __init__(self, values: int, *, has_cas: bool = True) -> None:
        self.values, self.has_cas = values, has_cas
        self.value: int | None = None

    def ask(self, choose: Choose, client: int) -> Asked:
        """Draw a read, a write or a cas."""
        what = choose(3 if self.has_cas else 2)
        if what == 0:
            return Asked("read")
        if what == 1:
            return Asked("write", choose(self.values))
        return Asked("cas", choose(self.values), choose(self.values))

    def answer(self, asked: Asked, choose: Choose, client: int) -> Answer:
        """A cas answers 1 (yes) or 0 (no)."""
        if asked.f == "read":
            return Answer(self.value)
        if asked.f == "cas" and asked.expected != self.value:
            return Answer(0)
        self.value = asked.input
        return Answer(1 if asked.f == "cas" else None)


class Kv:
    """One key of texts: get, put, append."""

    def __init__(self, values: int) -> None:
        self.values = values
        self.text = ""

    def ask(self, choose: Choose, client: int) -> Asked:
        """Draw a get, a put or an append."""
        f = ("get", "put", "append")[choose(3)]
        return Asked(f, None if f == "get" else "abcdefghijkl"[choose(self.values) % 12])

    def answer(self, asked: Asked, choose: Choose, client: int) -> Answer:
        """A get answers the text."""
        if asked.f == "get":
            return Answer(self.text)
        self.text = str(asked.input) if asked.f == "put" else self.text + str(asked.input)
        return Answer()


class Mutex:
    """Acquire and release; who does not hold it does not release it."""

    def __init__(self, values: int) -> None:
        self.held = False
        self.holders: set[int] = set()

    def ask(self, choose: Choose, client: int) -> Asked:
        """A holder releases, everybody else acquires."""
        return Asked("release" if client in self.holders else "acquire")

    def answer(self, asked: Asked, choose: Choose, client: int) -> Answer:
        """An acquire of a held mutex answers 0."""
        if asked.f == "release":
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

    def ask(self, choose: Choose, client: int) -> Asked:
        """Draw an add, which may be negative, or a read."""
        return Asked("add", choose(2 * self.values + 1) - self.values) if choose(2) else (
            Asked("read")
        )  # fmt: skip

    def answer(self, asked: Asked, choose: Choose, client: int) -> Answer:
        """A read answers the sum."""
        if asked.f == "read":
            return Answer(self.sum)
        self.sum += asked.input
        return Answer()


class SetOfValues:
    """Add, remove and read all."""

    def __init__(self, values: int) -> None:
        self.values = values
        self.held: set[int] = set()

    def ask(self, choose: Choose, client: int) -> Asked:
        """Draw an add, a remove or a read."""
        f = ("add", "remove", "read")[choose(3)]
        return Asked(f, None if f == "read" else choose(self.values))

    def answer(self, asked: Asked, choose: Choose, client: int) -> Answer:
        """A read answers the sorted list."""
        if asked.f == "read":
            return Answer(sorted(self.held))
        if asked.f == "add":
            self.held.add(asked.input)
        else:
            self.held.discard(asked.input)
        return Answer()


class Queue:
    """Enqueue and dequeue; without an order a dequeue takes any."""

    def __init__(self, values: int, *, in_order: bool = True) -> None:
        self.in_order = in_order
        self.waiting: list[int] = []
        self.next = 0

    def ask(self, choose: Choose, client: int) -> Asked:
        """Draw an enqueue of a fresh value or a dequeue."""
        if choose(2):
            return Asked("dequeue")
        self.next += 1
        return Asked("enqueue", self.next)

    def answer(self, asked: Asked, choose: Choose, client: int) -> Answer:
        """A dequeue answers a value, nothing if none waits."""
        if asked.f == "enqueue":
            self.waiting.append(asked.input)
            return Answer()
        if not self.waiting:
            return Answer()
        return Answer(self.waiting.pop(0 if self.in_order else choose(len(self.waiting))))


class Log:
    """Append, read at an offset, ask for the end."""

    def __init__(self, values: int) -> None:
        self.entries: list[int] = []
        self.next = 0

    def ask(self, choose: Choose, client: int) -> Asked:
        """Draw an append of a fresh value, a read near the end, or the end."""
        f = ("append", "read", "end")[choose(3)]
        if f == "read":
            return Asked(f, offset=choose(len(self.entries) + 2))
        if f == "end":
            return Asked(f)
        self.next += 1
        return Asked(f, self.next)

    def answer(self, asked: Asked, choose: Choose, client: int) -> Answer:
        """An append answers its offset, a read what stands there or nothing."""
        if asked.f == "append":
            self.entries.append(asked.input)
            return Answer(offset=len(self.entries) - 1)
        if asked.f == "end":
            return Answer(len(self.entries))
        assert asked.offset is not None
        is_there = asked.offset < len(self.entries)
        return Answer(self.entries[asked.offset] if is_there else None, asked.offset)


class Registers:
    """Transactions over several registers."""

    NAMES: Final = ("x", "y", "z")

    def __init__(self, values: int) -> None:
        self.values = values
        self.held: dict[str, int] = {}

    def ask(self, choose: Choose, client: int) -> Asked:
        """Draw a transaction of one to three reads and writes."""
        steps = []
        for _ in range(choose(3) + 1):
            name = self.NAMES[choose(3)]
            steps.append(["w", name, choose(self.values)] if choose(2) else ["r", name, None])
        return Asked("txn", steps)

    def answer(self, asked: Asked, choose: Choose, client: int) -> Answer:
        """The same steps, reads with what they found."""
        done = []
        for f, name, value in asked.input:
            if f == "w":
                self.held[name] = value
            done.append([f, name, self.held.get(name)])
        return Answer(done)


OBJECTS: Final[dict[str, Callable[[int], Object]]] = {
    "append-log": Log,
    "cas-register": CasRegister,
    "counter": Counter,
    "fifo-queue": Queue,
    "kv": Kv,
    "multi-register": Registers,
    "mutex": Mutex,
    "register": lambda values: CasRegister(values, has_cas=False),
    "set": SetOfValues,
    "unordered-queue": lambda values: Queue(values, in_order=False),
}
"""Objects by the name of their model; each is made with the number of its values."""
