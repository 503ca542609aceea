"""Runs `check` in this process, for tests of what it says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shaketable.harness import cli


class Shell:
    """Runs `check` in this process, in a folder of its own."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self._capsys = capsys
        self.out = ""
        self.err = ""

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.write_text(text)
        return path

    def check(self, *arguments: str | Path) -> int:
        code = cli.run(["check", *map(str, arguments)])
        self.out, self.err = self._capsys.readouterr()
        return code

    @property
    def said(self) -> str:
        """What was printed, without line breaks."""
        return " ".join(self.out.split())

    def json(self, *arguments: str | Path) -> dict[str, Any]:
        self.check(*arguments, "--json", "-")
        return json.loads(self.out)
