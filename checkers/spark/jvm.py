"""Launches Spark's JVM, so that it starts quickly, and ends when this process does.

PySpark's own launcher relies on the JVM to notice that its standard input was closed, which it
cannot do before it has booted, and does not remove its files. Here a shell waits for the same end
of input, kills the JVM and removes the files. (The kernel's parent-death signal would not do: it is
tied to the thread that forked, and Spark is started from a thread that soon ends.)

Most of what a local Spark does in a short check is loading and verifying some 12,000 classes. Java
can write what one run loaded into a file that later runs map into memory (*dynamic application
class-data sharing*), and starts in half the time. The file belongs to one Java and one PySpark,
lies in the environment, and takes 150 MB; `checkers.spark.quick_start` creates it.

Sources: pyspark.java_gateway.launch_gateway, whose protocol for the port this follows; JEP 350, and
the options -XX:ArchiveClassesAtExit and -XX:SharedArchiveFile of Java 13 on.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from shaketable.checkers.engine.java import SHIM_FOLDER, Java
from shaketable.harness.contracts.errors import HarnessError, UsageError

BOOT_TIMEOUT_S = 90.0
"""How long the JVM may take until it reports its port."""
END_TIMEOUT_S = 5.0
"""How long the JVM may take to end after it was killed."""
TERMINATE_TIMEOUT_S = 180.0
"""How long the JVM may take to end in good order: it may have its classes to write."""
POLL_S = 0.05

# $0 is the scratch folder, $$ the JVM: spark-submit becomes it by exec. An asynchronous
# command's input would be /dev/null, so the pipe is handed on as descriptor 3.
_WATCH = (
    'exec 3<&0; (cat <&3 >/dev/null; kill -9 $$; rm -rf -- "$0"; kill -9 0) 2>/dev/null & exec "$@"'
)


@dataclass(frozen=True, slots=True)
class Jvm:
    """A JVM with Py4J's gateway, listening on `port`, asking for `secret`."""

    process: subprocess.Popen[bytes]
    port: int
    secret: str
    scratch: Path

    def terminate(self) -> None:
        """Ask the JVM to end in good order, and wait until it has."""
        self.process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(TERMINATE_TIMEOUT_S)

    def end(self) -> None:
        """End the JVM at once and remove its scratch folder; idempotent."""
        _end(self.process, self.scratch)


def launch(
    spark_home: Path,
    settings: Mapping[str, str],
    environment: Mapping[str, str],
    scratch: Path,
    log: IO[bytes],
) -> Jvm:
    """Start the JVM and wait until it listens; its output goes to `log`.

    Args:
        spark_home: the folder of the pyspark package.
        settings: Spark's configuration.
        environment: variables added to this process's environment for the JVM.
        scratch: an existing folder only for this JVM, removed when it ends.
        log: an open file.

    Raises:
        HarnessError: it ended before it listened, or took too long.
    """
    answer = scratch / "gateway"
    options = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    submit = [str(spark_home / "bin" / "spark-submit"), *options, "pyspark-shell"]
    process = subprocess.Popen(
        ["/bin/sh", "-c", _WATCH, str(scratch), *submit],
        env={
            **os.environ,
            **environment,
            "SPARK_HOME": str(spark_home),  # or another Spark would be launched
            "SPARK_CONNECT_MODE": "0",
            "_PYSPARK_DRIVER_CONN_INFO_PATH": str(answer),
        },
        stdin=subprocess.PIPE,
        stdout=log,
        stderr=log,
        start_new_session=True,
    )
    try:
        port, secret = _await_answer(process, answer)
    except BaseException:
        _end(process, scratch)
        raise
    return Jvm(process, port, secret, scratch)


def _await_answer(process: subprocess.Popen[bytes], answer: Path) -> tuple[int, str]:
    """Wait for the file with the gateway's port and secret (it appears whole, by rename)."""
    deadline = time.monotonic() + BOOT_TIMEOUT_S
    while not answer.is_file():
        if process.poll() is not None:
            raise HarnessError(f"Spark's JVM ended with {process.returncode} before it listened")
        if time.monotonic() > deadline:
            raise HarnessError(f"Spark's JVM did not listen within {BOOT_TIMEOUT_S:.0f} s")
        time.sleep(POLL_S)
    data = answer.read_bytes()
    port, length = struct.unpack_from(">ii", data)
    return port, data[8 : 8 + length].decode()


def _end(process: subprocess.Popen[bytes], scratch: Path) -> None:
    assert process.stdin is not None
    process.stdin.close()
    try:
        process.wait(END_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    shutil.rmtree(scratch, ignore_errors=True)


# The archive of classes.

NO_CONF: Final = "no-spark-conf"
"""A folder that does not exist. Spark puts its configuration's folder on the class path, which
must be the same in every run, and must not be a folder with files in it."""


@dataclass(frozen=True, slots=True)
class ClassArchive:
    """The archive for one Java and one PySpark: `path`, which may not exist yet."""

    path: Path

    @property
    def is_there(self) -> bool:
        """Return whether there is an archive to start with."""
        return self.path.is_file() and self.path.stat().st_size > 0

    @property
    def is_missing(self) -> bool:
        """Return whether none was made, and none was tried: a Java that cannot leaves it empty."""
        return not self.path.exists() and os.access(self.path.parent.parent, os.W_OK)

    @property
    def conf_folder(self) -> Path:
        """Return what Spark is given as its folder of configuration."""
        return self.path.parent / NO_CONF

    def options(self, keep_classes: Path | None) -> list[str]:
        """Return the options for a JVM that starts with the archive, or writes one as it ends.

        Java starts without an archive that does not fit, as it does without any.
        """
        if keep_classes is not None:
            return [f"-XX:ArchiveClassesAtExit={keep_classes}"]
        return [f"-XX:SharedArchiveFile={self.path}"] if self.is_there else []


def archive_of(java: Java, spark_home: Path) -> ClassArchive:
    """Return the archive of a Java and the PySpark in a folder."""
    digest = hashlib.sha256(f"{java.home}\0{java.version}\0{spark_home}".encode())
    for jar in sorted((spark_home / "jars").glob("*.jar")):
        state = jar.stat()
        digest.update(f"\0{jar.name} {state.st_size} {state.st_mtime_ns}".encode())
    folder = Path(sys.prefix) / SHIM_FOLDER
    return ClassArchive(folder / f"spark-{digest.hexdigest()[:16]}.jsa")


def spark_home() -> Path:
    """Return the folder of PySpark without links, since archives compare class paths as text.

    Raises:
        UsageError: PySpark is not installed.
    """
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise UsageError("PySpark is not installed: pip install shaketable")
    return Path(spec.origin).resolve().parent
