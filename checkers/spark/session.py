"""Opens and closes Spark sessions: on this machine, on a cluster, or on a Spark Connect server.

A session whose driver is here has a JVM of its own, which ends with this process. With a Spark
Connect server only a client runs here, and no Java is needed. Either way our packages are shipped
to executors on other machines.

Settings and pitfalls: SPARK.md.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
import urllib.parse
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa

from shaketable.checkers.engine.java import Java, find_java
from shaketable.checkers.kernels.shipped import cached_code
from shaketable.checkers.spark import worker_daemon
from shaketable.checkers.spark.jvm import Jvm, archive_of, launch, spark_home
from shaketable.harness.contracts.errors import HarnessError, UsageError
from shaketable.harness.run_markers import scratch_prefix

DRIVER_MEMORY = "2g"
"""Heap of the local JVM, without Arrow data and Python workers."""

LOG_LINES_MAX = 3
"""Lines of Spark's log that an error quotes."""

PACKAGE = "shaketable"
"""The package that executors on other machines need, as a whole."""

JAVA_OPTIONS = "spark.driver.extraJavaOptions"
LOGGING_FILE = "log4j2.properties"

CONNECT_PORT = 15002
"""The default port of a Spark Connect server."""
CONNECT_TIMEOUT_S = 10.0

KERNELS = (Path("checkers", "kernels"), Path("checkers", "kernels", "transactions"))
"""The folders of our kernels: checkers.kernels.shipped unpacks them."""

_LOG = logging.getLogger(__name__)
_LOGGING = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{HH:mm:ss.SSS} %p %c{1}: %m%n%ex
"""


class Session:
    """A Spark session on a master, or on a Spark Connect server; `open` opens it.

    `master` is a Spark master: local[*], local-cluster[2,1,2048], spark://host:7077, yarn,
    k8s://…; or the address sc://host:15002 of a Spark Connect server. `frames` is the open
    pyspark session, `java` the Java of a driver here, `scratch` the folder of its files. A driver
    here writes its classes to `keep_classes` as it ends, if given.
    """

    def __init__(self, master: str, keep_classes: Path | None = None) -> None:
        self.master = master
        self._keep_classes = keep_classes
        self.java: Java | None = None
        self.scratch: Path | None = None
        self.frames: Any = None
        self._jvm: Jvm | None = None

    @property
    def is_remote(self) -> bool:
        """Return whether the driver is a Spark Connect server."""
        return self.master.startswith("sc://")

    @property
    def is_here(self) -> bool:
        """Return whether the driver's process does all the work, with our files and packages."""
        return self.master.partition("[")[0] == "local"

    def open(self) -> None:
        """Launch or connect, ship our packages, warm up.

        Raises:
            UsageError: no suitable Java, or a remote master cannot be used.
            HarnessError: the local Spark does not start.
        """
        if not self.is_remote:
            self.java = find_java(os.environ)
        try:
            if self.is_remote:
                self._connect()
            else:
                assert self.java is not None
                self._launch(self.java)
            _warm_up(self.frames)
        except Exception as error:
            quoted = self._quote_log()
            self.close()
            by = f" with {self.java.describe()}" if self.java else ""
            why = quoted or first_line(error)
            raise (HarnessError if self.is_here else UsageError)(
                f"Spark does not start on {self.master}{by}: {why}"
            ) from error

    def close(self) -> None:
        """End the session and its JVM, remove its files; idempotent."""
        frames, self.frames = self.frames, None
        jvm, self._jvm = self._jvm, None
        if frames is not None:
            if self.is_remote:
                _disconnect(frames)
            else:
                _end_session(frames)
        if jvm is not None:
            if self._keep_classes is not None:
                jvm.terminate()
            jvm.end()
        if self.scratch is not None:
            shutil.rmtree(self.scratch, ignore_errors=True)
            self.scratch = None

    def _connect(self) -> None:
        """Open a session on a Spark Connect server.

        The class is imported from its own module: `SparkSession.builder.remote` would turn
        pyspark into a client for the whole process, also for sessions of other engines.
        """
        try:
            connect = importlib.import_module("pyspark.sql.connect.session")
        except ImportError as error:
            raise UsageError(
                f"{error}: a Spark Connect server needs `pip install 'shaketable[connect]'`"
            ) from error
        _require_listener(self.master)
        self.scratch = Path(tempfile.mkdtemp(prefix=scratch_prefix("spark")))
        self.frames = connect.SparkSession.builder.remote(self.master).create()
        for name, value in _sql_settings().items():
            self.frames.conf.set(name, value)
        with _path_preserved():
            self.frames.addArtifacts(str(_ship(self.scratch)), pyfile=True)

    def _launch(self, java: Java) -> None:
        """Start the JVM with its messages in a file, then the session."""
        java_gateway = importlib.import_module("pyspark.java_gateway")
        pyspark = importlib.import_module("pyspark")
        sql = importlib.import_module("pyspark.sql")
        self.scratch = Path(tempfile.mkdtemp(prefix=scratch_prefix("spark")))
        for folder in ("conf", "local", "tmp", "warehouse", "worker"):
            (self.scratch / folder).mkdir()
        (self.scratch / "conf" / LOGGING_FILE).write_text(_LOGGING)
        home = spark_home()
        settings = _settings(self.master, self.scratch)
        python = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
        environment = {
            **python,
            "JAVA_HOME": str(java.home),
            "SPARK_CONF_DIR": str(self.scratch / "conf"),
            # The workers of a local cluster would write into pyspark's own folder.
            "SPARK_WORKER_DIR": str(self.scratch / "worker"),
        }
        if self.master.startswith("local"):
            environment["SPARK_LOCAL_IP"] = "127.0.0.1"
            settings[JAVA_OPTIONS] = _java_options(self.scratch)
        if self.is_here:
            archive = archive_of(java, home)
            environment["SPARK_CONF_DIR"] = str(archive.conf_folder)
            settings["spark.python.daemon.module"] = worker_daemon.MODULE
            settings[JAVA_OPTIONS] += "".join(
                f' "{option}"' for option in archive.options(self._keep_classes)
            )
        with (self.scratch / "spark.log").open("wb") as log:
            self._jvm = launch(home, settings, environment, self.scratch, log)
        address = {
            "PYSPARK_GATEWAY_PORT": str(self._jvm.port),
            "PYSPARK_GATEWAY_SECRET": self._jvm.secret,
        }
        with _environment(python | address), _interrupt_preserved():
            gateway = java_gateway.launch_gateway()
            conf = pyspark.SparkConf(loadDefaults=False, _jvm=gateway.jvm)
            conf.setAll(list(settings.items()))
            with _path_preserved():
                context = pyspark.SparkContext(conf=conf, gateway=gateway)
        self.frames = sql.SparkSession(context)
        if not self.is_here:
            with _path_preserved():
                context.addPyFile(str(_ship(self.scratch)))

    def _quote_log(self) -> str:
        """Return the first errors in Spark's log, on one line."""
        if self.scratch is None or not (self.scratch / "spark.log").is_file():
            return ""
        text = (self.scratch / "spark.log").read_text(errors="replace")
        lines = [line.strip() for line in text.splitlines()]
        wrong = [line for line in lines if "rror" in line or "Exception" in line]
        return " | ".join(wrong[:LOG_LINES_MAX])


def first_line(error: Exception) -> str:
    """Return the first line of an error's message, or its type."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def _sql_settings() -> dict[str, str]:
    """Return the settings of every session, wherever its driver is."""
    return {
        "spark.sql.adaptive.enabled": "false",  # it would coalesce few partitions into one task
        "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
        "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled": "false",
        "spark.sql.session.timeZone": "UTC",
    }


def _settings(master: str, scratch: Path) -> dict[str, str]:
    """Return the configuration of a driver here."""
    cores = os.cpu_count() or 1
    settings = _sql_settings() | {
        "spark.master": master,
        "spark.app.name": "shaketable",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.warehouse.dir": (scratch / "warehouse").as_uri(),
        "spark.driver.memory": DRIVER_MEMORY,
    }
    if master.startswith("local"):
        settings |= {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.local.dir": str(scratch / "local"),
            "spark.sql.shuffle.partitions": str(4 * cores),
        }
    return settings


def _java_options(scratch: Path) -> str:
    """Return the options of a JVM on this machine; quoted, since a temp folder may have spaces."""
    # One JVM for some seconds on few cores: a quick start matters most.
    return (
        "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
        f' "-Djava.io.tmpdir={scratch / "tmp"}"'
        f' "-Dlog4j2.configurationFile={(scratch / "conf" / LOGGING_FILE).as_uri()}"'
    )


def _warm_up(frames: Any) -> None:
    """Start the Python workers, and warm up the code path of every job."""

    def twice(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch
            yield batch

    frame = frames.range(2).mapInArrow(twice, "id bigint")
    assert frame.toArrow().num_rows == 4, "Spark's Arrow functions do not work here"


def _ship(scratch: Path) -> Path:
    """Pack our packages into a zip file for executors on other machines.

    The machine code of the kernels is included: a machine that can run it need not compile it.
    """
    target = scratch / "shaketable-packages.zip"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as packed:
        root = _package()
        for path in sorted(_sources(root)):
            packed.write(path, Path(PACKAGE) / path.relative_to(root))
        for path in (code for folder in KERNELS for code in cached_code(root / folder)):
            with suppress(FileNotFoundError):  # another process has just deleted it
                packed.write(path, Path(PACKAGE) / path.relative_to(root))
    return target


def _package() -> Path:
    """Return the folder of our packages. It is not imported: its names come from all layers."""
    spec = importlib.util.find_spec(PACKAGE)
    assert spec is not None, "this module is in it"
    assert spec.origin is not None
    return Path(spec.origin).parent


def _sources(folder: Path) -> Iterator[Path]:
    """Yield our modules. In a checkout our packages are links, which `rglob` does not follow."""
    for path in folder.iterdir():
        if path.is_dir():
            yield from _sources(path)
        elif path.suffix == ".py":
            yield path


def _require_listener(address: str) -> None:
    """Check that a server listens: Spark's client would retry for ten minutes.

    Raises:
        UsageError: none does, or the address names no host.
    """
    try:
        parts = urllib.parse.urlsplit(address.partition("/;")[0])
        host, port = parts.hostname, parts.port or CONNECT_PORT
    except ValueError as error:
        raise UsageError(f"{address}: {error}") from error
    if host is None:
        raise UsageError(f"{address}: expected sc://HOST:PORT")
    try:
        socket.create_connection((host, port), CONNECT_TIMEOUT_S).close()
    except OSError as error:
        raise UsageError(f"nothing listens on {host}:{port}: {error.strerror or error}") from error


def _disconnect(frames: Any) -> None:
    """Release a session of a Spark Connect server."""
    try:
        frames.stop()
    except Exception as error:  # the server may be gone already, and the session with it
        _LOG.debug("spark connect session not released: error=%s", error)


def _end_session(frames: Any) -> None:
    """Stop a session and make pyspark forget its JVM, so that another engine can start one."""
    pyspark = importlib.import_module("pyspark")
    gateway = frames.sparkContext._gateway  # noqa: SLF001 - no public way to disconnect
    try:
        frames.stop()
        gateway.shutdown()
    except Exception as error:  # the JVM may be gone already: then there is nothing to stop
        _LOG.debug("spark session not stopped: error=%s", error)
    with pyspark.SparkContext._lock:  # noqa: SLF001 - no public way to start anew
        pyspark.SparkContext._gateway = None  # noqa: SLF001
        pyspark.SparkContext._jvm = None  # noqa: SLF001
        pyspark.SparkContext._active_spark_context = None  # noqa: SLF001


@contextmanager
def _interrupt_preserved() -> Iterator[None]:
    """Restore the SIGINT handler that a Spark context replaces in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _path_preserved() -> Iterator[None]:
    """Restore sys.path, to which pyspark adds what is shipped: this process has it already."""
    before = list(sys.path)
    try:
        yield
    finally:
        sys.path[:] = before


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
