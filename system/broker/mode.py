"""What in a broker depends on how its log is kept: DLedger entries, or a plain commit log.

Source: RocketMQ's DefaultMessageStore, which has a DLedgerCommitLog or a CommitLog.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from shaketable.system.broker.appender import Appender, PendingAppends
from shaketable.system.broker.core import DLEDGER_FORMAT, Core, LogFormat
from shaketable.system.broker.effects import NOT_LEADER, Outbox
from shaketable.system.broker.event_log import EventLog
from shaketable.system.broker.limits import BrokerConfig
from shaketable.system.broker.reading.queries import ANY_MEMBER_CODES
from shaketable.system.broker.reput import Reput
from shaketable.system.remoting.codes import RequestCode


class EventLogFactory(Protocol):
    """Creates the log of topic or group offset events."""

    def __call__(
        self,
        appender: Appender,
        pending: PendingAppends,
        outbox: Outbox,
        config: BrokerConfig,
        reput: Reput,
    ) -> EventLog:
        """Return the event log of a broker made of these parts."""


@dataclass(frozen=True, slots=True)
class Mode:
    """The parts by which brokers differ.

    Attributes:
        format: how messages are stored in the log.
        reput: dispatches the log's messages.
        pending: creates the table of appends that wait for their acknowledgement.
        topic_events: creates the log of topic changes.
        offset_events: creates the log of offset commits; None: the same as `topic_events`.
        status: additional fields of the broker's runtime info.
        not_leader: why a broker that does not lead refuses a request.
        any_member_codes: queries, other than pulls, that any member answers.
        to_migrate: entry bodies that bring topics and offsets from before the group into its
            log (`taken_over.encode_bodies`).
    """

    format: LogFormat = DLEDGER_FORMAT
    reput: type[Reput] = Reput
    pending: Callable[[Core, Outbox], PendingAppends] = PendingAppends
    topic_events: EventLogFactory = EventLog
    offset_events: EventLogFactory | None = None
    status: Callable[[], dict[str, str]] = dict
    not_leader: str = NOT_LEADER
    any_member_codes: frozenset[RequestCode] = ANY_MEMBER_CODES
    to_migrate: tuple[bytes, ...] = ()


DLEDGER = Mode()
"""A member of a DLedger group."""
