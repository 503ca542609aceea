"""Links among nodes in network namespaces: the harness's client of the switch process.

The same interface as `harness.network.proxy`, for packets: a cut drops them, and a shape may too.

Source: DESIGN.md decision 8; `harness.network.switch`.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import monotonic
from typing import Any, Final

import trio

from shaketable.harness import guard
from shaketable.harness.contracts.capabilities import Link, LinkShape
from shaketable.harness.contracts.errors import HarnessError
from shaketable.harness.contracts.plugins import Json
from shaketable.harness.network import enter

READY_TIMEOUT_S: Final = 20.0
ANSWER_TIMEOUT_S: Final = 5.0
"""A switch answers in less than a millisecond, but later on a machine that is overloaded."""
END_TIMEOUT_S: Final = 5.0
MESSAGE_BYTES_MAX: Final = 64 * 1024


class PacketNetwork:
    """The links among nodes, each in its own namespace. Starts the switch at once.

    Create it in the main thread, from within the harness's own namespace (`harness.network.enter`):
    the switch ends with this thread's process.

    Args:
        nodes: their ids.
        log: the file for the switch's errors.

    Raises:
        HarnessError: the kernel refuses, or the switch does not start.
    """

    def __init__(self, nodes: Sequence[str], log: Path) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        program = (
            sys.executable,
            "-m",
            "shaketable.harness.network.switch",
            str(theirs.fileno()),
            *nodes,
        )
        self._control = ours
        self._asked = 0
        try:
            with theirs, log.open("ab") as output:
                self._process = subprocess.Popen(
                    guard.command(program, os.getpid()),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    pass_fds=(theirs.fileno(),),
                    start_new_session=True,
                )
            self._spaces: Mapping[str, int] = self._receive(READY_TIMEOUT_S)
        except OSError as error:
            ours.close()
            raise HarnessError(f"network: cannot start the switch: {error}") from error
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        """The pid of the switch."""
        return self._process.pid

    def enter_command(self, node: str) -> tuple[str, ...]:
        """Return the command prefix that runs a program in the node's namespace."""
        return tuple(enter.into(self.namespace(node)))

    def namespace(self, node: str) -> str:
        """Return the path of the node's namespace; valid while the switch runs."""
        return f"/proc/{self._process.pid}/fd/{self._spaces[node]}"

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Watch the switch until cancelled, then end it.

        Raises:
            HarnessError: the switch exited by itself.
        """
        try:
            pidfd = os.pidfd_open(self._process.pid)
            try:
                task_status.started()
                await trio.lowlevel.wait_readable(pidfd)
            finally:
                os.close(pidfd)
            raise HarnessError(f"network: the switch ended (status {self._process.wait()})")
        finally:
            self.close()

    def close(self) -> None:
        """End the switch (idempotent). The namespaces end with it and the nodes."""
        self._control.close()
        try:
            self._process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()

    def cut(self, links: Sequence[Link]) -> str:
        """Drop all packets from a to b, for each (a, b); return the cut's id."""
        name: str = self._ask("cut", links=links)
        return name

    def heal(self, cut: str, how: str) -> None:
        """Heal one cut (idempotent); "reset" ends the connections whose packets it dropped.

        There is nothing to "deliver": TCP retransmits what was dropped.
        """
        self._ask("heal", name=cut, how=how)

    def open_cuts(self) -> tuple[str, ...]:
        """Return the cuts that are not healed."""
        return tuple(self._ask("open_cuts"))

    def held(self, cut: str) -> Json:
        """Return what the cut dropped so far: {"bytes", "packets", "connections"}."""
        found: Json = self._ask("held", name=cut)
        return found

    def shape(self, links: Sequence[Link], shape: LinkShape) -> str:
        """Shape these links; see `contracts.capabilities.ShapesLinks`."""
        name: str = self._ask("shape", links=links, shape=shape.to_json())
        return name

    def unshape(self, shape: str) -> None:
        """Remove one shape (idempotent)."""
        self._ask("unshape", name=shape)

    def shaped(self, shape: str) -> Json:
        """Return what the shape did so far; also after it was removed."""
        found: Json = self._ask("shaped", name=shape)
        return found

    def open_shapes(self) -> tuple[str, ...]:
        """Return the shapes in force."""
        return tuple(self._ask("open_shapes"))

    def counts(self) -> Json:
        """Return the switch's frame counts: {"sent", "unsent", "unread"}."""
        found: Json = self._ask("counts")
        return found

    def _ask(self, what: str, **more: object) -> Any:
        """Send a request and wait for the answer. Blocks: the switch answers at once."""
        self._asked += 1
        try:
            self._control.settimeout(ANSWER_TIMEOUT_S)
            self._control.send(json.dumps({"ask": what, "number": self._asked, **more}).encode())
        except OSError as error:
            raise HarnessError(f"network: the switch is gone: {error}") from error
        return self._receive(ANSWER_TIMEOUT_S)

    def _receive(self, timeout_s: float) -> Any:
        """Wait for the answer to the last request; discard late answers to earlier ones."""
        deadline_s = monotonic() + timeout_s
        while True:
            answer = self._receive_any(timeout_s, deadline_s - monotonic())
            if answer.get("number", 0) != self._asked:
                continue
            if "error" in answer:
                raise HarnessError(f"network: {answer['error']}")
            return answer["answer"]

    def _receive_any(self, timeout_s: float, left_s: float) -> Json:
        try:
            self._control.settimeout(max(left_s, 1e-3))
            message = self._control.recv(MESSAGE_BYTES_MAX)
        except TimeoutError as error:
            raise HarnessError(f"network: the switch is silent for {timeout_s:g} s") from error
        except OSError as error:
            raise HarnessError(f"network: the switch is gone: {error}") from error
        if not message:
            raise HarnessError("network: the switch ended before it answered")
        answer: Json = json.loads(message)
        return answer
