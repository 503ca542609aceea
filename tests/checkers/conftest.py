"""One Spark session for all tests of the checkers."""

from __future__ import annotations

import os
import signal

import pytest

from shaketable.checkers.engine.java import find_java
from shaketable.checkers.spark.pipeline import SparkEngine
from shaketable.harness.contracts.errors import UsageError

LEFT_BY_PYSPARK = {"SPARK_AUTH_SOCKET_TIMEOUT", "SPARK_BUFFER_SIZE"}


@pytest.fixture(scope="session")
def spark():
    try:
        find_java(os.environ)
    except UsageError as error:
        pytest.skip(str(error))
    interrupt, environment = signal.getsignal(signal.SIGINT), dict(os.environ)
    engine = SparkEngine("local[2]")
    try:
        engine.start()
        assert signal.getsignal(signal.SIGINT) is interrupt
        changed = {name for name, _ in os.environ.items() ^ environment.items()}
        assert changed - LEFT_BY_PYSPARK <= {"PYTEST_CURRENT_TEST"}
        yield engine
        scratch = engine.scratch
    finally:
        engine.stop()
    assert not scratch.exists()
