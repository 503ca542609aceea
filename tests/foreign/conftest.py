"""One name server and one broker of Apache's for all tests that talk to them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.apache_servers import Apache, start_broker, start_name_server
from tests.support.foreign_java import java_in

DELAYS = "messageDelayLevel=1s 1s 1s 1s 1s\n"


@pytest.fixture(scope="session")
def apache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Apache]:
    with java_in(tmp_path_factory.mktemp("apache")) as java:
        yield start_broker(java, start_name_server(java), more=DELAYS)
