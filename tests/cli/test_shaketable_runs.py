"""What tests see of a run that hangs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.shaketable_runs import shaketable


def test_a_run_that_hangs_says_where(tmp_path: Path) -> None:
    with pytest.raises(AssertionError) as told:
        shaketable("serve", "--store", tmp_path, "--port", "0", cwd=tmp_path, timeout_s=10)
    said = str(told.value)
    assert "no end after 10 s" in said
    assert "serve_forever" in said, "the stacks of its threads"
    assert "-m shaketable serve" in said, "its processes"
