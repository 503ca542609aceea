"""Ctrl-C reaches the command although a callback of compiled code swallowed it."""

from __future__ import annotations

import ctypes
import signal
import sys
import time

import pytest

from shaketable.harness.terminal.check import repeated_interrupts

AGAIN_S = 0.1


def swallow() -> None:
    """Get a SIGINT inside a callback from C, as llvmlite's are."""
    ctypes.CFUNCTYPE(None)(lambda: signal.raise_signal(signal.SIGINT))()


def go_on() -> None:
    swallow()
    time.sleep(10)
    pytest.fail("it was lost")


@pytest.fixture(autouse=True)
def handlers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)
    monkeypatch.setattr(signal, "getsignal", lambda _: signal.default_int_handler)


@pytest.mark.timeout(120, method="thread")  # SIGALRM is what is tried
def test_an_interrupt_that_was_swallowed_comes_again() -> None:
    kept = signal.signal(signal.SIGALRM, signal.SIG_IGN)
    try:
        with pytest.raises(KeyboardInterrupt), repeated_interrupts(AGAIN_S):
            go_on()
        assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
        assert signal.signal(signal.SIGALRM, signal.SIG_DFL) is signal.SIG_IGN
        time.sleep(2 * AGAIN_S)  # nothing comes behind the block
    finally:
        signal.signal(signal.SIGALRM, kept)


@pytest.mark.timeout(120, method="thread")
def test_an_interrupt_that_was_taken_comes_once() -> None:
    with repeated_interrupts(AGAIN_S), pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    time.sleep(2 * AGAIN_S)
