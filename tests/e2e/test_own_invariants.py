"""A group that breaks its own rules from the first entry on: no harness error, but a verdict."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.shaketable_runs import shaketable

pytestmark = pytest.mark.e2e


@pytest.mark.parametrize(
    ("bug", "invariant"),
    [("ack-before-fsync", "acknowledged-is-durable"), ("vote-not-awaited", "vote-is-durable")],
)
def test_a_group_that_never_serves_is_judged(tmp_path: Path, bug: str, invariant: str) -> None:
    words = ("--time-limit", "8", "--steady", "2", "--faults", "none", "--engine", "local")
    done = shaketable("run", "--mutant", bug, *words, cwd=tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    said = " ".join(done.stdout.split())
    assert "stopped because a rule of its own was broken" in said
    assert f"{invariant}: " in said
    assert "violations/001-rule-broken.html" in said


def test_a_name_server_with_wrong_routes_is_judged(tmp_path: Path) -> None:
    words = ("--time-limit", "12", "--steady", "2", "--faults", "kill", "--engine", "local")
    done = shaketable("run", "--mutant", "dead-broker-kept", *words, "--seed", "1", cwd=tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    said = " ".join(done.stdout.split())
    assert "Name server ns0 (incarnation 1) stopped because a rule of its own was broken" in said
    assert "routes-name-who-is-there: " in said
