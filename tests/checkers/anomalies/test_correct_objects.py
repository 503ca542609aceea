"""No history that a correct object can have is accused: brute force, and consumers that wander."""

from __future__ import annotations

import json
from collections import Counter
from random import Random

import pytest

from shaketable.harness import discovery
from tests.support.anomaly_histories import EVERYTHING
from tests.support.brute_force import is_linearizable
from tests.support.checker_histories import context, op, table
from tests.support.random_objects import random_history
from tests.support.volume import volume


def found(checker, rows):
    about = context(promises=EVERYTHING)
    plugin = discovery.get("checkers", checker)
    return plugin.conclude(plugin.check({"operations": table(rows)}, about), about).findings


@pytest.mark.parametrize(
    ("model", "checker"),
    [
        ("counter", "counter"),
        ("set", "set-full"),
        ("unordered-queue", "total-queue"),
        ("fifo-queue", "total-queue"),
        ("append-log", "cycles"),
        ("append-log", "log-anomalies"),
    ],
)
def test_what_is_linearizable_is_not_accused(model, checker):
    what, seen = discovery.get("models", model), Counter()
    for seed in range(volume(1400)):
        rows = random_history(model, Random(f"{model} {seed}"), size_max=9, unknown=0.3)
        if any(row["f"] == "remove" for row in rows):
            continue  # set-full judges sets that only grow
        was = is_linearizable(what, what.initial(None), rows)
        accused = found(checker, [row for row in rows if row["f"] != "end"])
        assert not (was and accused), f"seed {seed}: {accused[0].message}"
        seen[was, bool(accused)] += 1
    assert seen[True, False] > volume(320)
    assert seen[False, True] > volume(60)


def wandering(rng):
    """Return what producers and consumers of a correct log see; consumers go where they like."""
    log, rows, now = [], [], 0
    stands = {}
    names = iter(range(100, 200))
    consumers = [next(names) for _ in range(3)]
    for n in range(rng.randint(5, 30)):
        now += rng.randint(0, 3)
        begin, end = now - rng.randint(0, 2), now + rng.randint(0, 2)
        if rng.random() < 0.4:
            outcome = rng.choice(("ok", "ok", "ok", "info", "fail"))
            happens = outcome == "ok" or (outcome == "info" and rng.random() < 0.5)
            offset = len(log) if outcome == "ok" else None
            log += [1000 + n] if happens else []
            # One producer each: real time is all that orders what they send.
            rows.append(op(n, "send", begin, end, outcome, input=1000 + n, offset=offset))
            now = max(now, end) + 1  # of sends that overlap the offsets might be turned round
            continue
        which = rng.randrange(3)
        process = consumers[which]
        if rng.random() < 0.25:
            place = rng.choice((None, rng.randint(0, len(log) + 2)))
            f = rng.choice(("assign", "seek", "subscribe"))
            stands[process] = rng.randint(0, len(log)) if place is None else place
            rows.append(op(n, f, begin, end, offset=place) | {"process": process})
        else:
            at = stands.get(process, 0)
            given = log[at : at + rng.randint(1, 4)]
            if rng.random() < 0.15:  # nobody saw it return; the client goes on as another one
                rows.append(op(n, "poll", begin, None, "info") | {"process": process})
                consumers[which] = next(names)
                continue
            said = [[at + place, value] for place, value in enumerate(given)]
            extra = json.dumps({"output": said})
            rows.append(op(n, "poll", begin, end, extra=extra) | {"process": process})
            stands[process] = at + len(given)
        now = max(now, end) + 1
    return rows


def test_consumers_that_wander_through_a_correct_log_accuse_it_of_nothing():
    for seed in range(volume(1500)):
        rows = wandering(Random(seed))
        for checker in ("log-anomalies", "cycles"):
            accused = found(checker, rows)
            assert not accused, f"seed {seed}: {accused[0].message}"


def test_what_they_were_given_and_lost_is_seen():
    """The same, and every message that nobody was given is one that some consumer passed."""
    seen = Counter()
    for seed in range(300):
        rows = wandering(Random(seed))
        polls = [row for row in rows if row["f"] == "poll" and row["extra"]]
        longest = max(polls, key=lambda row: len(json.loads(row["extra"])["output"]), default=None)
        if longest is None or len(json.loads(longest["extra"])["output"]) < 3:
            continue
        lost = json.loads(longest["extra"])["output"][1]
        is_acked = any(row["input"] == lost[1] and row["outcome"] == "ok" for row in rows)
        for row in polls:
            kept = [each for each in json.loads(row["extra"])["output"] if each != lost]
            row["extra"] = json.dumps({"output": kept})
        kinds = {finding.kind for finding in found("log-anomalies", rows)}
        if is_acked:
            assert "lost-write" in kinds, f"seed {seed}"
        seen[is_acked] += 1
    assert seen[True] > 50
