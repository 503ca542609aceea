"""Apache's Java and C++ clients on our group while its leader is killed, with more messages.

CI sends some thousand with each client; this sends as many as are asked for.

    .venv/bin/python -m tests.soaks.apache_clients --messages 10000

Exit codes: 0 all was sent and consumed exactly, 1 it was not.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

TEST = Path(__file__).parents[1] / "foreign" / "test_apache_clients.py"


def main() -> int:
    """Run the test with so many messages; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--messages", type=int, default=10_000, metavar="N")
    given = parser.parse_args()
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n0", "--timeout", "0", "--durations=1", str(TEST)],
        env={**os.environ, "SHAKETABLE_APACHE_MESSAGES": str(given.messages)},
        check=False,
    )
    return int(done.returncode != 0)


if __name__ == "__main__":
    sys.exit(main())
