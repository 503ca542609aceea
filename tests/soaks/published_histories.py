"""Checks histories that others published as `shaketable check` does; shows where verdicts differ.

python -m tests.soaks.published_histories FOLDER [SET ...]

FOLDER has a folder for each set, with VERDICTS.tsv in it. One process, so kernels are compiled or
loaded once; the seconds are wall time, the first history of a set may load some.
"""

from __future__ import annotations

import argparse
import csv
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from shaketable.harness.contracts.errors import HarnessError, UsageError
from shaketable.harness.contracts.isolation import LEVELS
from shaketable.harness.judging import engines
from shaketable.harness.judging.checking import CheckSettings, check_path
from shaketable.reports.check_page.checked_history import CheckedHistory

TABLE: Final = "VERDICTS.tsv"
LADDER: Final = {
    "read-committed": "strong-session-monotonic-atomic-view",
    "read-atomic": "strong-session-read-atomic",
    "causal": "causal",
}
"""The levels of Biswas & Enea, which respect sessions, by our names."""
SETTINGS: Final = {
    "set-full": CheckSettings(checkers=("set-full",), engine="local"),
    "rw-register": CheckSettings(checkers=("isolation",), engine="local"),
    "multi-register": CheckSettings(initial='{"x": 0, "y": 0}', engine="local"),
}
"""What has to be said besides the path, by the model: its first state is in a comment."""
AGREES, DIFFERS, UNKNOWN, REFUSED = "agrees", "differs", "unknown", "refused"


def lines_of(folder: Path) -> Iterator[dict[str, str]]:
    """Yield the lines of a set's table; `verdict` and `model` are always there."""
    with (folder / TABLE).open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file, delimiter="\t"):
            yield {"model": row.get("model or level", ""), **row}


def compare(path: Path, line: dict[str, str]) -> tuple[str, str]:
    """Return how a history's verdict compares with the published one, and the difference."""
    settings = SETTINGS.get(line["model"], CheckSettings(engine="local"))
    try:
        checked = check_path(path, settings, lambda _: engines.Engine(engines.LOCAL, ""), _silent)
    except (UsageError, HarnessError) as error:
        return REFUSED, str(error)
    return _compared(checked, line)


def _silent(_text: str) -> None:
    """Show no progress."""


def _compared(checked: CheckedHistory, line: dict[str, str]) -> tuple[str, str]:
    said = line["verdict"]
    data: dict[str, Any] = next(
        (each.data for each in checked.verdicts if "holds" in each.data), {}
    )
    if said in ("none", *LADDER):
        undecided = [each for each in LADDER.values() if each not in data["holds"] + data["broken"]]
        held = [name for name, level in LADDER.items() if level in data["holds"]]
        ours = (held or ["none"])[-1]
        if undecided:
            return UNKNOWN, f"undecided: {', '.join(undecided)}"
    elif line["model"] in LEVELS:
        ours = "invalid" if line["model"] in data["broken"] else "valid"
    else:
        ours = checked.outcome.name.lower()
    if ours == "unknown":
        return UNKNOWN, next(each.summary for each in checked.verdicts)
    if ours != said:
        return DIFFERS, f"{ours} here, {said} there"
    return _named(checked, data, line)


def _named(checked: CheckedHistory, data: dict[str, Any], line: dict[str, str]) -> tuple[str, str]:
    """Compare the anomalies and levels as well, where the table has them."""
    found = {finding.kind for each in checked.verdicts for finding in each.findings}
    kinds = {kind.replace("-item", "") for kind in found}
    wanted = {kind.replace("-item", "") for kind in line.get("anomalies", "").split()}
    broken = set(line.get("weakest levels broken", "").split())
    held = set(line.get("levels that hold", "").split(" ")[0].split()) - {"-"}
    missing = [
        *sorted(wanted - kinds),
        *sorted(broken - set(data.get("broken", ()))),
        *sorted(held - set(data.get("holds", ()))),
    ]
    return (DIFFERS, f"not here: {', '.join(missing)}") if missing else (AGREES, "")


def main() -> None:
    """Print a line for each set, and one for each history that does not agree."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("sets", nargs="*")
    given = parser.parse_args()
    names = given.sets or sorted(path.parent.name for path in given.folder.glob(f"*/{TABLE}"))
    heads = "".join(f"{each:>9s}" for each in ORDER)
    print(f"{'set':14s}{'histories':>10s}{heads}    total s  slowest s")  # noqa: T201
    for name in names:
        counts: Counter[str] = Counter()
        seconds: dict[str, float] = {}
        for line in lines_of(given.folder / name):
            start_s = time.perf_counter()
            how, why = compare(given.folder / name / line["file"], line)
            seconds[line["file"]] = time.perf_counter() - start_s
            counts[how] += 1
            if how != AGREES:
                print(f"  {how}: {name}/{line['file']}: {why}")  # noqa: T201
        slowest = max(seconds, key=seconds.__getitem__)
        shown = "".join(f"{counts[each]:9d}" for each in ORDER)
        print(  # noqa: T201
            f"{name:14s}{len(seconds):10d}{shown}{sum(seconds.values()):11.2f}"
            f"{seconds[slowest]:11.3f} {slowest}"
        )


ORDER: Final = (AGREES, DIFFERS, UNKNOWN, REFUSED)

if __name__ == "__main__":
    main()
