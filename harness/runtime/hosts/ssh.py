"""A host: runs scripts there by OpenSSH, over one connection that is kept (ControlMaster).

The user's ssh_config and options rule. Nothing is asked (BatchMode): a host whose key is not known
is refused, and told. The connection is a process of ours that dies with the harness; where it is
not up, a script gets a connection of its own.

Source: ssh(1), ssh_config(5) (ControlMaster, ServerAliveInterval).
"""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import BinaryIO, Final

import trio

from shaketable.harness import guard
from shaketable.harness.contracts.errors import HarnessError
from shaketable.harness.untrusted_text import printable

SCRIPT_TIMEOUT_S: Final = 12.0
FETCH_TIMEOUT_S: Final = 60.0
CONNECT_TIMEOUT_S: Final = 5
SILENCE_MAX_S: Final = 4
"""A connection on which nothing is heard for so long counts as lost."""
CONNECT_AGAIN_AFTER_S: Final = 0.5
OUTPUT_BYTES_MAX: Final = 1 << 20
ERROR_CHARS_MAX: Final = 300
SOCKET_CHARS_MAX: Final = 85
"""Of a Unix socket's 108, ssh needs some for a temporary name."""
_SSH_FAILED: Final = 255
_HINTS: Final = (
    ("Permission denied", "it must let you in without a password (ssh-agent, or hosts.options)"),
    ("Host key verification failed", "connect once by hand, so that its key is known"),
    ("Could not resolve", "check its name"),
    ("", "check that it runs, and `{command}`"),
)


class UnreachableError(HarnessError):
    """The connection failed: whether the script was run is not known."""


class Host:
    """One node's host.

    Args:
        node: the node.
        name: what it is called in messages.
        arguments: what `ssh` gets: options of the user, and the destination at the end.
        scratch: an existing folder of ours, for the connection's socket; None: no connection is
            kept.
        tell: is given a line when the host cannot be reached, and one when it can again.
    """

    def __init__(
        self,
        node: str,
        name: str,
        arguments: Sequence[str],
        scratch: Path | None,
        tell: Callable[[str], None],
    ) -> None:
        self.node = node
        self.name = f"host {name} of {node}"
        *self._options, self._destination = arguments
        self._socket = None if scratch is None else scratch / node
        if self._socket is not None and len(str(self._socket)) > SOCKET_CHARS_MAX:
            self._socket = None  # each script gets a connection of its own: slower, and the same
        self._tell = tell
        self._is_lost = False

    def argv(self, *more: str) -> list[str]:
        """Return the command line of ssh. The user's options come first: the first value counts."""
        ours = (
            "BatchMode=yes",
            f"ConnectTimeout={CONNECT_TIMEOUT_S}",
            "ServerAliveInterval=1",
            f"ServerAliveCountMax={SILENCE_MAX_S}",
            "ForwardX11=no",
            "ForwardAgent=no",
            f"ControlPath={self._socket or 'none'}",
        )
        options = [word for option in ours for word in ("-o", option)]
        return ["ssh", "-T", *self._options, *options, *more]

    async def run(self, script: str, timeout_s: float = SCRIPT_TIMEOUT_S) -> str:
        """Run a script there; return what it printed.

        Raises:
            UnreachableError: the connection failed or is silent: it may have been run, or not.
            HarnessError: the script failed; what it said.
        """
        with TemporaryFile() as output:
            await self._run(script, output, timeout_s)
            output.seek(0)
            return output.read(OUTPUT_BYTES_MAX).decode(errors="replace")

    async def fetch(self, script: str, file: Path) -> None:
        """Write what a script prints into a file here, if it prints anything. Raises as `run`."""
        try:
            with file.open("wb") as output:
                await self._run(script, output, FETCH_TIMEOUT_S)
        except OSError as error:
            raise HarnessError(f"cannot write {file}: {error.strerror}") from error
        _drop_if_empty(file)

    async def _run(self, script: str, output: BinaryIO, timeout_s: float) -> None:
        argv = self.argv("-o", "ControlMaster=no", self._destination, "sh -s")
        with TemporaryFile() as given, TemporaryFile() as errors:
            given.write(script.encode())
            given.seek(0)
            with trio.move_on_after(timeout_s) as waited:
                try:
                    done = await trio.run_process(
                        argv, stdin=given, stdout=output, stderr=errors, check=False
                    )
                except OSError as error:
                    raise HarnessError(
                        f"ssh: {error.strerror}: install OpenSSH's client"
                    ) from error
            errors.seek(0)
            said = errors.read(OUTPUT_BYTES_MAX).decode(errors="replace")
        if waited.cancelled_caught:
            raise self._unreachable(f"no answer within {timeout_s:g} s")
        last = printable(said.strip().rpartition("\n")[2][:ERROR_CHARS_MAX])
        if done.returncode == _SSH_FAILED:
            raise self._unreachable(last or "the connection was closed")
        self._reached()
        if done.returncode:
            raise HarnessError(f"{self.name}: {last or f'exit code {done.returncode}'}")

    async def keep_connected(self) -> None:
        """Hold one connection for all scripts, made anew when it is lost, until cancelled."""
        if self._socket is None:
            return
        # ControlPersist would leave it behind.
        argv = self.argv("-o", "ControlMaster=yes", "-N", self._destination)
        while True:
            self._socket.unlink(missing_ok=True)
            master = _started(argv)
            pidfd = os.pidfd_open(master.pid)
            try:
                await trio.lowlevel.wait_readable(pidfd)
            finally:
                os.close(pidfd)
                master.kill()
                master.wait()
            await trio.sleep(CONNECT_AGAIN_AFTER_S)

    def _unreachable(self, why: str) -> UnreachableError:
        by_hand = shlex.join(("ssh", *self._options, self._destination, "true"))
        hint = next(hint for found, hint in _HINTS if found in why).format(command=by_hand)
        text = f"{self.name} cannot be reached: {why}; {hint}"
        if not self._is_lost:
            self._is_lost = True
            self._tell(text)
        return UnreachableError(text)

    def _reached(self) -> None:
        if self._is_lost:
            self._is_lost = False
            self._tell(f"{self.name} is reached again")


def _started(argv: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start a process that dies with this thread, the main one (see harness.guard)."""
    return subprocess.Popen(
        guard.command(argv, os.getpid()),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,  # scripts say what is wrong
        start_new_session=True,  # Ctrl-C is for the harness
    )


def _drop_if_empty(file: Path) -> None:
    if not file.stat().st_size:
        file.unlink()
