"""A target whose fake simulator also makes failing runs small. For tests of commands only.

Loaded by tests through an entry point, in the processes that run seeds, too.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass, field
from pathlib import Path

from fake_simulator import FakeSimulator
from fake_target import FakeTarget

from shaketable.harness.contracts.errors import UsageError
from shaketable.harness.contracts.simulation import RunSpec, ShrunkRun, Size, Violation, Watch

RUNS = 20
"""After so many the run is as small as it gets: each leaves out a tenth of its operations."""
BEFORE = Size(6, 1_000)
SAVED = "seed {seed}, {operations} operations left\n"


@dataclass(slots=True)
class FakeShrunkRun:
    """A run of which nothing is left but numbers."""

    mutant: str | None
    seed: int
    after: Size
    runs: int
    before: Size = BEFORE
    seconds: float = 0.5
    violation: Violation = field(default=Violation("one-leader", 4.0, "n0 and n1 both lead"))

    @property
    def is_finished(self) -> bool:
        return self.runs == RUNS

    @is_finished.setter
    def is_finished(self, _: bool) -> None:
        raise AssertionError("nobody sets it")

    def describe(self, width: int) -> str:
        return f"BROKEN: {self.violation.invariant}\n\ntold in {width} columns\n"

    def save(self, folder: Path) -> tuple[Path, Path]:
        run, page = folder / "shrunk.json", folder / "story.html"
        run.write_text(SAVED.format(seed=self.seed, operations=self.after.operations))
        page.write_text("<!doctype html>\n")
        return run, page


class FakeShrinker(FakeSimulator):
    """Halves nothing but numbers; `interrupt_at` runs it gets Ctrl-C, as often as it says."""

    shrinkable = frozenset({"core"})
    interrupts: tuple[int, ...] = ()

    def shrink(self, spec: RunSpec, seconds_max: float, watch: Watch) -> ShrunkRun | None:
        if self.run(spec).violation is None:
            return None
        return self._smaller(spec.seed, spec.mutant, BEFORE, watch)

    def shrink_file(self, path: Path, seconds_max: float, watch: Watch) -> ShrunkRun | None:
        text = path.read_text()
        if text == "nothing\n":
            return None
        if not text.startswith("seed "):
            raise UsageError(f"{path} is no shrunk run")
        words = text.replace(",", "").split()
        return self._smaller(int(words[1]), "late", Size(1, int(words[2])), watch)

    def _smaller(self, seed: int, mutant: str | None, before: Size, watch: Watch) -> ShrunkRun:
        left = before
        for runs in range(1, RUNS + 1):
            if runs in self.interrupts:
                signal.raise_signal(signal.SIGINT)
            left = Size(1, max(1, left.operations * 9 // 10))
            if not watch(runs, left):
                break
        return FakeShrunkRun(mutant, seed, left, runs, before)


class ShrinkableTarget(FakeTarget):
    """A fake target whose failing runs can be made small."""

    name = "fakeshrink"
    simulator = FakeShrinker()


TARGET = ShrinkableTarget()
