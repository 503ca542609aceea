"""The journal of a mutation run: one line of JSON for each judgement, appended as it is made."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from tests.mutation.stages import Outcome


class Journal:
    """What is known of each mutant, by judge. The latest line of a mutant and judge counts."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.known: dict[tuple[str, str], Outcome] = {}
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
            entry.pop("tree", None)
            self.known[key] = Outcome(**entry)

    def note(self, mutant: str, judge: str, outcome: Outcome, tree: str) -> None:
        """Append a judgement. `tree` names the state of the system that was judged."""
        self.known[mutant, judge] = outcome
        entry = {"mutant": mutant, "judge": judge, "tree": tree, **asdict(outcome)}
        with self._path.open("a") as file:
            file.write(json.dumps(entry) + "\n")

    def of(self, mutant: str, judge: str) -> Outcome | None:
        """Return what a judge found, if it was asked."""
        return self.known.get((mutant, judge))
