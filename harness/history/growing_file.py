"""The lines of a file that another program still appends to, or of a pipe."""

from __future__ import annotations

import os
import select
import stat
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from shaketable.harness.contracts.errors import HarnessError, UsageError

STEP_BYTES: Final = 1 << 20
"""How much is read at once."""
LINE_BYTES_MAX: Final = 16 << 20
STDIN: Final = Path("-")


class GrowingFile:
    """Reads whole lines, from some place on.

    Attributes:
        place: the byte after the last whole line that was read.
        is_ended: there will be no more: the other end of the pipe is closed.

    Raises:
        UsageError: there is no such file, or it cannot be read; one line.
    """

    def __init__(self, path: Path, place: int = 0) -> None:
        self.path = path
        self.place = place
        self.is_ended = False
        self._rest = b""
        try:
            self._fd = 0 if path == STDIN else os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            mode = os.fstat(self._fd).st_mode
        except OSError as error:
            raise UsageError(f"{path}: {error.strerror}") from error
        self.is_pipe = not stat.S_ISREG(mode)
        if stat.S_ISDIR(mode):
            raise UsageError(f"{path}: a folder; give the file that grows")
        if self.is_pipe and place:
            raise UsageError(f"{path}: a pipe cannot be continued from a checkpoint")

    def __enter__(self) -> Self:
        """Return it, open."""
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:  # fmt: skip
        """Close it."""
        if self._fd:
            os.close(self._fd)

    @property
    def rest(self) -> bytes:
        """What there is of a line that has no end yet."""
        return self._rest

    @property
    def behind_bytes(self) -> int:
        """How much of a file is not read yet; 0 for a pipe."""
        if self.is_pipe:
            return 0
        return max(0, os.fstat(self._fd).st_size - self.place - len(self._rest))

    def lines(self, wait_s: float) -> list[bytes]:
        """Return the next whole lines, without their ends; none if there is nothing new.

        Args:
            wait_s: how long to wait for a pipe to have something; a file is not waited for.

        Raises:
            HarnessError: the file was cut or replaced, a line is too long, or it cannot be read.
        """
        try:
            data = self._from_pipe(wait_s) if self.is_pipe else self._from_file()
        except OSError as error:
            raise HarnessError(f"{self.path}: {error.strerror}") from error
        *whole, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > LINE_BYTES_MAX:
            raise HarnessError(f"{self.path}: a line of more than {LINE_BYTES_MAX:,} bytes")
        self.place += sum(len(line) + 1 for line in whole)
        return whole

    def _from_pipe(self, wait_s: float) -> bytes:
        if self.is_ended or not select.select([self._fd], [], [], wait_s)[0]:
            return b""
        data = os.read(self._fd, STEP_BYTES)
        self.is_ended = not data
        return data

    def _from_file(self) -> bytes:
        here = os.fstat(self._fd)
        at = self.place + len(self._rest)
        if here.st_size < at:
            raise HarnessError(
                f"{self.path}: it was cut: it has {here.st_size:,} bytes, and {at:,} were read"
            )
        data = os.pread(self._fd, STEP_BYTES, at)
        if not data and not _is_still(self.path, here):
            raise HarnessError(f"{self.path}: another file is in its place now")
        return data


def _is_still(path: Path, opened: os.stat_result) -> bool:
    try:
        now = path.stat()
    except FileNotFoundError:
        return True  # what was read stays read
    return (now.st_dev, now.st_ino) == (opened.st_dev, opened.st_ino)
