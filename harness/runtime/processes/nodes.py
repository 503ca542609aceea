"""Node processes: start, kill, pause and stop one node, incarnation by incarnation.

Each start is a new *incarnation*, numbered from 1. Signals go to the incarnation that the
caller means, never to a later one; a pid is not reused before we reap it.

Source: jepsen.db (`Process`, `Pause`) and jepsen.control.util (start-daemon!, stop-daemon!).
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic_ns
from typing import BinaryIO

import trio

from shaketable.harness import guard
from shaketable.harness.contracts.errors import HarnessError
from shaketable.harness.contracts.plugins import Launch

KILL_WAIT_S = 10.0
PAUSE_WAIT_S = 2.0
STATE_POLL_S = 0.002
RUN_POLL_S = 0.02
LOG_TAIL_BYTES = 16 * 1024
LINE_CHARS_MAX = 300
MARK = "--- shaketable:"
"""How lines of ours begin in a node's log."""


OfIt = Callable[[int], bool]
"""Says of an incarnation that ended whether it shows that a fault ended it."""


@dataclass(frozen=True, slots=True)
class Exit:
    """An incarnation that ended. `returncode` is negative for a signal, as in subprocess.

    `cause` is why, by its exit status (`contracts.broken_rules`; "" if that says nothing), and
    `excuse` what a fault had done to it that may have made it so ("" if nothing).
    """

    node: str
    incarnation: int
    returncode: int
    asked: bool  # by us: a kill, a stop, a fault that ends processes
    last_line: str
    at_ns: int
    cause: str = ""
    excuse: str = ""

    def __str__(self) -> str:
        last = f"; its last line: {self.last_line}" if self.last_line else "; it said nothing"
        return f"{self.node} (incarnation {self.incarnation}) {self.how}{last}"

    @property
    def how(self) -> str:
        """How it ended: "was ended by SIGSEGV", "ended by itself with exit status 1"."""
        if self.returncode < 0:
            return f"was ended by {signal.Signals(-self.returncode).name}"
        return f"ended by itself with exit status {self.returncode}"


class NodeProcess:
    """One node of the group and the process that runs it now, if any.

    Args:
        node: its id.
        launch: how to start it.
        directory: its folder, which becomes its working directory.
        log: where its output goes; each incarnation is appended, with a mark.
        start_ns: the run's start on CLOCK_MONOTONIC, for the marks.
        prefix: what stands before each command, so that it runs where the node lives.
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
        """How the next incarnation is started."""
        self._directory = directory
        self._prefix = tuple(prefix)
        self.log = log
        """What it and we write about it."""
        self.before_start: Callable[[], None] = _nothing
        """Called when a process is about to be started."""
        self.on_start: Callable[[str, int], None] = _nobody
        """Told of each process that was started: the node, its pid."""
        self._start_ns = start_ns
        self._process: subprocess.Popen[bytes] | None = None
        self._asked: set[int] = set()  # incarnations that we ended, or tried to
        self._is_held = False  # by a pause
        self._naps = 0  # slices of time that it is stopped for just now
        self._excuses: dict[object, OfIt] = {}
        self._excused: set[int] = set()  # incarnations that a fault has ended

    @property
    def pid(self) -> int | None:
        """The pid of the running process; None if there is none."""
        return self._process.pid if self._process is not None and self.is_running else None

    @property
    def is_running(self) -> bool:
        """True while a process of this node exists, paused or not."""
        return self._process is not None and self._process.poll() is None

    @property
    def returncode(self) -> int | None:
        """How the last incarnation ended, as in subprocess; None if none did, or it runs."""
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
    def has_fallen(self) -> bool:
        """True if it does not run, and ended by a fault that excuses it (`excuse`)."""
        number = self.incarnation
        return not self.is_running and number not in self._asked and self._is_excused(number)

    def excuse(self, whose: object, ended_of_it: OfIt) -> None:
        """From now on a fault may make it end: such an end is the fault's, not its own.

        Args:
            whose: the fault's word for it, to take it back by.
            ended_of_it: says of an incarnation that ended whether it shows that it ended of that;
                any other end is its own.
        """
        self._excuses[whose] = ended_of_it

    def excuse_no_more(self, whose: object) -> None:
        """Take that excuse back (idempotent): who has not ended by now ends by itself."""
        if not self.is_running:
            self._is_excused(self.incarnation)  # its end may not have been told yet
        self._excuses.pop(whose, None)

    def _is_excused(self, number: int) -> bool:
        """Whether that incarnation, which has ended, ended by a fault; once so, always so."""
        told = [ended_of_it(number) for ended_of_it in self._excuses.values()]  # all have a look
        if any(told):
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
        """Wait until the incarnation that runs now has ended; say how."""
        process, incarnation = self._process, self.incarnation
        assert process is not None, f"{self.node} was never started"
        if process.poll() is None:
            pidfd = os.pidfd_open(process.pid)  # one for each waiting task, as trio demands
            try:
                await trio.lowlevel.wait_readable(pidfd)
            finally:
                os.close(pidfd)
        at_ns = monotonic_ns() - self._start_ns
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
        """End the process by SIGKILL and reap it; nothing if there is none.

        Raises:
            HarnessError: it did not end in `KILL_WAIT_S` (stuck in the kernel).
        """
        await self._end(signal.SIGKILL, KILL_WAIT_S, "killed")
        if self.is_running:
            raise HarnessError(f"node {self.node}: pid {self.pid} does not end, even by SIGKILL")

    async def stop(self, grace_s: float) -> None:
        """Ask the process to end (SIGTERM); end it by SIGKILL after `grace_s`."""
        if self.is_running and self._process is not None:
            self._process.send_signal(signal.SIGCONT)
        await self._end(signal.SIGTERM, grace_s, "stopped")
        await self.kill()

    async def pause(self) -> bool:
        """Stop the process (SIGSTOP); True when the kernel reports it as stopped."""
        if not self.is_running or self._process is None:
            return False
        self._is_held = True
        self._process.send_signal(signal.SIGSTOP)
        with trio.move_on_after(PAUSE_WAIT_S):
            while self.is_running and not self.is_paused:  # noqa: ASYNC110 - /proc has no events
                await trio.sleep(STATE_POLL_S)
        self._mark("paused")
        return self.is_paused

    def resume(self) -> None:
        """Let the process go on (SIGCONT); nothing if there is none."""
        self._is_held = False
        if self.is_running and self._process is not None:
            self._mark("resumed")
            self._process.send_signal(signal.SIGCONT)

    async def nap(self, seconds: float) -> float:
        """Stop the process for so long, and let it go on; return for how long it was stopped.

        0 if it did not run, was paused or did not stop. A pause that begins meanwhile stays: the
        process goes on when that is over.
        """
        process = self._process
        if process is None or not self.is_running or self._is_held:
            await trio.sleep(seconds)
            return 0.0
        self._naps += 1
        began = trio.current_time()
        try:
            process.send_signal(signal.SIGSTOP)
            await trio.sleep(seconds)
            was_stopped = process is self._process and self._is_stopped
        finally:
            self._naps -= 1
            if process.poll() is None and not self._is_held and not self._naps:
                process.send_signal(signal.SIGCONT)
        return trio.current_time() - began if was_stopped else 0.0

    async def run_for(self, incarnation: int, seconds: float) -> None:
        """Wait until that incarnation has ended, or has run for so long: a pause does not count."""
        ran_s = 0.0
        while self.incarnation == incarnation and self.is_running and ran_s < seconds:
            looked = trio.current_time()
            await trio.sleep(RUN_POLL_S)
            ran_s += 0.0 if self.is_paused else trio.current_time() - looked

    def last_line(self) -> str:
        """The last line that the node itself wrote, shortened; "" if none."""
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


def _nothing() -> None:
    """There is nothing to do before."""


def _nobody(_node: str, _pid: int) -> None:
    """Nobody is told."""


def last_line(log: Path) -> str:
    """Return the last line in a node's log that is not a mark of ours; "" if there is none."""
    for line in _lines_from_end(log):
        if line.startswith(MARK):
            if " starts " in line:  # what stands above is of an earlier incarnation
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
    """Write a mark of ours on a line of its own: a process that dies may leave half a line."""
    at_s = (monotonic_ns() - start_ns) / 1e9
    begins = "" if _ends_a_line(log) else "\n"
    log.write(f"{begins}{MARK} {what} at {at_s:.3f} s\n".encode())


def _ends_a_line(log: BinaryIO) -> bool:
    size = log.seek(0, os.SEEK_END)
    return not size or os.pread(log.fileno(), 1, size - 1) == b"\n"


def _state(pid: int) -> str | None:
    """The state letter of /proc/PID/stat; None if the process is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return stat.rpartition(")")[2].split()[0]
