"""A Spark Connect server of this machine for as long as a test needs it."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from shaketable.checkers.engine.java import find_java

BOOT_TIMEOUT_S = 100.0
POLL_S = 0.1


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def connect_server() -> Iterator[str]:
    """Start a server, yield its address sc://…, end it with all that it started."""
    port, home = free_port(), Path(find_spec("pyspark").origin).parent
    scratch = Path(tempfile.mkdtemp(prefix="shaketable-connect-"))
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": port,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.local.dir": scratch,
        "spark.sql.warehouse.dir": scratch / "warehouse",
        "spark.sql.shuffle.partitions": 4,
        "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    }
    options = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    log = (scratch / "server.log").open("wb")
    server = subprocess.Popen(
        [
            str(home / "bin" / "spark-submit"), "--master", "local[2]",
            "--class", "org.apache.spark.sql.connect.service.SparkConnectServer", *options,
            "spark-internal",
        ],
        env={
            **os.environ,
            "SPARK_HOME": str(home),
            "JAVA_HOME": str(find_java(os.environ).home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": sys.executable,
        },
        cwd=scratch, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
    )  # fmt: skip
    try:
        _await_port(server, port, scratch / "server.log")
        yield f"sc://127.0.0.1:{port}"
    finally:
        os.killpg(server.pid, 9)
        server.wait()
        log.close()
        shutil.rmtree(scratch, ignore_errors=True)


def _await_port(server: subprocess.Popen, port: int, log: Path) -> None:
    until = time.monotonic() + BOOT_TIMEOUT_S
    while True:
        assert server.poll() is None, log.read_text(errors="replace")[-2000:]
        assert time.monotonic() < until, f"no server on {port}: {log.read_text()[-2000:]}"
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(POLL_S)
