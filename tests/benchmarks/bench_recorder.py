"""How fast the recorder is: run by hand, prints operations a second and ratios. Not a test."""

import os
import sys
import tempfile
import time
from pathlib import Path

from shaketable.harness.history.segments import Recorder, read_segment

OPERATIONS = 100_000
GOAL_HZ = 20_000


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bench.seg"
        recorder = Recorder(path, time.monotonic_ns())
        began = time.perf_counter()
        for value in range(OPERATIONS):
            recorder.invoke(3, "append", "shaketable/0", value=value)
            recorder.complete(3, "ok", "append", "shaketable/0", offset=value, node="n0")
        recorder.close()
        record_s = time.perf_counter() - began

        bare = os.open(Path(folder) / "bare", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        chunk = bytes(path.stat().st_size // (2 * OPERATIONS))
        began = time.perf_counter()
        for _ in range(2 * OPERATIONS):
            os.write(bare, chunk)
        bare_s = time.perf_counter() - began
        os.close(bare)

        began = time.perf_counter()
        events = len(read_segment(path).events)
        read_s = time.perf_counter() - began
    rate = OPERATIONS / record_s
    sys.stdout.write(
        f"record {rate:,.0f} operations/s = {rate / GOAL_HZ:.1f} x the goal, "
        f"{record_s / bare_s:.1f} x the time of its bare write(2)s; "
        f"read back {events / read_s:,.0f} events/s\n"
    )


if __name__ == "__main__":
    main()
