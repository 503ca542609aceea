"""A violation's claim in words, for somebody who did not write the test."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from shaketable.harness.contracts.plugins import FaultWindow
from shaketable.reports.run_view import FaultRow, OperationRow, Violation
from shaketable.reports.violation_page.violation_view import Claim

_KEPT: Final = (
    "An append that a client was told had succeeded is kept: it stands at the offset that the"
    " client was told, on as many nodes as the target promises (a majority, if it says no more)."
)
_ONE_VALUE: Final = "What stands at an offset never changes: all who read it are given one value."
_NO_FAILED: Final = "No read returns the value of an append that certainly failed."
_ONE_OFFSET: Final = "A value that was sent once stands at one offset."
_SENT: Final = "A read returns only what somebody has sent."
_FORWARD: Final = "A consumer that goes on is given the next messages, never those before."
_NONE_LEFT_OUT: Final = "A consumer that goes on is given the next message; none is left out."
_CIRCLE: Final = (
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
        "A node goes on until somebody ends it, whatever happens to other nodes and to links."
    ),
    "lost-append": _KEPT,
    "altered": _KEPT,
    "reordered": _KEPT,
    "missing-on-node": (
        "A node that has committed as far as an acknowledged append has it in its own log."
    ),
    "duplicated": "A value that was appended once stands once in the log.",
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
    "stale-end": "Whoever asks for a queue's end is told one behind all acknowledged appends.",
    "read-went-back": "Nobody finds a queue shorter than somebody before them has seen it.",
    "end-went-back": "Nobody is told a shorter end of a queue than somebody before them.",
    "unexplained-offset": "Only appends that somebody called take up offsets.",
    "lost-write": "Whoever reads past an acknowledged message is given it.",
    "unseen": "An acknowledged message is there for whoever looks for it afterwards.",
    "poll-skip": _NONE_LEFT_OUT,
    "int-poll-skip": _NONE_LEFT_OUT,
    "nonmonotonic-poll": _FORWARD,
    "int-nonmonotonic-poll": _FORWARD,
    "nonmonotonic-send": "The messages of one producer stand in the order in which it sent them.",
    "lost-message": "Every acknowledged message is delivered to the consumer group.",
    "late-delivery": (
        "While nothing is wrong with the group, a message that is there, or whose delay is over,"
        " is delivered within a few seconds (docs/anomalies.md says how many)."
    ),
    "early-delivery": (
        "A message that was delayed, or sent back, comes when its delay is over, and not before."
    ),
    "wrong-attempt": (
        "A message at which a handler failed comes again with one attempt more, so often at most as"
        " was asked for; then it lies among the dead letters, and so does no other."
    ),
    "two-owners": (
        "While nobody comes into a consumer group or leaves it, and nothing is wrong, a queue's"
        " messages go to one consumer alone."
    ),
    "needless-redelivery": (
        "While nobody comes into a consumer group or leaves it, and nothing is wrong, what was"
        " handled does not come again; nor behind a consumer that leaves in good order then."
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
    "not-refused": "What must be refused is not done, whoever asks for it.",
    "wrong-refusal": "What must be refused is refused with the code that says why.",
    "no-answer": "While nothing is wrong with the group, an operator is answered within a second.",
    "lock-overlap": (
        "While a consumer holds the lock of a queue no other one is given it, as long as the same"
        " node leads in the same term."
    ),
    "out-of-order": "A consumer is given one producer's messages in the order of its sends.",
    "redelivered-committed": (
        "What a consumer group has committed is not delivered to it again, unless somebody sets"
        " it back."
    ),
    "offset-went-back": "A group's offset is the one that was committed last.",
    "offset-ran-ahead": "A group's offset is the one that was committed last.",
    "offset-lost": "A committed offset is there for the next consumer of its group.",
    "never-committed": "A group is given only offsets that somebody committed for it.",
    "lost-element": "What was known to be in it stays in it.",
    "stale-element": "A read that begins after an element was known to be in a set has it.",
    "unexpected-element": "Only what somebody put in comes out.",
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
    "G0": _CIRCLE,
    "G1c": _CIRCLE,
    "G0-process": _CIRCLE,
    "G1c-process": _CIRCLE,
    "G0-realtime": _CIRCLE,
    "G1c-realtime": _CIRCLE,
}
"""What is promised, by the kind of a finding that says it was broken."""
SEEN_LIVE: Final = frozenset({"invariant-broken", "rule-broken", "damage-found", "ended-unharmed"})
"""Kinds that were seen while the run went on, by its world or by a node that ended."""
UNNAMED: Final = "The checker holds the group to a rule of its own; see what it says."
DURABLE: Final = frozenset({"lost-append", "altered", "reordered", "missing-on-node"})
"""Kinds about an acknowledged append that is not where it must be."""
_BECAME: Final[Mapping[str, str]] = {
    "lost-append": "is lost",
    "altered": "was altered: something that nobody appended stands in its place",
    "reordered": "stands at another offset than the client was told",
    "missing-on-node": "is missing on a node that has committed further than it",
}
NS_PER_S: Final = 1e9
TERM_BEGAN: Final = "its term began"
"""What is known of when an entry came to be of which no client was told anything."""
_PROCESS: Final = re.compile(r"\bprocess ([0-9]+)")
"""Checkers say process, as histories do; pages say client, as their tables do."""
_NAMES_FIRST: Final = re.compile(r"\S+(, \S+)*: ")


def base_kind(kind: str) -> str:
    """Return a kind without what stands behind it in brackets: "stale-read (not promised)"."""
    return kind.partition(" (")[0]


def claim_of(
    violation: Violation,
    marked: tuple[OperationRow, ...],
    nodes: tuple[str, ...],
    faults: tuple[FaultRow, ...] = (),
    moment: tuple[int | None, str] = (None, ""),
    gone: str = "",
    own: str = "",
) -> Claim:
    """Put a violation into two or three sentences.

    Args:
        violation: what was found.
        marked: the operations that it names.
        nodes: of the group.
        faults: those that were on around it.
        moment: when it was, if that is known, and what was then (`moments.moment_is`).
        gone: when it went missing, in words (`disappearance.told`).
        own: what the target promises of itself, in its own words.
    """
    kind = base_kind(violation.kind)
    own_words = violation.details.get("promise")
    is_told = kind == "invariant-broken" and isinstance(own_words, str) and own_words
    promised = str(own_words) if is_told else PROMISED.get(kind, UNNAMED)
    instead = ""
    if kind in DURABLE and violation.value is not None:
        instead = _durable(violation, kind, marked, nodes)
    where = _where(violation, faults, *moment)
    return Claim(
        promised, instead or _sentence(violation), where, gone, own if kind in DURABLE else ""
    )


def _durable(
    violation: Violation, kind: str, marked: tuple[OperationRow, ...], nodes: tuple[str, ...]
) -> str:
    """Say what became of an acknowledged append: who appended what, who said yes, who has it."""
    append = next((row for row in marked if row.input == violation.value), None)
    who = "A client" if append is None else f"Client {append.process}"
    said = f"{who} appended the value {violation.value} to {violation.key or 'the queue'}."
    by = violation.acknowledged_by or "A node that is not named"
    at = (
        ""
        if violation.acknowledged_ns is None
        else f", {violation.acknowledged_ns / NS_PER_S:.3f} s into the run"
    )
    said += f" {by} acknowledged it at offset {violation.offset}{at}."
    said += f" At the end of the run this append {_BECAME[kind]}"
    held = violation.details.get("held_by")
    if isinstance(held, list) and nodes:
        holders = [str(node) for node in held]
        verb = "holds" if len(holders) == 1 else "hold"
        said += (
            f": of the {len(nodes)} nodes only {', '.join(holders)} {verb} it there"
            if holders
            else f": none of the {len(nodes)} nodes holds it there"
        )
    return f"{said}."


def _sentence(violation: Violation) -> str:
    """The checker's own sentence, without the queue's name before it: it is said elsewhere."""
    said = violation.message or violation.kind
    if violation.key and said.startswith(f"{violation.key}: "):
        said = said[len(violation.key) + 2 :]
    said = _PROCESS.sub(r"client \1", said)
    # "n0: its log lacks ..." begins with a name, which stays as it is.
    return said if _NAMES_FIRST.match(said) else said[:1].upper() + said[1:]


def _on(faults: tuple[FaultRow, ...], moment_ns: int | None) -> list[FaultWindow]:
    """The faults that were on at a moment; none where the moment is not known."""
    if moment_ns is None:
        return []
    return [row.window for row in faults if row.window.from_ns <= moment_ns <= row.window.stop_ns]


def _since(on: list[FaultWindow], moment_ns: int | None) -> str:
    """Say for how long the fault had been on; "" where there was none, or more than one."""
    if moment_ns is None:
        return ""
    return f", which had begun {in_words(moment_ns - on[0].from_ns)} before" if len(on) == 1 else ""


def in_words(length_ns: int) -> str:
    """Print a length of time in the unit that suits it."""
    if length_ns < NS_PER_S:
        return f"{length_ns / 1e6:.0f} ms"
    return f"{length_ns / NS_PER_S:.2f} s"


def _where(
    violation: Violation, faults: tuple[FaultRow, ...], moment_ns: int | None, moment_is: str
) -> str:
    """Under which fault it stands, and for how long that had been on; "" if nothing says when."""
    words, on = violation.fault_words, _on(faults, moment_ns)
    since = _since(on, moment_ns)
    if not words and moment_ns is None:
        return ""
    if not words:
        return _at_moment(on, moment_ns, moment_is)
    if words.startswith("under ") and base_kind(violation.kind) in DURABLE:
        return f"It was acknowledged under a fault: {words.removeprefix('under ')}{since}."
    if words.startswith("under "):
        return f"This happened under a fault: {words.removeprefix('under ')}{since}."
    if words.startswith("seen under "):
        return f"It was seen under a fault: {words.removeprefix('seen under ')}{since}."
    return f"This happened {words}."


def _at_moment(on: list[FaultWindow], moment_ns: int | None, moment_is: str) -> str:
    """Say which faults were on at a moment of which the finding itself names none."""
    named = ", ".join(f"{one.name} {one.fault} ({one.description})" for one in on)
    if moment_is == TERM_BEGAN and moment_ns is not None:
        began = f"the entry's term began {moment_ns / NS_PER_S:.3f} s into the run, as polled"
        faults = f"with {named} on" if on else "with no fault on"
        return f"Nothing says when it came to be; {began}, {faults}."
    if on:
        return f"Faults that were on at that moment: {named}."
    when = f"when it was {moment_is}" if moment_is else "at that moment"
    return f"No fault was on {when}, as far as the history says."
