"""One Spark session for all tests of the checkers."""

from __future__ import annotations

import os

import pytest

from checkers.engine.java import find_java
from checkers.engine.spark import SparkEngine
from harness.errors import UsageError


@pytest.fixture(scope="session")
def spark():
    try:
        find_java(os.environ)
    except UsageError as error:
        pytest.skip(str(error))
    engine = SparkEngine("local[2]")
    engine.start()
    yield engine
    scratch = engine.scratch
    engine.stop()
    assert not scratch.exists()
