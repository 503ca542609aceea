"""Several workloads side by side: who does what, on which topic, and who judges it."""

from __future__ import annotations

from collections import Counter, defaultdict

import pytest

from shaketable.harness import discovery
from shaketable.harness.campaigns.campaign import Campaign, resolve
from shaketable.harness.contracts.clients import topics_of
from shaketable.harness.contracts.plugins import Answer
from shaketable.harness.generators import play
from shaketable.harness.generators.clients import final_generator_of, generator_of
from shaketable.workloads.combined import GENERAL_CHECKERS, topic_of
from tests.support.anomaly_histories import ROOT, judge, parse

COMBINED = [discovery.get("workloads", name) for name in ("combined", "combined-queues")]
OPTIONS = {"queues": 4, "key_skew": 0.0, "clients_per_key": 0}


def answered(due):
    return 1_000_000, "ok", Answer()


def configured(workload, clients):
    return workload.configured({**OPTIONS, "clients": clients})


@pytest.mark.parametrize("workload", COMBINED, ids=lambda w: w.name)
@pytest.mark.parametrize("clients", [1, 2, 5, 18, 31])
def test_each_client_has_one_topic_and_as_many_turns_as_others(workload, clients):
    work = generator_of(configured(workload, clients), "s", clients)
    topics, turns = defaultdict(set), Counter()
    for one in play(work, clients, answered, operations_max=40 * clients):
        topics[one.client].add(topic_of(one.operation.key))
        turns[one.client] += 1
    assert len(topics) == clients
    assert all(len(each) == 1 for each in topics.values())
    assert max(turns.values()) - min(turns.values()) <= 2


def test_every_part_has_clients_where_there_are_enough():
    (workload, _) = COMBINED
    work = generator_of(configured(workload, 27), "s", 27)
    played = play(work, 27, answered, operations_max=200)
    clients = {(one.client, topic_of(one.operation.key)) for one in played}
    assert Counter(topic for _, topic in clients) == {
        "log": 5, "register": 2, "queue": 10, "push": 6, "ordered": 4,
    }  # fmt: skip


def test_consumers_of_the_default_campaign_contend_for_locks():
    """With a single ordered consumer, as it once was, no run could see a bug of the locks."""
    queue = dict(configured(COMBINED[0], 27)._by_topic)["queue"]
    in_order = [client for client in range(1, 10, 2) if queue.shape.is_ordered_by(client)]
    assert len(in_order) >= 2


def test_workers_draw_the_same_whoever_shares_the_clients_out():
    workload = configured(COMBINED[0], 18)
    whole = play(generator_of(workload, "s", 18), 18, answered, operations_max=360)
    of_one = [one.operation for one in whole if one.client == 3]
    assert of_one[:5] == [
        operation for operation, _ in zip(workload.operations("s", 3, 18), range(5), strict=False)
    ]


def test_values_of_a_topic_are_unique():
    work = generator_of(configured(COMBINED[0], 18), "s", 18)
    sent = Counter(
        (topic_of(one.operation.key), one.operation.value)
        for one in play(work, 18, answered, operations_max=2000)
        if one.operation.f in ("append", "send", "write", "cas")
    )
    assert max(sent.values()) == 1


@pytest.mark.parametrize("workload", COMBINED, ids=lambda w: w.name)
def test_finals_are_those_of_the_parts(workload):
    keys = ["register/0", "log/1"]
    made = configured(workload, 18)
    finals = play(final_generator_of(made, "s", 18, keys), 18, answered, operations_max=5000)
    done = {(one.operation.f, topic_of(one.operation.key)) for one in finals}
    assert {("drain", "queue"), ("drain", "push"), ("drain", "ordered")} <= done
    if workload.name == "combined":
        assert {("read", "log"), ("end", "log"), ("read", "register")} <= done
        assert {
            one.operation.key for one in finals if topic_of(one.operation.key) == "register"
        } == {"register/0"}


LOOK_THEMSELVES = {"queue-owners": "owners-two", "retried-messages": "retried-late"}
"""With a history that each of them finds fault with, on the topic "q"."""


@pytest.mark.parametrize("workload", COMBINED, ids=lambda w: w.name)
def test_each_checker_judges_the_topics_of_its_parts(workload):
    topics = topics_of(workload)
    assert set(workload.checkers) == {*topics, *GENERAL_CHECKERS}
    assert len(workload.checkers) == len(set(workload.checkers))
    assert topics["push-delivery"] == {"push", "ordered"}
    assert topics["retried-messages"] == {"push"}
    assert topics["group-delivery"] == {"queue"}
    for name in topics:  # these are split by key alone, or look for their topics themselves
        checker = discovery.get("checkers", name)
        partition = "history" if name in LOOK_THEMSELVES else "key"
        assert (checker.partition, tuple(checker.tables)) == (partition, ("operations",))


@pytest.mark.parametrize("name", LOOK_THEMSELVES)
def test_who_sees_the_whole_history_judges_its_topics_alone(tmp_path, name):
    text = LOOK_THEMSELVES[name]
    rows = parse((ROOT / f"{text}.txt").read_text())
    assert judge(tmp_path, rows, name, topics={name: frozenset({"q"})}).findings
    assert not judge(tmp_path, rows, name, topics={name: frozenset({"r"})}).findings


@pytest.mark.parametrize(
    ("target", "workload"),
    [
        ("dledger", "combined"),
        ("multi-master", "combined-queues"),
        ("async-replication", "combined-queues"),
        ("sync-double-write", "combined-queues"),
    ],
)
def test_targets_say_what_they_are_used_for(target, workload):
    assert resolve(Campaign(target=target)).workload == workload
    assert resolve(Campaign(target=target, workload="queue")).workload == "queue"
