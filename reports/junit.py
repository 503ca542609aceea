"""View model -> JUnit XML: the run is a test suite, each checker a test case."""

from __future__ import annotations

from reports.model import RunView


def render(view: RunView) -> str:
    """Render the JUnit file."""
    raise NotImplementedError
