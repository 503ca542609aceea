"""The messages of a run that carried something new, as arrows from lane to lane.

Votes, entries, acknowledgements, snapshots, clients' requests and replies; heartbeats and
repetitions are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from shaketable.system.raft.protocol import (
    LeadershipTransfer,
    PushRequest,
    PushResponse,
    SnapshotRequest,
    VoteRequest,
    VoteResponse,
)
from shaketable.system.sim.history import APPEND, OK, PULL
from shaketable.system.sim.schedules.faults import AnyFault, Pause
from shaketable.system.sim.stories.watch import Kind, Sending, Watched, entries

ARROWS_MAX = 60
_ENTRIES = "entries"
_WEIGHTS = {"transfer": 6, "snapshot": 6, "vote": 5, "push": 4, "client": 3, "ack": 2}


@dataclass(slots=True)
class Arrow:
    """One message; `what` describes its content. `arrives_ms` is None if it did not arrive.

    `kind` is "vote", "push", "ack", "snapshot", "transfer" or "client". `waits`: its target is
    paused when it arrives. In a `series` (entries, or messages of a queue), `first` and `last` are
    what it carries. `row` and `end_row` are the rows where it starts and ends, -1 if none.
    """

    sent_ms: float
    source: str
    target: str
    kind: str
    what: str
    arrives_ms: float | None
    is_lost: bool = False
    waits: bool = False
    series: str = ""
    first: int = -1
    last: int = -1
    row: int = -1
    end_row: int = -1


def choose_arrows(seen: Watched) -> list[Arrow]:
    """Return the messages that mattered; of too many, the late and important ones."""
    arrows = [*_messages(seen.sendings), *_client_arrows(seen)]
    _apply_downtime(seen, arrows)
    arrows = _merge(arrows)
    arrows.sort(key=lambda arrow: (_WEIGHTS[arrow.kind], arrow.sent_ms), reverse=True)
    return sorted(arrows[:ARROWS_MAX], key=lambda arrow: arrow.sent_ms)


def in_series(series: str, first: int, last: int) -> str:
    """Describe what an arrow of a series carries: `entries 3..5`, `message 7 for queue 0`."""
    if series == _ENTRIES:
        return entries(first, last)
    return f"{numbers('message', (first,) if first == last else (first, last))} {series}"


def _merge(arrows: Iterable[Arrow]) -> list[Arrow]:
    """Merge messages of a series that are sent at once into one arrow, from the first arrival."""
    found: dict[tuple[object, ...], Arrow] = {}
    for number, arrow in enumerate(arrows):
        key: tuple[object, ...] = (number,)
        if arrow.series:
            has_not_arrived = arrow.arrives_ms is None
            at_ms = round(arrow.sent_ms, 6)
            key = (at_ms, arrow.source, arrow.target, arrow.series, has_not_arrived, arrow.is_lost)
        one = found.setdefault(key, arrow)
        if one is not arrow:
            one.first, one.last = min(one.first, arrow.first), max(one.last, arrow.last)
            one.what = in_series(one.series, one.first, one.last)
            if one.arrives_ms is not None and arrow.arrives_ms is not None:
                one.arrives_ms = min(one.arrives_ms, arrow.arrives_ms)
    return list(found.values())


def _apply_downtime(seen: Watched, arrows: Iterable[Arrow]) -> None:
    """Mark arrows as lost whose target is down on arrival, and as waiting if it is paused."""
    down = _spans(seen, Kind.CRASH, Kind.START)
    paused = _spans(seen, Kind.FAULT, Kind.FAULT_ENDED, Pause)
    for arrow in arrows:
        at_ms = arrow.arrives_ms
        if at_ms is None:
            continue
        if any(node == arrow.target and start < at_ms < end for node, start, end in down):
            arrow.arrives_ms, arrow.is_lost = None, True
        arrow.waits = any(
            node == arrow.target and start <= at_ms < end for node, start, end in paused
        )


def _spans(
    seen: Watched, begins: Kind, ends: Kind, fault: type[AnyFault] | None = None
) -> list[tuple[str, float, float]]:
    """Return (node, from, until) of spans between two kinds of events, or of one kind of fault."""
    spans = []
    open_since: dict[tuple[str, int], float] = {}
    for event in sorted(seen.events, key=lambda event: event.at_ms):
        key = (event.node, event.index if fault else -1)
        if fault and not (
            event.kind in (begins, ends) and isinstance(seen.schedule.faults[event.index], fault)
        ):
            continue
        if event.kind is begins:
            open_since.setdefault(key, event.at_ms)
        elif event.kind is ends and key in open_since:
            spans.append((event.node, open_since.pop(key), event.at_ms))
    return spans + [(node, since, float("inf")) for (node, _), since in open_since.items()]


def client_lane(number: int) -> str:
    """Return the name of a client's lane."""
    return f"client {number}"


def numbers(noun: str, listed: Sequence[int]) -> str:
    """Describe things by number: `message 3` or `messages 3..5`."""
    if len(listed) == 1:
        return f"{noun} {listed[0]}"
    return f"{noun}s {listed[0]}..{listed[-1]}"


def _messages(sendings: Iterable[Sending]) -> Iterable[Arrow]:
    """Yield the messages between members that carried something new."""
    last_acks: dict[tuple[str, str], tuple[int, bool, int, int]] = {}
    for sending in sendings:
        message = sending.message
        kind = what = ""
        first = last = -1
        if isinstance(message, VoteRequest) and not message.pre_vote:
            kind, what = "vote", f"a request for a vote in term {message.term}"
        elif isinstance(message, VoteResponse) and not message.pre_vote and message.granted:
            kind, what = "vote", f"a vote in term {message.term}"
        elif isinstance(message, PushRequest) and message.batches:
            first, last = message.batches[0].first_index, message.batches[-1].last_index
            kind, what = "push", entries(first, last)
        elif isinstance(message, PushResponse):
            key = (message.follower, sending.target)
            ack = (message.term, message.success, message.match_index, message.prev_index)
            if last_acks.get(key) != ack and not message.success:
                kind, what = "ack", f"that the logs differ at entry {message.prev_index}"
            elif last_acks.get(key) != ack and message.match_index >= 0:
                kind, what = "ack", f"that it has everything up to entry {message.match_index}"
            last_acks[key] = ack
        elif isinstance(message, SnapshotRequest):
            kind, what = "snapshot", f"a snapshot up to entry {message.snapshot.end.index}"
        elif isinstance(message, LeadershipTransfer):
            kind, what = "transfer", "the request to lead"
        if kind:
            source, target = sending.source, sending.target
            arrives_ms, is_lost = sending.arrives_ms, sending.is_lost
            arrow = Arrow(sending.sent_ms, source, target, kind, what, arrives_ms, is_lost)
            if first >= 0:
                arrow.series, arrow.first, arrow.last = _ENTRIES, first, last
            yield arrow


def _client_arrows(seen: Watched) -> Iterable[Arrow]:
    delay_ms = seen.schedule.settings.client_delay_ms
    operations = {operation.number: operation for operation in seen.history}
    # Of a request that was refused and sent again, only the last attempt matters.
    asked_last = {
        (client, last): (at_ms, node, first) for at_ms, client, node, first, last in seen.asked
    }
    for (client, last), (at_ms, node, first) in asked_last.items():
        operation = operations[first]
        arrow = Arrow(at_ms - delay_ms, client_lane(client), node, "client", "", at_ms)
        if operation.kind == APPEND:
            arrow.series, arrow.first, arrow.last = f"for queue {operation.queue}", first, last
            arrow.what = in_series(arrow.series, first, last)
        elif operation.kind == PULL:
            arrow.what = f"a pull of queue {operation.queue} from offset {operation.offset}"
        else:
            arrow.what = f"the question where queue {operation.queue} ends"
        yield arrow
    answered = {}
    for operation in seen.history:
        if operation.outcome == OK:
            answered[operation.end_ms, operation.client] = operation.node
    for (end_ms, client), node in answered.items():
        yield Arrow(end_ms - delay_ms, node, client_lane(client), "client", "the answer", end_ms)
