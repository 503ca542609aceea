"""Invariants: what counts as durable is on the disk, and what counts as written was written.

A fault in it costs nothing until power is lost in the right moment; here each flush shows it.
Source: DESIGN.md decision 1 (fsync before an acknowledgement); DLEDGER.md E8, E18, E32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import takewhile
from operator import attrgetter
from typing import Any, Protocol

from shaketable.system.broker.effects import Connection, Outbox
from shaketable.system.broker.limits import BrokerConfig
from shaketable.system.invariants.violated import Violated
from shaketable.system.master_slave.core import MasterSlaveCore
from shaketable.system.master_slave.mode import GroupCommit
from shaketable.system.raft.protocol import (
    Append,
    Install,
    LogEnd,
    Message,
    PushResponse,
    SaveState,
    Truncate,
    VoteResponse,
    Write,
)
from shaketable.system.remoting.codes import ResponseCode, outcome_of
from shaketable.system.remoting.command import Command, Frame, decode_command
from shaketable.system.store.state_files import HardState

Unsynced = Callable[[str], dict[str, int]]
"""Returns the files of a folder that a loss of power would cost bytes now: path -> the first."""
STATE = "currterm"
"""The file with a member's term and vote."""

_watermark = attrgetter("_watermark.record.end")


def watermark_of(log: Any) -> LogEnd:
    """Return a commit log's durable watermark."""
    found: LogEnd = _watermark(log)
    return found


def check_flushed(name: str, position: int, unsynced: dict[str, int]) -> None:
    """Raise Violated where the log's data before `position`, its end, is not all on the disk.

    `unsynced` are data files, each named by the position of its first byte.
    """
    if found := _not_synced(position, unsynced):
        raise Violated("acknowledged-is-durable", found, name)


def check_marked(name: str, log: Any, unsynced: dict[str, int]) -> None:
    """Raise Violated where a log's durable watermark is ahead of what is on the disk."""
    if found := _not_synced(watermark_of(log).position, unsynced):
        raise Violated("watermark-is-durable", found, name)


def _not_synced(position: int, unsynced: dict[str, int]) -> str:
    """Say what before `position` is not on the disk; "" if all is."""
    for path, first in unsynced.items():
        at = int(path.rpartition("/")[2]) + first
        if at < position:
            return (
                f"all before byte {position} counts as durable, and from byte {at} on the log is"
                " not synced"
            )
    return ""


def check_state(name: str, unsynced: dict[str, int]) -> None:
    """Raise Violated where term and vote, which were just saved, are not on the disk."""
    if any(path.rpartition("/")[2] == STATE for path in unsynced):
        raise Violated("vote-is-durable", "term and vote count as saved, and are not synced", name)


class Durable(Protocol):
    """What of one member is durable: the last index of its log, and its term and vote."""

    name: str
    durable_index: int
    state: HardState


def note_synced(durable: Durable, writes: Iterable[Write]) -> None:
    """Note that writes were carried out."""
    for write in writes:
        if isinstance(write, Append):
            durable.durable_index = write.batch.last_index
        elif isinstance(write, Truncate):
            durable.durable_index = min(durable.durable_index, write.end_index)
        elif isinstance(write, SaveState):
            durable.state = HardState(write.term, write.voted_for)
        elif isinstance(write, Install):
            durable.durable_index = write.snapshot.end.index


def check_sent(durable: Durable, peer: str, message: Message) -> None:
    """Raise Violated where a vote or an acknowledgement is sent before it is durable."""
    if isinstance(message, PushResponse):
        if message.match_index > durable.durable_index:
            raise Violated(
                "acknowledged-is-durable",
                f"{message.match_index} is acknowledged, {durable.durable_index} is durable",
                durable.name,
            )
    elif isinstance(message, VoteResponse) and message.granted and not message.pre_vote:
        state = durable.state
        is_kept = state.term == message.term and state.voted_for == peer
        if not is_kept and state.term <= message.term:
            raise Violated(
                "vote-is-durable", f"{peer} gets a vote of term {message.term}, {state} is durable",
                durable.name,
            )  # fmt: skip


def check_carried_out(name: str, reported: int, carried_out: int) -> None:
    """Raise Violated where writes count as carried out that the disk has not seen."""
    if reported > carried_out:
        raise Violated(
            "acknowledged-is-durable",
            f"writes up to {reported} count as durable, and those up to {carried_out} were written",
            name,
        )


# What a broker without a group acknowledges.

POSITION_HEX_DIGITS = 16
"""A message id ends with the message's position in the log (RocketMQ's MessageDecoder)."""
_HEADER_AT = 8


def acknowledged_positions(reply: bytes) -> Iterator[int]:
    """Yield the positions of the messages that a reply to a client acknowledges, if any."""
    answer = _decoded(reply)
    if answer.code == ResponseCode.SUCCESS and "msgId" in answer.ext:
        for message_id in answer.ext["msgId"].split(","):
            yield int(message_id[-POSITION_HEX_DIGITS:], 16)


def check_reported(name: str, position: int, sent_position: int) -> None:
    """Raise Violated where a slave's report counts as a copy of what was sent to no slave."""
    if position > sent_position:
        text = f"a slave's report of {position} counts, and {sent_position} was sent"
        raise Violated("reports-fit-what-was-sent", text, name)


def checked_commit(
    base: type[GroupCommit], report: Callable[[Violated], None]
) -> type[GroupCommit]:
    """Return the class with its answers to late sends checked; `report` gets violations.

    A send whose write takes too long is in the log, so no answer may say that it was refused.
    """

    class CheckedCommit(base):  # type: ignore[valid-type, misc]
        def __init__(self, core: MasterSlaveCore, outbox: Outbox, config: BrokerConfig) -> None:
            put = outbox.put

            def shown(connection: Connection, reply: bytes) -> None:
                self._answered(connection, reply)
                put(connection, reply)

            vars(outbox)["put"] = shown
            self._late: dict[tuple[Connection, int], int] = {}
            super().__init__(core, outbox, config)

        def expire(self, now_ms: float) -> None:
            late = takewhile(lambda each: each.due_ms <= now_ms, self.waiting)
            self._late = {(each.connection, each.opaque): each.last_index for each in late}
            super().expire(now_ms)
            self._late.clear()

        def _answered(self, connection: Connection, reply: bytes) -> None:
            if not self._late:
                return
            answer = _decoded(reply)
            index = self._late.get((connection, answer.opaque))
            if index is not None and outcome_of(answer.code) == "fail":
                text = (
                    f"a send is answered with code {answer.code}, as if nothing of it was stored,"
                    f" and its message, which ends at byte {index}, is in the log that is written"
                )
                report(Violated("refusal-is-definite", text))

    return CheckedCommit


def _decoded(reply: bytes) -> Command:
    header_end = _HEADER_AT + int.from_bytes(reply[5:_HEADER_AT], "big")
    view = memoryview(reply)
    return decode_command(Frame(reply[4], view[_HEADER_AT:header_end], view[header_end:]))
