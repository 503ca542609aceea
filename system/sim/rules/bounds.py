"""Every queue of a member is bounded, and nothing waits in one for ever.

Checked from outside, through private fields; the limits are those of `BrokerConfig` and
`RaftConfig`. Source: STYLE.md rule 3; DLEDGER.md E7, E17.
"""

from __future__ import annotations

from operator import attrgetter

from shaketable.system.broker.broker import Broker
from shaketable.system.raft.core import RaftCore
from shaketable.system.sim.disk import SimDisk
from shaketable.system.sim.rules.violation import Violated

HELD_MESSAGES_MAX = 256
"""Messages that wait for a write: one push response for each leader met, and the votes requested
meanwhile, each after an election timeout."""
TRANSFER_SLACK_MS = 500.0
"""A transfer is checked at each heartbeat, so it may end so much later."""
HANDLES_MAX = 4
"""Handles of one file: its writer's, its readers', and one temporary. A leaked handle stays open
as long as the node runs."""
OPERATORS_MAX = 8
"""Membership changes wait among the appends and do not count for their limit."""

_appends = attrgetter("_pending.waiting")
_appends_max = attrgetter("_config.pending_sends_max")
_held = attrgetter("_held")
_in_flight = attrgetter("_in_flight")
_leadership = attrgetter("_leadership")


def check_answered(name: str, broker: Broker, now_ms: float) -> None:
    """Raise Violated where an append is unanswered at a tick after its timeout."""
    appends = _appends(broker)
    if appends and appends[0].due_ms <= now_ms:
        late_ms = now_ms - appends[0].due_ms
        raise Violated("appends-are-answered", f"one waits {late_ms:.0f} ms too long", name)


def check_appends(name: str, broker: Broker) -> None:
    """Raise Violated where too many appends wait for an answer."""
    limit = _appends_max(broker) + OPERATORS_MAX
    _check(name, "pending appends", len(_appends(broker)), limit)


def check_transfer(name: str, core: RaftCore, now_ms: float) -> None:
    """Raise Violated where a leader does not give up a transfer in time."""
    leading = _leadership(core)
    due_ms = None if leading is None else leading.transfer.due_ms
    if due_ms is not None and now_ms > due_ms + TRANSFER_SLACK_MS:
        assert leading is not None, "it has a transfer"
        target = leading.transfer.target
        raise Violated(
            "transfers-are-given-up",
            f"the transfer to {target} was to be given up {now_ms - due_ms:.0f} ms ago",
            name,
        )


def check_handles(name: str, disk: SimDisk) -> None:
    """Raise Violated where a file has more handles open at once than needed."""
    path, count = disk.most_opened
    _check(name, f"handles of {path}", count, HANDLES_MAX)


def check_bounds(name: str, broker: Broker, core: RaftCore) -> None:
    """Raise Violated where a queue exceeds its limit."""
    check_appends(name, broker)
    _check(name, "messages held back", len(_held(core.ledger.pending)), HELD_MESSAGES_MAX)
    leading = _leadership(core)
    if leading is not None:
        config = core.config
        _check(name, "reads", leading.reads_waiting, config.reads_waiting_max)
        for dispatcher in leading.dispatchers.values():
            _check(name, "pushes", len(_in_flight(dispatcher)), config.in_flight_pushes_max)


def _check(name: str, what: str, count: int, limit: int) -> None:
    if count > limit:
        raise Violated("queues-are-bounded", f"{count} {what}, {limit} are allowed", name)
