"""Read transactions on registers as text: the sessions of clients, without times.

A session after another, each a list of transactions:

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

Sources: AWDIT (arXiv 2504.06975) for the first; Plume (OOPSLA 2024), PolySI (arXiv 2301.07313) and
IsoVista for the second.
"""

from __future__ import annotations

import re
from typing import Any, Final

from shaketable.harness.history.foreign.columns import Columns, show
from shaketable.harness.history.foreign.history import FaultSpan, decoded, number_or_text
from shaketable.harness.history.schema import TRANSACTION

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
