"""What differs in a broker by how its log is kept: DLedger's entries, or a native commit log.

Source: RocketMQ's DefaultMessageStore, which has a DLedgerCommitLog or a CommitLog.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from shaketable.system.broker.appender import Appender, PendingAppends
from shaketable.system.broker.core import Core
from shaketable.system.broker.event_log import EventLog
from shaketable.system.broker.limits import BrokerConfig
from shaketable.system.broker.log_format import DLEDGER_FORMAT, LogFormat
from shaketable.system.broker.outbox import NOT_LEADER, Outbox
from shaketable.system.broker.reading.queries import ANY_MEMBER_CODES
from shaketable.system.broker.reput import Reput
from shaketable.system.remoting.codes import RequestCode


class EventLogFactory(Protocol):
    """Makes the seam to what is said about topics and group offsets."""

    def __call__(
        self,
        appender: Appender,
        pending: PendingAppends,
        outbox: Outbox,
        config: BrokerConfig,
        reput: Reput,
    ) -> EventLog:
        """Return it."""


@dataclass(frozen=True, slots=True)
class Mode:
    """The parts by which brokers differ.

    `topic_events` and `offset_events` take what is said about topics and offsets: in a group the
    same, entries of its log. `status` is what operators are told of the broker beside the rest,
    `any_member_codes` which queries are answered by whoever is asked, pulls apart,
    `not_leader` why somebody refuses what others do.
    `to_migrate` is what a group's log is to have of topics and offsets from before it
    (`taken_over.bodies_of`).
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
