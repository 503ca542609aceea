"""Invariants: every queue of a member is bounded, and nothing waits in one for ever.

Checked from outside, through private fields; the limits are those of `BrokerConfig` and
`RaftConfig`. Source: STYLE.md rule 3; DLEDGER.md E7, E17.
"""

from __future__ import annotations

from operator import attrgetter

from shaketable.system.broker.broker import Broker
from shaketable.system.broker.consume_queue import ConsumeQueues, Queue
from shaketable.system.broker.reading.pulls import TagFilter
from shaketable.system.invariants.violated import Violated
from shaketable.system.raft.core import RaftCore

HELD_MESSAGES_MAX = 256
"""Messages that wait for a write: one push response for each leader met, and the votes requested
meanwhile, each after an election timeout."""
TRANSFER_SLACK_MS = 500.0
"""A transfer is checked at each heartbeat, so it may end so much later."""
SCANNED_MAX = 800
"""Messages that are looked at for one held pull (`BrokerConfig.filtered_units_max`)."""
OPERATORS_MAX = 8
"""Membership changes wait among the appends and do not count for their limit."""

_disk = attrgetter("_disk")
_appends = attrgetter("_pending.waiting")
_appends_max = attrgetter("_config.pending_sends_max")
_held = attrgetter("_held")
_leadership = attrgetter("_leadership")
_pushes_in_flight = attrgetter("_in_flight")
_pulls_held = attrgetter("_reads._held._held")
_queues = attrgetter("_reput.queues")
_tails = attrgetter("_queues")


def check_answered(name: str, broker: Broker, now_ms: float) -> None:
    """Raise Violated where an append is unanswered at a tick after its timeout."""
    appends = _appends(broker)
    if appends and appends[0].due_ms <= now_ms:
        late_ms = now_ms - appends[0].due_ms
        raise Violated("appends-are-answered", f"one waits {late_ms:.0f} ms too long", name)


def check_woken(name: str, broker: Broker) -> None:
    """Raise Violated where a held pull waits for a message that is there, at a tick."""
    queues = _queues(broker)
    for held in _pulls_held(broker).values():
        begin, end = held.pull.request.queue_offset, queues.max_offset(held.queue)
        # One that is not confirmed may be held to be refused: this member does not lead.
        if not held.pull.is_confirmed or not queues.min_offset(held.queue) <= begin < end:
            continue
        scanned_end = min(end, begin + SCANNED_MAX)
        if held.tags is None or _passes(queues, held.queue, held.tags, (begin, scanned_end)):
            what = f"a pull of {held.queue} from {begin}, which ends at {end}, is still held"
            raise Violated("held-pulls-are-woken", what, name)


def _passes(queues: ConsumeQueues, queue: Queue, tags: TagFilter, among: tuple[int, int]) -> bool:
    """Whether a message passes that is `among` these offsets and in memory.

    No check reads the files of older ones: that may fail, or take long.
    """
    begin, end = max(among[0], _tails(queues)[queue].first), among[1]
    units = queues.units(queue, begin, end - begin) if begin < end else ()
    return any(tags.passes(code) for _, _, code in units)


def check_appends(name: str, broker: Broker) -> None:
    """Raise Violated where too many appends wait for an answer."""
    limit = _appends_max(broker) + OPERATORS_MAX
    check_limit(name, "pending appends", len(_appends(broker)), limit)


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


def check_progress(name: str, core: RaftCore, unmoved_ms: float, now_ms: float) -> None:
    """Raise Violated where a disk counts as stalled that has made progress not long ago.

    `unmoved_ms`: for how long writes have waited, and none was reported; below 0 if none waits.
    """
    limit_ms = core.config.disk_stall_max_ms
    if unmoved_ms <= limit_ms and _disk(core).is_stalled(now_ms):
        waited = (
            f"the last was reported {unmoved_ms:.0f} ms ago" if unmoved_ms >= 0 else "none wait"
        )
        text = f"its disk counts as stalled; of its writes {waited}, {limit_ms:.0f} ms are allowed"
        raise Violated("slow-is-not-stalled", text, name)


def check_bounds(name: str, broker: Broker, core: RaftCore) -> None:
    """Raise Violated where a queue exceeds its limit."""
    check_appends(name, broker)
    check_limit(name, "messages held back", len(_held(core.ledger.pending)), HELD_MESSAGES_MAX)
    leading = _leadership(core)
    if leading is not None:
        config = core.config
        check_limit(name, "reads", leading.reads_waiting, config.reads_waiting_max)
        for dispatcher in leading.dispatchers.values():
            check_limit(
                name, "pushes", len(_pushes_in_flight(dispatcher)), config.in_flight_pushes_max
            )


def check_limit(name: str, what: str, count: int, limit: int) -> None:
    """Raise Violated where there are more of something than its limit."""
    if count > limit:
        raise Violated("queues-are-bounded", f"{count} {what}, {limit} are allowed", name)
