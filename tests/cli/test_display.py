"""What a person sees while a campaign runs."""

from __future__ import annotations

import io
from collections.abc import Callable

import pytest
from rich.console import Console

from shaketable.harness.runtime.observer import Counts
from shaketable.harness.terminal.session import (
    NS,
    Display,
    LiveDisplay,
    PlainDisplay,
    Progress,
    make_display,
)


def play(display: Display) -> None:
    """A short campaign with one fault of two that bit."""
    display.phase_started("setup", 0, None)
    display.leader_changed("n1", 1, NS)
    display.phase_started("steady", 2 * NS, 5.0)
    display.phase_started("chaos", 7 * NS, 30.0)
    display.fault_started(0, "kill", "kill n1 (leader)", 8 * NS)
    display.leader_changed(None, 1, 8 * NS)
    display.leader_changed("n2", 2, 9 * NS)
    display.fault_stopped(0, "kill", True, "its process ended", 10 * NS)
    display.fault_started(1, "pause", "n0 for 2 s", 11 * NS)
    display.fault_stopped(1, "pause", False, "it was already gone", 13 * NS)
    display.fault_started(2, "partition", "isolate n2", 14 * NS)
    display.counts(Counts(1200, 3, 4))
    display.note("n1 [restarted] by itself")


def plain_console(width: int = 80) -> Console:
    return Console(file=io.StringIO(), width=width, highlight=False)


def text_of(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_plain_lines_tell_each_event_with_its_time() -> None:
    console = plain_console()
    display = PlainDisplay(console, lambda: None)
    play(display)
    display.checking("decode the logs")
    lines = text_of(console).splitlines()
    assert lines[0] == "    0.0 s  setup"
    assert "    7.0 s  chaos, 30 s" in lines
    assert "    8.0 s  fault 0: kill n1 (leader)" in lines
    assert "    8.0 s  no leader" in lines
    assert "    9.0 s  n2 leads in term 2" in lines
    assert "   10.0 s  fault 0 took effect: its process ended" in lines
    assert "   11.0 s  fault 1: pause: n0 for 2 s" in lines
    assert "   13.0 s  fault 1 had no effect: it was already gone" in lines
    assert "           n1 [restarted] by itself" in lines  # no markup is taken for style
    assert lines[-1].endswith("check: decode the logs")


def test_counts_are_told_every_few_seconds_only(monkeypatch: pytest.MonkeyPatch) -> None:
    console = plain_console()
    display = PlainDisplay(console, lambda: None)
    times = iter([1 * NS, 1 * NS, 6 * NS, 6 * NS, 7 * NS, 7 * NS, 12 * NS, 12 * NS])
    monkeypatch.setattr(display, "now_ns", lambda: next(times))
    for done in (0, 400, 480, 900):
        display.counts(Counts(done, 0, 0))
    told = [line for line in text_of(console).splitlines() if " ok " in line]
    assert [line.split()[2] for line in told] == ["400", "900"]


@pytest.mark.parametrize("width", [80, 120])
def test_the_panel_fits_the_terminal(width: int) -> None:
    console = plain_console(width)
    display = LiveDisplay(console, lambda: None)
    play(display)
    console.print(display.panel())
    panel = text_of(console).splitlines()[1:]  # behind the note
    assert max(map(len, panel)) <= width
    assert len(panel) == 5
    assert panel[0].split() == [
        *("setup", "steady", "chaos", "heal", "drain", "teardown", "check"),
    ]
    assert "1,200 ok  3 fail  4 info" in panel[2]
    assert "n2 in term 2, changed once" in panel[3]
    assert "partition: isolate n2" in panel[4]


def test_the_panel_says_how_many_bit_when_none_is_in_force() -> None:
    console = plain_console()
    display = LiveDisplay(console, lambda: None)
    play(display)
    display.fault_stopped(2, "partition", True, "held 12 bytes", 16 * NS)
    console.print(display.panel())
    assert "none in force; 2 of 3 took effect so far" in text_of(console)


def test_a_panel_is_for_terminals_only() -> None:
    assert type(make_display(plain_console(), lambda: None)) is PlainDisplay
    terminal = Console(file=io.StringIO(), force_terminal=True)
    assert type(make_display(terminal, lambda: None)) is LiveDisplay


@pytest.mark.parametrize("kind", [PlainDisplay, LiveDisplay])
def test_the_drain_calls_the_hook(
    kind: Callable[[Console, Callable[[], None]], Display],
) -> None:
    called: list[str] = []
    kind(plain_console(), lambda: called.append("drain")).on_drain()
    assert called == ["drain"]


def test_the_rate_is_a_mean_over_a_short_while() -> None:
    progress = Progress()
    assert progress.rate_hz == 0
    for second in range(10):
        progress.count(Counts(ok=second * second), second * NS)
    assert progress.rate_hz == pytest.approx((81 - 36) / 3)


def test_a_leader_changes_when_it_is_another_node() -> None:
    progress = Progress()
    progress.led_by("n0", 1)
    assert progress.leader_changes == 0
    progress.led_by(None, 1)
    progress.led_by("n0", 3)
    assert progress.leader_changes == 0
    progress.led_by("n1", 4)
    assert progress.leader_changes == 1
