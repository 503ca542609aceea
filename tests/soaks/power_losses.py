"""Power losses of all nodes at once, under load: what was acknowledged, and what is left of it.

    .venv/bin/python tests/soaks/power_losses.py --losses 50                # without root
    sudo .venv/bin/python tests/soaks/power_losses.py --losses 50 --on ext4

Without root the nodes' disk keeps unsynced writes in the process, and SIGKILL loses them. With
root the stores stand on an ext4 of their own, in a file, which is shut down as it stands and
mounted again. With ack = fsync nothing acknowledged may be lost; with ack = page-cache the checker
of durability finds what is, and names it. Ends with 0 if that is what came out.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from ext4_machine import Ext4, ext4
from power_losses import Run, play

LOSSES_A_RUN = 10
DISK_BYTES = 1 << 30
NAMED_MAX = 2


def say(text: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> int:
    """Run all, print a line for each and what they add up to."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--losses", type=int, default=50, help="so many for each policy")
    parser.add_argument("--on", default="volatile", choices=("volatile", "ext4"))
    parser.add_argument("--ack", default="both", choices=("both", "fsync", "page-cache"))
    parser.add_argument("--first", type=int, default=0, help="seed of the first run")
    asked = parser.parse_args()
    policies = ("fsync", "page-cache") if asked.ack == "both" else (asked.ack,)
    say(f"{'ack':<12}{'losses':>7}{'biting':>7}{'unsynced bytes gone':>21}{'acked':>9}{'lost':>6}")
    with tempfile.TemporaryDirectory() as name:
        if asked.on == "volatile":
            runs = _play_all(policies, asked.losses, asked.first, Path(name), None)
        else:
            with ext4(Path(name), DISK_BYTES) as disk:
                runs = _play_all(policies, asked.losses, asked.first, Path(name), disk)
    say("")
    for policy in policies:
        mine = [run for run in runs if run.ack == policy]
        lost, biting = sum(run.lost for run in mine), sum(run.biting for run in mine)
        say(
            f"ack={policy} on {asked.on}: {sum(run.losses for run in mine)} power losses of all, "
            f"{biting} took unsynced bytes; {sum(run.acknowledged for run in mine):,} operations "
            f"answered, {lost} acknowledged appends lost"
        )
    return 0 if all(_is_expected(policy, runs) for policy in policies) else 1


def _is_expected(policy: str, runs: list[Run]) -> bool:
    mine = [run for run in runs if run.ack == policy]
    if not all(run.biting for run in mine):
        return False  # where no unsynced byte vanished nothing was shown
    lost = sum(run.lost for run in mine)
    return lost == 0 if policy == "fsync" else lost > 0


def _play_all(
    policies: tuple[str, ...], losses: int, first: int, store: Path, disk: Ext4 | None
) -> list[Run]:
    runs = []
    for policy in policies:
        for number, begun in enumerate(range(0, losses, LOSSES_A_RUN), first):
            run = play(policy, min(LOSSES_A_RUN, losses - begun), str(number), store, disk)
            runs.append(run)
            say(
                f"{policy:<12}{run.losses:>7}{run.biting:>7}{run.vanished_bytes:>21,}"
                f"{run.acknowledged:>9,}{run.lost:>6}"
            )
            for finding in run.durability.findings[:NAMED_MAX]:
                say(f"    {finding.kind}: {finding.message[:150]}")
    return runs


if __name__ == "__main__":
    sys.exit(main())
