"""Targets that CI does not install: their tests are skipped where they are not installed."""

from __future__ import annotations

from typing import Final, NoReturn

import pytest

FURTHER: Final = ("galera", "kafka", "rabbitmq", "rocketmq-controller")
"""Groups of them take half a minute of both cores to start."""
NOT_IN_CI: Final = "not in CI"
"""How the reason of a skip begins that --require-all allows."""


def skip_further(target: str) -> NoReturn:
    """Skip the test: the target is not installed."""
    assert target in FURTHER, f"CI installs {target}"
    pytest.skip(f"{NOT_IN_CI}: {target}, whose tests tests.soaks.further_targets runs")
