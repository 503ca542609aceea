"""The findings of `doctor`: whether each fault works here on each world, with evidence. Pure.

A fault works if it was just injected into a real group, took effect by its own measure, and was
undone. Nothing else counts: no version, no rights, no installed program.

Source: DESIGN.md decision 11; HARNESSES.md section 5 (probe each by doing it).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from shaketable.harness.contracts.verdict import ExitCode

State = Literal["works", "no-effect", "lacking", "failed", "untried"]
"""works: took effect, measured; no-effect: injected, without a measured effect; lacking: the world
lacks a capability for it; failed: could not be injected or undone; untried: not reached."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault on one world.

    Attributes:
        fault, world: their names.
        state: the result.
        what: what was measured, or why it does not work; one line.
        took_s: duration of all attempts with the group's recovery.
    """

    fault: str
    world: str
    state: State
    what: str
    took_s: float = 0.0

    @property
    def works(self) -> bool:
        """Return whether it took effect, as measured now."""
        return self.state == "works"


@dataclass(frozen=True, slots=True)
class Fact:
    """A fact about this machine: its name, what was found, whether that is fine, and advice."""

    name: str
    what: str
    is_ok: bool
    advice: str = ""


@dataclass(frozen=True, slots=True)
class Examination:
    """The result of `doctor`.

    Attributes:
        findings: of each fault on each world.
        facts: about the machine.
        setting: as which user, in which namespaces the faults were tried.
        needed: the faults of the target's default campaign, which runs on the first world.
        target: the name of the system whose group they were tried on.
        worlds: where it can run, the usual one first.
    """

    findings: Sequence[Finding]
    facts: Sequence[Fact]
    setting: str
    needed: Sequence[str]
    target: str
    worlds: Sequence[str]

    def of(self, fault: str, world: str) -> Finding:
        """Return the finding of one fault on one world."""
        for finding in self.findings:
            if (finding.fault, finding.world) == (fault, world):
                return finding
        return Finding(fault, world, "untried", "not tried")

    @property
    def faults(self) -> list[str]:
        """The faults, sorted by name."""
        return sorted({finding.fault for finding in self.findings})

    @property
    def exit_code(self) -> ExitCode:
        """The best exit code that the default campaign can have here.

        0: it can run, and all its faults take effect; 2: it can run, but a fault has no effect or
        fails; 255: it cannot run.
        """
        needed = [self.of(fault, self.worlds[0]) for fault in self.needed]
        if any(not fact.is_ok for fact in self.facts):
            return ExitCode.HARNESS
        if any(finding.state == "untried" for finding in needed):
            return ExitCode.HARNESS
        return ExitCode.VALID if all(finding.works for finding in needed) else ExitCode.UNKNOWN

    def advice(self, finding: Finding) -> str:
        """Return how to get a fault that does not work there; "" if unknown."""
        if finding.works or finding.state == "untried":
            return ""
        elsewhere = [world for world in self.worlds if self.of(finding.fault, world).works]
        return f"use --world {elsewhere[0]}" if elsewhere else ""

    def to_json(self) -> dict[str, Any]:
        """Return JSON: target, setting, exit_code, faults ({fault: {world: {...}}}), facts."""
        return {
            "target": self.target,
            "setting": self.setting,
            "exit_code": int(self.exit_code),
            "faults": {
                fault: {world: self._json_of(self.of(fault, world)) for world in self.worlds}
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
    """Return findings for faults that were not tried on a world, with the reason."""
    return [Finding(fault, world, "untried", why) for fault in faults]
