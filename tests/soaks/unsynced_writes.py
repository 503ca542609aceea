"""Programs that write with and without syncs, and lose power: each loses what it had not synced.

    .venv/bin/python tests/soaks/unsynced_writes.py --tries 500     # as root, and as any other user

Every other program is C. They write, write through mmap, cut, rename and unlink files of two
folders, with and without fsync, msync and fsync of the folder, and kill themselves. Then exactly
what was synced must be there. Ends with 0 if that was so each time.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).parents[2] / "src"))
sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

import unsynced_writers as writers

from shaketable.harness.volatile_disk.disk import VolatileDisk

SHOWN_MAX = 5


def main() -> int:
    """Play all tries; print what they add up to."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--tries", type=int, default=500)
    parser.add_argument("--seed", default="", help="the seeds begin with this; else drawn")
    asked = parser.parse_args()
    seed = asked.seed or f"{Random().getrandbits(32):x}"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "disk").mkdir()
        disk = VolatileDisk("n0", folder / "disk")
        try:
            disk.ready()
            python = [sys.executable, "-I", "-S", str(writers.PYTHON_WRITER)]
            programs = [python, [str(writers.compiled(folder))]]
            done = [
                writers.play(disk, folder, programs[number % 2], f"{seed}-{number}")
                for number in range(asked.tries)
            ]
        finally:
            disk.close()
    wrong = [each for each in done if not each.is_right]
    for each in wrong[:SHOWN_MAX]:
        left, right = (
            {name: (len(data), data[:1].hex()) for name, data in sorted(files.items())}
            for files in (each.left, each.expected)
        )
        sys.stdout.write(f"seed {each.seed}: left {left}, not {right}; told {each.lost}\n")
    lost = {what: sum(each.lost[what] for each in done) for what in ("bytes", "entries")}
    sys.stdout.write(
        f"uid {os.geteuid()}: {len(done) - len(wrong)} of {len(done)} lost exactly what they had"
        f" not synced: {lost['bytes']:,} bytes, {lost['entries']:,} directory entries"
        f" ({sum(each.is_synced for each in done)} had synced everything; seed {seed})\n"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
