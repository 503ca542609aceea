"""What the pages of our own findings give to reproduce them does so."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from shaketable.harness.installing import cache_folder, folder_of

FINDINGS = Path(__file__).parents[2] / "docs" / "findings"


def test_pysyncobj_loses_commands_when_it_is_killed_as_it_compacts(tmp_path: Path) -> None:
    page = (FINDINGS / "pysyncobj-0.3.17-compaction.md").read_text()
    script = tmp_path / "lost_commands.py"
    script.write_text(page.split("```python\n")[1].split("```")[0])
    library = folder_of(cache_folder(), "pysyncobj", "0.3.17")
    done = subprocess.run(
        [sys.executable, script],
        env={**os.environ, "PYTHONPATH": str(library)},
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    assert len(done.stdout.splitlines()) == 3, done.stdout + done.stderr
    assert "LOST" in done.stdout, "each of three attempts loses some with probability 0.85"
