"""One row of a story in words: what arrived, what happened, what was sent, as one sentence."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from system.sim.story_arrows import Arrow
from system.sim.story_rows import WORLD, Row
from system.sim.watch import Happening, Kind


def sentence(row: Row) -> str:
    """Say what a row shows: `n1 gets entry 3 from n0; writes entry 3 of term 1`."""
    if row.lane == WORLD:
        return _world(row.happenings)
    faults = _faults([h for h in row.happenings if h.kind in (Kind.FAULT, Kind.MENDED)])
    broken = [f"BREAKS {h.text}" for h in row.happenings if h.kind is Kind.BROKEN]
    parts = [*faults, *_got(row), *_happened(row), *_sent(row), *broken]
    return f"{row.lane} {'; '.join(parts)}"


def _world(happenings: Sequence[Happening]) -> str:
    """Several members that start alike start in one row; else it is a fault of the network."""
    starts = [happening for happening in happenings if happening.kind is Kind.START]
    if starts:
        names = _and([happening.node for happening in starts])
        return f"{names} start: {starts[0].text.partition(': ')[2]}"
    return "; ".join(_faults(happenings))


def _got(row: Row) -> list[str]:
    if row.has(Kind.ANSWER):  # what a client is answered stands among the happenings
        return []
    parts = []
    for what, arrows in _alike(row.got):
        sources = _and(dict.fromkeys(arrow.source for arrow in arrows))
        if arrows[0].kind == "ack":
            parts.append(f"learns from {sources} {what}")
        else:
            parts.append(f"gets {what} from {sources}")
    return parts


def _happened(row: Row) -> list[str]:
    parts = []
    for happening in row.happenings:
        if happening.kind is Kind.VOTE:
            parts.append(happening.text.replace(f"for {row.lane} ", "for itself "))
        elif happening.kind is Kind.CRASH:
            parts.append(happening.text.replace("crash", "crashes", 1))
        elif happening.kind not in (Kind.FAULT, Kind.MENDED, Kind.BROKEN):
            parts.append(happening.text)
    return list(dict.fromkeys(parts))


def _faults(happenings: Iterable[Happening]) -> list[str]:
    return [
        f"FAULT {happening.index + 1}: {happening.text}"
        if happening.kind is Kind.FAULT
        else f"fault {happening.index + 1} ends: {happening.text}"
        for happening in happenings
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
    """Take together what says the same."""
    found: dict[str, list[Arrow]] = {}
    for arrow in arrows:
        found.setdefault(arrow.what, []).append(arrow)
    return found.items()


def _and(names: Iterable[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last
