"""Fetches the programs of others that tests use before they start.

So no time limit of a test includes a download.

    .venv/bin/python -m tests.support.foreign_programs
"""

from __future__ import annotations

import shutil
import sys

from shaketable.harness.cli import run
from shaketable.harness.installing import cache_folder
from shaketable.harness.judging import against
from tests.support import foreign_java

TARGETS = ("pysyncobj", "etcd", "nats", "rocketmq")
"""Targets that are installed on demand, and that a test in CI shakes."""


def main() -> int:
    """Fetch, compile and install; return the worst of the exit codes."""
    foreign_java.main()
    if shutil.which("go"):
        against.build(cache_folder(), print)
    return max(run(["install", target]) for target in TARGETS)


if __name__ == "__main__":
    sys.exit(main())
