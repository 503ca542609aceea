"""The kinds of findings: all that the harness knows of each, in one record.

A checker names the kind of a finding; summaries, gates, tables and pages take what they say about
it from here. Kinds of plug-ins have no record: they are shown by their name.

Source: the anomalies of Jepsen's kafka workload and of Elle, by their names; docs/anomalies.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from shaketable.harness.contracts.isolation import BREAKS, anomaly_of

Operations = frozenset[str]

SENDS: Final[Operations] = frozenset(("append", "send"))
DELAYS: Final[Operations] = frozenset(("delay",))
"""Sends whose messages are delivered later, at offsets that their answers do not report."""
BATCHES: Final[Operations] = frozenset(("batch",))
"""Sends of several messages, whose values and offsets follow the first one's."""
READS: Final[Operations] = frozenset(("read", "poll"))
POLLS: Final[Operations] = frozenset(("poll",))
PUTS: Final[Operations] = frozenset(("enqueue", "add"))
TAKES: Final[Operations] = frozenset(("dequeue", "drain", "read"))
COMMITS: Final[Operations] = frozenset(("commit",))
FETCHES: Final[Operations] = frozenset(("fetch",))
IDS: Final[Operations] = frozenset(("generate",))
NOTHING: Final[Operations] = frozenset()
"""Linearizability of no operation excludes it: only a promise of its own does."""


@dataclass(frozen=True, slots=True)
class FindingKind:
    """One kind of finding, by the name used in the literature.

    Attributes:
        name: what checkers and targets call it: "stale-read".
        one: what one finding is, after its number: "read missed what was there already".
        several: the same of several findings.
        promise: the promise that it breaks, in a sentence.
        about: the part of a target's promises that it is about, whatever else its checker judges.
        excluded_by: groups of operations; if one of each is promised to be linearizable, or the
            kind is excluded by name, it is a violation. None: always one.
        needs_all_events: it depends on the absence of events, which a history that is not
            complete cannot prove.
        needs_durability: acknowledged data is lost: no violation under faults under which none is
            promised to be kept.
        needs_delivery: it follows if the end of a queue is lost and its offsets are used again: no
            violation under faults under which no delivery is promised.
        lost: what a client was acknowledged and has lost: a value, a committed offset, an add.
            Findings of the same may be about the same operations.
        counts_all: it counts every lost operation; others count observations of a loss.
        became: what became of an acknowledged append that is not where it must be.
        append_would: what the append would have got, had all been right ({value}, {offset}).
        answer_would: what the answer could have been.
        names_answer_first: its findings name the wrong answer first; others, the one called last.
        is_seen_live: it was seen during the run, by its world or by a node that exited.
        meaning: what it implies about its cause.
        indices: details that hold the indices of log entries concerned.
        has_map: pages map its queue: which acknowledged appends each node holds.
    """

    name: str
    one: str
    several: str
    promise: str
    about: Literal["kept", "delivered", "committed"] | None = None
    excluded_by: tuple[Operations, ...] | None = None
    needs_all_events: bool = False
    needs_durability: bool = False
    needs_delivery: bool = False
    lost: Literal["value", "offset", "add"] | None = None
    counts_all: bool = False
    became: str = ""
    append_would: str = ""
    answer_would: str = ""
    names_answer_first: bool = False
    is_seen_live: bool = False
    meaning: str = ""
    indices: tuple[str, ...] = ()
    has_map: bool = False


UNKNOWN_PROMISE: Final = "The checker has a rule of its own; see its message."
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
FINDING_KINDS: Final[Mapping[str, FindingKind]] = {
    kind.name: kind
    for kind in (
        # A rule on which everything rests is broken: what follows may be a consequence.
        FindingKind(
            "invariant-broken", "invariant was broken", "invariants were broken",
            promise=(
                "The group's invariants hold at every moment, on every node: the simulated world"
                " looks after every step."
            ),
            is_seen_live=True,
        ),
        FindingKind(
            "rule-broken",
            "node stopped because a rule of its own was broken",
            "times a node stopped because a rule of its own was broken",
            promise=(
                "A node keeps the rules of its own protocol. Where it finds one broken it stops,"
                " rather than go on."
            ),
            meaning=(
                "The node saw it when it stopped; what broke the rule was done before, by itself or"
                " by a node that it heard of. What all of them printed until then is below."
            ),
            is_seen_live=True,
        ),
        FindingKind(
            "damage-found",
            "node found what it had stored damaged by no fault",
            "times a node found what it had stored damaged by no fault",
            promise=(
                "What a node has synced it finds again as it was written, unless a fault damages"
                " it."
            ),
            meaning=(
                "What is synced stays. So either it was never written as the node believed, or"
                " something of the node's own wrote over it, or cut it off."
            ),
            is_seen_live=True,
        ),
        FindingKind(
            "ended-unharmed",
            "node ended by itself, and nothing had been done to it",
            "times a node ended by itself, and nothing had been done to it",
            promise=(
                "A node runs until it is stopped, whatever happens to other nodes and to links."
            ),
            meaning=(
                "The simulated world knows all that was done to the node: no call of its disk had"
                " failed, and it was refused nothing. So it ended of what it did itself."
            ),
            is_seen_live=True,
        ),
        # Data that was promised to be kept is gone.
        FindingKind(
            "lost-append", "acknowledged append is lost", "acknowledged appends are lost",
            promise=_KEPT,
            became="is lost",
            about="kept", lost="value", counts_all=True, has_map=True,
        ),
        FindingKind(
            "altered", "acknowledged append was altered", "acknowledged appends were altered",
            promise=_KEPT,
            became="was overwritten with something that no client appended",
            about="kept", lost="value", counts_all=True, has_map=True,
        ),
        FindingKind(
            "reordered",
            "acknowledged append is at another offset",
            "acknowledged appends are at other offsets",
            promise=_KEPT,
            became="is at another offset than the client was given",
            about="delivered", has_map=True,
        ),
        FindingKind(
            "divergent",
            "committed entry differs between nodes",
            "committed entries differ between nodes",
            promise=(
                "A committed entry is the same on all nodes: two that have committed one index have"
                " the same entry there."
            ),
            about="committed", indices=("index",),
        ),
        FindingKind(
            "damaged", "stored entry is damaged", "stored entries are damaged",
            promise="What a node has committed can be read again as it was written.",
            append_would="it can be read again as it was written",
            about="kept", indices=("index",), has_map=True,
        ),
        FindingKind(
            "missing-on-node",
            "acknowledged append is missing on a node that committed it",
            "acknowledged appends are missing on a node that committed them",
            promise=(
                "A node that has committed as far as an acknowledged append has it in its own log."
            ),
            became="is missing on a node that has committed further than it",
            about="kept", has_map=True,
        ),
        FindingKind(
            "duplicated", "value is twice in a log", "values are twice in a log",
            promise="A value that was appended once is in the log once.",
            append_would="it is in the log once",
            has_map=True,
        ),
        FindingKind(
            "gap",
            "stretch of committed entries is missing in a node's log",
            "stretches of committed entries are missing in nodes' logs",
            promise="A node's log has every index up to the last one that it committed.",
            indices=("first", "last"),
        ),
        FindingKind(
            "index-twice", "index is twice in a node's log", "indices are twice in a node's log",
            promise="A log has one entry at each index.",
            indices=("index",),
        ),
        FindingKind(
            "term-fell",
            "time the term falls along a node's log",
            "times the term falls along a node's log",
            promise=(
                "Terms never fall along a log: no entry has a lower term than the one before it."
            ),
            indices=("index",),
        ),
        FindingKind(
            "lost-element",
            "element that was known to be there is gone",
            "elements that were known to be there are gone",
            promise="What was known to be in it stays in it.",
            about="kept", excluded_by=(PUTS, TAKES), needs_all_events=True, needs_durability=True,
            lost="value",
        ),
        # A bank.
        FindingKind(
            "wrong-total",
            "read of all accounts had a wrong total",
            "reads of all accounts had a wrong total",
            promise="Money is only moved: every read of all accounts has the same total.",
            answer_would="balances of one moment, with that total",
            names_answer_first=True,
        ),
        FindingKind(
            "negative-value",
            "read showed an account below 0",
            "reads showed an account below 0",
            promise="A transfer that would leave less than 0 in an account is refused.",
            answer_would="at least 0 in each account",
            names_answer_first=True,
        ),
        FindingKind(
            "nil-balance",
            "read showed an account without a balance",
            "reads showed an account without a balance",
            promise="Every account has a balance.",
            answer_would="a balance for each account",
            names_answer_first=True,
        ),
        FindingKind(
            "unexpected-key",
            "read lacked an account, or had one too many",
            "reads lacked an account, or had one too many",
            promise="A read of all accounts returns each of them, and no others.",
            answer_would="all accounts, and no others",
            names_answer_first=True,
        ),
        # A read returned the wrong thing.
        FindingKind(
            "not-linearizable",
            "key shows what no order of its operations explains",
            "keys show what no order of their operations explains",
            promise=(
                "Each operation takes effect at one moment between its call and its return, so that"
                " the answers are those of one object that is asked by one client at a time."
            ),
        ),
        FindingKind(
            "stale-element",
            "element was missed by a later read of its set",
            "elements were missed by later reads of their sets",
            promise="A read that starts after an element was known to be in a set returns it.",
            excluded_by=(PUTS, TAKES), needs_all_events=True,
        ),
        FindingKind(
            "unexpected-element",
            "element came out that no client had put in",
            "elements came out that no client had put in",
            promise="Only what was put in comes out.",
            answer_would="nothing with {value} in it",
            excluded_by=(PUTS, TAKES), needs_all_events=True,
        ),
        FindingKind(
            "repeated-element",
            "element was twice in one read of its set",
            "elements were twice in one read of their sets",
            promise="A set has each element once.",
            answer_would="{value} once",
            excluded_by=(PUTS, TAKES),
        ),
        FindingKind(
            "duplicated-element",
            "element came out of a queue more often than it was put in",
            "elements came out of queues more often than they were put in",
            promise="What was put in once comes out once.",
            answer_would="{value} as often as it was put in",
            excluded_by=(NOTHING,), needs_all_events=True,
        ),
        FindingKind(
            "lost-add",
            "read of a counter lacked what had been added",
            "reads of counters lacked what had been added",
            promise=(
                "A counter is the sum of all adds that are over, and maybe of some that are open."
            ),
            about="kept", excluded_by=(PUTS, TAKES), needs_all_events=True, needs_durability=True,
            lost="add",
        ),
        FindingKind(
            "out-of-bounds",
            "read of a counter was more or less than can have been added",
            "reads of counters were more or less than can have been added",
            promise=(
                "A counter is the sum of all adds that are over, and maybe of some that are open."
            ),
            excluded_by=(PUTS, TAKES), needs_all_events=True,
        ),
        FindingKind(
            "phantom-read",
            "read returned a value that no client appended",
            "reads returned values that no client appended",
            promise=_SENT,
            answer_would="anything but {value}",
            excluded_by=(SENDS, READS), needs_all_events=True, names_answer_first=True,
        ),
        FindingKind(
            "aborted-read",
            "read returned the value of an append that had failed",
            "reads returned values of appends that had failed",
            promise=_NO_FAILED,
            answer_would="anything but {value}",
            names_answer_first=True,
        ),
        FindingKind(
            "inconsistent-read",
            "read returned another value than the one stored there",
            "reads returned other values than those stored there",
            promise=_ONE_VALUE,
        ),
        FindingKind(
            "stale-read",
            "read missed what was there already",
            "reads missed what was there already",
            promise="A read that is called after an append was acknowledged finds that append.",
        ),
        FindingKind(
            "read-went-back",
            "read found less than one before it",
            "reads found less than one before them",
            promise="A queue is never found shorter than an earlier request has seen it.",
        ),
        FindingKind(
            "stale-end",
            "reported end of a queue lacked what was there already",
            "reported ends of queues lacked what was there already",
            promise="The reported end of a queue is after all acknowledged appends.",
        ),
        FindingKind(
            "end-went-back",
            "reported end of a queue went back",
            "reported ends of queues went back",
            promise="The reported end of a queue never goes back.",
        ),
        FindingKind(
            "future-read",
            "read showed what was appended only later",
            "reads showed what was appended only later",
            promise="An answer shows what was appended before it, and nothing that came later.",
        ),
        FindingKind(
            "future-end",
            "reported end of a queue counted what was appended only later",
            "reported ends of queues counted what was appended only later",
            promise="An answer shows what was appended before it, and nothing that came later.",
        ),
        FindingKind(
            "offset-given-twice",
            "time an offset was given to two appends",
            "times an offset was given to two appends",
            promise="Each acknowledged append gets an offset that no other one gets.",
        ),
        FindingKind(
            "append-order",
            "append is before one that was complete when it was called",
            "appends are before ones that were complete when they were called",
            promise=(
                "An append that is called after another one was acknowledged gets a higher offset."
            ),
        ),
        FindingKind(
            "unexplained-offset",
            "time an offset was taken that no append can have taken",
            "times an offset was taken that no append can have taken",
            promise="Only appends that a client called take up offsets.",
            append_would="an offset of at most {offset}",
            answer_would="no more than offsets below {offset}",
            names_answer_first=True,
        ),
        FindingKind(
            "negative-offset",
            "time an offset below 0 was returned",
            "times an offset below 0 was returned",
            promise="The offsets of a queue count from 0.",
            append_would="an offset from 0 on",
        ),
        FindingKind(
            "repeated-id", "id was handed out twice", "ids were handed out twice",
            promise="No id is handed out twice.",
            answer_would="an id that no client had been given",
            excluded_by=(IDS,),
        ),
        # The same as clients see it, and what only consumers and producers see.
        FindingKind(
            "lost-message",
            "acknowledged message was never delivered",
            "acknowledged messages were never delivered",
            promise="Every acknowledged message is delivered to the consumer group.",
            append_would="it is delivered",
            about="delivered", excluded_by=(SENDS, POLLS), needs_all_events=True,
            needs_delivery=True, lost="value",
        ),
        FindingKind(
            "late-delivery",
            "message was not delivered in time",
            "messages were not delivered in time",
            promise=(
                "While nothing is wrong with the group, a message that is there, or whose delay is"
                " over, is delivered within a few seconds (docs/anomalies.md has the bound)."
            ),
            append_would="it is delivered in time",
            answer_would="{value}, some seconds earlier",
            excluded_by=(NOTHING,), needs_all_events=True, needs_delivery=True,
        ),
        FindingKind(
            "early-delivery",
            "delayed message came before its time",
            "delayed messages came before their time",
            promise=(
                "A message that was delayed, or sent back, comes when its delay is over, and not"
                " before."
            ),
            answer_would="nothing with {value} yet",
            excluded_by=(NOTHING,),
        ),
        FindingKind(
            "early-answer",
            "waiting poll was answered with nothing before its time was over",
            "waiting polls were answered with nothing before their time was over",
            promise=(
                "While nothing is wrong with the group, a poll at a queue's end is answered when a"
                " message comes, or when the time that it waits is over."
            ),
            answer_would="a message, or nothing once its time was over",
            excluded_by=(NOTHING,),
        ),
        FindingKind(
            "wrong-attempt",
            "message came again, or was given up, though no handler had failed at it before",
            "messages came again, or were given up, though no handler had failed at them before",
            promise=(
                "A message at which a handler failed comes again with one attempt more, so often at"
                " most as was requested; then it is among the dead letters, and so does no other."
            ),
            answer_would="nothing with {value} at that attempt",
            excluded_by=(NOTHING,), needs_all_events=True, needs_delivery=True,
        ),
        FindingKind(
            "two-owners",
            "queue was consumed by two consumers at once",
            "queues were consumed by two consumers at once",
            promise=(
                "While no consumer joins or leaves a consumer group, and nothing is wrong, a"
                " queue's messages go to one consumer alone."
            ),
            answer_would="a message of another queue",
            excluded_by=(NOTHING,), needs_all_events=True,
        ),
        FindingKind(
            "needless-redelivery",
            "handled message came again for no reason",
            "handled messages came again for no reason",
            promise=(
                "While no consumer joins or leaves a consumer group, and nothing is wrong, what was"
                " handled does not come again; nor after a consumer that leaves in good order."
            ),
            answer_would="{value} no more",
            excluded_by=(NOTHING,), needs_all_events=True, needs_delivery=True,
        ),
        FindingKind(
            "duplicate-delivery",
            "delayed message was delivered twice",
            "delayed messages were delivered twice",
            promise="A delayed message is put into its queue once.",
            answer_would="{value} at one offset alone",
            excluded_by=(NOTHING,), names_answer_first=True,
        ),
        FindingKind(
            "missed-tag",
            "message was left out of an answer to a request for its tag",
            "messages were left out of answers to requests for their tag",
            promise="Who asks a queue for tags is given every message that bears one of them.",
            append_would="who asks for its tag is given it",
            answer_would="{value} among what it brought",
            excluded_by=(NOTHING,), needs_delivery=True,
        ),
        FindingKind(
            "unwanted-tag",
            "message was returned for another tag",
            "messages were returned for another tag",
            promise="Who asks a queue for tags is given only messages that bear one of them.",
            answer_would="no message without such a tag",
            excluded_by=(NOTHING,), needs_all_events=True, names_answer_first=True,
        ),
        FindingKind(
            "missed-key",
            "message was left out of an answer to a query for its key",
            "messages were left out of answers to queries for their keys",
            promise=(
                "Who asks a queue for messages by a key is given the newest that bear it, as many"
                " as were asked for."
            ),
            append_would="who asks for its key is given it",
            answer_would="{value} among what it brought",
            excluded_by=(NOTHING,), needs_delivery=True,
        ),
        FindingKind(
            "unwanted-key",
            "message was returned for another key, or too often",
            "messages were returned for another key, or too often",
            promise=(
                "Who asks a queue for messages by key or id is given none but these, each once."
            ),
            answer_would="no message without that key, and none twice",
            excluded_by=(NOTHING,), needs_all_events=True, names_answer_first=True,
        ),
        FindingKind(
            "not-refused",
            "request was done that must be refused",
            "requests were done that must be refused",
            promise="What must be refused is never done.",
            answer_would="the code of a refusal",
            excluded_by=(NOTHING,), needs_delivery=True,
        ),
        FindingKind(
            "wrong-refusal",
            "request was refused with the wrong code",
            "requests were refused with the wrong code",
            promise="What must be refused is refused with the right code.",
            answer_would="the right code",
            excluded_by=(NOTHING,),
        ),
        FindingKind(
            "no-answer", "operator was not answered", "operators were not answered",
            promise=(
                "While nothing is wrong with the group, an operator gets an answer."
            ),
            excluded_by=(NOTHING,),
        ),
        FindingKind(
            "lock-overlap",
            "time two consumers held the lock of one queue",
            "times two consumers held the lock of one queue",
            promise=(
                "While a consumer holds the lock of a queue no other one is given it, as long as"
                " the same node leads in the same term."
            ),
            answer_would="0: another consumer holds it",
            excluded_by=(NOTHING,), needs_all_events=True,
        ),
        FindingKind(
            "offset-lost",
            "time the offset that a group had committed was gone",
            "times the offset that a group had committed was gone",
            promise="A committed offset is there for the next consumer of its group.",
            about="kept", excluded_by=(COMMITS, FETCHES), needs_durability=True, lost="offset",
        ),
        FindingKind(
            "offset-went-back",
            "time the offset that a group had committed went back",
            "times the offset that a group had committed went back",
            promise="A group's offset is the one that was committed last.",
            excluded_by=(COMMITS, FETCHES), needs_all_events=True, needs_delivery=True,
            lost="offset",
        ),
        FindingKind(
            "offset-ran-ahead",
            "time the offset of a group ran ahead of what it had committed",
            "times the offset of a group ran ahead of what it had committed",
            promise="A group's offset is the one that was committed last.",
            excluded_by=(COMMITS, FETCHES), needs_all_events=True,
        ),
        FindingKind(
            "never-committed",
            "time a group was given an offset that no client had committed",
            "times a group was given an offset that no client had committed",
            promise="A group is given only offsets that were committed for it.",
            answer_would="an offset that a client had committed",
            excluded_by=(COMMITS, FETCHES), needs_all_events=True,
        ),
        FindingKind(
            "redelivered-committed",
            "message came again although the group had committed an offset after it",
            "messages came again although the group had committed an offset after them",
            promise=(
                "What a consumer group has committed is not delivered to it again, unless its"
                " offset is reset."
            ),
            answer_would="nothing before what was committed",
            excluded_by=(COMMITS, FETCHES, POLLS), needs_all_events=True, needs_delivery=True,
        ),
        FindingKind(
            "out-of-order",
            "message came after one that its producer sent later",
            "messages came after ones that their producers sent later",
            promise="A consumer is given one producer's messages in the order of its sends.",
            answer_would="the messages in the order of their sends",
            excluded_by=(SENDS, POLLS), needs_all_events=True, needs_delivery=True,
        ),
        FindingKind(
            "lost-write",
            "acknowledged message was passed by and never read",
            "acknowledged messages were passed by and never read",
            promise="A read past an acknowledged message returns it.",
            append_would="a read past it returns it",
            about="kept", excluded_by=(SENDS, READS), needs_all_events=True, needs_durability=True,
            lost="value",
        ),
        FindingKind(
            "unseen",
            "acknowledged message was not there when a client looked",
            "acknowledged messages were not there when a client looked",
            promise="An acknowledged message is there for every later read.",
            append_would="it is there for every read",
            about="kept", excluded_by=(SENDS, READS), needs_all_events=True, needs_durability=True,
            lost="value",
        ),
        FindingKind(
            "inconsistent-offsets",
            "offset was seen with two values",
            "offsets were seen with two values",
            promise=_ONE_VALUE,
            answer_would="one value at offset {offset} for all",
            about="delivered", excluded_by=(SENDS, READS), needs_delivery=True,
        ),
        FindingKind(
            "duplicate", "value was seen at two offsets", "values were seen at two offsets",
            promise=_ONE_OFFSET,
            answer_would="{value} at one offset alone",
            excluded_by=(SENDS, READS), names_answer_first=True,
        ),
        FindingKind(
            "G1a",
            "read returned the value of a send that had failed",
            "reads returned values of sends that had failed",
            promise=_NO_FAILED,
            answer_would="anything but {value}",
            excluded_by=(SENDS, READS),
        ),
        FindingKind(
            "poll-skip", "poll skipped messages", "polls skipped messages",
            promise=_NONE_LEFT_OUT,
            answer_would="offset {offset} next",
            excluded_by=(POLLS,), needs_all_events=True,
        ),
        FindingKind(
            "int-poll-skip",
            "time one answer left messages out",
            "times one answer left messages out",
            promise=_NONE_LEFT_OUT,
            answer_would="offset {offset} in between",
            excluded_by=(POLLS,),
        ),
        FindingKind(
            "nonmonotonic-poll", "poll went back", "polls went back",
            promise=_FORWARD,
            answer_would="only what comes after what it had read before",
            excluded_by=(POLLS,), needs_all_events=True,
        ),
        FindingKind(
            "int-nonmonotonic-poll", "time one answer went back", "times one answer went back",
            promise=_FORWARD,
            answer_would="only what comes after what it had read before",
            excluded_by=(POLLS,),
        ),
        FindingKind(
            "nonmonotonic-send",
            "send is before the one sent before it",
            "sends are before the ones sent before them",
            promise="The messages of one producer are in the order in which it sent them.",
            excluded_by=(SENDS,), needs_delivery=True,
        ),
        FindingKind(
            "G0",
            "cycle of writes, each of which comes before the next",
            "cycles of writes, each of which comes before the next",
            promise=_CYCLE,
            excluded_by=(SENDS,),
        ),
        FindingKind(
            "G1c",
            "cycle of writes and reads, each of which comes before the next",
            "cycles of writes and reads, each of which comes before the next",
            promise=_CYCLE,
            excluded_by=(SENDS, READS),
        ),
        FindingKind(
            "G0-process",
            "cycle of appends that a client's own order contradicts",
            "cycles of appends that a client's own order contradicts",
            promise=_CYCLE,
            excluded_by=(SENDS,),
        ),
        FindingKind(
            "G1c-process",
            "cycle of appends and reads that a client's own order contradicts",
            "cycles of appends and reads that a client's own order contradicts",
            promise=_CYCLE,
            excluded_by=(SENDS, READS),
        ),
        FindingKind(
            "G0-realtime",
            "cycle of appends that real time contradicts",
            "cycles of appends that real time contradicts",
            promise=_CYCLE,
            excluded_by=(SENDS,),
        ),
        FindingKind(
            "G1c-realtime",
            "cycle of appends and reads that real time contradicts",
            "cycles of appends and reads that real time contradicts",
            promise=_CYCLE,
            excluded_by=(SENDS, READS),
        ),
    )
}  # fmt: skip
"""By name, the gravest first."""


def kinds_where(of: Callable[[FindingKind], object]) -> frozenset[str]:
    """Return the names of the kinds for which `of` is true."""
    return frozenset(kind.name for kind in FINDING_KINDS.values() if of(kind))


ANOMALIES: Final = kinds_where(lambda kind: kind.excluded_by is not None)
"""All anomalies: `Promises(excludes=ANOMALIES)` judges the history of a system that promises
everything."""


def base_kind(kind: str) -> str:
    """Return a kind without its suffix in brackets: "stale-read (not promised)"."""
    return kind.partition(" (")[0]


def record_of(kind: str) -> FindingKind:
    """Return the record of a kind, with or without a suffix; one without words for a plug-in's."""
    name = base_kind(kind)
    if name in FINDING_KINDS:
        return FINDING_KINDS[name]
    if (anomaly := anomaly_of(name)) is None:
        return FindingKind(name, name, name, UNKNOWN_PROMISE)
    levels = " or ".join(BREAKS[name])
    promise = f"Transactions that are {levels} never show this: {anomaly.what}."
    return FindingKind(name, f"case of {anomaly.name}", f"cases of {anomaly.name}", promise)
