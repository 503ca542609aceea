"""A group's offset is a register: no linearizable history of one is accused, few others are not."""

from __future__ import annotations

from collections import Counter
from random import Random

from shaketable.checkers.models.register import Register
from shaketable.checkers.queues.consumer_offsets import PLUGIN
from tests.support.anomaly_histories import EVERYTHING
from tests.support.brute_force import is_linearizable
from tests.support.checker_histories import context, op, table
from tests.support.volume import volume


def random_offsets(rng):
    """Return commits and fetches of one group, in more than half of which one fetch is changed."""
    held, rows, values = None, [], rng.choice((3, 50))
    for n, moment in enumerate(sorted(rng.randint(0, 14) for _ in range(rng.randint(2, 7)))):
        call, end = moment - rng.randint(0, 3), moment + rng.randint(0, 3)
        if rng.random() < 0.5:
            outcome, value = rng.choice(("ok", "ok", "info")), rng.randint(1, values)
            rows.append(op(n, "commit", call, end, outcome, input=value))
            if outcome == "ok" or rng.random() < 0.6:
                held = value
        else:
            rows.append(op(n, "fetch", call, end, output=held))
    fetches = [row for row in rows if row["f"] == "fetch"]
    if fetches and rng.random() < 0.6:
        committed = [row["input"] for row in rows if row["f"] == "commit"]
        rng.choice(fetches)["output"] = rng.choice([None, *committed])
    return rows


def test_offsets_agree_with_a_register():
    about, seen = context(promises=EVERYTHING), Counter()
    names = {"commit": "write", "fetch": "read"}
    for seed in range(volume(2500)):
        rows = random_offsets(Random(seed))
        verdict = PLUGIN.conclude(PLUGIN.check({"operations": table(rows)}, about), about)
        was = is_linearizable(Register(), (None,), [row | {"f": names[row["f"]]} for row in rows])
        assert not (was and verdict.findings), f"seed {seed}: {verdict.findings[0].message}"
        seen[was, bool(verdict.findings)] += 1
    assert seen[False, True] > volume(300)
    assert seen[False, False] <= seen[False, True] // 100, seen
