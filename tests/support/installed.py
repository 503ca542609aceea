"""Projects of other people, as `pip install` would leave them: found by their entry points."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path

RUN_TIMEOUT_S = 300


def install(project: Path, site: Path) -> None:
    """Put a project's modules and entry points into the folder `site`, without a network."""
    facts = tomllib.loads((project / "pyproject.toml").read_text())["project"]
    info = site / f"{facts['name'].replace('-', '_')}-{facts['version']}.dist-info"
    info.mkdir(parents=True)
    metadata = f"Metadata-Version: 2.1\nName: {facts['name']}\nVersion: {facts['version']}\n"
    (info / "METADATA").write_text(metadata)
    groups = [
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in points.items())
        for group, points in facts["entry-points"].items()
    ]
    (info / "entry_points.txt").write_text("\n".join(groups))
    for module in project.glob("*.py"):
        (site / module.name).write_bytes(module.read_bytes())


def shaketable(site: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run the command line where the projects of `site` are installed."""
    return subprocess.run(
        [sys.executable, "-m", "shaketable", *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": _joined((str(site), os.environ.get("PYTHONPATH", "")))},
        capture_output=True,
        text=True,
        timeout=RUN_TIMEOUT_S,
        check=False,
        stdin=subprocess.DEVNULL,
    )


def _joined(places: Iterable[str]) -> str:
    return os.pathsep.join(place for place in places if place)
