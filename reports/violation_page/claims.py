"""Explain a violation's claim to a reader who did not write the test."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from shaketable.harness.contracts.plugins import FaultWindow
from shaketable.reports.run_view import FaultRow, OperationRow, Violation
from shaketable.reports.violation_page.violation_view import Claim

_KEPT: Final = (
    "An acknowledged append is kept: it is at the offset that the client was given, on as many"
    " nodes as the target promises (a majority, if it promises no more)."
)
_ONE_VALUE: Final = "The value at an offset never changes: every read of it returns the same one."
_NO_FAILED: Final = "No read returns the value of an append that certainly failed."
_ONE_OFFSET: Final = "A value that was sent once is at one offset."
_SENT: Final = "A read returns only what a client has sent."
_FORWARD: Final = "A consumer that goes on is given the next messages, never those before."
_NONE_LEFT_OUT: Final = "A consumer that goes on is given the next message; none is left out."
_CYCLE: Final = (
    "There is one order of all operations with which everything agrees: the offsets, who read"
    " what, the order inside each client, and real time."
)
PROMISED: Final[Mapping[str, str]] = {
    "invariant-broken": (
        "The group's invariants hold at every moment, on every node: the simulated world looks"
        " after every step."
    ),
    "rule-broken": (
        "A node keeps the rules of its own protocol. Where it finds one broken it stops, rather"
        " than go on."
    ),
    "damage-found": (
        "What a node has synced it finds again as it was written, unless a fault damages it."
    ),
    "ended-unharmed": (
        "A node runs until it is stopped, whatever happens to other nodes and to links."
    ),
    "lost-append": _KEPT,
    "altered": _KEPT,
    "reordered": _KEPT,
    "missing-on-node": (
        "A node that has committed as far as an acknowledged append has it in its own log."
    ),
    "duplicated": "A value that was appended once is in the log once.",
    "damaged": "What a node has committed can be read again as it was written.",
    "divergent": (
        "A committed entry is the same on all nodes: two that have committed one index have the"
        " same entry there."
    ),
    "term-fell": "Terms never fall along a log: no entry has a lower term than the one before it.",
    "gap": "A node's log has every index up to the last one that it committed.",
    "index-twice": "A log has one entry at each index.",
    "negative-offset": "The offsets of a queue count from 0.",
    "offset-given-twice": "Each acknowledged append gets an offset that no other one gets.",
    "phantom-read": _SENT,
    "aborted-read": _NO_FAILED,
    "G1a": _NO_FAILED,
    "inconsistent-read": _ONE_VALUE,
    "inconsistent-offsets": _ONE_VALUE,
    "duplicate": _ONE_OFFSET,
    "append-order": (
        "An append that is called after another one was acknowledged gets a higher offset."
    ),
    "future-read": "An answer shows what was appended before it, and nothing that came later.",
    "future-end": "An answer shows what was appended before it, and nothing that came later.",
    "stale-read": "A read that is called after an append was acknowledged finds that append.",
    "stale-end": "The reported end of a queue is after all acknowledged appends.",
    "read-went-back": "A queue is never found shorter than an earlier request has seen it.",
    "end-went-back": "The reported end of a queue never goes back.",
    "unexplained-offset": "Only appends that a client called take up offsets.",
    "lost-write": "A read past an acknowledged message returns it.",
    "unseen": "An acknowledged message is there for every later read.",
    "poll-skip": _NONE_LEFT_OUT,
    "int-poll-skip": _NONE_LEFT_OUT,
    "nonmonotonic-poll": _FORWARD,
    "int-nonmonotonic-poll": _FORWARD,
    "nonmonotonic-send": "The messages of one producer are in the order in which it sent them.",
    "lost-message": "Every acknowledged message is delivered to the consumer group.",
    "late-delivery": (
        "While nothing is wrong with the group, a message that is there, or whose delay is over,"
        " is delivered within a few seconds (docs/anomalies.md has the bound)."
    ),
    "early-delivery": (
        "A message that was delayed, or sent back, comes when its delay is over, and not before."
    ),
    "wrong-attempt": (
        "A message at which a handler failed comes again with one attempt more, so often at most as"
        " was requested; then it is among the dead letters, and so does no other."
    ),
    "two-owners": (
        "While no consumer joins or leaves a consumer group, and nothing is wrong, a queue's"
        " messages go to one consumer alone."
    ),
    "needless-redelivery": (
        "While no consumer joins or leaves a consumer group, and nothing is wrong, what was"
        " handled does not come again; nor after a consumer that leaves in good order."
    ),
    "duplicate-delivery": "A delayed message is put into its queue once.",
    "missed-tag": "Who asks a queue for tags is given every message that bears one of them.",
    "unwanted-tag": "Who asks a queue for tags is given only messages that bear one of them.",
    "missed-key": (
        "Who asks a queue for messages by a key is given the newest that bear it, as many as were"
        " asked for."
    ),
    "unwanted-key": (
        "Who asks a queue for messages by key or id is given none but these, each once."
    ),
    "not-refused": "What must be refused is never done.",
    "wrong-refusal": "What must be refused is refused with the right code.",
    "no-answer": "While nothing is wrong with the group, an operator is answered within a second.",
    "lock-overlap": (
        "While a consumer holds the lock of a queue no other one is given it, as long as the same"
        " node leads in the same term."
    ),
    "out-of-order": "A consumer is given one producer's messages in the order of its sends.",
    "redelivered-committed": (
        "What a consumer group has committed is not delivered to it again, unless its offset is"
        " reset."
    ),
    "offset-went-back": "A group's offset is the one that was committed last.",
    "offset-ran-ahead": "A group's offset is the one that was committed last.",
    "offset-lost": "A committed offset is there for the next consumer of its group.",
    "never-committed": "A group is given only offsets that were committed for it.",
    "lost-element": "What was known to be in it stays in it.",
    "stale-element": "A read that starts after an element was known to be in a set returns it.",
    "unexpected-element": "Only what was put in comes out.",
    "repeated-element": "A set has each element once.",
    "duplicated-element": "What was put in once comes out once.",
    "lost-add": "A counter is the sum of all adds that are over, and maybe of some that are open.",
    "out-of-bounds": (
        "A counter is the sum of all adds that are over, and maybe of some that are open."
    ),
    "repeated-id": "No id is handed out twice.",
    "not-linearizable": (
        "Each operation takes effect at one moment between its call and its return, so that the"
        " answers are those of one object that is asked by one client at a time."
    ),
    "G0": _CYCLE,
    "G1c": _CYCLE,
    "G0-process": _CYCLE,
    "G1c-process": _CYCLE,
    "G0-realtime": _CYCLE,
    "G1c-realtime": _CYCLE,
}
"""The promise that a finding of a kind breaks."""
SEEN_LIVE: Final = frozenset({"invariant-broken", "rule-broken", "damage-found", "ended-unharmed"})
"""Kinds that were seen during the run, by its world or by a node that exited."""
DEFAULT_PROMISE: Final = "The checker has a rule of its own; see its message."
DURABLE: Final = frozenset({"lost-append", "altered", "reordered", "missing-on-node"})
"""Kinds about an acknowledged append that is not where it must be."""
_BECAME: Final[Mapping[str, str]] = {
    "lost-append": "is lost",
    "altered": "was altered: something that no client appended is in its place",
    "reordered": "is at another offset than the client was given",
    "missing-on-node": "is missing on a node that has committed further than it",
}
NS_PER_S: Final = 1e9
TERM_BEGAN: Final = "its term began"
"""The only known time of an entry that no client was told about."""
_PROCESS: Final = re.compile(r"\bprocess ([0-9]+)")
"""Checkers say process, as histories do; pages say client, as their tables do."""
_NAMES_FIRST: Final = re.compile(r"\S+(, \S+)*: ")


def base_kind(kind: str) -> str:
    """Return a kind without its suffix in brackets: "stale-read (not promised)"."""
    return kind.partition(" (")[0]


def claim_of(
    violation: Violation,
    marked: tuple[OperationRow, ...],
    nodes: tuple[str, ...],
    faults: tuple[FaultRow, ...] = (),
    moment: tuple[int | None, str] = (None, ""),
    gone: str = "",
    target_note: str = "",
) -> Claim:
    """Put a violation into two or three sentences.

    Args:
        violation: what was found.
        marked: the operations that it names.
        nodes: of the group.
        faults: those that were active around it.
        moment: when it was, if known, and what happened then (`moments.moment_label`).
        gone: when it went missing, as text (`loss_window.loss_text`).
        target_note: the target's own note on its promises.
    """
    kind = base_kind(violation.kind)
    invariant_text = violation.details.get("promise")
    has_text = kind == "invariant-broken" and isinstance(invariant_text, str) and invariant_text
    promised = str(invariant_text) if has_text else PROMISED.get(kind, DEFAULT_PROMISE)
    instead = ""
    if kind in DURABLE and violation.value is not None:
        instead = _durable(violation, kind, marked, nodes)
    where = _where(violation, faults, *moment)
    return Claim(
        promised,
        instead or _sentence(violation),
        where,
        gone,
        target_note if kind in DURABLE else "",
    )


def _durable(
    violation: Violation, kind: str, marked: tuple[OperationRow, ...], nodes: tuple[str, ...]
) -> str:
    """Return what became of an acknowledged append: who acknowledged it, and who has it."""
    append = next((row for row in marked if row.input == violation.value), None)
    who = "A client" if append is None else f"Client {append.process}"
    text = f"{who} appended the value {violation.value} to {violation.key or 'the queue'}."
    by = violation.acknowledged_by or "A node that is not named"
    at = (
        ""
        if violation.acknowledged_ns is None
        else f", {violation.acknowledged_ns / NS_PER_S:.3f} s into the run"
    )
    text += f" {by} acknowledged it at offset {violation.offset}{at}."
    text += f" At the end of the run this append {_BECAME[kind]}"
    held = violation.details.get("held_by")
    if isinstance(held, list) and nodes:
        holders = [str(node) for node in held]
        verb = "holds" if len(holders) == 1 else "hold"
        text += (
            f": of the {len(nodes)} nodes only {', '.join(holders)} {verb} it there"
            if holders
            else f": none of the {len(nodes)} nodes holds it there"
        )
    return f"{text}."


def _sentence(violation: Violation) -> str:
    """Return the checker's own message without the queue's name, which is shown elsewhere."""
    text = violation.message or violation.kind
    if violation.key and text.startswith(f"{violation.key}: "):
        text = text[len(violation.key) + 2 :]
    text = _PROCESS.sub(r"client \1", text)
    # "n0: its log lacks ..." starts with a name, which is not capitalized.
    return text if _NAMES_FIRST.match(text) else text[:1].upper() + text[1:]


def _on(faults: tuple[FaultRow, ...], moment_ns: int | None) -> list[FaultWindow]:
    """Return the faults that were active at a moment; none if the moment is not known."""
    if moment_ns is None:
        return []
    return [row.window for row in faults if row.window.from_ns <= moment_ns <= row.window.stop_ns]


def _since(on: list[FaultWindow], moment_ns: int | None) -> str:
    """Return how long the fault had been active; "" if there was none, or more than one."""
    if moment_ns is None:
        return ""
    return (
        f", which had begun {duration_text(moment_ns - on[0].from_ns)} before"
        if len(on) == 1
        else ""
    )


def duration_text(length_ns: int) -> str:
    """Print a length of time in a fitting unit."""
    if length_ns < NS_PER_S:
        return f"{length_ns / 1e6:.0f} ms"
    return f"{length_ns / NS_PER_S:.2f} s"


def _where(
    violation: Violation, faults: tuple[FaultRow, ...], moment_ns: int | None, moment_label: str
) -> str:
    """Return under which fault it happened, and how long after its start; "" if unknown."""
    fault_text, on = violation.fault_text, _on(faults, moment_ns)
    since = _since(on, moment_ns)
    if not fault_text and moment_ns is None:
        return ""
    if not fault_text:
        return _at_moment(on, moment_ns, moment_label)
    if fault_text.startswith("under ") and base_kind(violation.kind) in DURABLE:
        return f"It was acknowledged under a fault: {fault_text.removeprefix('under ')}{since}."
    if fault_text.startswith("under "):
        return f"This happened under a fault: {fault_text.removeprefix('under ')}{since}."
    if fault_text.startswith("seen under "):
        return f"It was seen under a fault: {fault_text.removeprefix('seen under ')}{since}."
    return f"This happened {fault_text}."


def _at_moment(on: list[FaultWindow], moment_ns: int | None, moment_label: str) -> str:
    """Return which faults were active at a moment, if the finding itself names none."""
    named = ", ".join(f"{one.name} {one.fault} ({one.description})" for one in on)
    if moment_label == TERM_BEGAN and moment_ns is not None:
        began = f"the entry's term began {moment_ns / NS_PER_S:.3f} s into the run, as polled"
        faults = f"with {named} on" if on else "with no fault on"
        return f"It is not known when it happened; {began}, {faults}."
    if on:
        return f"Faults that were on at that moment: {named}."
    when = f"when it was {moment_label}" if moment_label else "at that moment"
    return f"No fault was on {when}, as far as the history shows."
