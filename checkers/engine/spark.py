"""The check pipeline on PySpark, local[*] or a cluster: the only module that imports pyspark.

Operations come from Parquet, the nodes' logs are decoded on the executors, both are
grouped by the column that the checkers asked for, and each group goes through the same
pure functions that checkers.engine.local calls. Only findings come back to the driver.

Settings and traps: SPARK.md.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
import shutil
import signal
import sys
import tempfile
import threading
import traceback
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from checkers.engine.java import Java, find_java
from checkers.engine.job import CheckJob, Progress, ReadLog, no_progress
from checkers.engine.judge import (
    BUCKET_ENTRIES,
    SCHEMAS,
    TAGGED,
    UNREADABLE,
    conclude,
    judge_partition,
    needs,
)
from checkers.engine.jvm import Jvm, launch
from harness.errors import HarnessError, UsageError
from harness.history.schema import ENTRIES
from harness.plugins import CheckContext, Checker
from harness.verdict import Verdict

DRIVER_MEMORY = "2g"
"""Heap of the local JVM. Arrow data and the Python workers are outside of it."""

LOG_LINES_MAX = 3
"""Lines of Spark's log that an error quotes."""

SHIPPED = ("harness", "checkers", "workloads", "reports", "system")
"""Packages that executors on other machines need; what is not there is left out."""

_LOG = logging.getLogger(__name__)
_TYPES = {pa.int64(): "bigint", pa.string(): "string", pa.list_(pa.int64()): "array<bigint>"}
_LOGGING = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{HH:mm:ss.SSS} %p %c{1}: %m%n%ex
"""


class SparkEngine:
    """A Spark session for checking; start it while the campaign drains, use it, stop it.

    `start` takes some seconds and may run in a thread of its own; `run` and `stop` wait
    for it. Nothing is imported or launched before `start`. A process has one engine at a
    time. The JVM ends when this process does, however that ends.
    """

    def __init__(self, master: str = "local[*]") -> None:
        self.master = master
        self.java: Java | None = None
        self.scratch: Path | None = None
        self._lock = threading.Lock()
        self._session: Any = None
        self._jvm: Jvm | None = None

    def start(self) -> Java:
        """Find Java, launch Spark, warm it up; idempotent.

        Raises:
            UsageError: no fitting Java, or a master elsewhere cannot be used.
            HarnessError: the local Spark does not start.
        """
        with self._lock:
            if self._session is None:
                self.java = find_java(os.environ)
                try:
                    self._launch(self.java)
                except Exception as error:
                    said = self._quote_log()
                    self._end()
                    first = str(error).strip().partition("\n")[0]
                    raise (HarnessError if self._is_local else UsageError)(
                        f"Spark does not start on {self.master} with {self.java.describe()}:"
                        f" {said or first or type(error).__name__}"
                    ) from error
            assert self.java is not None
            return self.java

    def run(self, job: CheckJob, progress: Progress = no_progress) -> list[Verdict]:
        """Like `checkers.engine.local.run_local`, through Spark; starts it if need be.

        Raises:
            HarnessError: Spark failed, or the operations cannot be read.
            UsageError: it does not start.
        """
        progress("waiting for Spark")
        self.start()
        try:
            return _run(self._session, job, progress)
        except HarnessError:
            raise
        except Exception as error:
            lines = [line for line in str(error).splitlines() if line.strip()]
            text = lines[0] if lines else type(error).__name__
            raise HarnessError(f"Spark failed while checking: {text}") from error

    def stop(self) -> None:
        """End the session and its JVM, remove its files; idempotent."""
        with self._lock:
            self._end()

    def _launch(self, java: Java) -> None:
        """Start the JVM with its messages in a file, then the session, then warm up."""
        java_gateway = importlib.import_module("pyspark.java_gateway")
        pyspark = importlib.import_module("pyspark")
        sql = importlib.import_module("pyspark.sql")
        self.scratch = Path(tempfile.mkdtemp(prefix="shaketable-spark-"))
        for folder in ("conf", "local", "tmp", "warehouse"):
            (self.scratch / folder).mkdir()
        (self.scratch / "conf" / "log4j2.properties").write_text(_LOGGING)
        python = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
        environment = {
            **python,
            "JAVA_HOME": str(java.home),
            "SPARK_CONF_DIR": str(self.scratch / "conf"),
        }
        if self._is_local:
            environment["SPARK_LOCAL_IP"] = "127.0.0.1"
        settings = _settings(self.master, self.scratch, self._is_local)
        with (self.scratch / "spark.log").open("wb") as log:
            home = Path(str(pyspark.__file__)).parent
            self._jvm = launch(home, settings, environment, self.scratch, log)
        address = {
            "PYSPARK_GATEWAY_PORT": str(self._jvm.port),
            "PYSPARK_GATEWAY_SECRET": self._jvm.secret,
        }
        with _environment(python | address), _interrupt_kept():
            gateway = java_gateway.launch_gateway()
            conf = pyspark.SparkConf(loadDefaults=False, _jvm=gateway.jvm)
            conf.setAll(list(settings.items()))
            context = pyspark.SparkContext(conf=conf, gateway=gateway)
        self._session = sql.SparkSession(context)
        if not self._is_local:
            context.addPyFile(str(_ship(self.scratch)))
        _warm_up(self._session)

    @property
    def _is_local(self) -> bool:
        return self.master.partition("[")[0] == "local"

    def _quote_log(self) -> str:
        """Return what Spark's log says last, on one line."""
        if self.scratch is None or not (self.scratch / "spark.log").is_file():
            return ""
        text = (self.scratch / "spark.log").read_text(errors="replace")
        lines = [line.strip() for line in text.splitlines()]
        wrong = [line for line in lines if "rror" in line or "Exception" in line]
        return " | ".join(wrong[:LOG_LINES_MAX])

    def _end(self) -> None:
        session, self._session = self._session, None
        jvm, self._jvm = self._jvm, None
        if session is not None:
            _end_session(session)
        if jvm is not None:
            jvm.end()
        if self.scratch is not None:
            shutil.rmtree(self.scratch, ignore_errors=True)
            self.scratch = None


def _settings(master: str, scratch: Path, is_local: bool) -> dict[str, str]:
    cores = os.cpu_count() or 1
    settings = {
        "spark.master": master,
        "spark.app.name": "shaketable",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.warehouse.dir": (scratch / "warehouse").as_uri(),
        "spark.sql.adaptive.enabled": "false",  # it would join few partitions into one task
        "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
        "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.driver.memory": DRIVER_MEMORY,
    }
    if is_local:
        settings |= {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.local.dir": str(scratch / "local"),
            "spark.sql.shuffle.partitions": str(4 * cores),
            # One JVM for some seconds on few cores: a quick start matters most.
            "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
            f' "-Djava.io.tmpdir={scratch / "tmp"}"',  # quoted: a temp folder may have spaces
        }
    return settings


def _run(session: Any, job: CheckJob, progress: Progress) -> list[Verdict]:
    frames: dict[str, Any] = {}
    unreadable: list[str] = []
    if needs(job.checkers, "operations"):
        frames["operations"] = _read_operations(session, job.operations)
    try:
        if needs(job.checkers, "entries"):
            progress("reading the nodes' logs")
            frames["entries"] = _decode_logs(session, job).persist()
            unreadable = _unreadable(frames["entries"])
        runnable = [c for c in job.checkers if not (unreadable and "entries" in c.tables)]
        found = [TAGGED.empty_table()]
        for partition in ("key", "bucket"):
            checkers = [checker for checker in runnable if checker.partition == partition]
            if checkers:
                progress("judging " + ", ".join(checker.name for checker in checkers))
                found.append(_judge(frames, checkers, partition, job.context))
    finally:
        if "entries" in frames:
            frames["entries"].unpersist()
    progress("concluding")
    return conclude(job.checkers, pa.concat_tables(found), job.context, unreadable)


def _read_operations(session: Any, paths: Sequence[Path]) -> Any:
    """Return a data frame of all operations; paths are taken literally."""
    schema = _ddl(SCHEMAS["operations"])
    if not paths:
        return session.createDataFrame([], schema)
    for path in paths:
        if not path.is_file():
            raise HarnessError(f"operations {path} cannot be read: there is no such file")
    return session.read.schema(schema).parquet(*[_literal(path) for path in paths])


def _literal(path: Path) -> str:
    """Quote the characters that Hadoop would take for a pattern."""
    text = str(path.resolve())
    return "file:" + "".join(f"\\{char}" if char in "*?[]{}\\," else char for char in text)


def _decode_logs(session: Any, job: CheckJob) -> Any:
    """Return a data frame of all nodes' entries, decoded on the executors, a node a task."""
    schema = _ddl(ENTRIES)
    logs = [(node, str(path)) for node, path in sorted(job.logs.items())]
    if not logs:
        return session.createDataFrame([], schema)
    nodes = session.createDataFrame(logs, "node string, path string")
    spread = nodes.repartitionByRange(len(logs), "node")
    return spread.mapInArrow(_decoder(job.read_log), schema)


def _decoder(read_log: ReadLog) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function that turns rows of (node, path) into entries, on an executor."""

    def decode(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for row in batch.to_pylist():
                try:
                    yield from read_log(Path(row["path"]), row["node"])
                except Exception as error:  # a plug-in's reader: its failure is data
                    last = traceback.format_exception_only(error)[-1].strip()
                    lost = {"node": row["node"], "problem": f"{UNREADABLE}{last}"}
                    yield pa.RecordBatch.from_pylist([lost], ENTRIES)

    return decode


def _unreadable(entries: Any) -> list[str]:
    """Say which logs could not be read; this runs the decoding."""
    rows = entries.where(f"`index` is null and startswith(problem, '{UNREADABLE}')").collect()
    said = sorted((row["node"], row["problem"].removeprefix(UNREADABLE)) for row in rows)
    return [f"the log of {node}: {problem}" for node, problem in said]


def _judge(
    frames: Mapping[str, Any], checkers: Sequence[Checker], partition: str, context: CheckContext
) -> pa.Table:
    """Group the tables that the checkers read, judge each group, bring the findings back."""
    column = "`key`" if partition == "key" else f"`index` div {BUCKET_ENTRIES}"
    names = tuple(name for name in frames if needs(checkers, name))
    grouped = [frames[name].selectExpr("*", f"{column} as part").groupBy("part") for name in names]
    schema = _ddl(TAGGED)
    judge = _judge_function(tuple(checkers), names, context)
    if len(grouped) == 1:
        found = grouped[0].applyInArrow(judge, schema)
    else:
        found = grouped[0].cogroup(grouped[1]).applyInArrow(judge, schema)
    return found.toArrow().cast(TAGGED)


def _judge_function(
    checkers: tuple[Checker, ...], names: tuple[str, ...], context: CheckContext
) -> Callable[..., pa.Table]:
    """Return the function that judges one group on an executor; made for one or two tables."""

    def judge(parts: Sequence[pa.Table]) -> pa.Table:
        tables = {
            name: part.select(SCHEMAS[name].names).cast(SCHEMAS[name])
            for name, part in zip(names, parts, strict=True)
        }
        return judge_partition(checkers, tables, context)

    def judge_one(table: pa.Table) -> pa.Table:
        return judge((table,))

    def judge_two(left: pa.Table, right: pa.Table) -> pa.Table:
        return judge((left, right))

    assert len(names) in (1, 2), f"checkers read operations and entries, not {names}"
    return judge_one if len(names) == 1 else judge_two


def _warm_up(session: Any) -> None:
    """Start the Python workers and compile the path that every job takes."""

    def twice(table: pa.Table) -> pa.Table:
        return pa.concat_tables([table, table])

    frame = session.range(2).groupBy("id").applyInArrow(twice, "id bigint")
    assert frame.toArrow().num_rows == 4, "Spark's Arrow functions do not work here"


def _ddl(schema: pa.Schema) -> str:
    return ", ".join(f"`{field.name}` {_TYPES[field.type]}" for field in schema)


def _ship(scratch: Path) -> Path:
    """Pack our packages into a zip file for executors on other machines."""
    target = scratch / "shaketable-packages.zip"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as packed:
        for name in SHIPPED:
            spec = importlib.util.find_spec(name)
            if spec is None or spec.origin is None:
                continue
            root = Path(spec.origin).parent
            for path in sorted(root.rglob("*.py")):
                packed.write(path, Path(name) / path.relative_to(root))
    return target


def _end_session(session: Any) -> None:
    """Stop a session and forget its JVM, so that another engine can start anew."""
    pyspark = importlib.import_module("pyspark")
    gateway = session.sparkContext._gateway  # noqa: SLF001 - no public way to disconnect
    try:
        session.stop()
        gateway.shutdown()
    except Exception as error:  # the JVM may be gone already: then there is nothing to stop
        _LOG.debug("spark session not stopped: error=%s", error)
    with pyspark.SparkContext._lock:  # noqa: SLF001 - no public way to start anew
        pyspark.SparkContext._gateway = None  # noqa: SLF001
        pyspark.SparkContext._jvm = None  # noqa: SLF001
        pyspark.SparkContext._active_spark_context = None  # noqa: SLF001


@contextmanager
def _interrupt_kept() -> Iterator[None]:
    """Undo that a Spark context, made in the main thread, takes over Ctrl-C."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set variables of this process's environment for the body of `with`."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
