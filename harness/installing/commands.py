"""Runs the tools that install (pip, apt, dpkg, Go, Maven), with a limit and their output kept."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Final

from shaketable.harness.contracts.errors import HarnessError
from shaketable.harness.untrusted_text import printable

TIMEOUT_S: Final = 900.0
"""Longest time of one command: Go builds a server in a minute or two."""
OUTPUT_BYTES_MAX: Final = 1 << 20
ERROR_CHARS_MAX: Final = 300
NO_ENV: Final[Mapping[str, str]] = {}
HOW_TO_GET: Final[Mapping[str, str]] = {
    "apt-get": "it is a tool of Debian and its derivatives; this target cannot be installed here",
    "dpkg": "it is a tool of Debian and its derivatives; this target cannot be installed here",
    "dpkg-deb": "it is a tool of Debian and its derivatives; this target cannot be installed here",
    "go": "install Go 1.24 or newer (Debian: apt install golang-go; or go.dev/dl)",
    "mvn": "install Maven (Debian: apt install maven; or maven.apache.org)",
    "java": "install Java (Debian: apt install default-jre-headless), or set JAVA_HOME",
}
"""What to do if a tool is missing."""


def require(tools: Sequence[str], target: str) -> None:
    """Check that these commands are there.

    Raises:
        HarnessError: one is missing; the line says what to do.
    """
    for tool in tools:
        if tool == "pip":
            if subprocess.run([sys.executable, "-m", "pip", "--version"], capture_output=True,
                              check=False).returncode:  # fmt: skip
                raise HarnessError(
                    f"{target} needs pip in this Python, and {sys.executable} has none;"
                    " add it: python -m ensurepip"
                )
        elif (why := why_missing(tool, target)) is not None:
            raise HarnessError(why)


def why_missing(tool: str, target: str) -> str | None:
    """Return a line that says that a command is missing, and what to do; None if it is there."""
    home = os.environ.get("JAVA_HOME") if tool == "java" else None
    if shutil.which(tool, path=f"{home}/bin" if home else None) is not None:
        return None
    where = f" in {home}/bin (JAVA_HOME)" if home else ""
    return f"{target} needs {tool}, and there is none{where}: {HOW_TO_GET[tool]}"


def run(argv: Sequence[str], folder: Path, env: Mapping[str, str] = NO_ENV) -> str:
    """Run a command in a folder and return what it printed.

    It is in a session of its own, so that all of it ends if this process is interrupted.

    Raises:
        HarnessError: it failed, or took too long; the line has the last of its errors.
    """
    with TemporaryFile() as output, TemporaryFile() as errors:
        code = _waited_for(argv, folder, {**os.environ, **env}, output, errors)
        output.seek(0)
        errors.seek(0)
        printed = output.read(OUTPUT_BYTES_MAX).decode(errors="replace")
        said = errors.read(OUTPUT_BYTES_MAX).decode(errors="replace")
    if code:
        raise HarnessError(f"{_name(argv)} failed: {_reason(said) or _reason(printed) or code}")
    return printed


def _waited_for(
    argv: Sequence[str], folder: Path, env: Mapping[str, str], output: IO[bytes], errors: IO[bytes]
) -> int:
    """Run a command to its end, and return its exit code; it does not outlive this call."""
    # Ctrl-C has to wait until there is a process to be ended: it might be started already.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        process = subprocess.Popen(
            argv, cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=errors,
            start_new_session=True,
        )  # fmt: skip
        try:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            return process.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise HarnessError(f"{_name(argv)}: no end within {TIMEOUT_S:g} s") from None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _name(argv: Sequence[str]) -> str:
    """Return what a command is called in a message: its program and what it does."""
    words = ["pip", *argv[3:]] if list(argv[1:3]) == ["-m", "pip"] else list(argv)
    return " ".join(words[:2])


def _reason(text: str) -> str:
    """Return the line that says why: the last that is marked as an error, or the last."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    marked = [line for line in lines if line.lower().startswith(("error", "e:"))]
    last = (marked or lines or [""])[-1]
    return printable(last[:ERROR_CHARS_MAX])
