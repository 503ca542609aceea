"""A minimal run is told: what broke, who did what, and a picture in which nothing overlaps."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import pytest
from msgspec.structs import replace

from shaketable.system import mutants
from shaketable.system.mutants import Mutant
from shaketable.system.sim.schedules.faults import Crash, Cut, Pause
from shaketable.system.sim.schedules.schedule import (
    Call,
    Options,
    Schedule,
    Settings,
    draw_schedule,
)
from shaketable.system.sim.shrinking import Shrunk, load
from shaketable.system.sim.stories.story import (
    HEAD,
    LINE,
    Layout,
    NothingToTell,
    planted_bug,
    save_story,
    tell,
)
from shaketable.system.sim.stories.story_rows import ROWS_MAX, Rows, build_rows, draw_text, sentence
from shaketable.system.sim.stories.watch import Kind, watch
from shaketable.system.sim.world import run_seed

EARLY_ACK = mutants.load("ack-before-quorum")


def early_ack() -> Schedule:
    """A leader is cut off from everybody, then acknowledges an append all the same."""
    return Schedule(
        seed=1,
        settings=Settings(members=3, run_ms=4000, clients=2),
        faults=(Cut(start_ms=1000, duration_ms=2000, links=(("leader", "*"), ("*", "leader"))),),
        calls=tuple(Call(at, 0, "append", 0) for at in range(800, 1400, 200)),
    )


def eventful() -> Schedule:
    """Crashes, a pause and a cut under traffic; nothing breaks."""
    return Schedule(
        seed=3,
        settings=Settings(members=5, run_ms=9000, clients=3),
        faults=(
            Crash(start_ms=1500, duration_ms=800, node="leader"),
            Pause(start_ms=3000, duration_ms=600, node="follower"),
            Cut(start_ms=4500, duration_ms=900, links=(("leader", "*"),)),
        ),
        calls=tuple(
            Call(at, at // 100 % 3, "batch" if at % 200 else "pull", 0, 3 if at % 200 else 1)
            for at in range(400, 7000, 100)
        ),
    )


def rows_of(schedule: Schedule, mutant: Mutant | None = None) -> Rows:
    return build_rows(watch(schedule, mutant))


@pytest.mark.parametrize("mutant", [None, EARLY_ACK])
@pytest.mark.parametrize("seed", [0, 4])
def test_watching_changes_nothing(seed: int, mutant: Mutant | None) -> None:
    schedule = draw_schedule(seed, Options(run_ms=12_000, operations_per_s=40))
    seen = watch(schedule, mutant)
    result = run_seed(seed, schedule=schedule, mutant=mutant)
    assert seen.violation == result.violation
    assert list(map(repr, seen.history)) == list(map(repr, result.history))
    assert len(seen.sendings) == result.counts.messages
    assert sum(sending.is_lost for sending in seen.sendings) == result.counts.messages_lost


def test_a_story_says_what_broke_and_why_it_matters() -> None:
    story = tell(early_ack(), EARLY_ACK)
    for text in (story.text, re.sub(r"\s+", " ", story.html)):
        assert "acknowledged-is-committed" in text
        assert "A message, or an offset, is acknowledged only when it is committed." in text
        assert "a message that was confirmed gets lost" in text
        assert "The leader acknowledges an append before its followers have the entry." in text
        assert "cut leader→*, *→leader for 2000 ms" in text
        assert re.search(r"BREAKS[\s#|]+acknowledged-is-committed", text)
    assert "\x1b" not in story.text
    assert max(map(len, story.text.splitlines())) <= 120


def test_the_violation_is_the_last_thing_told() -> None:
    rows = rows_of(early_ack(), EARLY_ACK).rows
    assert [row.is_broken for row in rows].index(True) == len(rows) - 1
    assert [row.at_ms for row in rows] == sorted(row.at_ms for row in rows)


def test_who_led_and_what_the_fault_hit_is_told() -> None:
    text = "\n".join(map(sentence, rows_of(eventful()).rows))
    assert re.search(r"n\d leads term 1|; leads term 1", text)
    assert re.search(r"FAULT 1: crash n\d \(the leader\) for 800 ms", text)
    assert re.search(r"n\d .*crashes with loss of what was not", text)
    assert re.search(r"fault 1 ends: crash is over; starts: its log", text)
    assert re.search(r"FAULT 2: pause n\d \(the follower\)", text)
    assert re.search(r"FAULT 3: cut leader→\* for 900 ms \(n\d leads\)", text)
    assert "leads term 2" in text


def test_there_is_never_more_than_can_be_drawn() -> None:
    rows = rows_of(draw_schedule(0, Options(run_ms=12_000, operations_per_s=100)))
    assert len(rows.rows) == ROWS_MAX
    assert rows.left_out > 0
    assert len(rows.arrows) <= 60


def test_every_arrow_ends_where_it_should() -> None:
    for schedule in (early_ack(), eventful()):
        rows = rows_of(schedule)
        for arrow in rows.arrows:
            assert rows.rows[arrow.row].lane == arrow.source
            if arrow.arrives_ms is not None:
                assert arrow.end_row > arrow.row
                assert rows.rows[arrow.end_row].lane == arrow.target
            assert arrow.source != arrow.target


def test_messages_to_a_cut_off_node_are_lost_in_the_picture() -> None:
    rows = rows_of(early_ack())
    lost = [arrow for arrow in rows.arrows if arrow.is_lost]
    assert lost
    assert all(arrow.arrives_ms is None for arrow in lost)
    assert "x" in draw_text(rows).split("FAULT 1")[1]


def test_no_two_texts_of_the_picture_overlap() -> None:
    for schedule in (early_ack(), eventful(), draw_schedule(2, Options(run_ms=12_000))):
        layout = Layout(rows_of(schedule))
        bottom = float(HEAD)
        for top, lines in zip(layout.tops, layout.texts, strict=True):
            assert top >= bottom, "a row begins below the one before it"
            bottom = top + LINE * len(lines)
        assert layout.bottom >= bottom
        xs = list(layout.xs.values())
        assert all(right - left >= 60 for left, right in pairwise(xs))
        assert layout.text_x > xs[-1] + 30


def test_the_page_needs_nothing_from_elsewhere() -> None:
    html = tell(early_ack(), EARLY_ACK).html
    assert "http" not in html
    assert "{{" not in html
    assert html.count("<svg") == html.count("</svg>")
    assert "class=violation" in html
    assert "class=star" in html


def test_text_of_a_run_is_escaped() -> None:
    html = tell(early_ack(), EARLY_ACK).html
    assert "<script" not in html
    assert "leader→*" in html


def test_a_lane_is_drawn_as_down_and_as_leading() -> None:
    text = draw_text(rows_of(eventful()))
    assert "#" in text
    assert ":" in re.sub(r"[a-z]+:", "", text)
    assert "X" in text
    assert "*" in text


def test_nothing_broken_is_no_story() -> None:
    with pytest.raises(NothingToTell, match="there is no story"):
        tell(replace(early_ack(), calls=()), EARLY_ACK)


def test_only_a_planted_bug_is_named() -> None:
    assert planted_bug(None) == ""
    assert planted_bug(mutants.HEALTHY) == ""
    assert planted_bug(EARLY_ACK).startswith("ack-before-quorum: The leader acknowledges")


def test_run_and_page_are_saved_together(tmp_path: Path) -> None:
    schedule = early_ack()
    story = tell(schedule, EARLY_ACK)
    shrunk = Shrunk(
        schedule=schedule,
        violation=story.violation,
        events=4,
        runs=1,
        seconds=0.1,
        is_finished=True,
        mutant=EARLY_ACK.name,
    )
    run, page = save_story(shrunk, story, tmp_path / "new")
    assert load(run) == shrunk
    assert page.read_text(encoding="utf-8") == story.html


def test_a_violation_of_the_whole_group_has_its_row() -> None:
    seen = watch(early_ack(), EARLY_ACK)
    assert seen.violation is not None
    broken = seen.events.pop()
    seen.events.append(type(broken)(broken.at_ms, "", Kind.BROKEN, "every-node-runs: no"))
    text = draw_text(build_rows(seen))
    assert "BREAKS every-node-runs: no" in text
