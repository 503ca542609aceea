"""What the clients of a simulated world observed, and what must hold of it.

Source: the real-time order of linearizability (Herlihy & Wing 1990). The log assigns each append
its offset, so one sweep over time is enough to check it.
"""

from __future__ import annotations

import sysconfig
import traceback
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

import trio

from shaketable import system
from shaketable.system.broker.delay_levels import SCHEDULE_TOPIC
from shaketable.system.invariants.violated import Violated
from shaketable.system.remoting.codes import ResponseCode
from shaketable.system.store.message import decode_message

APPEND = "append"
DELAY = "delay"
PULL = "pull"
MAX_OFFSET = "max_offset"
COMMIT = "commit"
FETCH = "fetch"
STORED: Final = frozenset((APPEND, DELAY))
"""Operations that store a message."""
WRITES: Final = STORED | {COMMIT}

OPEN = "invoke"
OK = "ok"
FAIL = "fail"
UNKNOWN = "info"


class Operation:
    """One client operation, from its invocation to its outcome.

    `offset` is an append's offset, or where a pull starts; a delayed message's is that in the queue
    of its level. `count` the number of messages that a
    pull returned; `end` the queue's end that a read returned. A commit and a fetch are of a
    consumer group; `end` is its offset. Times in virtual milliseconds.
    """

    __slots__ = (
        "arrival",
        "body",
        "client",
        "count",
        "end",
        "end_ms",
        "group",
        "invoke_ms",
        "kind",
        "node",
        "number",
        "offset",
        "outcome",
        "queue",
    )

    def __init__(
        self,
        number: int,
        client: int,
        kind: str,
        queue: int,
        offset: int,
        invoke_ms: float,
        group: str = "",
    ) -> None:
        self.number = number
        self.client = client
        self.kind = kind
        self.queue = queue
        self.group = group
        self.offset = offset
        self.invoke_ms = invoke_ms
        self.end_ms = float("inf")
        self.outcome = OPEN
        self.node = ""
        self.body = b""
        self.count = 0
        self.end = -1
        self.arrival: tuple[float, tuple[object, ...]] | None = None
        """The clock of the member that was asked last, and its state, as a pull arrived."""

    def __repr__(self) -> str:
        what = f"group={self.group}" if self.group else f"offset={self.offset}"
        return (
            f"{self.number} {self.kind} queue={self.queue} {what} end={self.end}"
            f" {self.outcome} {self.invoke_ms:.3f}..{self.end_ms:.3f} at {self.node or '-'}"
        )


DELAYS_MS: Final = (1_000, 5_000)
"""The delays of the first levels (RocketMQ's messageDelayLevel), which delayed messages have."""
BLAMES: Final = frozenset(
    {
        ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
        ResponseCode.MESSAGE_ILLEGAL,
        ResponseCode.VERSION_NOT_SUPPORTED,
        ResponseCode.NO_PERMISSION,
        ResponseCode.SUBSCRIPTION_PARSE_FAILED,
    }
)
"""Codes that refuse a request for what it is: it would be refused at any time, by any member."""
LARGE_BYTES: Final = 4_000
"""A smaller message always has room in a data file."""


def check_blame(operation: Operation, code: int, remark: str | None) -> None:
    """Raise Violated where a sound request is refused as if it were none.

    Its client may give up, although all is well a moment later.
    """
    if code in BLAMES and len(operation.body) < LARGE_BYTES:
        raise Violated(
            "sound-requests-are-not-blamed", f"{operation!r} is refused with {code}: {remark}"
        )


def check_history(history: Sequence[Operation]) -> None:
    """Raise Violated where the history contradicts real time or itself.

    An operation observes all that completed before its invocation: a read returns an end after
    every earlier acknowledged append and no less than any earlier end (no stale read); an append
    gets an offset after them; no two appends share an offset. A group's offset, which only its own
    client commits, and only forward, never goes back, and is one that was committed.
    """
    done = sorted((op for op in history if op.outcome == OK), key=lambda op: (op.end_ms, op.number))
    _check_places(done)
    _check_offsets_were_committed(history)
    # `floors` is the lowest end, of each queue and of each group's offset in it, that an operation
    # invoked now must observe.
    floors: dict[tuple[str, int], int] = {}
    at = 0
    for operation in sorted(done, key=lambda op: (op.invoke_ms, op.number)):
        # Only operations that ended strictly before this invocation precede it in real time; all
        # others are concurrent with it, and may take effect in either order.
        while at < len(done) and done[at].end_ms < operation.invoke_ms:
            earlier = done[at]
            end = earlier.offset + 1 if earlier.kind == APPEND else earlier.end
            place = earlier.group, earlier.queue
            floors[place] = max(floors.get(place, 0), end)
            at += 1
        floor = floors.get((operation.group, operation.queue), 0)
        if operation.kind == APPEND and operation.offset < floor:
            raise Violated(
                "real-time-order", f"{operation!r} is before what was at {floor - 1} already"
            )
        if operation.kind == FETCH and operation.end < floor:
            raise Violated("committed-offset-is-seen", f"{operation!r} misses offset {floor}")
        if operation.kind in (PULL, MAX_OFFSET) and operation.end < floor:
            raise Violated("no-stale-read", f"{operation!r} misses what was at {floor - 1} already")


def _check_offsets_were_committed(history: Sequence[Operation]) -> None:
    committed: dict[tuple[str, int], int] = {}
    for operation in history:
        if operation.kind == COMMIT:
            committed[operation.group, operation.queue] = operation.end
    for operation in history:
        if operation.kind == FETCH and operation.outcome == OK:
            most = committed.get((operation.group, operation.queue), 0)
            if operation.end > most:
                raise Violated(
                    "committed-offset-is-seen",
                    f"{operation!r}, but no client committed more than {most}",
                )


def _check_places(done: Iterable[Operation]) -> None:
    places: dict[tuple[int, int], Operation] = {}
    for operation in done:
        if operation.kind == APPEND:
            other = places.setdefault((operation.queue, operation.offset), operation)
            if other is not operation:
                raise Violated("offsets-unique", f"{other!r} and {operation!r}")


def check_refusals(history: Sequence[Operation], stored: Iterable[int]) -> None:
    """Raise Violated where an append is stored twice, or was definitely refused and is stored.

    `stored` yields the number of each committed append, in any order. A delayed message is stored
    there when it is delivered.
    """
    times: dict[int, int] = {}
    for number in stored:
        times[number] = times.get(number, 0) + 1
    for operation in history:
        if operation.kind not in STORED:
            continue
        found = times.get(operation.number, 0)
        if found > 1:
            raise Violated("stored-once", f"{operation!r} is stored {found} times")
        if found and operation.outcome == FAIL:
            raise Violated("refusal-is-definite", f"{operation!r} was refused and is stored")


def level_of(number: int) -> int:
    """Return the delay level, from 1, of delayed message `number`."""
    return 1 + number % len(DELAYS_MS)


def check_delivered(
    history: Sequence[Operation],
    queues: Mapping[tuple[bytes, int], Sequence[bytes]],
    delivered: Iterable[int],
    *,
    from_position: int,
    due_by_ms: float,
) -> None:
    """Raise Violated where a delayed message is not delivered that was due by that time.

    `queues` are the committed messages. What is before `from_position` may have expired before it
    was due: RocketMQ delivers it no more.
    """
    numbers = set(delivered)
    for operation in history:
        if operation.kind != DELAY or operation.outcome != OK or operation.number in numbers:
            continue
        level = level_of(operation.number)
        stored = decode_message(queues[SCHEDULE_TOPIC, level - 1][operation.offset])
        is_due = operation.end_ms + DELAYS_MS[level - 1] <= due_by_ms
        if is_due and stored.physical_offset >= from_position:
            raise Violated("delayed-is-delivered", f"{operation!r}, with level {level}, is not")


# Invariants of clients' calls: they end in time, with an expected outcome, and leak nothing.
#
# Callers rely on the timeout, and a client that leaks sockets runs out of descriptors after weeks:
# no history of a short run shows either. No simulated time passes while a client computes, so a
# late call is the client's own fault. Source: RocketMQ's sendMsgTimeout (all attempts of a send
# together end within it); DESIGN.md section 6.

SYSTEM: Final = Path(system.__path__[0])
LIBRARIES: Final = (Path(sysconfig.get_path("stdlib")), Path(trio.__path__[0]))

LATE_MAX_MS = 50.0
"""How much longer than its timeout a call may take: a step or two that were in progress."""


def check_in_time(what: str, took_ms: float, timeout_ms: float) -> None:
    """Raise Violated for a call that outlasted its own timeout."""
    if took_ms > timeout_ms + LATE_MAX_MS:
        raise Violated(
            "calls-end-in-time", f"{what} took {took_ms:.0f} ms, its timeout is {timeout_ms:g} ms"
        )


def check_expected(what: str, error: Exception) -> None:
    """Raise Violated for an unexpected error that the clients' code raised or let through.

    Errors of a workload or a plug-in say nothing about the system.
    """
    begin = f"{what} ended with"
    notes = "".join(f"; {note}" for note in getattr(error, "__notes__", ()))
    while isinstance(error, ExceptionGroup):
        begin = f"a consumer had ended by itself, which {what} showed:"
        error = error.exceptions[0]
    frames = traceback.extract_tb(error.__traceback__)
    while frames and any(each in Path(frames[-1].filename).parents for each in LIBRARIES):
        frames.pop()  # the library's caller is responsible
    if frames and SYSTEM in (place := Path(frames[-1].filename)).parents:
        where = f"{place.relative_to(SYSTEM.parent)}, line {frames[-1].lineno}"
        text = f"{begin} {type(error).__name__}: {error} ({where}){notes}"
        raise Violated("calls-end-as-promised", text)


def check_all_closed(host: str, to: Mapping[str, int]) -> None:
    """Raise Violated where closed clients still have open sockets, listed by remote end."""
    if to:
        named = ", ".join(f"{count} to {name}" for name, count in sorted(to.items()))
        raise Violated("clients-leave-nothing-open", f"sockets that were not closed: {named}", host)


# How much a pull brings: all that waits, up to the limits.
#
# A consumer that gets less needs more round trips for the same messages, and no history shows that.
# Source: RocketMQ's DefaultMessageStore.getMessage (isTheBatchFull).


def check_filled(
    sizes: Sequence[int], next_size: int | None, count_max: int, bytes_max: int
) -> None:
    """Raise Violated where a pull brought too much, or too little.

    `sizes` are those of the messages that it brought, in bytes as stored, and `next_size` that of
    the first one that it left, None if it left none. One message is brought however large it is.
    """
    count, size = len(sizes), sum(sizes)
    came = f"{count} message{'s' * (count != 1)} of {size} bytes"
    may = f"up to {count_max} messages and {bytes_max} bytes may"
    if count > count_max or (count > 1 and size > bytes_max):
        raise Violated("pulls-are-filled", f"{came} came; {may}")
    if next_size is not None and count < count_max and size + next_size <= bytes_max:
        waited = f"one of {next_size} bytes waited"
        raise Violated("pulls-are-filled", f"{came} came, though {waited}; {may}")
