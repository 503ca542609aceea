"""The pytest plug-in: fixtures `history_recorder`, `assert_linearizable` and `shake`.

    def test_register(history_recorder):
        ...  # clients record with history_recorder.call(...)
        history_recorder.assert_linearizable("register")

    def test_kvs(shake):
        shake(target="kvs", time_limit="20s")  # fails unless the run is valid

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
    from shaketable.harness.testing.campaigns import CampaignRun
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


@pytest.fixture
def shake(tmp_path: Path) -> Callable[..., CampaignRun]:
    """A function that runs a campaign, and fails the test unless its verdict is valid.

    Arguments as of `harness.testing.campaigns.run_campaign`; runs are kept in `tmp_path`.
    """
    from shaketable.harness.testing.campaigns import run_campaign  # noqa: PLC0415 - as above

    def run(campaign: str | Path | None = None, **options: Any) -> CampaignRun:
        found = run_campaign(campaign, **{"store": tmp_path / "store", **options})
        if not found.is_valid:
            pytest.fail(found.summary, pytrace=False)
        return found

    return run


def _page(request: pytest.FixtureRequest) -> Path | None:
    folder = request.config.getoption("--shaketable-pages")
    if folder is None:
        return None
    name = re.sub(r"[^\w.-]+", "-", request.node.nodeid).strip("-")
    return Path(folder) / f"{name}.html"
