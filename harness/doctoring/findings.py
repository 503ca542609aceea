"""What a doctor finds: of each fault on each world whether it works here, and what shows it. Pure.

A fault works where it was done just now to a real group and took effect, by its own measure, and
was undone. Nothing else counts: no version, no rights, no program that is there.

Source: DESIGN.md decision 11; HARNESSES.md section 5 (probe each by doing it).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from shaketable.harness.contracts.verdict import ExitCode

State = Literal["works", "no-effect", "lacking", "failed", "untried"]
"""works: took effect, measured; no-effect: done, and nothing showed; lacking: the world has no
word for it; failed: could not be done, or not be undone; untried: its world did not get so far."""
World = Literal["process", "netns", "sim"]
WORLDS: Final[tuple[World, ...]] = ("process", "netns", "sim")


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault on one world.

    Attributes:
        fault, world: their names.
        state: what came of it.
        what: what was measured, or why it does not work; one line.
        took_s: how long it took, all attempts and the group's recovery included.
    """

    fault: str
    world: str
    state: State
    what: str
    took_s: float = 0.0

    @property
    def works(self) -> bool:
        """Whether it took effect, measured now."""
        return self.state == "works"


@dataclass(frozen=True, slots=True)
class Fact:
    """Something about this machine: its name, what was found, and whether it is as it should be."""

    name: str
    what: str
    is_ok: bool
    advice: str = ""


@dataclass(frozen=True, slots=True)
class Examination:
    """All that was found.

    Attributes:
        findings: of each fault on each world.
        facts: of the machine.
        setting: as whom, in which namespaces this was tried.
        needed: the faults of the default campaign, which runs on world process.
    """

    findings: Sequence[Finding]
    facts: Sequence[Fact]
    setting: str
    needed: Sequence[str]

    def of(self, fault: str, world: str) -> Finding:
        """What was found of one fault on one world."""
        for finding in self.findings:
            if (finding.fault, finding.world) == (fault, world):
                return finding
        return Finding(fault, world, "untried", "not tried")

    @property
    def faults(self) -> list[str]:
        """The faults in the order of their names."""
        return sorted({finding.fault for finding in self.findings})

    @property
    def exit_code(self) -> ExitCode:
        """How the default campaign would end here at best.

        0: it can run, and all its faults take effect; 2: it can run, and a fault of it takes no
        effect, or fails; 255: it cannot run.
        """
        needed = [self.of(fault, WORLDS[0]) for fault in self.needed]
        if any(not fact.is_ok for fact in self.facts):
            return ExitCode.HARNESS
        if any(finding.state == "untried" for finding in needed):
            return ExitCode.HARNESS
        return ExitCode.VALID if all(finding.works for finding in needed) else ExitCode.UNKNOWN

    def advice(self, finding: Finding) -> str:
        """Say how to get a fault that does not work there; "" if that is known to nobody."""
        if finding.works or finding.state == "untried":
            return ""
        elsewhere = [world for world in WORLDS if self.of(finding.fault, world).works]
        return f"use --world {elsewhere[0]}" if elsewhere else ""

    def to_json(self) -> dict[str, Any]:
        """For programs: {"setting", "faults": {fault: {world: {...}}}, "facts", "exit_code"}."""
        return {
            "setting": self.setting,
            "exit_code": int(self.exit_code),
            "faults": {
                fault: {world: self._json_of(self.of(fault, world)) for world in WORLDS}
                for fault in self.faults
            },
            "facts": {
                fact.name: {"what": fact.what, "ok": fact.is_ok, "advice": fact.advice}
                for fact in self.facts
            },
        }

    def _json_of(self, finding: Finding) -> dict[str, Any]:
        return {
            "works": finding.works,
            "state": finding.state,
            "what": finding.what,
            "advice": self.advice(finding),
            "took_s": finding.took_s,
        }


def untried(faults: Iterable[str], world: str, why: str) -> list[Finding]:
    """Say of faults that they were not tried on a world, and why."""
    return [Finding(fault, world, "untried", why) for fault in faults]
