"""One row of a story as a sentence: what arrived, what happened, what was sent."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from shaketable.system.sim.stories.story_arrows import Arrow, in_series
from shaketable.system.sim.stories.story_rows import WORLD, Row
from shaketable.system.sim.stories.watch import Event, Kind, entries


def sentence(row: Row) -> str:
    """Describe a row: `n1 gets entry 3 from n0; writes entry 3 of term 1`."""
    if row.lane == WORLD:
        return _world(row.events)
    faults = _faults([h for h in row.events if h.kind in (Kind.FAULT, Kind.FAULT_ENDED)])
    broken = [f"BREAKS {h.text}" for h in row.events if h.kind is Kind.BROKEN]
    parts = [*faults, *_got(row), *_happened(row), *_sent(row), *broken]
    return f"{row.lane} {'; '.join(parts)}"


def _world(events: Sequence[Event]) -> str:
    """Describe members that start alike, a network fault, or a violation of the whole group."""
    starts = [event for event in events if event.kind is Kind.START]
    if starts:
        names = _and([event.node for event in starts])
        state = starts[0].text.partition(": ")[2].replace("its log is", "their logs are")
        return f"{names} start: {state.replace('its log ends', 'their logs end')}"
    broken = [f"BREAKS {h.text}" for h in events if h.kind is Kind.BROKEN]
    return "; ".join([*_faults(h for h in events if h.kind is not Kind.BROKEN), *broken])


def _got(row: Row) -> list[str]:
    if row.has(Kind.ANSWER):  # the events have the client's answer
        return []
    parts = []
    for what, arrows in _alike(row.got):
        sources = _and(dict.fromkeys(arrow.source for arrow in arrows))
        if arrows[0].kind == "ack" and not arrows[0].waits:
            parts.append(f"learns from {sources} {what}")
        elif all(arrow.waits for arrow in arrows):
            parts.append(f"stands still while {what} from {sources} arrives")
        else:
            parts.append(f"gets {what} from {sources}")
    return parts


def _happened(row: Row) -> list[str]:
    parts = _written([h for h in row.events if h.kind is Kind.APPEND])
    for event in row.events:
        if event.kind is Kind.VOTE:
            parts.append(event.text.replace(f"for {row.lane} ", "for itself "))
        elif event.kind is Kind.CRASH:
            parts.append(event.text.replace("crash", "crashes", 1))
        elif event.kind not in (Kind.FAULT, Kind.FAULT_ENDED, Kind.BROKEN, Kind.APPEND):
            parts.append(event.text)
    return list(dict.fromkeys(parts))


def _written(appends: Iterable[Event]) -> list[str]:
    """Describe the batches of each term as one range of entries."""
    terms: dict[int, tuple[int, int]] = {}
    for append in appends:
        first, last = terms.get(append.term, (append.first, append.index))
        terms[append.term] = (min(first, append.first), max(last, append.index))
    return [f"writes {entries(*range_)} of term {term}" for term, range_ in terms.items()]


def _faults(events: Iterable[Event]) -> list[str]:
    return [
        f"FAULT {event.index + 1}: {event.text}"
        if event.kind is Kind.FAULT
        else f"fault {event.index + 1} ends: {event.text}"
        for event in events
    ]


def _sent(row: Row) -> list[str]:
    parts = []
    for what, arrows in _alike(row.sent):
        targets = _and(dict.fromkeys(arrow.target for arrow in arrows))
        verb = (
            f"tells {targets} {what}" if arrows[0].kind == "ack" else f"sends {what} to {targets}"
        )
        lost = [arrow.target for arrow in arrows if arrow.is_lost]
        late = [a.target for a in arrows if not a.is_lost and a.arrives_ms is None]
        if lost:
            verb += " (lost)" if len(lost) == len(arrows) else f" (lost on the way to {_and(lost)})"
        if late:
            verb += (
                " (still on its way at the end)"
                if len(late) == len(arrows)
                else (f" (still on its way to {_and(late)} at the end)")
            )
        parts.append(verb)
    return parts


def _alike(arrows: Sequence[Arrow]) -> Iterable[tuple[str, list[Arrow]]]:
    """Group arrows of equal text, and merge arrows of one series between the same pair."""
    found: dict[str, list[Arrow]] = {}
    series: dict[tuple[str, str, str], list[Arrow]] = {}
    for arrow in arrows:
        if arrow.series:
            series.setdefault((arrow.series, arrow.source, arrow.target), []).append(arrow)
        else:
            found.setdefault(arrow.what, []).append(arrow)
    for (name, _, _), together in series.items():
        first, last = min(a.first for a in together), max(a.last for a in together)
        found.setdefault(in_series(name, first, last), []).extend(together)
    return found.items()


def _and(names: Iterable[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last
