"""A queue that ends before an acknowledged message, for all who ask in the end, has lost it."""

from __future__ import annotations

import pytest

from shaketable.harness.contracts.plugins import FaultWindow, Promises
from shaketable.harness.contracts.verdict import Outcome, Verdict
from tests.support.anomaly_histories import EVERYTHING, judge, kinds_of, parse
from tests.support.checker_histories import Op

MS = 1_000_000
STORY = """
# times in ms
0..10       p0 send q/0 7 -> ok 0
20..30      p0 send q/0 8 -> ok 1
60..61      p1 handle q/0 -> ok 0:7
5000..5010  p2 fetch q/0 -> ok 1
6000..6010  p2 fetch q/0 -> ok 1
"""
FINAL_NS = 4_900 * MS
WIPE = FaultWindow(0, "wipe", "n0", 40 * MS, 4_000 * MS, True, "it bit")


def asked(*ends: int | None, story: str = STORY) -> list[Op]:
    """Return the story's rows, whose fetches were told these ends of the queue."""
    rows = parse(story)
    fetches = [row for row in rows if row["f"] == "fetch"]
    for row, end in zip(fetches, ends, strict=True):
        row["offset"] = end
    return rows


def judged(
    tmp_path, rows: list[Op], *windows: FaultWindow, promises: Promises = EVERYTHING,
    final_ns: int | None = FINAL_NS,
) -> Verdict:  # fmt: skip
    return judge(
        tmp_path, rows, "push-delivery", windows=windows, promises=promises, final_from_ns=final_ns
    )


def test_what_the_queue_ends_before_is_lost(tmp_path) -> None:
    verdict = judged(tmp_path, asked(1, 1))
    assert (verdict.outcome, kinds_of(verdict)) == (Outcome.INVALID, ["lost-message"])
    assert verdict.findings[0].message.endswith(
        "was handled by no consumer, and the queue ends before it: process 2 (op 3), who asked at"
        " the end, was answered that it ends at 1."
    )


def test_where_its_loss_is_not_promised_it_is_observed_and_leaves_no_doubt(tmp_path) -> None:
    kept = Promises(durable_under=frozenset({"kill"}), excludes=EVERYTHING.excludes)
    verdict = judged(tmp_path, asked(1, 1), WIPE, promises=kept)
    assert verdict.outcome is Outcome.VALID
    assert [finding.kind for finding in verdict.observed] == ["lost-message"]
    assert "did not come as far" not in verdict.summary


@pytest.mark.parametrize(
    ("ends", "final_ns", "stop_ms"),
    [
        ((None, None), FINAL_NS, 0),  # an older recording says nothing of ends
        ((1, 2), FINAL_NS, 0),  # somebody was told that it reaches further
        ((1, 1), None, 0),  # nobody says that the faults were over
        ((1, 1), 7_000 * MS, 0),
        ((1, 1), FINAL_NS, 7_000),  # a fault was still in force
    ],
)
def test_where_nobody_knows_the_end_it_is_a_doubt_as_before(
    tmp_path, ends: tuple[int | None, ...], final_ns: int | None, stop_ms: int
) -> None:
    window = FaultWindow(0, "pause", "n0", 40 * MS, stop_ms * MS, True, "it bit")
    windows = (window,) if stop_ms else ()
    verdict = judged(tmp_path, asked(*ends), *windows, final_ns=final_ns)
    assert (verdict.outcome, kinds_of(verdict)) == (Outcome.UNKNOWN, [])
    assert "the group did not come as far as 1 acknowledged message" in verdict.summary


def test_another_message_in_its_place_is_told_as_that_and_is_no_doubt(tmp_path) -> None:
    story = STORY.replace("0:7", "0:7 1:9").replace(
        "60..61", "30..?    p3 send q/0 9 -> info\n60..61"
    )
    kept = Promises(durable_under=frozenset({"kill"}), excludes=EVERYTHING.excludes)
    verdict = judged(tmp_path, asked(2, 2, story=story), WIPE, promises=kept)
    assert verdict.outcome is Outcome.VALID
    assert "inconsistent-offsets" in {finding.kind for finding in verdict.observed}


def test_an_end_that_was_asked_for_at_once_may_not_show_it_yet(tmp_path) -> None:
    soon = STORY.replace("5000..5010", "1000..1010").replace("6000..6010", "1900..1910")
    verdict = judged(tmp_path, asked(1, 1, story=soon), final_ns=900 * MS)
    assert verdict.outcome is Outcome.UNKNOWN
