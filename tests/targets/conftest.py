"""A java that only prints its arguments, for what starts brokers of Java."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program that prints its arguments, the only java on PATH."""
    program = tmp_path / "bin" / "java"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    return program
