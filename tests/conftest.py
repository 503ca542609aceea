"""Options that the whole test tree shares, and the list of what was skipped and why."""

from __future__ import annotations

import gc
import os
import re
from collections import Counter
from collections.abc import Sequence
from functools import cache
from operator import itemgetter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

from shaketable.harness.volatile_disk.disk import why_no_volatile_disk
from tests.support.further_targets import NOT_IN_CI
from tests.support.turns import ALL, TURNS, turn_of_commit, waits_for_another
from tests.support.volume import is_whole

# Tests expect the texts that users of a checkout see.
os.environ["SHAKETABLE_PROGRAM"] = "./shaketable"

# The same examples everywhere, in CI and at home, and no deadline: a busy machine is no failure.
# tests/soaks/fresh_examples.py runs the profile "fresh", which draws others each time.
settings.register_profile(
    "shaketable",
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],  # it measures the machine as well
)
settings.register_profile(
    "fresh", settings.get_profile("shaketable"), derandomize=False, print_blob=True
)
settings.load_profile("shaketable")

SLOW_MARKERS = frozenset({"e2e", "spark", "browser"})
SHARED = {
    "the Spark session": r"def test_\w+\([^)]*\bspark\b|getfixturevalue\(\"spark\"\)",
    "Apache's broker": r"\bapache: Apache\b",
    "file": r'scope="module"',
}
"""What tests share, and by what in its text a file that does is known; the first counts."""
WAITING_PART = 0.9
"""Over so much of a run tests that wait are spread."""


@pytest.fixture
def fuse() -> None:
    """Skip a test where no disk can lose what was not synced."""
    why = why_no_volatile_disk()
    if why is not None:
        pytest.skip(f"no volatile disk here: {why}")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite", action="store_true", help="write what text scripts print now; review the diff"
    )
    parser.addoption(
        "--require-all",
        action="store_true",
        help="a skipped test is a failure (what CI runs), but for those of further targets",
    )
    parser.addoption(
        "--fast", action="store_true", help="leave out real processes, Spark and the browser"
    )
    parser.addoption(
        "--turn",
        choices=[*map(str, range(1, TURNS + 1)), ALL],
        help=f"of tests that take long, run this part of {TURNS}, or all (default: all where tests"
        " are named, else a part that is another one with each commit)",
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.option.turn is None:  # else it is given, or this process was told
        named = config.args_source is config.ArgsSource.ARGS, config.option.keyword
        is_all = any(named) or config.option.markexpr
        config.option.turn = ALL if is_all else str(turn_of_commit(config.rootpath))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One process more than there are cores: the tests of real processes mostly wait."""
    return len(os.sched_getaffinity(0)) + 1


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Deal tests out one by one, but keep together those that share what takes long to start."""

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return shared_by(config.rootpath / nodeid.partition("::")[0]) or nodeid

    return Scheduling(config, log)


@cache
def shared_by(file: Path) -> str | None:
    """Name what the tests of a file share, which are to run in one process, if anything.

    Read from its text: the process that deals tests out knows nothing of them but their names.
    """
    if not file.is_file():
        return None
    text = file.read_text()
    for name, sign in SHARED.items():
        if re.search(sign, text):
            return name if name != "file" else str(file)
    return None


@cache
def waits(file: Path) -> bool:
    """Whether tests of a file mostly wait: for real processes, and for time to pass."""
    return "mark.e2e" in file.read_text()


def mixed(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Spread the tests that wait among those that compute.

    In the order of their folders those of one kind would come together: processors would be idle
    for some minutes and overloaded later. The longest ones wait, so none is left for the end.
    """
    waiting = [item for item in items if waits(item.path)]
    computing = [item for item in items if not waits(item.path)]
    places = [
        (part * number / len(some), item)
        for some, part in ((waiting, WAITING_PART), (computing, 1.0))
        for number, item in enumerate(some)
    ]
    return [item for _, item in sorted(places, key=itemgetter(0))]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):  # else what a file's tests share would not stay together
        items[:] = mixed(items)
    left_out = set() if is_whole() else {"whole"}
    if config.getoption("--fast"):
        left_out |= SLOW_MARKERS
    turn = config.getoption("--turn")
    without = [
        item
        for item in items
        if any(item.get_closest_marker(mark) for mark in left_out)
        or waits_for_another(item.nodeid, turn)
    ]
    if without:
        config.hook.pytest_deselected(items=without)
        items[:] = [item for item in items if item not in without]


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Keep what was collected, thousands of tests, out of the garbage collector's rounds.

    Measured on a sample of all tests: 5 to 8 % less time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


def skip_reasons(config: pytest.Config) -> Counter[str]:
    """Why tests were skipped, and how many for each reason."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    reports = reporter.stats.get("skipped", []) if reporter else []
    return Counter(
        report.longrepr[2].removeprefix("Skipped: ")
        if isinstance(report.longrepr, tuple)
        else str(report.longrepr)
        for report in reports
    )


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if session.config.getoption("--require-all") and any(
        not reason.startswith(NOT_IN_CI) for reason in skip_reasons(session.config)
    ):
        session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    if (turn := config.getoption("--turn")) != ALL:
        which = f"part {turn} of {TURNS}, by the commit; all of them: --turn={ALL}"
        terminalreporter.write_line(f"tests that take long: {which}")
    reasons = skip_reasons(config)
    is_required = config.getoption("--require-all")
    if not reasons:
        terminalreporter.write_line("skipped: nothing")
        return
    title = "SKIPPED, and --require-all asks for all" if is_required else "skipped, and why"
    terminalreporter.section(title)
    for reason, count in sorted(reasons.items()):
        terminalreporter.write_line(f"{count:4d}  {reason}")
