"""The pytest plug-in: fixtures `history_recorder`, `assert_linearizable`, `shake`; `campaign`.

    def test_register(history_recorder):
        ...  # clients record with history_recorder.call(...)
        history_recorder.assert_linearizable("register")

    def test_kvs(shake):
        shake(target="kvs", time_limit="20s")  # fails unless the run is valid

    @shaketable.campaign(target="kvs", time_limit="20s")  # the same, before the test's own lines
    def test_kvs_survives(campaign_run):
        assert campaign_run.results["checkers"]

Pytest loads this module through its entry point: import only pytest until a fixture is used.
With `--shaketable-pages DIR` a failed check writes a page with the failing part.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from shaketable.harness.campaigns.campaign import Campaign
    from shaketable.harness.testing.campaigns import CampaignRun
    from shaketable.harness.testing.recorder import Recorder


MARKER: Final = "shaketable_campaign"
"""The marker that `campaign` sets."""


def campaign(file: str | Path | Campaign | None = None, /, **options: Any) -> pytest.MarkDecorator:
    """Return a decorator that runs a campaign before a test, which fails unless the run is valid.

    The test's own lines come after it; its fixture `campaign_run` is the run. JUnit has the run's
    folder and verdict as properties of the test.

    Args:
        file: a campaign, the name of a built-in one, or a campaign file.
        options: as for `harness.testing.campaigns.run_campaign`; runs are kept in `tmp_path`.
    """
    marker: pytest.MarkDecorator = getattr(pytest.mark, MARKER)
    return marker.with_args(file, **options)


def pytest_configure(config: pytest.Config) -> None:
    """Make our marker known."""
    config.addinivalue_line(
        "markers", f"{MARKER}(campaign, **options): runs a campaign first (shaketable.campaign)"
    )


def pytest_itemcollected(item: pytest.Item) -> None:
    """Give a test with a campaign the folder in which its runs are kept."""
    if isinstance(item, pytest.Function) and item.get_closest_marker(MARKER) is not None:
        item.fixturenames.append("tmp_path")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> None:
    """Run the campaign that a test is decorated with, as a part of the test itself."""
    marker = pyfuncitem.get_closest_marker(MARKER)
    if marker is None:
        return
    folder: Any = pyfuncitem.funcargs["tmp_path"]
    asked = {"store": folder / "store", **marker.kwargs}
    found = _run(pyfuncitem, *marker.args, **asked)
    if "campaign_run" in pyfuncitem.funcargs:
        pyfuncitem.funcargs["campaign_run"] = found


@pytest.fixture
def campaign_run() -> CampaignRun | None:
    """The run of the campaign that a test is decorated with; None before it has begun."""
    return None


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add our option."""
    parser.getgroup("shaketable").addoption(
        "--shaketable-pages",
        metavar="DIR",
        default=None,
        help="write a page into this folder for each history that fails its check",
    )


@pytest.fixture
def history_recorder(request: pytest.FixtureRequest) -> Recorder:
    """A recorder for this test's clients; `assert_linearizable` checks their history."""
    from shaketable.harness.testing.recorder import Recorder  # noqa: PLC0415 - pytest's start is short

    return Recorder(page=_page(request))


@pytest.fixture
def assert_linearizable(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """A function (history, model=None, ...) that fails the test unless the history is valid."""
    from shaketable.harness.testing.asserting import assert_linearizable as check  # noqa: PLC0415 - as above

    return partial(check, page=_page(request))


@pytest.fixture
def shake(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., CampaignRun]:
    """A function that runs a campaign, and fails the test unless its verdict is valid.

    Arguments as of `harness.testing.campaigns.run_campaign`; runs are kept in `tmp_path`.
    """
    return partial(_run, request.node, store=tmp_path / "store")


def _run(item: pytest.Item, campaign: str | Path | Campaign | None = None, **options: Any) -> Any:
    """Run a campaign for a test, which fails unless it is valid."""
    from shaketable.harness.contracts.errors import HarnessError, UsageError  # noqa: PLC0415 - as above
    from shaketable.harness.testing.campaigns import run_campaign  # noqa: PLC0415 - as above

    __tracebackhide__ = True
    found, refusal = None, ""
    try:
        found = run_campaign(campaign, **options)
    except (UsageError, HarnessError) as error:
        refusal = str(error)  # reported below: here the report would show this error as well
    if found is None:
        pytest.fail(f"the campaign could not be run: {refusal}", pytrace=False)
    item.user_properties.append(("shaketable-verdict", found.outcome.name))
    item.user_properties.append(("shaketable-run", str(found.folder)))
    if not found.is_valid:
        pytest.fail(f"{found.summary}\n\nthe run: {found.folder}", pytrace=False)
    return found


def _page(request: pytest.FixtureRequest) -> Path | None:
    folder = request.config.getoption("--shaketable-pages")
    if folder is None:
        return None
    name = re.sub(r"[^\w.-]+", "-", request.node.nodeid).strip("-")
    return Path(folder) / f"{name}.html"
