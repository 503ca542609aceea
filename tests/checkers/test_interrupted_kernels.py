"""Ctrl-C while numba compiles or loads a kernel waits until that is done: it is never lost."""

from __future__ import annotations

import ctypes
import signal
import threading
from typing import Any

import pytest
from numba.core.dispatcher import Dispatcher

from shaketable.harness import compiled
from shaketable.harness.compiled import signals_wait


def add_one(number: int) -> int:
    return number + 1


def test_an_interrupt_inside_a_callback_comes_when_the_kernel_is_compiled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real, calls = Dispatcher._compile_for_args, []

    def interrupted(self: Any, *arguments: Any, **more: Any) -> Any:
        calls.append(1)
        ctypes.CFUNCTYPE(None)(lambda: signal.raise_signal(signal.SIGINT))()
        return real(self, *arguments, **more)

    monkeypatch.setattr(Dispatcher, "_compile_for_args", interrupted)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        kernel: Any = compiled.compiled(add_one)
        with pytest.raises(KeyboardInterrupt):
            kernel(1)
        assert kernel(1) == 2
        assert len(calls) == 1
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_each_handler_gets_its_own_signals_once() -> None:
    got: list[int] = []
    kept = {
        number: signal.signal(number, lambda number, _frame: got.append(number))
        for number in (signal.SIGTERM, signal.SIGHUP)
    }
    kept[signal.SIGINT] = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with signals_wait():
            with signals_wait():
                for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
                    signal.raise_signal(number)
            assert got == []
        assert got == [signal.SIGHUP, signal.SIGTERM]
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)


def test_another_thread_changes_no_handlers() -> None:
    found: list[object] = []

    def work() -> None:
        with signals_wait():
            found.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [signal.getsignal(signal.SIGINT)]
