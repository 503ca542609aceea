"""A pytest plug-in: coverage notes for each line which test was running (`reach`)."""

from __future__ import annotations

from collections.abc import Iterator

import coverage
import pytest


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Name the test, without its parameters, as what runs from here on."""
    measured = coverage.Coverage.current()
    assert measured is not None, "run by `coverage run`"
    measured.switch_context(item.nodeid.partition("[")[0])
    try:
        return (yield)
    finally:
        measured.switch_context("")
