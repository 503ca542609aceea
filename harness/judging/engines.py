"""What runs the checkers of a run or of a history: Spark, or the same functions in this process."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from shaketable.checkers.engine.compiling import Compiling
from shaketable.checkers.engine.judge import CheckJob, Progress
from shaketable.checkers.engine.local import run_local
from shaketable.harness.contracts.verdict import Verdict

if TYPE_CHECKING:
    from shaketable.checkers.online import Progress as StreamProgress
    from shaketable.checkers.spark.pipeline import SparkEngine
    from shaketable.checkers.spark.streaming import StreamPlan

log = logging.getLogger(__name__)

SPARK: Final = "spark"
LOCAL: Final = "local"


def _spark_engine(master: str) -> SparkEngine:
    from shaketable.checkers.spark.pipeline import SparkEngine  # noqa: PLC0415 - takes longer to load than a small check

    return SparkEngine(master)


class Engine:
    """Runs the checkers: on the Spark pipeline, or as the same functions in this process.

    `warm_up` starts the JVM in a thread, so that it is ready when the check starts. The first one
    on a machine prepares quick starts before (`checkers.spark.quick_start`).
    """

    def __init__(self, kind: str, spark_master: str) -> None:
        self.kind = kind
        self._master = spark_master
        self._spark = _spark_engine(spark_master) if kind == SPARK else None
        self._thread: threading.Thread | None = None
        self._is_preparing = False
        self._error: Exception | None = None
        self._compiling: Compiling | None = None

    def require_java(self, env: Mapping[str, str]) -> None:
        """Check now, before the campaign, that Spark will find a suitable Java.

        Raises:
            UsageError: there is none.
        """
        if self.kind == SPARK and self._master.startswith("local"):
            from shaketable.checkers.engine.java import find_java  # noqa: PLC0415 - only where Spark checks

            find_java(env)

    def compile_ahead(self) -> None:
        """Compile the kernels of the search in the background, if none is cached; idempotent."""
        if self._compiling is None:
            self._compiling = Compiling()

    def warm_up(self) -> None:
        """Start Spark in the background if the check needs it, and compile; idempotent."""
        self.compile_ahead()
        if self._spark is None or self._thread is not None:
            return
        self._thread = threading.Thread(target=self._start, name="spark-start", daemon=True)
        self._thread.start()

    def _start(self) -> None:
        from shaketable.checkers.spark.quick_start import create, missing_archive  # noqa: PLC0415 - only where Spark checks

        assert self._spark is not None
        try:
            if self._spark.is_here and (archive := missing_archive(os.environ)) is not None:
                self._is_preparing = True
                create(archive)
                self._is_preparing = False
            self._spark.start()
        except Exception as error:
            self._error = error

    def wait(self, progress: Progress) -> None:
        """Start Spark if needed and not yet done, and wait until it is ready; idempotent.

        Raises:
            UsageError: no suitable Java; the Spark master cannot be reached.
        """
        if self._spark is None:
            return
        self.warm_up()
        assert self._thread is not None, "started"
        if self._is_preparing:
            progress("preparing Spark for quick starts, once (some 20 s)")
        elif self._thread.is_alive():
            progress("waiting for Spark to start")
        self._thread.join()
        if self._error is not None:
            raise self._error

    def run(self, job: CheckJob, progress: Progress) -> list[Verdict]:
        """Run every checker of `job`.

        Raises:
            UsageError: no suitable Java; the Spark master cannot be reached.
            HarnessError: the operations cannot be read.
        """
        if self._compiling is not None:
            self._compiling.wait(progress)
        if self._spark is None:
            return run_local(job, progress)
        self.wait(progress)
        if self._spark.java is not None:
            log.info("event=spark master=%s java=%r", self._master, self._spark.java.describe())
        return self._spark.run(job, progress)

    def judge_stream(self, plan: StreamPlan, take: Callable[[list[StreamProgress]], None]) -> Any:
        """Start a query that judges a history while it grows (`checkers.spark.streaming`).

        Spark has been waited for. Returns pyspark's StreamingQuery.

        Raises:
            HarnessError: Spark does not start it.
        """
        assert self._spark is not None
        return self._spark.judge_stream(plan, take)

    def stop(self) -> None:
        """Stop what compiles, and the JVM if there is one; idempotent.

        Does not wait for one that is still starting: it ends with this process.
        """
        if self._compiling is not None:
            self._compiling.stop()
        if self._thread is not None and self._thread.is_alive():
            return
        if self._spark is not None:
            self._spark.stop()
