"""Each planted bug of the broker: what it gets wrong, and that the broker without it does not."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

import msgspec
from broker_group import FILE_BYTES, HOST, WALL_MS, BrokerGroup, Member, max_offset, pull, send
from consumer_requests import HOLD_MS, by_key, pull_of, send_with
from group_requests import commit, committed, consumer_list, heartbeat, lock, query
from planted import HEALTHY, Mutant, with_and_without

from shaketable.system.broker.limits import BrokerConfig
from shaketable.system.raft.protocol import RaftConfig
from shaketable.system.remoting.codes import RequestCode, ResponseCode
from shaketable.system.remoting.command import Command
from shaketable.system.remoting.requests import (
    BatchMessage,
    CreateTopic,
    SendMessageV2,
    encode_batch,
)
from shaketable.system.store.message import walk_messages

CONFIG = BrokerConfig(data_file_bytes=FILE_BYTES, store_host=HOST, delay_levels_ms=(1000, 5000))
CONSUMER = 5
_numbers = count(100)


def group_of(mutant: Mutant, size: int = 1, config: BrokerConfig = CONFIG) -> BrokerGroup:
    return BrokerGroup(size, config=config, mutant=mutant)


def bodies(member: Member, queue: int = 0, *, tags: str | None = None) -> list[bytes]:
    """All messages of a queue that a consumer of these tags gets."""
    found: list[bytes] = []
    offset = 0
    while True:
        (reply,) = member.answer(pull_of("t", queue, offset, tags=tags))
        found += [message.body for message in walk_messages(reply.body)]
        if int(reply.ext["nextBeginOffset"]) <= offset or reply.code not in (0, 20):
            return found
        offset = int(reply.ext["nextBeginOffset"])


def delayed(body: bytes, level: int = 1, *, born_ms: int = 0) -> Command:
    command = send_with("t", 0, body, {"DELAY": str(level)}, next(_numbers))
    command.ext["g"] = str(born_ms)
    return command


def batch(*sent: bytes) -> Command:
    body = encode_batch([BatchMessage(each) for each in sent])
    ext = SendMessageV2("g", "t", 0, batch=True).to_ext()
    return Command(RequestCode.SEND_BATCH_MESSAGE, next(_numbers), ext=ext, body=body)


@with_and_without("delayed-by-born-time")
def test_a_delay_counts_from_the_broker_s_clock(mutant: Mutant) -> None:
    group = group_of(mutant)
    leader = group.lead()
    leader.answer(send("t", 0, b"now"), delayed(b"later", born_ms=WALL_MS - 60_000))
    group.pass_time(200)
    assert bodies(leader) == ([b"now"] if mutant is HEALTHY else [b"now", b"later"])


@with_and_without("delays-repeated-by-new-leader")
def test_a_new_leader_repeats_no_delivery(mutant: Mutant) -> None:
    group = group_of(mutant, 3)
    leader = group.lead()
    leader.answer(delayed(b"later"))
    group.pass_time(2000)
    assert bodies(leader) == [b"later"]
    group.paused = {"n0"}
    group.cut = {"n0"}
    heir = group.lead("n1")
    group.pass_time(1000)
    assert bodies(heir) == [b"later"] * (1 if mutant is HEALTHY else 2)


@with_and_without("delay-skipped-when-refused")
def test_a_delivery_that_is_refused_is_tried_again(mutant: Mutant) -> None:
    group = group_of(mutant)
    leader = group.lead()
    leader.answer(send("t", 0, b"now"), delayed(b"later"))
    leader.broker.disk_full(True, group.now_ms)
    group.pass_time(2000)
    leader.broker.disk_full(False, group.now_ms)
    group.pass_time(1000)
    assert bodies(leader) == ([b"now", b"later"] if mutant is HEALTHY else [b"now"])


def tagged(leader: Member) -> None:
    for tag in ("a", "b", "c"):
        leader.answer(send_with("t", 0, tag.encode(), {"TAGS": tag}))


@with_and_without("first-tag-only")
def test_all_tags_of_a_subscription_are_let_through(mutant: Mutant) -> None:
    leader = group_of(mutant).lead()
    tagged(leader)
    assert bodies(leader, tags="a || c") == ([b"a", b"c"] if mutant is HEALTHY else [b"a"])
    assert bodies(leader, tags="*") == [b"a", b"b", b"c"]


@with_and_without("tags-of-the-last-heartbeat")
def test_a_pull_s_own_tags_count(mutant: Mutant) -> None:
    leader = group_of(mutant).lead()
    tagged(leader)
    leader.answer(heartbeat("other", "g", tags="b"))
    assert bodies(leader, tags="a") == ([b"a"] if mutant is HEALTHY else [b"b"])


@with_and_without("held-pull-not-woken")
def test_a_held_pull_is_woken_by_what_arrives(mutant: Mutant) -> None:
    group = group_of(mutant)
    leader = group.lead()
    leader.answer(send("t", 0, b"old"))
    leader.ask(pull_of("t", 0, 1, hold_ms=HOLD_MS), connection=CONSUMER)
    leader.pump()
    leader.answer(send("t", 0, b"new"))
    assert (CONSUMER in leader.replies) is (mutant is HEALTHY)
    group.pass_time(HOLD_MS + 100)
    assert CONSUMER in leader.replies


def locks(leader: Member, client_id: str) -> int:
    """How many queues that client gets the lock of."""
    (reply,) = leader.answer(lock(RequestCode.LOCK_BATCH_MQ, "g", client_id, 0))
    return len(msgspec.json.decode(reply.body)["lockOKMQSet"])


@with_and_without("held-pull-given-up-early")
def test_a_pull_is_held_for_its_time(mutant: Mutant) -> None:
    group = group_of(mutant)
    leader = group.lead()
    leader.answer(send("t", 0, b"old"))
    leader.ask(pull_of("t", 0, 1, hold_ms=HOLD_MS), connection=CONSUMER)
    leader.pump()
    group.pass_time(HOLD_MS - 200)
    assert (CONSUMER in leader.replies) is (mutant is not HEALTHY)


@with_and_without("lock-counts-from-renewal")
def test_a_lock_holds_from_the_beginning(mutant: Mutant) -> None:
    leader = group_of(mutant).lead()
    assert locks(leader, "first") == 1
    assert locks(leader, "second") == (0 if mutant is HEALTHY else 1)


@with_and_without("batch-has-one-id")
def test_each_message_of_a_batch_has_its_own_id(mutant: Mutant) -> None:
    leader = group_of(mutant).lead()
    (reply,) = leader.answer(batch(b"a", b"b", b"c"))
    assert bodies(leader) == [b"a", b"b", b"c"]
    assert len(set(reply.ext["msgId"].split(","))) == (3 if mutant is HEALTHY else 1)


@with_and_without("unique-keys-are-keys")
def test_a_unique_key_is_looked_for_among_unique_keys_alone(mutant: Mutant) -> None:
    leader = group_of(mutant, config=replace(CONFIG, key_items_max=100)).lead()
    leader.answer(send_with("t", 0, b"a", {"UNIQ_KEY": "U1", "KEYS": "k"}, next(_numbers)))
    leader.answer(send_with("t", 0, b"b", {"UNIQ_KEY": "U2", "KEYS": "k U1"}, next(_numbers)))
    (reply,) = leader.answer(by_key("t", "U1", is_unique=True))
    found = [message.body for message in walk_messages(reply.body)]
    assert found == ([b"a"] if mutant is HEALTHY else [b"b", b"a"])


@with_and_without("read-only-topics-written")
def test_who_may_only_read_a_topic_cannot_write_it(mutant: Mutant) -> None:
    leader = group_of(mutant).lead()
    fields = CreateTopic("t", read_queue_nums=1, write_queue_nums=1, perm=4)
    made = Command(RequestCode.UPDATE_AND_CREATE_TOPIC, next(_numbers), ext=fields.to_ext())
    assert [reply.code for reply in leader.answer(made)] == [0]
    (reply,) = leader.answer(send("t", 0, b"a"))
    assert reply.code == (ResponseCode.NO_PERMISSION if mutant is HEALTHY else 0)


@with_and_without("refused-as-system-error")
def test_what_is_refused_for_good_is_refused_with_the_code_that_says_so(mutant: Mutant) -> None:
    leader = group_of(mutant).lead()
    leader.answer(send("t", 0, b"a"))
    (reply,) = leader.answer(send("t", 4095, b"b"))
    code = ResponseCode.MESSAGE_ILLEGAL if mutant is HEALTHY else ResponseCode.SYSTEM_ERROR
    assert reply.code == code


@with_and_without("batch-half-stored")
def test_a_batch_is_stored_whole(mutant: Mutant) -> None:
    leader = group_of(mutant).lead()
    (reply,) = leader.answer(batch(b"a", b"b", b"c", b"d"))
    assert (reply.code, len(reply.ext["msgId"].split(","))) == (0, 4)
    assert len(bodies(leader)) == (4 if mutant is HEALTHY else 2)


@with_and_without("one-commit-of-many")
def test_commits_of_one_turn_are_all_kept(mutant: Mutant) -> None:
    leader = group_of(mutant).lead()
    replies = leader.answer(commit("g", "t", 0, 5, 1), commit("g", "t", 1, 6, 2))
    assert [reply.code for reply in replies] == [0, 0]
    kept = [committed(leader, "g", "t", queue) for queue in (0, 1)]
    assert kept == ([5, 6] if mutant is HEALTHY else [None, 6])


@with_and_without("offset-reset-ignored")
def test_an_offset_can_be_set_back(mutant: Mutant) -> None:
    leader = group_of(mutant).lead()
    leader.answer(commit("g", "t", 0, 5))
    (reply,) = leader.answer(commit("g", "t", 0, 2))
    assert reply.code == 0
    assert committed(leader, "g", "t", 0) == (2 if mutant is HEALTHY else 5)


@with_and_without("gone-consumers-stay")
def test_a_consumer_whose_connection_closed_is_in_no_group(mutant: Mutant) -> None:
    leader = group_of(mutant).lead()
    leader.ask(heartbeat("gone", "g"), connection=CONSUMER)
    leader.pump()
    leader.answer(heartbeat("here", "g"))
    leader.broker.connection_closed(CONSUMER)
    known = ["here"] if mutant is HEALTHY else ["gone", "here"]
    *_, reply = leader.answer(consumer_list("g"))  # behind the news that the group has changed
    assert sorted(msgspec.json.decode(reply.body)["consumerIdList"]) == known


@with_and_without("locks-end-with-connection")
def test_a_lock_outlives_its_client_s_connection(mutant: Mutant) -> None:
    leader = group_of(mutant).lead()
    leader.ask(heartbeat("gone", "g"), connection=CONSUMER)
    leader.pump()
    assert locks(leader, "gone") == 1
    leader.broker.connection_closed(CONSUMER)
    assert locks(leader, "here") == (0 if mutant is HEALTHY else 1)


# ---- those that the checkers knew before --------------------------------------------------


@with_and_without("full-pull-skips-one")
def test_a_full_pull_goes_on_where_it_ended(mutant: Mutant) -> None:
    leader = group_of(mutant).lead()
    leader.answer(*(send("t", 0, b"%d" % each, each) for each in range(5)))
    (reply,) = leader.answer(pull_of("t", 0, 0, count=2))
    assert reply.ext["nextBeginOffset"] == ("2" if mutant is HEALTHY else "3")


@with_and_without("filtered-pull-skips-one")
def test_a_pull_by_tags_goes_on_with_what_did_not_fit(mutant: Mutant) -> None:
    leader = group_of(mutant, config=replace(CONFIG, pull_bytes_max=1)).lead()
    for number in range(3):
        leader.answer(send_with("t", 0, b"%d" % number, {"TAGS": "red"}))
    (reply,) = leader.answer(pull_of("t", 0, 0, tags="red"))
    assert [message.body for message in walk_messages(reply.body)] == [b"0"]
    assert reply.ext["nextBeginOffset"] == ("1" if mutant is HEALTHY else "2")


@with_and_without("one-message-a-pull")
def test_a_pull_brings_what_waits(mutant: Mutant) -> None:
    leader = group_of(mutant).lead()
    leader.answer(*(send("t", 0, b"%d" % each, each) for each in range(5)))
    (reply,) = leader.answer(pull_of("t", 0, 1))
    assert len(list(walk_messages(reply.body))) == (4 if mutant is HEALTHY else 1)


@with_and_without("ends-from-cache")
def test_a_queue_s_end_counts_what_was_acknowledged(mutant: Mutant) -> None:
    leader = group_of(mutant).lead()
    leader.answer(send("t", 0, b"a"))
    leader.answer(max_offset("t", 0))
    leader.answer(send("t", 0, b"b", 2))
    (reply,) = leader.answer(max_offset("t", 0))
    assert reply.ext["offset"] == ("2" if mutant is HEALTHY else "1")


@with_and_without("offsets-rounded-up")
def test_an_offset_is_read_as_it_was_committed(mutant: Mutant) -> None:
    leader = group_of(mutant).lead()
    leader.answer(commit("g", "t", 0, 5))
    assert committed(leader, "g", "t", 0) == (5 if mutant is HEALTHY else 16)


@with_and_without("offsets-not-replicated")
def test_every_member_knows_a_committed_offset(mutant: Mutant) -> None:
    group = group_of(mutant, 3)
    group.lead().answer(commit("g", "t", 0, 5))
    group.pass_time(500)
    known = group.members["n1"].broker.tables.offsets.get("g", "t", 0)
    assert known == (5 if mutant is HEALTHY else None)


@with_and_without("offsets-unconfirmed")
def test_only_a_leader_that_has_a_majority_says_offsets(mutant: Mutant) -> None:
    group = group_of(mutant, 3)
    leader = group.lead()
    leader.answer(commit("g", "t", 0, 5))
    group.cut = {"n0"}
    assert bool(leader.answer(query("g", "t", 0))) is (mutant is not HEALTHY)


@with_and_without("dispatch-before-commit")
def test_nobody_reads_what_is_not_committed(mutant: Mutant) -> None:
    group = group_of(mutant, 3)
    leader = group.lead()
    leader.answer(send("t", 0, b"old"))
    group.cut = {"n1", "n2"}
    leader.answer(send("t", 0, b"new", 2))
    (reply,) = leader.answer(pull("t", 0, 0, committed=True))
    seen = [message.body for message in walk_messages(reply.body)]
    assert seen == ([b"old"] if mutant is HEALTHY else [b"old", b"new"])


@with_and_without("ack-timeouts-never-fire")
def test_a_send_that_no_majority_has_is_answered_in_the_end(mutant: Mutant) -> None:
    config = replace(CONFIG, ack_timeout_ms=100.0)
    group = BrokerGroup(3, config=config, raft=RaftConfig(), mutant=mutant)
    leader = group.lead()
    group.cut = {"n1", "n2"}
    leader.ask(send("t", 0, b"x"))
    leader.pump()
    leader.broker.tick(group.now_ms + 110)
    leader.pump()
    assert bool(leader.replies.pop(1, [])) is (mutant is HEALTHY)
