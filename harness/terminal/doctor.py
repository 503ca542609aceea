"""The command `doctor`: find out which faults work here, by injecting them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Annotated, Final

from cyclopts import Parameter
from rich.live import Live
from rich.table import Table
from rich.text import Text

from shaketable.harness import discovery
from shaketable.harness.campaigns.campaign import Campaign, worlds_of
from shaketable.harness.contracts.errors import UsageError
from shaketable.harness.contracts.plugins import Target
from shaketable.harness.contracts.verdict import ExitCode
from shaketable.harness.doctoring.examination import examine
from shaketable.harness.doctoring.findings import Examination, Finding, State
from shaketable.harness.doctoring.survey import Survey
from shaketable.harness.terminal import output
from shaketable.harness.terminal.output import show_rows

SHOWN: Final[dict[State, tuple[str, str]]] = {
    "works": ("works", "green"),
    "lacking": ("-", "dim"),
    "no-effect": ("no effect", "yellow"),
    "failed": ("failed", "red"),
    "untried": ("not tried", "red"),
}
"""The label and style of each state."""
CONCLUSIONS: Final = {
    ExitCode.VALID: "can run here, and each of its faults works",
    ExitCode.UNKNOWN: "can run here, but a fault of it has no effect",
    ExitCode.HARNESS: "cannot run here",
}


def doctor(
    *,
    target: Annotated[str, Parameter(name=("--target", "-t"))] = Campaign().target,
    world: Annotated[
        tuple[str, ...], Parameter(consume_multiple=False, negative="", show_default=False)
    ] = (),
    as_json: Annotated[bool, Parameter(name="--json", negative="")] = False,
) -> int:
    """Try every fault in every world on this machine, and say what works.

    Starts a group with clients in each world, injects each fault and measures its effect, as in a
    campaign. "works" means that it was done just now and took effect; otherwise the reason is
    shown. Takes about a minute, and leaves nothing behind. Faults from entry points are tried too.
    With --target it is your own system's group, on its hosts if shaketable.toml names some.

    Exit code 0: the default campaign can run, and each of its faults works; 2: it can run, but a
    fault of it has no effect, or fails; 255: it cannot run.

    For example:
    ./shaketable doctor
    ./shaketable doctor --target mykv --world hosts
    ./shaketable doctor --json

    Args:
        target: Whose group the faults are tried on.
        world: Where; may be repeated. Default: all worlds that the target can run in.
        as_json: Print one JSON object, for programs.
    """
    patient = discovery.get("targets", target)
    worlds = _chosen(patient, world)
    with ExitStack() as stack:

        def surveyed(survey: Survey, worlds: Sequence[str]) -> Callable[[Finding], None]:
            shown = _progress(survey.rows, worlds, is_shown=not as_json)
            return stack.enter_context(shown).take

        found = examine(surveyed, patient, worlds)
    if as_json:
        _print_json(found)
    else:
        show(found)
    return found.exit_code


def _chosen(target: Target, wanted: Sequence[str]) -> tuple[str, ...]:
    """Return the worlds to try, in their order.

    Raises:
        UsageError: the target cannot run in one of them.
    """
    known = worlds_of(target)
    for world in wanted:
        if world not in known:
            raise UsageError(f"--world {world}: {target.name} runs in {', '.join(known)}")
    return tuple(world for world in known if world in wanted or not wanted)


def show(found: Examination) -> None:
    """Print the result: which faults work where, the evidence, and facts about the machine."""
    out = output.out
    out.print()
    setting = f"tried on {found.target}, as {found.setting}"
    out.print(Text("Faults", style="bold"), Text(setting, style="dim"))
    table = Table.grid(padding=(0, 3, 0, 0))
    table.add_row("", *(Text(world, style="bold") for world in found.worlds))
    for fault in found.faults:
        table.add_row(f"  {fault}", *(_shown(found.of(fault, world)) for world in found.worlds))
    _print_table(table)
    for world in found.worlds:
        here = [found.of(fault, world) for fault in found.faults]
        working = [finding for finding in here if finding.works]
        others = [finding for finding in here if not finding.works]
        if working:
            out.print()
            out.print(Text(f"Measured on {world}", style="bold"))
            show_rows(out, [(finding.fault, finding.what) for finding in working])
        if others:
            out.print()
            out.print(Text(f"Not on {world}", style="bold"))
            show_rows(out, _reasons(found, others))
    out.print()
    out.print(Text("This machine", style="bold"))
    show_rows(out, [(fact.name, _advised(fact.what, fact.advice)) for fact in found.facts])
    out.print()
    works = sum(finding.works for finding in found.findings)
    out.print(
        Text(f"{works} of {len(found.faults) * len(found.worlds)} work; {_conclusion(found)}"),
        soft_wrap=True,
    )


def _conclusion(found: Examination) -> str:
    """Return whether the default campaign can run; a failing fault is not one without effect."""
    campaign = "the default campaign"
    if found.target != Campaign().target:
        campaign += f" of {found.target}"
    failed = [name for name in found.needed if found.of(name, found.worlds[0]).state == "failed"]
    if failed and found.exit_code == ExitCode.UNKNOWN:
        fail = "a fault of it fails" if len(failed) == 1 else "faults of it fail"
        return f"{campaign} can run here, but {fail}: {', '.join(failed)}"
    return f"{campaign} {CONCLUSIONS[found.exit_code]}"


def _reasons(found: Examination, findings: list[Finding]) -> list[tuple[str, str]]:
    """Return why faults do not work, with one row per reason."""
    by_reason: dict[str, list[str]] = {}
    for finding in findings:
        by_reason.setdefault(_advised(finding.what, found.advice(finding)), []).append(
            finding.fault
        )
    if len(by_reason) == 1 and len(findings) == len(found.faults):
        return [("all of them", reason) for reason in by_reason]
    return [(", ".join(faults), reason) for reason, faults in by_reason.items()]


def _advised(what: str, advice: str) -> str:
    return f"{what}; {advice}" if advice else what


def _shown(finding: Finding) -> Text:
    label, style = SHOWN[finding.state]
    return Text(label, style=style)


def _print_table(table: Table) -> None:
    out = output.out
    if out.is_terminal:
        out.print(table)
        return
    with out.capture() as captured:  # rich pads columns with spaces: strip them outside a terminal
        out.print(table)
    for line in captured.get().splitlines():
        out.print(line.rstrip(), markup=False, highlight=False, soft_wrap=True)


def _print_json(found: Examination) -> None:
    output.out.write(f"{json.dumps(found.to_json(), indent=1)}\n")


class _Progress:
    """Shows the progress of each world's trials."""

    def __init__(
        self, total: int, worlds: Sequence[str], live: Live | None, is_shown: bool
    ) -> None:
        self._total = total
        self._live = live
        self._is_shown = is_shown
        self._tried: dict[str, int] = dict.fromkeys(worlds, 0)
        self._last: dict[str, str] = dict.fromkeys(worlds, "starting a group")

    def take(self, finding: Finding) -> None:
        """Record that a fault was tried."""
        self._tried[finding.world] += 1
        is_over = self._tried[finding.world] == self._total
        self._last[finding.world] = "" if is_over else finding.fault
        if self._live is not None:
            self._live.update(self.panel())
        elif self._is_shown and is_over:
            output.out.print(f"world {finding.world}: {self._total} faults looked at")

    def panel(self) -> Table:
        """Render the progress for a terminal."""
        table = Table.grid(padding=(0, 2, 0, 0))
        for world, tried in self._tried.items():
            count = f"{tried} of {self._total}"
            table.add_row(f"  {world}", count, Text(self._last[world], style="dim"))
        return table


@contextmanager
def _progress(total: int, worlds: Sequence[str], is_shown: bool) -> Iterator[_Progress]:
    out = output.out
    if not (is_shown and out.is_terminal):
        if is_shown:
            where = f"world {worlds[0]}" if len(worlds) == 1 else f"{len(worlds)} worlds"
            out.print(f"trying {total} faults on {where}; takes about a minute")
        yield _Progress(total, worlds, None, is_shown)
        return
    with Live(console=out, transient=True, refresh_per_second=4) as live:
        progress = _Progress(total, worlds, live, is_shown)
        live.update(progress.panel())
        yield progress
