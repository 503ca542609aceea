"""The journal of a mutation run: one line of JSON for each judgement, appended as it is made."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

from tests.mutation.stages import FOUND, Outcome

BY_MAX = 120


class Journal:
    """What is known of each mutant, by judge. The latest line of a mutant and judge counts."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.known: dict[tuple[str, str], Outcome] = {}
        self.tree_of: dict[tuple[str, str], str] = {}
        """Which state of the system each outcome is of."""
        if not path.exists():
            return
        text = path.read_text()
        if text and not text.endswith("\n"):
            path.write_text(text + "\n")
        for line in text.splitlines():
            try:
                entry = json.loads(line)
            except ValueError:
                continue  # the line that was being written when the run was cut
            key = entry.pop("mutant"), entry.pop("judge")
            self.tree_of[key] = entry.pop("tree", "")
            self.known[key] = Outcome(**entry)

    def note(self, mutant: str, judge: str, outcome: Outcome, tree: str) -> None:
        """Append a judgement. `tree` names the state of the system that was judged."""
        self.known[mutant, judge] = outcome
        self.tree_of[mutant, judge] = tree
        entry = {"mutant": mutant, "judge": judge, "tree": tree, **_said(outcome)}
        with self._path.open("a") as file:
            file.write(json.dumps(entry, separators=(",", ":")) + "\n")

    def of(self, mutant: str, judge: str) -> Outcome | None:
        """Return what a judge found, if it was asked."""
        return self.known.get((mutant, judge))

    @property
    def mutants(self) -> frozenset[str]:
        """All of which anything is known."""
        return frozenset(mutant for mutant, _ in self.known)

    def forget_missed(self, tree: str) -> None:
        """Forget what was not found on another state of the system: it is asked about again."""
        for key, outcome in list(self.known.items()):
            if outcome.outcome not in FOUND and self.tree_of[key] != tree:
                del self.known[key]

    def compact(self) -> None:
        """Leave out what was superseded. The file is kept with the project: it is read often."""
        latest = {}
        for line in self._path.read_text().splitlines():
            try:
                entry = json.loads(line)
            except ValueError:
                continue
            latest[entry["mutant"], entry["judge"]] = line
        partial = self._path.with_suffix(".partial")
        partial.write_text("".join(f"{latest[key]}\n" for key in sorted(latest)))
        partial.rename(self._path)


def _said(outcome: Outcome) -> dict[str, object]:
    """Return what a line says of an outcome: nothing of what is as it would be anyway."""
    said = asdict(replace(outcome, by=outcome.by[:BY_MAX], seconds=round(outcome.seconds, 1)))
    return {name: value for name, value in said.items() if value}
