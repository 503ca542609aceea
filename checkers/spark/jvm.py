"""Launches Spark's JVM so that it ends when this process does, however that ends.

PySpark's own launcher relies on the JVM to notice that its standard input was closed, which it
cannot do before it has booted, and does not remove its files. Here a shell waits for the same end
of input, kills the JVM and removes the files. (The kernel's parent-death signal would not do: it is
tied to the thread that forked, and Spark is started from a thread that soon ends.)

Source: pyspark.java_gateway.launch_gateway, whose protocol for the port this follows.
"""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from shaketable.harness.contracts.errors import HarnessError

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
