"""What the site's sidebar lists, in which order, and the overviews that go with it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Final

INDEX: Final = PurePosixPath("index.md")
DECISIONS: Final = PurePosixPath("docs/adr/index.md")
SECTIONS: Final[Mapping[str, Sequence[str]]] = {
    "Start": ("docs/first-bug", "docs/your-own-system", "docs/ci"),
    "Concepts": (
        "docs/concepts", "docs/promises", "docs/anomalies", "docs/isolation", "docs/glossary",
    ),
    "Guides": (
        "docs/using", "docs/targets",
        "docs/campaigns", "docs/faults", "docs/crash-points", "docs/workloads", "docs/report",
        "docs/violation",
        "docs/checking", "docs/python", "docs/models", "docs/gate", "docs/store", "docs/doctor",
        "docs/calibration", "docs/extending", "docs/deployments", "docs/upgrading",
    ),
    "Found in other systems": (
        "docs/museum", "docs/reference/published-bugs",
        "docs/findings/nats-2.9.10-compare-and-publish",
        "docs/findings/pysyncobj-0.3.17-compaction",
        "docs/findings/rocketmq-controller-forgotten-brokers",
        "docs/findings/rocketmq-killed-broker",
    ),
    "Reference": (
        "docs/reference/commands", "docs/reference/exit-codes", "docs/reference/shaketable-toml",
        "docs/reference/campaign-toml", "docs/reference/python", "docs/reference/targets",
        "docs/reference/faults", "docs/reference/scenarios", "docs/reference/workloads",
        "docs/reference/checkers", "docs/reference/models", "docs/reference/findings",
        "docs/reference/campaigns", "docs/reference/planted-bugs",
    ),
    "The project": (
        "docs/architecture", "docs/lives", "docs/debugging", "docs/mutation", "docs/throughput",
        "docs/ten-billion", "docs/contributing", "docs/adr/index", "docs/changelog",
    ),
}  # fmt: skip
"""Headings of the sidebar, and their pages. A page that is in none fails the build."""


def added(texts: Mapping[PurePosixPath, str]) -> Mapping[PurePosixPath, str]:
    """Return all pages with the lists that the sidebar is made of."""
    trees = [_tree(pages, caption) for caption, pages in SECTIONS.items()]
    decisions = sorted(place for place in texts if place.parent == DECISIONS.parent)
    return {
        **texts,
        INDEX: "\n".join([texts[INDEX], *trees]),
        DECISIONS: "# Decisions\n\nDecisions with real alternatives, oldest first.\n\n"
        + _tree([place.stem for place in decisions], "", is_shown=True),
    }


def _tree(pages: Sequence[str], caption: str, *, is_shown: bool = False) -> str:
    options = [f":caption: {caption}"] if caption else []
    options += [":maxdepth: 1"] if is_shown else [":hidden:"]
    return "\n".join(
        [
            "```{toctree}",
            *options,
            "",
            *(f"/{page}" if "/" in page else page for page in pages),
            "```\n",
        ]
    )
