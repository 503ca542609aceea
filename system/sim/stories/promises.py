"""What each invariant promises in plain English, and why it matters, for readers of a story.

The names are those of `Violated` in `system.sim`; a test keeps both in step.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Promise:
    """What the group promises, and what breaking it would mean."""

    statement: str
    impact: str


PROMISES: dict[str, Promise] = {
    "one-leader-a-term": Promise(
        "At most one member leads in any term.",
        "Two leaders of one term give the same place in the log to different messages.",
    ),
    "leader-completeness": Promise(
        "An elected leader has every committed entry in its log.",
        "A leader that lacks one makes all others throw it away.",
    ),
    "log-matching": Promise(
        "Two logs that agree on one entry agree on all entries before it.",
        "Members compare logs by their last entry alone; what differs below is never noticed.",
    ),
    "log-contiguous": Promise(
        "Every entry is written right after the one before it.",
        "A gap or an overlap makes the files unreadable from there on.",
    ),
    "committed-is-durable": Promise(
        "An entry is called committed only when a majority of the voters has it on disk.",
        "One crash can lose the few copies that exist of an acknowledged message.",
    ),
    "committed-is-held": Promise(
        "A member calls committed only what is in its own log.",
        "It would hand entries to consumers that it does not have.",
    ),
    "committed-never-changes": Promise(
        "A committed entry is the same on every member, for ever.",
        "Consumers of different members, or at different times, would read different messages.",
    ),
    "committed-stays": Promise(
        "No member removes an entry that it has called committed.",
        "Its consumers may have read it already; for all others it never existed.",
    ),
    "committed-stays-committed": Promise(
        "No member that lacks a committed entry could be elected, given the members' logs.",
        "The next election may throw away what clients believe to be stored.",
    ),
    "removed-stays-removed": Promise(
        "Entries that a member has removed from its log are not found again after a crash.",
        "Its log would be one that no leader ever had, and yet take part in elections.",
    ),
    "calls-end-in-time": Promise(
        "A client's call ends within its own timeout, whatever became of it.",
        "A caller plans with the timeout: what waits for the call waits for longer than that.",
    ),
    "refusals-are-final": Promise(
        "A client does not ask again for what was refused for good.",
        "Callers wait for an answer that is known, and brokers refuse the same again and again.",
    ),
    "answers-come-once": Promise(
        "A request is answered once.",
        "What came after a refusal was done all the same, or the first answer was none.",
    ),
    "every-name-server-is-asked": Promise(
        "A client gives up only once it has asked every name server.",
        "One name server that is down would be enough to stop those that start now.",
    ),
    "locks-come-first": Promise(
        "A consumer reads an ordered queue only once it has the queue's lock.",
        "Two consumers would handle its messages at once, in no order.",
    ),
    "held-pulls-wait": Promise(
        "A pull that finds nothing is held for as long as it may be.",
        "Consumers would ask again at once, and keep their brokers busy with nothing.",
    ),
    "held-pulls-are-woken": Promise(
        "A held pull is answered as soon as a message that it wants is there.",
        "The message would come late: when the pull times out, or with the next one.",
    ),
    "answers-come-from-leaders": Promise(
        "Who answers for the group has confirmed that it leads since the request came.",
        "A leader that was replaced and does not know it answers with what was true once.",
    ),
    "leaders-are-ticked": Promise(
        "A leader is ticked in time, whatever else it does.",
        "It would go on though no majority answers, and what was lost would not be sent again.",
    ),
    "clients-pause": Promise(
        "A client pauses before it repeats a request.",
        "While a group has no leader, its clients would keep its members busy with refusals.",
    ),
    "others-are-asked": Promise(
        "A client whose call was not answered asks another member next.",
        "It would go on with a leader that is cut off, and never find the one that was elected.",
    ),
    "answers-fit-their-requests": Promise(
        "A call returns the answer to its own request.",
        "A client would take for stored what was refused, or give one caller another one's data.",
    ),
    "shares-add-up": Promise(
        "The consumers of a group divide its queues: none has two consumers, none is left without.",
        "Two consumers would handle the messages of one queue, or none those of another.",
    ),
    "who-leaves-has-committed": Promise(
        "A consumer that leaves in good order commits before that what it has consumed.",
        "The next owner of its queues would handle these messages again.",
    ),
    "noted-is-committed": Promise(
        "A consumer takes as committed only what a broker has acknowledged.",
        "Its group would stay behind for good, and the next consumer get those messages again.",
    ),
    "order-keys-keep-their-queue": Promise(
        "Messages with the same order key go to the same queue, as long as a topic has the same"
        " queues.",
        "They would be consumed in another order than they were sent in.",
    ),
    "calls-end-as-promised": Promise(
        "Calls end with an answer, a refusal or an unknown outcome, consumers when closed.",
        "An unexpected error ends the program or its consumer: nothing is handled then.",
    ),
    "clients-leave-nothing-open": Promise(
        "A client that is closed leaves no connection open.",
        "Programs that make clients again and again run out of descriptors, and so do brokers.",
    ),
    "partial-sends-are-continued": Promise(
        "Where a socket takes only a part, the rest is what is sent next.",
        "The other side cannot know where the next frame starts, and everything after it is lost.",
    ),
    "streams-are-understood": Promise(
        "A sound connection never delivers what the protocol does not define.",
        "Connections are closed and opened again, and what was under way is unknown.",
    ),
    "reserved-stays": Promise(
        "A file of the log is kept for its reserved time, unless the disk gets too full.",
        "Messages that consumers may still ask for would be gone.",
    ),
    "expiry-goes-in-steps": Promise(
        "No more data files expire in one step than are set.",
        "Deleting many files at once holds up everything else that the disk does.",
    ),
    "status-is-true": Promise(
        "What a member says of itself, its term and what is committed, is so.",
        "Operators, and programs that wait for a change, act on what is not so.",
    ),
    "operators-find-the-leader": Promise(
        "An operator who asks for the leader gets the one of the latest term that answers.",
        "Changes are sent to a member that cannot make them, or are not sent at all.",
    ),
    "answers-have-senders": Promise(
        "A client knows which member has answered.",
        "What is wrong with one member is looked for at another.",
    ),
    "unlocked-is-committed": Promise(
        "A consumer gives a queue's lock back after it has committed what it consumed.",
        "The queue's next owner begins before that: messages are handled twice, out of order.",
    ),
    "answers-are-asked-for": Promise(
        "What a client says of a broker is what the broker has answered to this call.",
        "Who asks for the leader, or for a queue's end, gets what once was.",
    ),
    "routes-are-looked-up": Promise(
        "A route that was found to be wrong, or is 30 s old, is asked for anew before it is used.",
        "A client goes on with a broker that is gone, or that leads no more.",
    ),
    "pulls-are-filled": Promise(
        "A pull brings all that waits, up to the messages and bytes that were asked for.",
        "A consumer needs a round trip for each few messages, or gets more than it has room for.",
    ),
    "compacted-is-gone": Promise(
        "What a snapshot replaces is taken out of the log.",
        "Old entries would fill the disk, however long they had expired.",
    ),
    "commit-never-falls": Promise(
        "What a member calls committed never becomes less.",
        "What was readable a moment ago would be gone.",
    ),
    "vote-is-durable": Promise(
        "Term and vote that were made durable are found again after any crash.",
        "A member that forgets its vote votes twice in a term, and two leaders are elected.",
    ),
    "older-log-stays": Promise(
        "What a broker or a group had stored before it became this group is there afterwards.",
        "An upgrade would cost messages that were acknowledged years ago.",
    ),
    "older-config-stays": Promise(
        "A member serves once the group has the topics and offsets of before, and keeps them.",
        "Consumer groups would start over, or skip what they have not seen.",
    ),
    "acknowledged-is-durable": Promise(
        "A follower acknowledges an entry only once the entry is on its own disk.",
        "The leader counts copies that a crash takes away: a majority that is none.",
    ),
    "commits-begin-with-the-term": Promise(
        "A leader commits entries of earlier terms together with one of its own term only.",
        "What a majority has of an earlier term can still be overwritten (Raft figure 8).",
    ),
    "a-majority-has-what-is-committed": Promise(
        "A leader commits what a majority of the voters has on its disks.",
        "The next leader may lack what was acknowledged.",
    ),
    "changes-come-one-by-one": Promise(
        "A leader changes the membership after an entry of its term, and the last change, is"
        " committed.",
        "Two majorities that share no member could each commit entries of their own.",
    ),
    "lost-pushes-are-sent-again": Promise(
        "A leader compares logs again with a follower that acknowledges nothing for a while.",
        "A follower that lost pushes on the way stays behind, until something new is appended.",
    ),
    "votes-go-to-complete-logs": Promise(
        "A member votes for who has at least all that it has itself.",
        "A leader may be elected that lacks what was acknowledged.",
    ),
    "candidates-show-their-logs": Promise(
        "A candidate asks for votes with the end of its own log.",
        "Who lacks entries is elected as if it had them.",
    ),
    "voters-stand": Promise(
        "Only a member that is a voter stands for leadership.",
        "A member that still catches up, or was removed, disturbs the group.",
    ),
    "later-terms-are-taken-on": Promise(
        "A member that hears of a later term takes it on.",
        "A leader that was replaced goes on as if it led.",
    ),
    "followers-commit-what-they-share": Promise(
        "A follower takes for committed what its leader committed, as far as their logs agree.",
        "It serves entries of an older leader that are to be overwritten.",
    ),
    "votes-make-leaders": Promise(
        "A member leads a term only with the votes of a majority in that term.",
        "Two leaders of one term would each commit entries of their own.",
    ),
    "watermark-is-durable": Promise(
        "What lies before the durable watermark of a log is on the disk.",
        "After a loss of power a torn end would be taken for damage, and the member not start.",
    ),
    "pre-vote-before-campaign": Promise(
        "A member starts a new term only after a majority answered that it would vote for it.",
        "One that was cut off would come back with a higher term and end a healthy leadership.",
    ),
    "voters-have-caught-up": Promise(
        "A learner becomes a voter only once it has nearly all that is committed.",
        "Writes would wait for it, and a majority would be missing one that counts.",
    ),
    "leader-is-left-alone": Promise(
        "A member that hears a leader, or leads, votes for no other.",
        "One whose link fails would end, again and again, a leadership that works.",
    ),
    "restarts-keep-leases": Promise(
        "A member that has just started gives no vote while a lease that it may have promised"
        " can still hold.",
        "A leader that answers reads from that lease would not know what its successor commits.",
    ),
    "stalled-disk-leads-not": Promise(
        "A leader whose disk stalls steps down.",
        "All writes would wait for one dead disk, although others could lead.",
    ),
    "slow-is-not-stalled": Promise(
        "A disk that makes progress does not count as stalled, however slow it is.",
        "Under load leaders would step down again and again, and no other be elected.",
    ),
    "sick-disk-does-not-campaign": Promise(
        "A member whose disk is full or stalls does not stand for election.",
        "If it wins, all writes wait for a disk that takes none.",
    ),
    "full-disk-takes-nothing": Promise(
        "A follower or master whose disk is full takes on no entries and no snapshot.",
        "It could not keep them, and would give up the log that it has.",
    ),
    "membership-is-the-log-s": Promise(
        "A member counts majorities by the memberships in its log, and by no removed one.",
        "It would wait for votes of strangers, or lead without a majority.",
    ),
    "only-conflicts-are-removed": Promise(
        "A follower removes an entry only where its leader has another one.",
        "An entry that it has acknowledged is gone for a moment, and a crash may fall into it.",
    ),
    "all-is-acknowledged": Promise(
        "A follower acknowledges all that it has on disk of what its leader sent it.",
        "The leader sends it again, and commits later than it could.",
    ),
    "entries-go-out-at-once": Promise(
        "A leader sends an entry as soon as a follower's window has room for it.",
        "Each message would wait for the next heartbeat.",
    ),
    "pushes-keep-to-the-window": Promise(
        "A few bytes wait for the push under way, and after a loss all pushes do.",
        "Each message costs a push and a sync of its own, or what was lost is sent in vain.",
    ),
    "snapshots-go-out-at-once": Promise(
        "A follower that has taken a snapshot and needs the next is sent it by a heartbeat.",
        "It stays behind for seconds, and may never catch up with a log that expires quickly.",
    ),
    "lease-ends-with-a-transfer": Promise(
        "A leader that asked another to take over reads by no lease for the rest of its term.",
        "The other may be elected at any time, and this one would answer with old data.",
    ),
    "the-nearest-takes-over": Promise(
        "A leader that steps down asks the voter that lacks least to take over, and at once.",
        "The group has no leader until a timeout, or until a slow member has caught up.",
    ),
    "lease-shuts-out": Promise(
        "While a leader has a lease, no other member is elected.",
        "Each would answer reads without asking the other, and one of them from old data.",
    ),
    "routes-name-who-is-there": Promise(
        "A name server's routes name each broker that registered and has not gone, and no other.",
        "Clients are sent to a broker that is gone, or find none although one is there.",
    ),
    "older-state-is-refused": Promise(
        "No broker takes a live broker's id with an older state than it has.",
        "A leader that was replaced and does not know it would take the route back.",
    ),
    "deleted-is-not-routed": Promise(
        "A topic that is deleted has no route any more.",
        "Clients go on sending to a topic that should be gone.",
    ),
    "transfers-are-given-up": Promise(
        "A leader gives up a transfer that does not come about in time.",
        "It takes no appends meanwhile: one dead member would keep all clients waiting.",
    ),
    "saved-state-is-the-state": Promise(
        "A checkpoint or a snapshot has the topics, offsets and queues that the broker has then.",
        "After a restart delayed messages would come twice, and consumers get messages again.",
    ),
    "equal-logs-give-equal-states": Promise(
        "Members that have applied the same entries have the same topics and offsets.",
        "After a change of leaders clients would find other offsets and topics than before.",
    ),
    "saved-is-loaded": Promise(
        "A broker starts with the offsets that it saved last, or with later ones.",
        "Groups would go on where they were long ago, and consume everything once more.",
    ),
    "durable-survives": Promise(
        "Entries that were reported as durable are found again after any crash.",
        "Acknowledgements rest on them: what is lost here was acknowledged elsewhere.",
    ),
    "abort-marks-a-crash": Promise(
        "The file abort is there after a crash, and only then.",
        "RocketMQ's tools and operators tell by it whether a store was left in order.",
    ),
    "stop-keeps-all": Promise(
        "A node that was stopped in order finds its whole log again.",
        "A restart for maintenance would cost what a crash may cost.",
    ),
    "damage-is-noticed": Promise(
        "A node does not start on a damaged vote, snapshot or durable watermark.",
        "It would vote twice, or for a log that lacks what it had acknowledged.",
    ),
    "broken-is-refused": Promise(
        "A start on files that do not belong together is refused, and so is a damaged batch.",
        "A node would go on with another history than the group's, and vote for it.",
    ),
    "checkpoint-covers-what-is-durable": Promise(
        "A checkpoint is saved after what it covers: units of queues and keys are durable then.",
        "After a loss of power a start goes on from queues that lack messages.",
    ),
    "saved-checkpoint-is-used": Promise(
        "A start goes on from the checkpoint that was saved last, if no file was damaged.",
        "Every start reads the whole log once more, which takes minutes.",
    ),
    "key-files-are-named-by-time": Promise(
        "A key file is named by the time of its first message, later than the file before it.",
        "RocketMQ's tools look for a message in the wrong file, and one file replaces another.",
    ),
    "watermark-never-falls": Promise(
        "The durable watermark moves down only where entries are removed.",
        "Damage after it is taken for a torn tail, and acknowledged entries are cut off.",
    ),
    "damage-is-called-damage": Promise(
        "A start that fails on a damaged file says so, and blames no disk that has room.",
        "An operator would look after the wrong thing, and the node wait for it.",
    ),
    "hints-are-checked": Promise(
        "A start passes over checkpoints and a key index that do not fit the log.",
        "Queues and queries would show what was never written, and leave out what was.",
    ),
    "changes-are-checked": Promise(
        "A change of the membership that makes no sense is refused.",
        "A member that does not exist would count for the majority.",
    ),
    "keys-find-messages": Promise(
        "The key index finds every message by each of its keys, the newest first.",
        "A query for an order by its number would find none.",
    ),
    "units-are-the-messages": Promise(
        "A queue's unit has its message's place, and the hash of its tags.",
        "A consumer that asks for some tags only is not given messages that have them.",
    ),
    "acknowledged-is-committed": Promise(
        "A message, or an offset, is acknowledged only when it is committed.",
        "Otherwise the next leader may not have it: a message that was confirmed gets lost.",
    ),
    "acknowledged-at-its-offset": Promise(
        "The message is at the offset that its sender was given.",
        "A read of that offset finds another sender's message.",
    ),
    "reads-are-committed": Promise(
        "Consumers are given committed messages only.",
        "What is not committed may vanish; a consumer would have acted on what never was.",
    ),
    "reads-agree": Promise(
        "A pull returns exactly the messages that are committed at these offsets.",
        "Two consumers of one queue would see different messages, or a different order.",
    ),
    "offsets-gapless": Promise(
        "A queue's committed messages have the offsets 0, 1, 2 and so on, without a gap.",
        "A consumer steps from offset to offset; at a gap it gets stuck or skips messages.",
    ),
    "offsets-unique": Promise(
        "No two messages of a queue are given the same offset.",
        "One of the two confirmed messages is hidden by the other.",
    ),
    "real-time-order": Promise(
        "A message sent after another was acknowledged comes after it.",
        "Effect would come before cause: an order's cancellation before the order.",
    ),
    "no-stale-read": Promise(
        "A read sees everything that was acknowledged, or read, before it began.",
        "A client would not find its own message, or see the queue go back in time.",
    ),
    "committed-offset-is-seen": Promise(
        "An offset that a consumer group has committed is what it is told from then on.",
        "The group would read messages again that it has handled, or skip some that it has not.",
    ),
    "old-leaders-are-answered": Promise(
        "A leader of an older term that pushes entries is told of the newer term.",
        "It would never step down for a member that cannot follow it, which stays without entries.",
    ),
    "reads-wait-for-the-term": Promise(
        "A leader takes on reads once an entry of its own term is committed.",
        "It may not know yet what the leader before has acknowledged.",
    ),
    "reads-wait-for-an-echo": Promise(
        "A read is served once a majority has echoed a heartbeat that was sent after it arrived.",
        "Before, another member may have been elected, and what it has acknowledged is missed.",
    ),
    "stored-once": Promise(
        "A message that was sent once is stored once.",
        "It would be processed twice: a payment made twice.",
    ),
    "stored-is-sent": Promise(
        "Only messages that clients sent are stored.",
        "What consumers read was made up, or damaged on its way.",
    ),
    "log-survives": Promise(
        "A broker without a group recovers what it wrote; after a loss of power, what it flushed.",
        "Messages that it has acknowledged would be gone, or others be in their place.",
    ),
    "reports-fit-what-was-sent": Promise(
        "A master counts as copied only what it has sent to a slave.",
        "It acknowledges what no slave has, and loses it with its own disk.",
    ),
    "reported-is-stored": Promise(
        "A slave reports only what it has written; with SYNC_FLUSH, what it has flushed.",
        "Its master takes for a copy what ends with the slave's process.",
    ),
    "slave-copies-master": Promise(
        "A slave has its master's bytes, and no others.",
        "A member that takes over from it reads messages that no client sent.",
    ),
    "slave-begins-late": Promise(
        "A slave without messages starts with its master's last file.",
        "It would copy all that its master ever kept, and be of no use for as long.",
    ),
    "slave-has-tables": Promise(
        "A slave has its master's topics, offsets and progress of deliveries after a while.",
        "Once it is master, messages are consumed again, or skipped before they were consumed.",
    ),
    "cut-is-for-good": Promise(
        "What a start finds is durable, and a torn tail that it cuts off never comes back.",
        "After the next power loss the log is another one than it went on with.",
    ),
    "what-was-there-is-kept": Promise(
        "What a broker had for half a minute is there again after a power loss.",
        "The broker that takes over has the messages, but not how far they were consumed.",
    ),
    "heartbeats-keep-time": Promise(
        "A master sends a slave something at least every five seconds.",
        "Its slave takes it for dead, and copies nothing until it has connected again.",
    ),
    "foreign-configs-are-refused": Promise(
        "A file of config/ that no broker may write is refused, or the wrong part left out.",
        "What was wrong goes on: to slaves, to clients, and into the next file.",
    ),
    "slave-knows-master": Promise(
        "A slave tells clients where its master is.",
        "They would ask it again and again for what only its master does.",
    ),
    "slaves-are-counted": Promise(
        "A master tells how many slaves copy it.",
        "An operator believes that a message has two copies, and only the master has it.",
    ),
    "queues-are-the-log": Promise(
        "A broker's queues lead to all messages that its log holds, and to nothing else.",
        "Consumers would not be given what is stored, or be led to what is gone.",
    ),
    "reads-go-on": Promise(
        "A read outside a queue is sent on to its start, or to its end.",
        "It would pass over messages that are kept, or ask for ever for those that have expired.",
    ),
    "delayed-is-delivered": Promise(
        "A delayed message is delivered when its time is over, of whatever level it is.",
        "Its consumers wait for ever for what is stored.",
    ),
    "expired-is-gone": Promise(
        "A full file of the log is removed soon after its time is over.",
        "The disk fills with what is not needed any more.",
    ),
    "slave-behind-master": Promise(
        "A slave has nothing that its master has not written.",
        "The master may yet store something else there, and the two logs part for ever.",
    ),
    "acknowledged-is-flushed": Promise(
        "With SYNC_FLUSH a master acknowledges what its disk has.",
        "A power cut takes an acknowledged message.",
    ),
    "acknowledged-is-copied": Promise(
        "A SYNC_MASTER acknowledges what a slave has, too.",
        "With the master's disk goes a message that was promised to be on two.",
    ),
    "sound-requests-are-not-blamed": Promise(
        "A sound request is refused for the moment only, and never as if it were not allowed.",
        "Its sender may give up, although another attempt would succeed.",
    ),
    "refusal-is-definite": Promise(
        "A message that was refused as not stored never appears.",
        "The sender tries again, and the message is there twice.",
    ),
    "queues-are-bounded": Promise(
        "What waits in a member's memory stays within its limits.",
        "A slow disk or a slow follower would take the whole process down.",
    ),
    "appends-are-answered": Promise(
        "Every append is answered in time, if only with: it is not known.",
        "Its sender would wait for ever, and the member would keep it in memory for ever.",
    ),
    "answers-are-whole": Promise(
        "What a client is answered can be read.",
        "It cannot know whether its message was stored or what it asked for.",
    ),
    "membership-change-completes": Promise(
        "Members that are added or removed are so in the end, once the faults are over.",
        "A broken machine could not be replaced.",
    ),
    "no-deadlock": Promise(
        "Something is always under way: no task waits for what can never come.",
        "The node would hang, neither serving nor failing, until it is killed.",
    ),
    "node-runs-on": Promise(
        "No member stops by itself, unless its disk failed.",
        "It found its own promises broken; with a majority gone, nothing works any more.",
    ),
    "node-starts": Promise(
        "A member starts again after any crash.",
        "Its files would have to be repaired by hand.",
    ),
    "appends-succeed": Promise(
        "Once a majority is healthy again, appends succeed within a few seconds.",
        "The group would stay out of service although nothing is broken any more.",
    ),
    "every-node-runs": Promise(
        "Every member is up again once the faults are over.",
        "The group would be one failure away from losing its quorum.",
    ),
    "every-node-catches-up": Promise(
        "Every member learns of all committed entries once the faults are over.",
        "Its consumers would wait for ever for messages that others have read.",
    ),
}
"""By the invariant's name."""


def promise_of(invariant: str) -> Promise:
    """Return what an invariant promises; for an unlisted one, its own name."""
    return PROMISES.get(invariant, Promise(f"{invariant.replace('-', ' ').capitalize()}.", ""))
