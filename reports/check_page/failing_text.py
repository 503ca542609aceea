"""The failing part of a history as lines of text: clients as rows, time to the right. Pure.

client 0  |-1 write 3-|
client 1      |-2 write 4---|
client 2                       |X read 3---|
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Final

from shaketable.reports.check_page.checked_history import FailingPart, PartOperation
from shaketable.reports.check_page.failing_picture import Axis, Scale, Span, place

OPERATIONS_MAX: Final = 16
"""Operations that are drawn; fewer in a narrow terminal."""
OPERATIONS_MIN: Final = 4
STATES_SHOWN_MAX: Final = 5
EVIDENCE_SHOWN_MAX: Final = 4
COULD_NOT_SHOWN_MAX: Final = 4
LABEL_MAX: Final = 28
STUCK: Final = "X"
OPEN: Final = "...?"


def lines(part: FailingPart, width: int, said: str = "") -> list[str]:
    """Draw a failing part, at most `width` columns wide if possible.

    `said` is the finding's message, shown before: a reason that it gives is not given again.
    """
    count = OPERATIONS_MAX
    while True:
        drawn = _drawing(part, count)
        if count <= OPERATIONS_MIN or max(map(len, drawn)) <= width:
            break
        count -= 1
    left_out = len(part.operations) - min(count, len(part.operations))
    if left_out:
        drawn.append(f"({left_out} more operations of this part are not drawn)")
    return drawn + _sentences(part, width, said)


def _drawing(part: FailingPart, count: int) -> list[str]:
    shown = part.focus(count)
    numbers = numbering(part)
    spans = [
        Span(each.call_ns, each.return_ns, len(_label(each, part, numbers)) + 1) for each in shown
    ]
    axis = place(spans, Scale(0, 1, 1))
    rows: dict[int, list[str]] = {}
    order: dict[int, list[PartOperation]] = {}
    for each in shown:
        order.setdefault(each.process, []).append(each)
    names = {process: f"client {process}" for process in sorted(order)}
    left = max(map(len, names.values())) + 2
    for process, operations in sorted(order.items()):
        row = rows.setdefault(process, [])
        for each in operations:
            _put(row, each, _label(each, part, numbers), axis)
    return [f"{names[process]:{left}}{''.join(row)}".rstrip() for process, row in rows.items()]


def numbering(part: FailingPart) -> Mapping[int, int]:
    """Number the operations of the prefix in its order, from 1."""
    return {op: number for number, (op, _) in enumerate(part.prefix, 1)}


def _label(each: PartOperation, part: FailingPart, numbers: Mapping[int, int]) -> str:
    call = each.call if len(each.call) <= LABEL_MAX else each.call[: LABEL_MAX - 1] + "…"
    if each.op == part.stuck or each.op in part.accused:
        call = f"{STUCK} {call}"
    elif each.op in numbers:
        call = f"{numbers[each.op]} {call}"
    return f"|-{call}-{OPEN if each.return_ns is None else ''}"


def _put(row: list[str], each: PartOperation, label: str, axis: Axis) -> None:
    start = int(axis.places[2 * each.call_ns])
    stop = None if each.return_ns is None else int(axis.places[2 * each.return_ns + 1])
    text = label if stop is None else label.ljust(stop - start, "-") + "|"
    row.extend(" " * (start - len(row)))
    del row[start:]  # cut an operation of unknown outcome where its client continues
    row.extend(text)


def _sentences(part: FailingPart, width: int, said: str) -> list[str]:
    sentences: list[str] = []
    if part.stuck is None and not part.prefix:
        return sentences
    if part.before:
        sentences.append(f"{part.before:,} operations had returned before.")
    if part.states:
        sentences.append(f"Then it held {_either(part.states)}.")
    if part.prefix:
        more = len(part.prefix) - STATES_SHOWN_MAX
        numbers = numbering(part)
        steps = [f"{numbers[op]}: {state}" for op, state in part.prefix[-STATES_SHOWN_MAX:]]
        ellipsis = "... " if more > 0 else ""
        sentences.append(f"The longest order that works leaves {ellipsis}{', '.join(steps)}.")
    elif not part.is_accusation and not part.undecided:
        sentences.append("No operation can come first.")
    could_not = [(op, why) for op, why in part.could_not if why.removesuffix(".") not in said]
    for op, why in could_not[:COULD_NOT_SHOWN_MAX]:
        each = part.by_id(op)
        what = f"operation {op}" if each is None else f"{each.call} by client {each.process}"
        sentences.append(f"Next cannot be {what}: {why}.")
    if len(could_not) > COULD_NOT_SHOWN_MAX:
        sentences.append(f"Nor can {len(could_not) - COULD_NOT_SHOWN_MAX} others.")
    evidence = part.evidence[:EVIDENCE_SHOWN_MAX]
    sentences += [f"Indeterminate: {sentence}" for sentence in evidence]
    if len(part.evidence) > EVIDENCE_SHOWN_MAX:
        sentences.append(
            f"So are {len(part.evidence) - EVIDENCE_SHOWN_MAX} others; --json has them."
        )
    if part.undecided:
        sentences.append(f"Undecided: the budget of {part.undecided} was used up.")
    return ["", *_wrapped(sentences, width)]


def _either(states: Sequence[str]) -> str:
    shown = list(states[:STATES_SHOWN_MAX])
    return " or ".join(shown) + (" or more" if len(states) > len(shown) else "")


def _wrapped(sentences: Sequence[str], width: int) -> list[str]:
    return [line for text in sentences for line in textwrap.wrap(text, max(40, width))]
