"""Start Spark as a check does, run Python in it, stop it, and print the result.

`python -m shaketable.harness.doctoring.spark_trial` prints one line. It is a process of its own
because a JVM leaves traces (signals, threads), and so that it can be killed if it hangs.
"""

from __future__ import annotations

import sys
import time
from importlib.metadata import version
from typing import Final

from shaketable.checkers.spark.pipeline import SparkEngine
from shaketable.harness.contracts.errors import HarnessError, UsageError
from shaketable.harness.error_output import one_line

MASTER: Final = "local[1]"


def main() -> int:
    """Try Spark; return 0 if it works."""
    began_s = time.monotonic()
    engine = SparkEngine(MASTER)
    try:
        java = engine.start()
    except (UsageError, HarnessError) as error:
        sys.stderr.write(f"{one_line(error)}\n")
        return 1
    finally:
        engine.stop()
    on = "" if java is None else f" on {java.describe()}"
    took_s = time.monotonic() - began_s
    sys.stdout.write(
        f"Spark {version('pyspark')} started{on}, ran Python and ended, in {took_s:.1f} s\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
