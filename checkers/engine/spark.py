"""The check pipeline on PySpark, local[*] or a cluster: the only module that imports pyspark."""

from __future__ import annotations

from pathlib import Path

from checkers.engine.java import Java
from checkers.engine.job import CheckJob, Progress, no_progress
from harness.verdict import Verdict


class SparkEngine:
    """A Spark session for checking; start it while the campaign drains, use it, stop it.

    `start` takes some seconds and may run in a thread of its own; `run` and `stop` wait
    for it. Nothing is imported or launched before `start`.
    """

    def __init__(self, master: str = "local[*]", remote: str | None = None) -> None:
        self.master = master
        self.remote = remote

    def start(self) -> Java | None:
        """Find Java, launch Spark, warm it up; idempotent. None where the JVM is remote.

        Raises:
            UsageError: no fitting Java; the master cannot be reached.
        """
        raise NotImplementedError

    def run(self, job: CheckJob, progress: Progress = no_progress) -> list[Verdict]:
        """Like `checkers.engine.local.run_local`, through Spark; starts it if need be."""
        raise NotImplementedError

    def stop(self) -> None:
        """End the session and its JVM, remove its files; idempotent."""
        raise NotImplementedError

    @property
    def scratch(self) -> Path | None:
        """Where Spark's temporary files are while it runs."""
        raise NotImplementedError
