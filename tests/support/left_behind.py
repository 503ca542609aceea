"""Processes as a killed run may leave them, and as others have them: who they are, how they end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from shaketable.harness import run_markers
from shaketable.harness.runtime.ledger import Ledger

ASLEEP = "import time; print('up', flush=True); time.sleep(600)"


class Sleepers:
    """Processes that sleep, each in a session of its own. `end` ends what is left of them."""

    def __init__(self) -> None:
        self._started: list[subprocess.Popen[bytes]] = []

    def sleeper(self, mark: str | None = None, cwd: Path | None = None) -> int:
        """Start one with that mark in its environment; return its pid."""
        environment = {**os.environ, run_markers.VARIABLE: mark} if mark else None
        return self._start([sys.executable, "-c", ASLEEP], environment, cwd)

    def parent(self, log: Path) -> tuple[int, int]:
        """Start one whose child has no environment and writes into `log`; return both pids."""
        program = (
            "import subprocess, sys\n"
            f"child = subprocess.Popen([sys.executable, '-c', {ASLEEP!r}], env={{}},"
            f" stdout=open({str(log)!r}, 'ab'))\n"
            "print(child.pid, flush=True); child.wait()"
        )
        pid = self._start([sys.executable, "-c", program], None, None)
        return pid, int(self._said)

    def _start(
        self, argv: list[str], environment: Mapping[str, str] | None, cwd: Path | None
    ) -> int:
        process = subprocess.Popen(
            argv, stdout=subprocess.PIPE, env=environment, cwd=cwd, start_new_session=True
        )
        self._started.append(process)
        assert process.stdout is not None
        self._said = process.stdout.readline()
        return process.pid

    def end(self) -> None:
        """End all of them, and what they started in their sessions."""
        for process in self._started:
            for pid in run_markers.pids():
                fields = run_markers.proc_stat(pid)
                if fields is not None and int(fields[3]) == process.pid:
                    os.kill(pid, signal.SIGKILL)
            process.wait()
            assert process.stdout is not None
            process.stdout.close()


def make_run(store: Path, name: str = "one") -> Path:
    """Make the folder of a run, without a ledger."""
    folder = store / "quick" / name
    (folder / "history" / "segments").mkdir(parents=True)
    (folder / "campaign.toml").write_text('name = "quick"\n')
    return folder


def killed_ledger(folder: Path) -> Ledger:
    """Begin a ledger as if by a harness that is dead: its first line names nobody who lives."""
    path = folder / "faults.jsonl"
    ledger = Ledger(path, lambda: 0)
    here = run_markers.this_process()
    path.write_text(path.read_text().replace(f'"started":{here.started}', '"started":1'))
    return ledger
