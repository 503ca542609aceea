"""Faults of somebody else's, installed as `pip` would: every process finds them by entry points."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest
from installed import install

from shaketable.harness import discovery

FAULT = '''
import os, subprocess, sys, time
from pathlib import Path
import trio
from shaketable.harness.contracts.plugins import Evidence


class Foreign:
    """A fault that does nothing, and says that it bit."""

    name = {name!r}
    family = "other"

    def configured(self, options):
        return self

    def unavailable(self, target, nodes):
        return None

    def plan(self, rng, nodes, turn):
        return {{"turn": turn}}

    def aim(self, plan, nodes, leader):
        return plan

    def describe(self, plan):
        return "nothing"

    async def apply(self, plan, world):
        return dict(plan)

    async def probe(self, plan, undo, world):
        return Evidence(True, "it says so")

    async def undo(self, undo, world):
        pass
'''
CLASS = "class Mine(Foreign):\n"
PLUGIN = "\n\nPLUGIN = Mine()\n"


def put_in(site: Path, monkeypatch: pytest.MonkeyPatch, faults: Mapping[str, str]) -> None:
    """Install a project with these faults: by name, what their class has in place of the usual.

    A text that begins with no space is what the module does when it is imported.
    """
    project = site / "project"
    project.mkdir(parents=True)
    points = []
    for name, text in faults.items():
        module = f"foreign_{name.replace('-', '_')}"
        points.append(f'{name} = "{module}:PLUGIN"')
        begin = FAULT.format(name=name)
        is_class = text.startswith(" ") or not text
        body = f"{CLASS}{text or '    pass'}\n" if is_class else f"{CLASS}    pass\n\n\n{text}\n"
        (project / f"{module}.py").write_text(f"{begin}\n\n{body}{PLUGIN}")
    (project / "pyproject.toml").write_text(
        '[project]\nname = "foreign"\nversion = "1"\n[project.entry-points."shaketable.faults"]\n'
        + "\n".join(points)
    )
    install(project, site)
    monkeypatch.syspath_prepend(site)
    monkeypatch.setenv("PYTHONPATH", str(site), prepend=os.pathsep)
    discovery.clear_caches()
