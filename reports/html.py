"""View model -> ONE self-contained HTML file: nothing in it is fetched from anywhere."""  # noqa: A005 - `reports.html` is the name that the design gives; it is never run as a script

from __future__ import annotations

from reports.model import RunView


def render(view: RunView) -> str:
    """Render the report page."""
    raise NotImplementedError
