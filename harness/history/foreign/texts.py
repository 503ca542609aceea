"""Read histories that are texts: of concurrent objects, and of transactions on registers.

Of objects, calls and returns, a line each, in the order in which they happened:

    # @object queue
    [1] call add(7)
    [1] return
    [2] call remove
    [2] return 7

`[N]` is a thread, or an operation's id. `empty` is the answer of a take that found nothing. A call
without a return has an unknown outcome. Blanks before a line, and other lines with #, are skipped.

Or an operation a line, under a line that names the object; -1 is nothing:

    # stack                          # stack
    0 1 5 PUSH 7                     push 7 1 5
    1 2 6 POP 7                      pop 7 2 6

to the left: process, start, end, method and values; to the right: method, values, start, end. What
a set or a semaphore answered (0 or 1) is the last value.

Of transactions, the sessions of clients, without times; one after another, each a list of
transactions:

    w x 1
    r y 0
    -----        the transaction ends
    r x 1
    =====        the session ends

or an operation a line, with its session and transaction, those of one session in its order:

    w(x,1,0,0)
    r(y,0,1,1)

There, transaction -1 was aborted, and 0 is what every key holds at first: a read of 0 is one of
nothing where no transaction wrote 0.

Only the order in each session is known: all sessions are concurrent. So each transaction overlaps
every other one, and those of a session are called, and return, in its order.

Sources: of objects, the format of Emmi and Enea's histories (imdea-software/popl-2016-artifact);
Lee & Mathur 2026 (arXiv 2509.05586) and 2025 (arXiv 2410.04581). Of transactions, AWDIT (arXiv
2504.06975) for the first; Plume (OOPSLA 2024), PolySI (arXiv 2301.07313) and IsoVista for the
second.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Any, Final

from shaketable.harness.history.foreign.columns import INT64_MAX, Columns, Pairing, show
from shaketable.harness.history.foreign.history import FaultSpan, decoded, number_or_text
from shaketable.harness.history.schema import TRANSACTION

# Concurrent objects.

OBJECT_LINE: Final = re.compile(r"\s*#\s*@object\s+(\S.*?)\s*$")
KIND_LINE: Final = re.compile(r"\s*#\s*([A-Za-z][\w -]*?)\s*$")
CALL_LINE: Final = re.compile(
    r"\s*\[([^\]\s]+)\]\s+(?:call\s+(\w+)\s*(?:\(\s*(.*?)\s*\))?|return(?:\s+(\S.*?))?)\s*$"
)
_NUMBER = r"-?\d+"
INTERVAL_LINE: Final = re.compile(
    rf"\s*(?:(?P<process>{_NUMBER})\s+(?P<start>\d+)\s+(?P<end>\d+)\s+(?P<f>[A-Za-z_]\w*)"
    rf"(?P<values>(?:\s+{_NUMBER})*)"
    rf"|(?:(?P<process2>{_NUMBER})\s+)?(?P<f2>[A-Za-z_]\w*)(?P<values2>(?:\s+{_NUMBER})*?)"
    r"\s+(?P<start2>\d+)\s+(?P<end2>\d+))\s*$"
)
NOTHING: Final = ("empty", "null", "nil", "none")
"""How an answer says that a take found nothing."""
NO_VALUE: Final = -1
"""The same where an operation is a line."""
TRUE, FALSE = 1, 0


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of object: the model that it has, and its methods by their names in the model.

    `puts` have an input and no answer, `takes` an answer and no input, `tells` an input and an
    answer of yes or no. `initial` is the first state that the format defines, as --initial takes
    it.
    """

    model: str
    initial: str | None = None
    puts: dict[str, str] = field(default_factory=dict)
    takes: dict[str, str] = field(default_factory=dict)
    tells: dict[str, str] = field(default_factory=dict)

    def f_of(self, method: str) -> str:
        """Return a method's name in the model; its own where the model has none."""
        name = method.lower()
        return {**self.puts, **self.takes, **self.tells}.get(name, name)


def _named(names: str, f: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), f)


_QUEUE: Final = Kind(
    "fifo-queue",
    puts=_named("add enqueue enq offer put push insert", "enqueue"),
    takes=_named("remove dequeue deq poll take pop", "dequeue") | _named("peek front", "peek"),
)
_STACK: Final = Kind(
    "stack",
    puts=_named("add push put", "push"),
    takes=_named("remove pop take", "pop") | _named("peek top", "peek"),
)
_PRIORITY: Final = Kind(
    "priority-queue",
    puts=_named("add insert offer put enqueue push", "insert"),
    takes=_named("remove poll take pop dequeue", "poll") | _named("peek", "peek"),
)
_DEQUE: Final = Kind(
    "deque",
    puts=_named("push_front pushfront addfirst", "push-front")
    | _named("push_back pushback addlast", "push-back"),
    takes=_named("pop_front popfront removefirst", "pop-front")
    | _named("pop_back popback removelast", "pop-back")
    | _named("peek_front peekfront", "peek-front") | _named("peek_back peekback", "peek-back"),
)  # fmt: skip
_SET: Final = Kind(
    "membership-set",
    tells=_named("add insert", "add") | _named("remove delete", "remove")
    | _named("contains", "contains"),
)  # fmt: skip
_MULTISET: Final = Kind(
    "multiset",
    puts=_named("add insert", "add"),
    tells=_named("remove delete", "remove") | _named("contains", "contains")
    | _named("count", "count"),
)  # fmt: skip
_SEMAPHORE: Final = Kind("semaphore", takes=_named("incr", "release") | _named("decr", "acquire"))
_REGISTER: Final = Kind(
    "cas-register",
    "0",
    puts=_named("write", "write"),
    takes=_named("read", "read"),
    tells=_named("read_modify_write", "cas"),
)
_LEAST_FIRST: Final = replace(_PRIORITY, model="min-priority-queue")
KINDS: Final[dict[str, Kind]] = {
    "queue": _QUEUE, "stack": _STACK, "set": _SET, "deque": _DEQUE, "semaphore": _SEMAPHORE,
    "priorityqueue": _PRIORITY, "pqueue": _PRIORITY, "minpriorityqueue": _LEAST_FIRST,
    "multiset": _MULTISET, "rmw": _REGISTER, "register": _REGISTER,
}  # fmt: skip
"""Kinds of objects, by their names without blanks, dashes and capitals."""


def kind_named(text: str) -> Kind | None:
    """Return the kind of object of that name, None if it is not known."""
    return KINDS.get(re.sub(r"[\s_-]", "", text).lower())


class _ObjectReader:
    """What readers of both texts have in common."""

    faults: tuple[FaultSpan, ...] = ()

    def __init__(self) -> None:
        self.events = 0
        self.kind: Kind | None = None
        self._kind_text: str | None = None

    @property
    def model(self) -> str | None:
        """The model of the object that the text names."""
        return None if self.kind is None else self.kind.model

    @property
    def initial(self) -> str | None:
        """The first state that the format defines, if it does."""
        return None if self.kind is None else self.kind.initial

    def _name_kind(self, text: str) -> None:
        """Note which object the text names.

        Raises:
            ValueError: it names an unknown one, or a second one.
        """
        if self._kind_text is not None:
            raise ValueError(f"a second object: {show(text)}, after {show(self._kind_text)}")
        self._kind_text, self.kind = text, kind_named(text)
        if self.kind is None:
            raise ValueError(f"no object that is known: {show(text)}; known: {', '.join(KINDS)}")

    def _known_kind(self) -> Kind:
        if self.kind is None:
            raise ValueError("no line names the object; write one above, such as '# @object queue'")
        return self.kind


class CallReader(_ObjectReader):
    """Reads calls and returns."""

    is_timed = False
    is_ordered = True

    def __init__(self) -> None:
        super().__init__()
        self._pairing = Pairing("line")

    @property
    def columns(self) -> Columns:
        """The operations so far."""
        return self._pairing.columns

    @property
    def problem(self) -> str | None:
        """What shows that lines are missing; None if nothing does."""
        return self._pairing.problem

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for the reader."""
        return self._pairing.notes

    def take(self, line: bytes, place: int) -> None:
        """Add one line.

        Raises:
            ValueError: it is neither a call, a return nor a comment, or does not fit its object.
        """
        text = decoded(line)
        if (named := OBJECT_LINE.match(text)) is not None:
            self._name_kind(named[1])
            return
        if text.lstrip().startswith("#"):
            return
        match = CALL_LINE.match(text)
        if match is None:
            raise ValueError(f"no call and no return: {show(text.strip())}")
        kind = self._known_kind()
        index, self.events = self.events, self.events + 1
        thread, method, given, answer = match.groups()
        process = self.columns.number_of(number_or_text(thread))
        if method is not None:
            called = kind.f_of(method)
            self._pairing.invoke(index, process, called, None, _value(given, called), index)
            return
        f = self._pairing.f_of(process)
        value = _answer(answer, kind, f)
        if f in kind.tells.values() and f != "cas":  # 1 is the answer to the call of 1
            value = {"output": value}
        self._pairing.complete("ok", process, f or "return", value, index, place)


def _value(given: str | None, f: str) -> Any:
    if not given:
        return None
    values = [number_or_text(each.strip()) for each in given.split(",")]
    if len(values) > 1 and f != "cas":
        return values
    return values if f == "cas" else values[0]


def _answer(answer: str | None, kind: Kind, f: str | None) -> Any:
    """Return the value of a return.

    Raises:
        ValueError: a put was refused, which its model does not know.
    """
    if answer is None or answer.lower() in NOTHING:
        return None
    if answer.lower() in ("true", "false"):
        if f in kind.puts.values():
            if answer.lower() == "false":
                raise ValueError(f"the answer of {f} is false; objects that refuse are not known")
            return None
        return TRUE if answer.lower() == "true" else FALSE
    return number_or_text(answer)


class IntervalReader(_ObjectReader):
    """Reads an operation a line, with its start and end."""

    is_timed = True
    is_ordered = False
    problem: str | None = None
    notes: tuple[str, ...] = ()

    def __init__(self) -> None:
        super().__init__()
        self.columns = Columns()

    def take(self, line: bytes, place: int) -> None:
        """Add one line.

        Raises:
            ValueError: it is neither an operation nor a comment, or does not fit its object.
        """
        text = decoded(line)
        if text.lstrip().startswith("#"):
            named = KIND_LINE.match(text)
            if named is not None and self.kind is None and not self.events:
                self._name_kind(named[1])
            return
        match = INTERVAL_LINE.match(text)
        if match is None:
            raise ValueError(f"no operation with its start and end: {show(text.strip())}")
        kind = self._known_kind()
        self.events += 1
        mark = "" if match["f"] is not None else "2"
        f, start, end = match["f" + mark], int(match["start" + mark]), int(match["end" + mark])
        if end < start:
            raise ValueError("it returned before it was called")
        if end > INT64_MAX // 2:
            raise ValueError(f"a time of 64 bits or more: {show(end)}")
        values = [int(each) for each in match["values" + mark].split()]
        process = match["process" + mark]
        row = self.columns.call(
            self.events - 1, self.events - 1 if process is None else int(process), kind.f_of(f),
            None, start,
        )  # fmt: skip
        self._put(row, f, kind, values)
        self.columns.finish(row, "ok", end)

    def _put(self, row: int, f: str, kind: Kind, values: list[int]) -> None:
        name, puts = f.lower(), self.columns.put
        is_tell = name in kind.tells or (kind is _SEMAPHORE and name in kind.takes)
        expected = 2 if name in kind.tells else 1
        if kind is _SEMAPHORE and not values:
            return
        if len(values) != expected:
            raise ValueError(f"{f} has {len(values)} values; {expected} expected")
        if name == "read_modify_write":
            puts(row, "expected", values[0])
            puts(row, "input", values[1])
            puts(row, "output", TRUE)
        elif is_tell:
            if expected == 2:
                puts(row, "input", values[0])
            if values[-1] not in (TRUE, FALSE) and name != "count":
                raise ValueError(f"the answer of {f} is 0 or 1, not {values[-1]}")
            puts(row, "output", values[-1])
        elif name in kind.takes:
            puts(row, "output", None if values[0] == NO_VALUE else values[0])
        else:
            puts(row, "input", values[0])


# Transactions.

STEP_LINE: Final = re.compile(r"\s*([rw])\s+(\S+)\s+(\S+)\s*$", re.IGNORECASE)
RULE_LINE: Final = re.compile(r"\s*(?:(-{3,})|(={3,}))\s*$")
TUPLE_LINE: Final = re.compile(
    r"\s*([rw])\s*\(\s*([^\s,()]+)\s*,\s*([^\s,()]+)\s*,\s*(-?\d+)\s*,\s*(-?\d+)\s*\)\s*$",
    re.IGNORECASE,
)
ABORTED: Final = -1
INITIAL: Final = 0
NO_TIMES: Final = (
    "the text has no times: transactions of different sessions are taken as concurrent, so real"
    " time is not judged"
)

Step = tuple[str, Any, Any]


class _Sessions:
    """Collects the transactions of sessions, in the order of each."""

    faults: tuple[FaultSpan, ...] = ()
    is_timed = False
    is_ordered = False
    model: str | None = None
    initial: str | None = "{}"
    """Every key holds nothing at first."""
    problem: str | None = None
    notes: tuple[str, ...] = (NO_TIMES,)

    def __init__(self) -> None:
        self.events = 0
        self._sessions: dict[int, list[tuple[list[Step], bool]]] = {}

    def _add(self, session: int, steps: list[Step], *, is_aborted: bool = False) -> None:
        if steps:
            self._sessions.setdefault(session, []).append((steps, is_aborted))

    def finish(self) -> None:
        """Take what the last line began; called once, before `columns`."""

    @property
    def columns(self) -> Columns:
        """The transactions as operations."""
        columns = Columns()
        longest = max(map(len, self._sessions.values()), default=0)
        for session, transactions in self._sessions.items():
            for place, (steps, is_aborted) in enumerate(transactions):
                row = columns.call(len(columns), session, TRANSACTION, None, place)
                asked = [(f, key, None if f == "r" else value) for f, key, value in steps]
                columns.put(row, "input", asked)
                if not is_aborted:
                    columns.put(row, "output", [self._seen(step) for step in steps])
                columns.finish(row, "fail" if is_aborted else "ok", longest + place)
        return columns

    def _seen(self, step: Step) -> Step:
        return step


class SessionReader(_Sessions):
    """Reads sessions one after another."""

    def __init__(self) -> None:
        super().__init__()
        self._session = 0
        self._steps: list[Step] = []

    def take(self, line: bytes, _place: int) -> None:
        """Add one line.

        Raises:
            ValueError: it is neither an operation nor the end of a transaction or session.
        """
        text = decoded(line)
        if text.lstrip().startswith("#"):
            return
        if (rule := RULE_LINE.match(text)) is not None:
            self.finish()
            self._session += rule[2] is not None
            return
        match = STEP_LINE.match(text)
        if match is None:
            raise ValueError(f"no 'r KEY VALUE', 'w KEY VALUE', ----- or =====: {show(text)}")
        self.events += 1
        f, key, value = match[1].lower(), number_or_text(match[2]), number_or_text(match[3])
        self._steps.append((f, key, value))

    def finish(self) -> None:
        """End the transaction that the last lines began."""
        self._add(self._session, self._steps)
        self._steps = []


class TupleReader(_Sessions):
    """Reads an operation a line, with its session and transaction."""

    def __init__(self) -> None:
        super().__init__()
        self._open: dict[int, tuple[int, list[Step]]] = {}  # session -> its newest transaction
        self._ended: set[tuple[int, int]] = set()
        self._initial_written: set[Any] = set()

    def take(self, line: bytes, _place: int) -> None:
        """Add one line.

        Raises:
            ValueError: it is no operation, or goes on with a transaction that had ended.
        """
        text = decoded(line)
        if text.lstrip().startswith("#"):
            return
        match = TUPLE_LINE.match(text)
        if match is None:
            raise ValueError(f"no 'r(key,value,session,txn)' and no 'w(...)': {show(text)}")
        self.events += 1
        f, key, value = match[1].lower(), number_or_text(match[2]), number_or_text(match[3])
        session, txn = int(match[4]), int(match[5])
        newest = self._open.get(session)
        if newest is None or newest[0] != txn:
            if (session, txn) in self._ended and txn != ABORTED:
                raise ValueError(
                    f"transaction {txn} of session {session} goes on after another one"
                )
            self._end(session)
            newest = self._open[session] = (txn, [])
        newest[1].append((f, key, value))
        if f == "w" and value == INITIAL:
            self._initial_written.add(key)

    def finish(self) -> None:
        """End the newest transaction of each session."""
        for session in list(self._open):
            self._end(session)

    def _end(self, session: int) -> None:
        if session in self._open:
            txn, steps = self._open.pop(session)
            self._ended.add((session, txn))
            self._add(session, steps, is_aborted=txn == ABORTED)

    def _seen(self, step: Step) -> Step:
        f, key, value = step
        is_first = f == "r" and value == INITIAL and key not in self._initial_written
        return (f, key, None) if is_first else step
