"""The jobs of docs/gate.md: they are what GitHub and GitLab take, and their steps work."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from lxml import etree

ROOT = Path(__file__).parent.parent.parent
BLOCK = re.compile(r"```(?:toml|yaml)\n# (\S+)\n(.*?)```", re.DOTALL)
SCHEMA = etree.XMLSchema(etree.parse(ROOT / "tests" / "gating" / "junit.xsd"))
WORKFLOW, GITLAB = ".github/workflows/shake.yml", ".gitlab-ci.yml"
# Virtual time and a seed: the same run, and the same numbers, on every machine. Judged without
# Spark, whose start takes longer than all of it, and which says the same.
IN_A_TEST = {
    'world = "process"': 'world = "sim"\nseed = "gate"\nengine = "local"',
    "time_limit = 60.0": "time_limit = 20.0",
}


def files() -> dict[str, str]:
    return dict(BLOCK.findall((ROOT / "docs" / "gate.md").read_text(encoding="utf-8")))


def written(folder: Path) -> Path:
    """Write the files of the document as they would stand in somebody's repository."""
    for name, text in files().items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    campaign = folder / "ci" / "shake.toml"
    for there, here in IN_A_TEST.items():
        assert there in campaign.read_text()
        campaign.write_text(campaign.read_text().replace(there, here))
    start = folder / "shaketable"
    start.write_text(f'#!/bin/sh\nexec "{sys.executable}" -P -m shaketable "$@"\n')
    start.chmod(0o755)
    return folder


def step(folder: Path, script: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run a step as both runners do: by a shell that ends at the first command that fails."""
    return subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", script],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environ},
        capture_output=True,
        text=True,
        check=False,
        timeout=250,
        stdin=subprocess.DEVNULL,
    )


def steps_of(workflow: dict[str, Any]) -> list[str]:
    return [one["run"] for one in workflow["jobs"]["shake"]["steps"] if "run" in one]


@pytest.mark.parametrize(
    ("name", "schema"), [(WORKFLOW, "vendor.github-workflows"), (GITLAB, "vendor.gitlab-ci")]
)
def test_the_jobs_are_what_their_systems_take(tmp_path: Path, name: str, schema: str) -> None:
    def checked(text: str) -> int:
        (tmp_path / "job.yml").write_text(text)
        command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, "job.yml"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, check=False, timeout=60)
        return done.returncode

    text = files()[name]
    assert checked(text) == 0
    assert checked(text.replace("timeout", "tiemout")) == 1


@pytest.mark.e2e
@pytest.mark.timeout(600)
def test_the_steps_of_the_jobs_work(tmp_path: Path) -> None:
    folder = written(tmp_path)
    shake, gate = steps_of(yaml.safe_load(files()[WORKFLOW]))
    gitlab = yaml.safe_load(files()[GITLAB])["shake"]
    assert gitlab["script"][0] == shake
    ran = step(folder, shake)
    assert ran.returncode == 0, ran.stdout + ran.stderr

    runner = {"GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": "summary.md"}
    gated = step(folder, gate, **runner)
    assert gated.returncode == 0, gated.stdout + gated.stderr
    assert "PASSED  1 run" in gated.stdout
    assert (folder / "summary.md").read_text().startswith("## shaketable gate passed")

    gated = step(folder, gitlab["script"][1])
    assert gated.returncode == 0, gated.stdout + gated.stderr
    made = [gitlab["artifacts"]["reports"]["junit"], *gitlab["artifacts"]["paths"], "gate.sarif"]
    assert all((folder / name).exists() for name in made)
    assert SCHEMA.validate(etree.parse(folder / "gate.xml"))
    assert SCHEMA.validate(etree.parse(folder / "shaken" / "latest" / "junit.xml"))

    policy = folder / "ci" / "gate.toml"
    policy.write_text(policy.read_text().replace("operations = 1000", "operations = 10000000"))
    gated = step(folder, gate, **runner)
    assert gated.returncode == 2
    assert "::error title=shake/" in gated.stdout


@pytest.mark.e2e
def test_a_harness_that_fails_fails_the_job(tmp_path: Path) -> None:
    folder = written(tmp_path)
    (folder / "ci" / "shake.toml").write_text("name = 3\n")
    shake, gate = steps_of(yaml.safe_load(files()[WORKFLOW]))
    assert step(folder, shake).returncode != 0
    assert step(folder, gate).returncode == 254
