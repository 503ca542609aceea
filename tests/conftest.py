"""Options that the whole test tree shares, and the list of what was skipped and why."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import settings

# The same examples everywhere, in CI and at home, and no deadline: a busy machine is no failure.
settings.register_profile("shaketable", deadline=None, derandomize=True)
settings.load_profile("shaketable")

SLOW_MARKERS = frozenset({"e2e", "spark", "browser"})


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite", action="store_true", help="write what text scripts print now; review the diff"
    )
    parser.addoption(
        "--require-all", action="store_true", help="a skipped test is a failure (what CI runs)"
    )
    parser.addoption(
        "--fast", action="store_true", help="leave out real processes, Spark and the browser"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--fast"):
        return
    slow = [item for item in items if any(item.get_closest_marker(m) for m in SLOW_MARKERS)]
    config.hook.pytest_deselected(items=slow)
    items[:] = [item for item in items if item not in slow]


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
    if session.config.getoption("--require-all") and skip_reasons(session.config):
        session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    reasons = skip_reasons(config)
    is_required = config.getoption("--require-all")
    if not reasons:
        terminalreporter.write_line("skipped: nothing")
        return
    title = "SKIPPED, and --require-all asks for all" if is_required else "skipped, and why"
    terminalreporter.section(title)
    for reason, count in sorted(reasons.items()):
        terminalreporter.write_line(f"{count:4d}  {reason}")
