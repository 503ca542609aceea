"""Runs all tests, none waiting for its turn, and writes which of them take long.

    .venv/bin/python -m tests.soaks.long_tests

Takes more than an hour of two cores; nothing else should run. Ends with pytest's exit code.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

import pytest

from tests.support.turns import ALL, TABLE, table_of


class Taken:
    """A plug-in that adds up how long tests take, as one process beside others."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] += report.duration

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if session.exitstatus == pytest.ExitCode.OK:
            TABLE.write_text(table_of(dict(self.seconds)), encoding="utf-8")


def pytest_configure(config: pytest.Config) -> None:
    """Add it where the reports of all processes come together."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Taken())


def main() -> int:
    """Run them; return pytest's exit code."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-n",
        "auto",
        "--turn",
        ALL,
        "-p",
        __spec__.name,
    ]
    return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    raise SystemExit(main())
