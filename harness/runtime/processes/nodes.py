"""Node processes: start, kill, pause and stop one node, incarnation by incarnation.

Each start is a new *incarnation*, numbered from 1. A signal goes to the incarnation that the caller
means, never to a later one; a pid is not reused before it is reaped.

Source: jepsen.db (`Process`, `Pause`) and jepsen.control.util (start-daemon!, stop-daemon!).
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic_ns
from typing import BinaryIO

import trio

from shaketable.harness import guard, run_markers
from shaketable.harness.contracts.errors import HarnessError
from shaketable.harness.contracts.plugins import Launch
from shaketable.harness.runtime.processes.children import members_of

KILL_WAIT_S = 10.0
PAUSE_WAIT_S = 2.0
STATE_POLL_S = 0.002
RUN_POLL_S = 0.02
LOG_TAIL_BYTES = 16 * 1024
LINE_CHARS_MAX = 300
MARK = "--- shaketable:"
"""The prefix of the harness's lines in a node's log."""


CausedBy = Callable[[int], bool]
"""Returns whether the log of an ended incarnation shows that a fault ended it."""


@dataclass(frozen=True, slots=True)
class Exit:
    """The end of an incarnation. `returncode` is negative for a signal, as in subprocess.

    `cause` is the meaning of its exit status (`contracts.broken_rules`; "" if it has none), and
    `excuse` is what a fault had done to it that may have caused the end ("" if nothing).
    """

    node: str
    incarnation: int
    returncode: int
    asked: bool  # by the harness: a kill, a stop, a fault that ends processes
    last_line: str
    at_ns: int
    cause: str = ""
    excuse: str = ""

    def __str__(self) -> str:
        last = f"; its last line: {self.last_line}" if self.last_line else "; it printed nothing"
        return f"{self.node} (incarnation {self.incarnation}) {self.how}{last}"

    @property
    def how(self) -> str:
        """Describe the end: "was ended by SIGSEGV", "ended by itself with exit status 1"."""
        if self.returncode < 0:
            return f"was ended by {signal.Signals(-self.returncode).name}"
        return f"ended by itself with exit status {self.returncode}"


class NodeProcess:
    """One node of the group and its current process, if any.

    Args:
        node: its id.
        launch: how to start it.
        directory: its folder, and its working directory.
        log: its output; each incarnation appends to it, after a marker line.
        start_ns: the run's start on CLOCK_MONOTONIC, for the markers.
        prefix: the prefix of each command, so that it runs where the node lives.
    """

    def __init__(
        self,
        node: str,
        launch: Launch,
        directory: Path,
        log: Path,
        start_ns: int,
        prefix: Sequence[str] = (),
    ) -> None:
        self.node = node
        self.incarnation = 0
        self.launch = launch
        """How to start the next incarnation."""
        self._directory = directory
        self._prefix = tuple(prefix)
        self.log = log
        """Its output, and our marker lines."""
        self.before_start: Callable[[], None] = _nothing
        """Called before a process is started."""
        self.on_start: Callable[[str, int], None] = _ignore
        """Called with each started process: the node, its pid."""
        self._start_ns = start_ns
        self._process: subprocess.Popen[bytes] | None = None
        self._asked: set[int] = set()  # incarnations that the harness ended, or tried to
        self._is_held = False  # by a pause
        self._naps = 0  # slices for which it is stopped now
        self._excuses: dict[object, CausedBy] = {}
        self._excused: set[int] = set()  # incarnations that a fault has ended

    @property
    def pid(self) -> int | None:
        """Return the pid of the running process; None if there is none."""
        return self._process.pid if self._process is not None and self.is_running else None

    @property
    def is_running(self) -> bool:
        """True while a process of this node exists, paused or not."""
        return self._process is not None and self._process.poll() is None

    @property
    def returncode(self) -> int | None:
        """Return how the last incarnation ended, as in subprocess; None if it did not."""
        return None if self._process is None else self._process.poll()

    @property
    def is_paused(self) -> bool:
        """True if the kernel reports the process as stopped (state T), and not for a slice."""
        return self._is_stopped and (self._is_held or not self._naps)

    @property
    def _is_stopped(self) -> bool:
        pid = self.pid
        return pid is not None and _state(pid) in ("T", "t")

    @property
    def ended_by_fault(self) -> bool:
        """True if it does not run, and a fault that excuses it caused the end (`excuse`)."""
        number = self.incarnation
        return not self.is_running and number not in self._asked and self._is_excused(number)

    def excuse(self, whose: object, caused_by: CausedBy) -> None:
        """Register a fault that may end the process: such an end is not the node's own.

        Args:
            whose: the key to withdraw the excuse by.
            caused_by: returns whether an ended incarnation shows that the fault ended it; any other
                end is the node's own.
        """
        self._excuses[whose] = caused_by

    def withdraw_excuse(self, whose: object) -> None:
        """Withdraw that excuse (idempotent): an end from now on is the node's own."""
        if not self.is_running:
            self._is_excused(self.incarnation)  # its end may not have been reported yet
        self._excuses.pop(whose, None)

    def _is_excused(self, number: int) -> bool:
        """True if a fault ended that incarnation. Once true, always true."""
        causes = [caused_by(number) for caused_by in self._excuses.values()]  # evaluate all of them
        if any(causes):
            self._excused.add(number)
        return number in self._excused

    def start(self) -> int:
        """Start the next incarnation; return its number.

        Raises:
            HarnessError: it runs already, or the program cannot be started.
        """
        if self.is_running:
            raise HarnessError(f"node {self.node} runs already (pid {self.pid})")
        assert threading.current_thread() is threading.main_thread(), "nodes die with this thread"
        number = self.incarnation + 1
        argv = guard.command((*self._prefix, *self.launch.argv), os.getpid())
        self.before_start()
        try:
            self.launch.write_files(self._directory)
            with self.log.open("a+b", buffering=0) as log:
                _mark(log, f"{self.node} incarnation {number} starts", self._start_ns)
                process = subprocess.Popen(
                    argv,
                    cwd=self._directory,
                    env={**os.environ, **self.launch.env},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,  # Ctrl-C is for the harness, not for the nodes
                )
        except OSError as error:
            raise HarnessError(f"node {self.node}: cannot start: {error}") from error
        self._process = process
        self._is_held = False
        self.incarnation = number
        self.on_start(self.node, process.pid)
        return number

    async def wait(self) -> Exit:
        """Wait until the current incarnation has ended; return how."""
        process, incarnation = self._process, self.incarnation
        assert process is not None, f"{self.node} was never started"
        if process.poll() is None:
            pidfd = os.pidfd_open(process.pid)  # one for each waiting task, as trio demands
            try:
                await trio.lowlevel.wait_readable(pidfd)
            finally:
                os.close(pidfd)
        at_ns = monotonic_ns() - self._start_ns
        _end_those_left(process.pid)
        is_excused = self._is_excused(incarnation)
        return Exit(
            self.node,
            incarnation,
            process.wait(),
            incarnation in self._asked or is_excused,
            last_line(self.log),
            at_ns,
        )

    async def kill(self) -> None:
        """Kill the process with SIGKILL and reap it; do nothing if there is none.

        Raises:
            HarnessError: it did not end in `KILL_WAIT_S` (stuck in the kernel).
        """
        await self._end(signal.SIGKILL, KILL_WAIT_S, "killed")
        if self.is_running:
            raise HarnessError(f"node {self.node}: pid {self.pid} does not end, even by SIGKILL")

    async def stop(self, grace_s: float) -> None:
        """Stop the process with SIGTERM; kill it after `grace_s`."""
        if self.is_running and self._process is not None:
            _signal_all(self._process, signal.SIGCONT)
        await self._end(signal.SIGTERM, grace_s, "stopped")
        await self.kill()

    async def pause(self) -> bool:
        """Stop the process (SIGSTOP); True when the kernel reports it as stopped.

        What it has started stops with it, as all of a machine would (RocketMQ's controllers, the
        backends of PostgreSQL, which are sessions of their own).
        """
        if not self.is_running or self._process is None:
            return False
        self._is_held = True
        _signal_all(self._process, signal.SIGSTOP)
        with trio.move_on_after(PAUSE_WAIT_S):
            while self.is_running and not self.is_paused:  # noqa: ASYNC110 - /proc has no events
                await trio.sleep(STATE_POLL_S)
            await _stop_all(self._process.pid)
        self._mark("paused")
        return self.is_paused

    def resume(self) -> None:
        """Resume the process (SIGCONT); do nothing if there is none."""
        self._is_held = False
        if self.is_running and self._process is not None:
            self._mark("resumed")
            _signal_all(self._process, signal.SIGCONT)
            for pid in members_of(self._process.pid):
                _signal(pid, signal.SIGCONT)

    async def nap(self, seconds: float) -> float:
        """Stop the process for that long, then resume it; return for how long it was stopped.

        Returns 0 if it did not run, was paused, or did not stop. If a pause starts meanwhile, the
        process stays stopped until that is over.
        """
        process = self._process
        if process is None or not self.is_running or self._is_held:
            await trio.sleep(seconds)
            return 0.0
        self._naps += 1
        began = trio.current_time()
        try:
            _signal_all(process, signal.SIGSTOP)
            await trio.sleep(seconds)
            was_stopped = process is self._process and self._is_stopped
        finally:
            self._naps -= 1
            if process.poll() is None and not self._is_held and not self._naps:
                _signal_all(process, signal.SIGCONT)
        return trio.current_time() - began if was_stopped else 0.0

    async def run_for(self, incarnation: int, seconds: float) -> None:
        """Wait until that incarnation has ended, or has run that long, not counting pauses."""
        ran_s = 0.0
        while self.incarnation == incarnation and self.is_running and ran_s < seconds:
            looked = trio.current_time()
            await trio.sleep(RUN_POLL_S)
            ran_s += 0.0 if self.is_paused else trio.current_time() - looked

    def last_line(self) -> str:
        """Return the last line of the node's own output, shortened; "" if none."""
        return last_line(self.log)

    async def _end(self, signal_number: signal.Signals, wait_s: float, mark: str) -> None:
        if not self.is_running or self._process is None:
            return
        self._asked.add(self.incarnation)
        self._process.send_signal(signal_number)
        with trio.move_on_after(wait_s) as waited:
            await self.wait()
        if not waited.cancelled_caught:
            self._mark(f"incarnation {self.incarnation} {mark}")

    def _mark(self, what: str) -> None:
        with self.log.open("a+b", buffering=0) as log:
            _mark(log, f"{self.node} {what}", self._start_ns)


def _signal_all(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Send a signal to a node's process and to what it has started in its group."""
    if process.poll() is None:  # its number is not another one's: it was not reaped
        os.killpg(process.pid, number)


async def _stop_all(session: int) -> None:
    """Stop whatever a node has started, until nothing of it runs: it may start more meanwhile."""
    while awake := [pid for pid in members_of(session) if not _is_stopped(pid)]:
        for pid in awake:
            _signal(pid, signal.SIGSTOP)
        await trio.sleep(STATE_POLL_S)


def _is_stopped(pid: int) -> bool:
    fields = run_markers.proc_stat(pid)
    return fields is None or fields[0] in "TtZX"


def _signal(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _end_those_left(session: int) -> None:
    """Kill what a node had started (Galera's state transfers): a node ends as a machine does.

    Only what is of a run: the number of its session may have been given anew.
    """
    for pid in run_markers.pids():
        if run_markers.session_of(pid) == session and run_markers.marker_of(pid) is not None:
            left = run_markers.identify(pid)
            if left is not None:
                run_markers.kill(left)


def _nothing() -> None:
    """Do nothing before a start."""


def _ignore(_node: str, _pid: int) -> None:
    """Ignore a started process."""


def last_line(log: Path) -> str:
    """Return the last line in a node's log that is not a marker; "" if there is none."""
    for line in _lines_from_end(log):
        if line.startswith(MARK):
            if " starts " in line:  # earlier lines are of an earlier incarnation
                return ""
            continue
        return line if len(line) <= LINE_CHARS_MAX else line[:LINE_CHARS_MAX] + "..."
    return ""


def _lines_from_end(log: Path) -> Iterator[str]:
    try:
        with log.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - LOG_TAIL_BYTES))
            tail = file.read()
    except FileNotFoundError:
        return
    for line in reversed(tail.decode("utf-8", "replace").splitlines()):
        if line.strip():
            yield line.strip()


def _mark(log: BinaryIO, what: str, start_ns: int) -> None:
    """Write a marker on a line of its own: a killed process may leave half a line."""
    at_s = (monotonic_ns() - start_ns) / 1e9
    begins = "" if _ends_a_line(log) else "\n"
    log.write(f"{begins}{MARK} {what} at {at_s:.3f} s\n".encode())


def _ends_a_line(log: BinaryIO) -> bool:
    size = log.seek(0, os.SEEK_END)
    return not size or os.pread(log.fileno(), 1, size - 1) == b"\n"


def _state(pid: int) -> str | None:
    """Return the state letter of /proc/PID/stat; None if the process is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return stat.rpartition(")")[2].split()[0]
