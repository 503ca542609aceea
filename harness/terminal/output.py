"""Stdout as the commands use it: who stops reading, or a full disk, changes no verdict."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from shaketable.harness.telling import stdout_failed


class Output(Console):
    """Stdout. It keeps still once nobody reads on (`| head`), and the command goes on.

    rich's own answer to a closed pipe is exit code 1, which is ours for "invalid". Where a disk
    is full the command goes on as well, so that its page and files are written; the command
    line's entry tells of it (`harness.cli`).
    """

    _is_given_up = False

    def print(self, *objects: Any, **how: Any) -> None:
        """Print as rich does."""
        try:
            super().print(*objects, **how)
        except BrokenPipeError:
            self.on_broken_pipe()
        except OSError as error:
            self._give_up(error)

    def write(self, text: str) -> None:
        """Write text as it is: lines of a trace, or JSON for programs."""
        if self._is_given_up:
            return
        try:
            self.file.write(text)
        except BrokenPipeError:
            self.on_broken_pipe()
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        self.quiet = self._is_given_up = True
        stdout_failed(error)

    def on_broken_pipe(self) -> None:
        """Print nothing more."""
        self.quiet = self._is_given_up = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


out: Final = Output(highlight=False)
"""Where results and progress go: stdout."""


def shown(path: Path) -> str:
    """Return the path as a person in this working directory would type it."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)
