"""The pytest plug-in: fixtures `history_recorder` and `assert_linearizable`.

    def test_register(history_recorder):
        ...  # clients record with history_recorder.call(...)
        history_recorder.assert_linearizable("register")

Pytest loads this module through its entry point: import only pytest until a fixture is used.
With `--shaketable-pages DIR` a failed check writes a page with the failing part.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from shaketable.harness.testing.recorder import HistoryRecorder


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add our option."""
    parser.getgroup("shaketable").addoption(
        "--shaketable-pages",
        metavar="DIR",
        default=None,
        help="write a page into this folder for each history that fails its check",
    )


@pytest.fixture
def history_recorder(request: pytest.FixtureRequest) -> HistoryRecorder:
    """A recorder for this test's clients; `assert_linearizable` checks their history."""
    from shaketable.harness.testing.recorder import HistoryRecorder  # noqa: PLC0415 - pytest's start is short

    return HistoryRecorder(page=_page(request))


@pytest.fixture
def assert_linearizable(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """A function (history, model=None, ...) that fails the test unless the history is valid."""
    from shaketable.harness.testing.asserting import assert_linearizable as check  # noqa: PLC0415 - as above

    return partial(check, page=_page(request))


def _page(request: pytest.FixtureRequest) -> Path | None:
    folder = request.config.getoption("--shaketable-pages")
    if folder is None:
        return None
    name = re.sub(r"[^\w.-]+", "-", request.node.nodeid).strip("-")
    return Path(folder) / f"{name}.html"
