"""A process of the harness's own that does what it is asked: it carries packets, it serves a disk.

Requests and answers are messages of JSON on a socket that only the two have; the process ends when
the harness closes its end, or dies. A request has a number, and its answer the same one.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from time import monotonic
from typing import Any, Final

from shaketable.harness import guard
from shaketable.harness.contracts.errors import HarnessError
from shaketable.harness.contracts.plugins import Json

READY_TIMEOUT_S: Final = 20.0
END_TIMEOUT_S: Final = 5.0
MESSAGE_BYTES_MAX: Final = 64 * 1024


class ControlledProcess:
    """One such process. Starts it at once; `ready` waits for its first message.

    Create it in the main thread: the process ends with it. All methods block the trio loop, so the
    process has to answer at once.

    Args:
        name: as messages to the user have it, "the switch".
        module: the module to run; its arguments are the descriptor of its end, then `arguments`.
        log: the file for what it prints.
        answer_timeout_s: how long it may take to answer.

    Raises:
        HarnessError: it cannot be started.
    """

    def __init__(
        self,
        name: str,
        module: str,
        arguments: Sequence[str | Path],
        log: Path,
        answer_timeout_s: float,
    ) -> None:
        self._name = name
        self._asked = 0
        self._answer_timeout_s = answer_timeout_s
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        number = theirs.fileno()
        program = (sys.executable, "-P", "-m", module, str(number), *map(str, arguments))
        try:
            with theirs, log.open("ab") as output:
                self._process = subprocess.Popen(
                    guard.command(program, os.getpid()),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    pass_fds=(number,),
                    start_new_session=True,
                )
        except OSError as error:
            self._control.close()
            raise HarnessError(f"{name} cannot be started: {error}") from error

    @property
    def pid(self) -> int:
        """Its pid."""
        return self._process.pid

    @property
    def status(self) -> int | None:
        """Its exit status; None while it runs."""
        return self._process.poll()

    def ready(self) -> Any:
        """Wait for its first message; return what it says.

        Raises:
            HarnessError: it could not start its work; the message says why.
        """
        return self._receive(READY_TIMEOUT_S)

    def ask(self, what: str, **more: object) -> Any:
        """Send a request and wait for the answer.

        Raises:
            HarnessError: the process is gone or silent, or could not do it.
        """
        self._asked += 1
        try:
            self._control.settimeout(self._answer_timeout_s)
            self._control.send(json.dumps({"ask": what, "number": self._asked, **more}).encode())
        except OSError as error:
            raise HarnessError(f"{self._name} is gone: {error}") from error
        return self._receive(self._answer_timeout_s)

    def close(self) -> None:
        """Let it end, and wait for that (idempotent)."""
        self._control.close()
        try:
            self._process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()

    def _receive(self, timeout_s: float) -> Any:
        """Wait for the answer to the last request; discard late answers to earlier ones."""
        deadline_s = monotonic() + timeout_s
        while True:
            answer = self._receive_any(timeout_s, deadline_s - monotonic())
            if answer.get("number", 0) != self._asked:
                continue
            if "error" in answer:
                raise HarnessError(f"{self._name}: {answer['error']}")
            return answer["answer"]

    def _receive_any(self, timeout_s: float, left_s: float) -> Json:
        try:
            self._control.settimeout(max(left_s, 1e-3))
            message = self._control.recv(MESSAGE_BYTES_MAX)
        except TimeoutError as error:
            raise HarnessError(f"{self._name} has been silent for {timeout_s:g} s") from error
        except OSError as error:
            raise HarnessError(f"{self._name} is gone: {error}") from error
        if not message:
            raise HarnessError(f"{self._name} ended before it answered")
        answer: Json = json.loads(message)
        return answer
