"""One name server and one broker of Apache's for all tests that talk to them."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Final

import pytest

from tests.support.apache_servers import Apache, start_broker, start_name_server
from tests.support.foreign_java import java_in

DELAYS = "messageDelayLevel=1s 1s 1s 1s 1s\n"
_running: Final[list[tuple[Apache, ExitStack]]] = []


@pytest.fixture
def apache(tmp_path_factory: pytest.TempPathFactory) -> Apache:
    """Apache's servers: those of the test before, if it had them."""
    if not _running:
        with ExitStack() as stack:
            java = stack.enter_context(java_in(tmp_path_factory.mktemp("apache")))
            broker = start_broker(java, start_name_server(java), more=DELAYS)
            _running.append((broker, stack.pop_all()))
    return _running[0][0]


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """End the servers after the last test in a row that uses them.

    All tests that use them run in a row, and they take a tenth of a processor while idle.
    """
    if _running and "apache" not in getattr(nextitem, "fixturenames", ()):
        _, stack = _running.pop()
        stack.close()
