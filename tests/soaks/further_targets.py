"""Installs the targets that CI does not install, and runs their tests.

    .venv/bin/python -m tests.soaks.further_targets

Downloads some 100 MB at first; takes some minutes. Ends with the exit code of pytest.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from shaketable.harness.cli import run
from tests.support.further_targets import FURTHER

ROOT = Path(__file__).parents[2]
END_TO_END = "tests/e2e/test_installed_targets.py"


def main() -> int:
    """Install them, run the tests that are named after them, and those of all targets."""
    for target in FURTHER:
        if code := run(["install", target]):
            return code
    files = (ROOT / f"tests/targets/test_{target}_client.py" for target in FURTHER)
    own = [str(file) for file in files if file.exists()]  # rocketmq's are in CI
    command = [sys.executable, "-m", "pytest", "-n", "0", "-v", *own, END_TO_END]
    named = ["-k", " or ".join(FURTHER)]
    return subprocess.run([*command, *named], cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
